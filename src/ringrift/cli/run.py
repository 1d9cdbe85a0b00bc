"""`ringrift run`: the loop of this machine, in the foreground."""

from __future__ import annotations

import asyncio
import html
import logging
import os
import signal
import sys
import webbrowser
from collections.abc import Mapping
from contextlib import ExitStack

import click
import structlog
from rich.console import Console

from ringrift.bootstrap.control_process import Started, run_control_process
from ringrift.bootstrap.learning_libraries import check_learning_libraries
from ringrift.bootstrap.run_options import (
    RunOptions,
    get_run_options,
    parse_configs,
    parse_workers,
    set_run_options,
)
from ringrift.cli.answers import plain_errors
from ringrift.cli.control import page_link
from ringrift.cli.durations import parse_duration
from ringrift.cli.live_view import PlainView, View, live_view
from ringrift.cli.logs import log_to_file, log_to_stderr
from ringrift.cli.options import check_data_folder, on_data_folder
from ringrift.cli.terminal import console
from ringrift.daemons.graph import PROFILES
from ringrift.engine.opening import close_data_folder, get_engine
from ringrift.errors import ConfigError, RingRiftError, StorageFull
from ringrift.full_disk import full_disk
from ringrift.held_folder import remove_file
from ringrift.private_files import open_private, private_umask
from ringrift.runtime import Runtime, system_runtime
from ringrift.settings import get_settings
from ringrift.web.address import read_address
from ringrift.web.run_reader import RunReader

log = structlog.get_logger()

LINK_FILE = "page_link.html"
STOP_LOOK_S = 0.25
PROFILE_HELP = f"Which daemons to run: {', '.join(PROFILES)}."


@click.command()
@click.option("--configs", help="Configs to learn, such as square8_2p,hex8_2p; else those of before.")
@click.option("--workers", type=int, metavar="N", help="Jobs at a time; one a core if not given.")
@click.option("--for", "duration", metavar="TIME", help="Stop after this time: 90s, 10m, 2h.")
@on_data_folder
@click.option("--profile", default="standard", show_default=True, help=PROFILE_HELP)
@click.option("--plain", is_flag=True, help="Log lines instead of the live view.")
@click.option("--no-open", is_flag=True, help="Do not open the live page.")
@click.option("--begin-anew", is_flag=True, help="Set the run that is in the folder aside, and begin.")
def run(
    configs: str | None,
    workers: int | None,
    duration: str | None,
    profile: str,
    plain: bool,
    no_open: bool,
    begin_anew: bool,
) -> None:
    """Learn on this machine until interrupted; stop and start as you like."""
    with plain_errors():
        limit_s = None if duration is None else parse_duration(duration)
        _check_profile(profile)
        live = not plain and console().is_terminal
        set_run_options(
            RunOptions(
                configs=None if configs is None else parse_configs(configs),
                workers=None if workers is None else parse_workers(workers),
                open_browser=not no_open and live and has_display(os.environ),
                begin_anew=begin_anew,
            )
        )
        settings, runtime = get_settings(), system_runtime()
        check_data_folder()
        os.umask(private_umask(settings.data_dir))  # for all that it starts, too
        close_data_folder(settings)
        check_learning_libraries(settings)
        with ExitStack() as stack:
            if live:
                log_path = settings.data_dir / "logs" / "control.log"
                stack.callback(log_to_file(log_path).close)
                view: View = stack.enter_context(
                    live_view(Console(highlight=False), settings.data_dir, log_path, runtime)
                )
            else:
                log_to_stderr(logging.INFO)
                view = PlainView(runtime)
            asyncio.run(run_with_view(profile, view, limit_s=limit_s, runtime=runtime))
            view.stopped()
        if full_disk().is_met:
            raise StorageFull(
                f"the disk with {settings.data_dir} was full when the run ended", retry_after_s=30.0
            )


def _check_profile(profile: str) -> None:
    """Before anything is made or started for it."""
    if profile not in PROFILES:
        raise ConfigError(f"--profile is {profile!r}; it must be one of {', '.join(PROFILES)}")


def has_display(environ: Mapping[str, str]) -> bool:
    """Whether a browser would open in front of whoever sits at this terminal."""
    if environ.get("SSH_CONNECTION"):
        return False
    return sys.platform == "darwin" or bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


async def run_with_view(profile: str, view: View, *, limit_s: float | None, runtime: Runtime) -> None:
    """Run the control process until a signal or the time limit, and show how it is."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    started: asyncio.Future[Started] = loop.create_future()
    try:
        async with asyncio.TaskGroup() as group:
            control = group.create_task(_control(profile, stop, started))
            company = [group.create_task(_show(view, started, stop, runtime))]
            if limit_s is not None:
                company.append(group.create_task(_stop_after(stop, limit_s, runtime)))
            control.add_done_callback(lambda _: [task.cancel() for task in company])
    except ExceptionGroup as failures:
        ours, others = failures.split(RingRiftError)
        if ours is None or others is not None:
            raise
        raise ours.exceptions[0] from None


async def _control(profile: str, stop: asyncio.Event, started: asyncio.Future[Started]) -> None:
    await run_control_process(profile=profile, stop=stop, on_started=started.set_result)


async def _show(view: View, started: asyncio.Future[Started], stop: asyncio.Event, runtime: Runtime) -> None:
    view.starting()
    news = await started
    link = await asyncio.to_thread(_link)
    view.started(news, link)
    if link is not None and get_run_options().open_browser:
        await asyncio.to_thread(_open_page, link)
    reader, kv, next_s = RunReader(), (await get_engine()).kv, 0.0
    while not stop.is_set():
        if runtime.monotonic_s() >= next_s:
            view.refresh(news.manager, await reader.read(kv))
            next_s = runtime.monotonic_s() + view.every_s
        await runtime.sleep(STOP_LOOK_S)
    view.stopping()


def _link() -> str | None:
    """The link to the page; None where no page is served."""
    address = read_address(get_settings().coordination_dir)
    if address is None:
        return None
    try:
        return page_link(address)
    except RingRiftError as error:
        log.warning("run.no_link", error=str(error))
        return None


def _open_page(link: str) -> None:
    """Have a browser open a file that leads on: other users can read its command line, but not the file."""
    path = get_settings().data_dir / LINK_FILE
    try:
        remove_file(path)
        with os.fdopen(
            open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w", encoding="utf-8"
        ) as file:
            file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={html.escape(link)}">\n')
    except OSError as error:
        log.warning("run.no_link", error=str(error))
        return
    webbrowser.open(path.absolute().as_uri())


async def _stop_after(stop: asyncio.Event, limit_s: float, runtime: Runtime) -> None:
    await runtime.sleep(limit_s)
    stop.set()
