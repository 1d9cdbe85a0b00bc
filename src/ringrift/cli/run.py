"""`ringrift run`: the control process of this machine, in the foreground."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from ringrift.bootstrap.control_process import Started, run_control_process
from ringrift.cli.live_view import PlainView, View, live_view
from ringrift.cli.logs import log_to_file, log_to_stderr
from ringrift.cli.terminal import console, plain_errors
from ringrift.errors import ConfigError, RingRiftError
from ringrift.runtime import Runtime, system_runtime
from ringrift.settings import get_settings

STOP_LOOK_S = 0.25

_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>[smhd]?)")
_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def run(
    profile: Annotated[str, typer.Option(help="Which daemons to run.")] = "standard",
    data: Annotated[Path | None, typer.Option(help="Data folder; the same as RINGRIFT_DATA_DIR.")] = None,
    duration: Annotated[str | None, typer.Option("--for", help="Stop after this time: 90s, 10m, 2h.")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Log lines instead of the live view.")] = False,
) -> None:
    """Run the coordination of this machine until interrupted; stop and start as you like."""
    with plain_errors():
        if data is not None:
            os.environ["RINGRIFT_DATA_DIR"] = str(data)
        limit_s = None if duration is None else parse_duration(duration)
        settings = get_settings()
        live = not plain and console().is_terminal
        with ExitStack() as stack:
            if live:
                log_path = settings.data_dir / "logs" / "control.log"
                stack.callback(log_to_file(log_path).close)
                view: View = stack.enter_context(live_view(console(), settings.data_dir, log_path))
            else:
                log_to_stderr(logging.INFO)
                view = PlainView()
            asyncio.run(run_with_view(profile, view, limit_s=limit_s, runtime=system_runtime()))


def parse_duration(text: str) -> float:
    """Return the seconds of `90s`, `10m`, `2h`, `1d` or a plain number of seconds."""
    found = _DURATION.fullmatch(text.strip())
    if found is None or float(found["number"]) == 0:
        raise ConfigError(f"--for is {text!r}; it must be a time such as 90s, 10m, 2h or 1d")
    return float(found["number"]) * _UNITS_S[found["unit"]]


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
    try:
        await run_control_process(profile=profile, stop=stop, on_started=started.set_result)
    except ValueError as error:
        raise ConfigError(str(error)) from None


async def _show(view: View, started: asyncio.Future[Started], stop: asyncio.Event, runtime: Runtime) -> None:
    view.starting()
    news = await started
    view.started(news)
    next_s = 0.0
    while not stop.is_set():
        if runtime.monotonic_s() >= next_s:
            view.refresh(news.manager)
            next_s = runtime.monotonic_s() + view.every_s
        await runtime.sleep(STOP_LOOK_S)
    view.stopping()


async def _stop_after(stop: asyncio.Event, limit_s: float, runtime: Runtime) -> None:
    await runtime.sleep(limit_s)
    stop.set()
