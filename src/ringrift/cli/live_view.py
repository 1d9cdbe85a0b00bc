"""What `ringrift run` shows: a live picture at a terminal, log lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import structlog
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ringrift.bootstrap.control_process import Started
from ringrift.daemons.manager import DaemonManager
from ringrift.daemons.types import DaemonState
from ringrift.events.router import get_router
from ringrift.settings import get_settings
from ringrift.web.address import read_address

log = structlog.get_logger()

EVENTS_SHOWN = 8
FIELDS_SHOWN = 4
_COLOURS = {
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

    def started(self, news: Started) -> None: ...

    def refresh(self, manager: DaemonManager) -> None: ...

    def stopping(self) -> None: ...


class PlainView:
    """Log lines: once at the start, then a summary now and then."""

    every_s = 30.0

    def starting(self) -> None:
        log.info("run.starting")

    def started(self, news: Started) -> None:
        address = read_address(get_settings().coordination_dir)
        log.info(
            "run.started",
            running=[daemon.value for daemon in news.running],
            not_running=len(news.left_out),
            probes=None if address is None else address.url,
        )

    def refresh(self, manager: DaemonManager) -> None:
        summary, stats = manager.get_status()["summary"], get_router().get_stats()
        log.info("run.status", **summary, events=stats["total_events_routed"])

    def stopping(self) -> None:
        log.info("run.stopping")


class LiveView:
    """One screen, redrawn twice a second."""

    every_s = 0.5

    def __init__(self, screen: Live, data_dir: Path, log_path: Path) -> None:
        self._screen, self._data_dir, self._log_path = screen, data_dir, log_path
        self._not_built = 0

    def starting(self) -> None:
        self._screen.update(Text("starting…", style="dim"), refresh=True)

    def started(self, news: Started) -> None:
        status = news.manager.get_status()
        self._not_built = sum(bool(status[daemon].unavailable_reason) for daemon in news.left_out)

    def refresh(self, manager: DaemonManager) -> None:
        self._screen.update(
            Panel(
                Group(self._head(manager), Text(), self._daemons(manager), Text(), self._events()),
                title="ringrift run",
                subtitle="Ctrl-C stops; `ringrift run` goes on where it was",
                padding=(1, 2),
            ),
            refresh=True,
        )

    def stopping(self) -> None:
        self._screen.update(Text("stopping…", style="dim"), refresh=True)

    def _head(self, manager: DaemonManager) -> RenderableType:
        health = manager.health_summary()
        address = read_address(get_settings().coordination_dir)
        lines = [
            f"health [bold]{health['status']}[/]   data {self._data_dir}   log {self._log_path}",
            f"probes {address.url if address else 'not listening'}   "
            f"events {get_router().get_stats()['total_events_routed']}",
        ]
        if self._not_built:
            lines.append(
                f"[dim]{self._not_built} daemons wait for parts that are not built yet: `ringrift daemons`[/]"
            )
        return Text.from_markup("\n".join(lines))

    def _daemons(self, manager: DaemonManager) -> RenderableType:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("daemon", "state", "up", "restarts", "last error"):
            table.add_column(column, justify="right" if column in {"up", "restarts"} else "left")
        for name, row in manager.get_status()["daemons"].items():
            if row["state"] == DaemonState.STOPPED.value and not row["restart_count"]:
                continue
            state = Text(row["state"], style=_COLOURS.get(row["state"], ""))
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
def live_view(terminal: Console, data_dir: Path, log_path: Path) -> Iterator[LiveView]:
    """Draw on the terminal for the length of a block."""
    with Live(console=terminal, auto_refresh=False) as screen:
        yield LiveView(screen, data_dir, log_path)
