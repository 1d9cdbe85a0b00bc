"""What `ringrift run` shows: a live picture at a terminal, log lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import structlog
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ringrift.bootstrap.control_process import Started
from ringrift.bootstrap.run_options import current_choice
from ringrift.cli.run_picture import draw_run, head_line, loss_text
from ringrift.cli.wording import rating
from ringrift.daemons.manager import DaemonManager
from ringrift.daemons.types import DaemonState
from ringrift.events.router import get_router
from ringrift.learning.run_status import RunStatus
from ringrift.runtime import Runtime
from ringrift.settings import get_settings
from ringrift.web.address import read_address

log = structlog.get_logger()

EVENTS_SHOWN = 8
FIELDS_SHOWN = 4
SUMMARY_EVERY_S = 30.0
LINK_TEXT = "the live page, with the key to act; good once (`ringrift link` prints another):"
BORDER_CHARS, BORDER_LINES = 4, 6
_COLOURS = {
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

    def started(self, news: Started, link: str | None) -> None:
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
        self._told_s = runtime.now_s()
        self._began_s = runtime.monotonic_s()

    def starting(self) -> None:
        log.info("run.starting")

    def started(self, news: Started, link: str | None) -> None:  # noqa: ARG002 - logs are read by others
        address = read_address(get_settings().coordination_dir)
        log.info(
            "run.started",
            running=[daemon.value for daemon in news.running],
            not_running=len(news.left_out),
            page=None if address is None else address.url,
            **_choice_fields(),
        )

    def refresh(self, manager: DaemonManager, status: RunStatus | None) -> None:
        for decision in reversed(status.decisions if status is not None else ()):
            if decision.at_s > self._told_s:
                self._told_s = decision.at_s
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

    def started(self, news: Started, link: str | None) -> None:
        status = news.manager.get_status()
        self._not_built = sum(bool(status[daemon].unavailable_reason) for daemon in news.left_out)
        self._screen.console.print("\n".join(_choice_lines()))
        if link is not None:
            self._screen.console.print(f"{LINK_TEXT}\n{link}", markup=False, highlight=False, soft_wrap=True)

    def refresh(self, manager: DaemonManager, status: RunStatus | None) -> None:
        self._last = self.picture(manager, status)
        self._screen.update(self._last, refresh=True)

    def picture(self, manager: DaemonManager, status: RunStatus | None) -> RenderableType:
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
        """The last picture stays on the screen when all is over."""
        self._screen.update(Group(self._last, Text("stopping…", style="dim")), refresh=True)

    def stopped(self) -> None:
        self._screen.update(Group(self._last, Text("stopped", style="dim")), refresh=True)

    def _head(self, manager: DaemonManager, status: RunStatus | None, now_s: float) -> RenderableType:
        health = manager.health_summary()
        address = read_address(get_settings().coordination_dir)
        text = Text() if status is None else head_line(status, now_s=now_s).append("\n")
        well = health["status"]
        text.append(f"{well}, {health['running']} of {health['total']} daemons", style=_COLOURS.get(well, ""))
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
