"""`ringrift run`: the loop of this machine, in the foreground."""

from __future__ import annotations

import asyncio
import html
import logging
import os
import signal
import sys
import webbrowser
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import click
import structlog
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ringrift.cli.command import check_data_folder, on_data_folder, plain_errors
from ringrift.cli.control import page_link
from ringrift.cli.drawing import draw_run, head_line, loss_text
from ringrift.cli.format import console, parse_duration, rating
from ringrift.cli.logs import log_to_file, log_to_stderr
from ringrift.control.process import Started, run_control_process
from ringrift.control.run_options import (
    RunOptions,
    check_learning_libraries,
    current_choice,
    parse_configs,
    parse_workers,
)
from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.daemon_manager import DaemonManager
from ringrift.coordination.event_router import get_router
from ringrift.daemons.registry import PROFILES
from ringrift.daemons.types import DaemonState
from ringrift.engine.opening import close_data_folder, get_engine
from ringrift.errors import ConfigError, RingRiftError, StorageFull
from ringrift.files import full_disk, open_private, private_umask, remove_file
from ringrift.health.run_status import RunStatus, read_address
from ringrift.runtime import Runtime, system_runtime
from ringrift.web.snapshot import RunReader

# What `ringrift run` shows: a live view at a terminal, log lines elsewhere.


log = structlog.get_logger()

EVENTS_SHOWN = 8  # as many lines as the other half of the view has
FIELDS_SHOWN = 4
SUMMARY_EVERY_S = 30.0  # often enough to see that it lives, seldom enough for a log that is kept
LINK_TEXT = "the live page, with the key to act; good once (`ringrift link` prints another):"
BORDER_CHARS, BORDER_LINES = 4, 6
_COLORS = {
    "healthy": "green",
    "degraded": "yellow",
    "unhealthy": "red",
    DaemonState.RUNNING.value: "green",
    DaemonState.FAILED.value: "red",
    DaemonState.IMPORT_FAILED.value: "red",
    DaemonState.DEGRADED.value: "yellow",
    DaemonState.RESTARTING.value: "yellow",
}


class View(Protocol):
    """Somebody who wants to know."""

    every_s: float

    def starting(self) -> None: ...

    def started(self, begun: Started, link: str | None) -> None:
        """The *link* brings the page its key, once: for a person's eyes, never for a log."""
        ...

    def refresh(self, manager: DaemonManager, status: RunStatus | None) -> None: ...

    def stopping(self) -> None: ...

    def stopped(self) -> None: ...


class PlainView:
    """Log lines: at the start, for every decision, and a summary now and then."""

    every_s = 2.0

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._summary_due_s = runtime.monotonic_s() + SUMMARY_EVERY_S
        self._shown_s = runtime.now_s()
        self._began_s = runtime.monotonic_s()

    def starting(self) -> None:
        log.info("run.starting")

    def started(self, begun: Started, link: str | None) -> None:  # noqa: ARG002 - logs are read by others
        address = read_address(get_settings().coordination_dir)
        log.info(
            "run.started",
            running=[daemon.value for daemon in begun.running],
            not_running=len(begun.left_out),
            page=None if address is None else address.url,
            **_choice_fields(),
        )

    def refresh(self, manager: DaemonManager, status: RunStatus | None) -> None:
        for decision in reversed(status.decisions if status is not None else ()):
            if decision.at_s > self._shown_s:
                self._shown_s = decision.at_s
                what, why = decision.what, decision.reason
                log.info("run.decided", config=decision.config, what=what, reason=why)
        if self._runtime.monotonic_s() < self._summary_due_s:
            return
        self._summary_due_s = self._runtime.monotonic_s() + SUMMARY_EVERY_S
        summary, stats = manager.get_status()["summary"], get_router().get_stats()
        log.info("run.status", **summary, events=stats["total_events_routed"])
        for key, config in status.configs.items() if status is not None else ():
            log.info(
                "run.config",
                config=key,
                stage=config.stage,
                games=config.games,
                games_per_s=round(config.games_per_s, 3),
                rows=config.rows,
                loss=loss_text(config.losses),
                rating=rating(config.rating, config.rating_interval),
                promotions=config.promotions,
            )

    def stopping(self) -> None:
        log.info("run.stopping")

    def stopped(self) -> None:
        log.info("run.stopped", took_s=round(self._runtime.monotonic_s() - self._began_s))


class LiveView:
    """One screen, redrawn twice a second."""

    every_s = 0.5

    def __init__(self, screen: Live, data_dir: Path, log_path: Path, runtime: Runtime) -> None:
        self._screen, self._data_dir, self._log_path = screen, data_dir, log_path
        self._runtime = runtime
        self._not_built = 0
        self._last: RenderableType = Text()

    def starting(self) -> None:
        self._screen.update(Text("starting…", style="dim"), refresh=True)

    def started(self, begun: Started, link: str | None) -> None:
        status = begun.manager.get_status()
        self._not_built = sum(bool(status[daemon].unavailable_reason) for daemon in begun.left_out)
        self._screen.console.print("\n".join(_choice_lines()))
        if link is not None:
            self._screen.console.print(f"{LINK_TEXT}\n{link}", markup=False, highlight=False, soft_wrap=True)

    def refresh(self, manager: DaemonManager, status: RunStatus | None) -> None:
        self._last = self.status_view(manager, status)
        self._screen.update(self._last, refresh=True)

    def status_view(self, manager: DaemonManager, status: RunStatus | None) -> RenderableType:
        size, now_s = self._screen.console.size, self._runtime.now_s()
        inner = size.width - BORDER_CHARS
        if status is None:
            body: list[RenderableType] = [self._daemons(manager), Text(), self._events()]
        else:
            body = [draw_run(status, now_s=now_s, width=inner, height=size.height - BORDER_LINES)]
        return Panel(
            Group(self._head(manager, status, now_s), Text(), *body),
            title="ringrift run",
            subtitle="Ctrl-C stops; `ringrift run` goes on where it was",
            padding=(0, 1),
        )

    def stopping(self) -> None:
        """The last view stays on the screen when all is over."""
        self._screen.update(Group(self._last, Text("stopping…", style="dim")), refresh=True)

    def stopped(self) -> None:
        self._screen.update(Group(self._last, Text("stopped", style="dim")), refresh=True)

    def _head(self, manager: DaemonManager, status: RunStatus | None, now_s: float) -> RenderableType:
        health = manager.health_summary()
        address = read_address(get_settings().coordination_dir)
        text = Text() if status is None else head_line(status, now_s=now_s).append("\n")
        well = health["status"]
        text.append(f"{well}, {health['running']} of {health['total']} daemons", style=_COLORS.get(well, ""))
        text.append(f"   page {address.url if address else 'not served'}")
        text.append(f"   data {self._data_dir}   log {self._log_path}", style="dim")
        if self._not_built and status is None:
            text.append(
                f"\n{self._not_built} daemons wait for parts that are not built yet: `ringrift daemons`",
                style="dim",
            )
        return text

    def _daemons(self, manager: DaemonManager) -> RenderableType:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("daemon", "state", "up", "restarts", "last error"):
            table.add_column(column, justify="right" if column in {"up", "restarts"} else "left")
        for name, row in manager.get_status()["daemons"].items():
            if row["state"] == DaemonState.STOPPED.value and not row["restart_count"]:
                continue
            state = Text(row["state"], style=_COLORS.get(row["state"], ""))
            up = f"{row['uptime_seconds']:.0f} s"
            table.add_row(name, state, up, str(row["restart_count"]), row["last_error"] or "")
        return table

    def _events(self) -> RenderableType:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("last events", "", "from", "about"):
            table.add_column(column, no_wrap=True)
        for event in get_router().get_history(limit=EVENTS_SHOWN):
            moment = datetime.fromtimestamp(event.timestamp, UTC).astimezone().strftime("%H:%M:%S")
            about = "  ".join(str(value) for value in list(event.payload.values())[:FIELDS_SHOWN])
            table.add_row(moment, event.event_type, event.source, Text(about, style="dim"))
        return table


@contextmanager
def live_view(terminal: Console, data_dir: Path, log_path: Path, runtime: Runtime) -> Iterator[LiveView]:
    """Draw on the terminal for the length of a block."""
    with Live(console=terminal, auto_refresh=False) as screen:
        yield LiveView(screen, data_dir, log_path, runtime)


def _choice_fields() -> dict[str, Any]:
    choice = current_choice()
    return {} if choice is None else {"configs": list(choice.configs), "workers": choice.workers}


def _choice_lines() -> list[str]:
    choice = current_choice()
    return [] if choice is None else [f"learning {choice}"]


LINK_FILE = "page_link.html"
STOP_LOOK_S = 0.25
PROFILE_HELP = f"Which daemons to run: {', '.join(PROFILES)}."


@click.command()
@click.option("--configs", help="Configs to learn, such as square8_2p,hex8_2p; else those of before.")
@click.option("--workers", type=int, metavar="N", help="Jobs at a time; one a core if not given; 0: none.")
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
        options = RunOptions(
            configs=None if configs is None else parse_configs(configs),
            workers=None if workers is None else parse_workers(workers),
            open_browser=not no_open and live and has_display(os.environ),
            begin_anew=begin_anew,
        )
        settings, runtime = get_settings(), system_runtime()
        check_data_folder()
        os.umask(private_umask(settings.data_dir))  # for all that it starts, too
        # Before anything is written: a folder of an earlier version may be open to all.
        close_data_folder(settings)
        # Asked now: the first job would fail a minute later, in another process, with a traceback.
        check_learning_libraries(settings, workers=workers)
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
            asyncio.run(run_with_view(profile, view, options, limit_s=limit_s, runtime=runtime))
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
    # A display that is forwarded would open a browser on the far machine, slowly.
    if environ.get("SSH_CONNECTION"):
        return False
    return sys.platform == "darwin" or bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


async def run_with_view(
    profile: str, view: View, options: RunOptions, *, limit_s: float | None, runtime: Runtime
) -> None:
    """Run the control process until a signal or the time limit, and show how it is."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    started: asyncio.Future[Started] = loop.create_future()
    try:
        async with asyncio.TaskGroup() as group:
            control = group.create_task(_control(profile, options, stop, started))
            company = [group.create_task(_show(view, started, stop, runtime, open_page=options.open_browser))]
            if limit_s is not None:
                company.append(group.create_task(_stop_after(stop, limit_s, runtime)))
            # The control process decides when it is over; view and timer only keep it company.
            control.add_done_callback(lambda _: [task.cancel() for task in company])
    except ExceptionGroup as failures:
        ours, others = failures.split(RingRiftError)
        if ours is None or others is not None:
            raise
        # One error in words is what the user can act on; others of the same cause repeat it.
        raise ours.exceptions[0] from None


async def _control(
    profile: str, options: RunOptions, stop: asyncio.Event, started: asyncio.Future[Started]
) -> None:
    await run_control_process(profile=profile, stop=stop, on_started=started.set_result, options=options)


async def _show(
    view: View, started: asyncio.Future[Started], stop: asyncio.Event, runtime: Runtime, *, open_page: bool
) -> None:
    view.starting()
    begun = await started
    # In a thread, because asking over HTTP blocks.
    link = await asyncio.to_thread(_link)
    view.started(begun, link)
    if link is not None and open_page:
        await asyncio.to_thread(_open_page, link)
    reader, kv, next_s = RunReader(), (await get_engine()).kv, 0.0
    while not stop.is_set():
        if runtime.monotonic_s() >= next_s:
            view.refresh(begun.manager, await reader.read(kv))
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
        remove_file(path)  # one of an earlier run; its code is used up
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
