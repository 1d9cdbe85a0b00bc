"""What the probes show: a snapshot of the control process, taken by its own loop.

The server runs in a thread of its own and only ever reads the latest snapshot, so it answers while the
control loop is blocked, and the age of the snapshot tells that it is. While nobody asks, snapshots are rare:
each takes the control loop some milliseconds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from typing import Any

import structlog

from ringrift.daemons.status import DaemonReader
from ringrift.daemons.types import DaemonState
from ringrift.engine.ports import KeyValue
from ringrift.errors import Corrupt, Unavailable
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.health.run_status import STATUS_KEY, RunStatus, decode_run_status
from ringrift.runtime import Runtime

STALE_S = 10.0
FRESH_S = 1.0  # a snapshot of this age is as good as a new one
UNASKED_S = 5.0  # between two snapshots that nobody asked for; liveness is read off their age


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSnapshot:
    """One snapshot."""

    taken_s: float  # monotonic
    node_id: str
    alive: bool
    ready: bool
    reason: str
    uptime_s: float
    health_score: float
    daemon_counts: Mapping[str, int] = field(default_factory=dict)
    status: Mapping[str, Any] = field(default_factory=dict)
    events_routed: Mapping[str, int] = field(default_factory=dict)
    version: str = ""
    run: RunStatus | None = None  # None until the loop has told how it is
    daemons: Sequence[Mapping[str, Any]] = ()
    events: Sequence[Mapping[str, Any]] = ()  # newest first


class SnapshotBoard:
    """Holds the latest snapshot; written by the control loop, read by the server's thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest: ProbeSnapshot | None = None
        self._listeners: dict[object, Callable[[], None]] = {}
        self.ask: Callable[[], None] | None = None  # has a snapshot taken soon; from any thread

    @property
    def is_watched(self) -> bool:
        return bool(self._listeners)

    def show(self, snapshot: ProbeSnapshot) -> None:
        with self._lock:
            self._latest = snapshot
        self.wake()

    def listen(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Have *on_change* called, in the writer's thread, after every snapshot; returns how to leave."""
        ticket = object()
        with self._lock:
            self._listeners[ticket] = on_change
        if self.ask is not None:
            self.ask()

        def leave() -> None:
            with self._lock:
                self._listeners.pop(ticket, None)

        return leave

    def wake(self) -> None:
        """Call everybody who listens."""
        with self._lock:
            listeners = tuple(self._listeners.values())
        for on_change in listeners:
            on_change()

    def latest(self) -> ProbeSnapshot | None:
        with self._lock:
            return self._latest


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """A yes or no with its reason."""

    yes: bool
    reason: str


def liveness(snapshot: ProbeSnapshot | None, *, now_s: float) -> ProbeAnswer:
    """Alive means: the control loop took a snapshot lately, and every critical daemon runs."""
    if snapshot is None:
        return ProbeAnswer(False, "the control process has not reported yet")
    age_s = now_s - snapshot.taken_s
    if age_s > STALE_S:
        return ProbeAnswer(False, f"the control loop has not reported for {age_s:.0f} s")
    return ProbeAnswer(True, "") if snapshot.alive else ProbeAnswer(False, snapshot.reason)


def readiness(snapshot: ProbeSnapshot | None, *, now_s: float) -> ProbeAnswer:
    """Ready means: alive, and everything that was asked for runs."""
    alive = liveness(snapshot, now_s=now_s)
    if not alive.yes or snapshot is None:
        return alive
    return ProbeAnswer(snapshot.ready, "" if snapshot.ready else snapshot.reason)


# Taking the snapshot that the probes and the live page show; done on the control loop.


EVENTS_SHOWN, EVENTS_SEEN = 30, 300
FIELDS_SHOWN = 5
ABOUT_CHARS_MAX = 160
SINCE_STEP_S = 5.0  # coarse, so that a row does not count as new only because a second went by


def take_snapshot(
    manager: DaemonReader,
    router: UnifiedEventRouter,
    runtime: Runtime,
    *,
    run: RunStatus | None = None,
    engine_failure: str = "",
) -> ProbeSnapshot:
    """Collect what the probes and the page show. Without its engine a process is dead, whatever runs."""
    alive, ready = manager.liveness_probe(), manager.readiness_probe()
    summary = manager.health_summary()
    status = manager.status_document()
    counts: dict[str, int] = {}
    for row in status["daemons"].values():
        state = "unavailable" if row["unavailable_reason"] else row["state"]
        counts[state] = counts.get(state, 0) + 1
    down = ", ".join(alive["down"] or ())  # None: this manager runs nothing, and nobody told
    return ProbeSnapshot(
        taken_s=runtime.monotonic_s(),
        node_id=runtime.hostname,
        # What somebody stopped is no reason to restart the process; None is told of a run that is unknown.
        alive=alive["down"] == [] and not engine_failure,
        ready=bool(ready) and not engine_failure,
        reason=engine_failure or (f"critical daemons are down: {down}" if down else ready["reason"]),
        uptime_s=alive["uptime_seconds"],
        health_score=summary["score"],
        daemon_counts=counts,
        status=status,
        events_routed=router.get_stats()["events_routed"],
        version=_version(),
        run=run,
        daemons=_daemons(status["daemons"], now_s=runtime.now_s()),
        events=_events(router),
    )


@cache  # it is read from a file
def _version() -> str:
    return metadata.version("ringrift")


def _daemons(rows: Mapping[str, Mapping[str, Any]], *, now_s: float) -> list[dict[str, Any]]:
    """Those that run or ought to; the rest of the 89 types would only hide them."""
    return [
        {
            "name": name,
            "state": "paused" if row["paused"] else row["state"],
            "category": row["category"],
            "since_s": _coarse(now_s - row["uptime_seconds"]) if row["uptime_seconds"] else None,
            "restarts": row["restart_count"],
            "error": row["last_error"] or "",
        }
        for name, row in rows.items()
        if not row["unavailable_reason"] and (row["wanted"] or row["state"] != DaemonState.STOPPED.value)
    ]


def _events(router: UnifiedEventRouter) -> list[dict[str, Any]]:
    """Newest first; the same said again and again is one row that counts."""
    rows: list[dict[str, Any]] = []
    for event in reversed(router.get_history(limit=EVENTS_SEEN)):
        if rows and (rows[-1]["type"], rows[-1]["source"]) == (event.event_type, event.source):
            rows[-1]["times"] += 1
            continue
        if len(rows) == EVENTS_SHOWN:
            break
        rows.append(
            {
                "id": event.event_id,
                "at_s": event.timestamp,
                "type": event.event_type,
                "source": event.source,
                "about": _about(event.payload),
                "times": 1,
            }
        )
    return rows


def _about(payload: Mapping[str, Any]) -> str:
    facts = [
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in payload.items()
        if isinstance(value, str | int | float) and value != ""
    ]
    text = ", ".join(facts[:FIELDS_SHOWN])
    return text if len(text) <= ABOUT_CHARS_MAX else f"{text[: ABOUT_CHARS_MAX - 1]}…"


def _coarse(moment_s: float) -> float:
    return round(moment_s / SINCE_STEP_S) * SINCE_STEP_S


# --- the run's status ---------------------------------------------------------------------------------
#
# Reading the run's status where the control process keeps it.


log = structlog.get_logger()


class RunReader:
    """Follows the status; decodes it only when it is new, and keeps the last good one."""

    def __init__(self) -> None:
        self._latest: RunStatus | None = None
        self._revision = 0
        self._problem = ""

    async def read(self, kv: KeyValue) -> RunStatus | None:
        try:
            entry = await kv.get(STATUS_KEY)
            if entry is not None and entry.revision != self._revision:
                self._revision = entry.revision
                self._latest = decode_run_status(entry.value)
        except (Unavailable, Corrupt) as error:
            if str(error) != self._problem:  # a second would say the same every second
                self._problem = str(error)
                log.warning("page.no_status", error=self._problem)
        return self._latest
