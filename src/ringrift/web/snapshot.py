"""What the probes show: a picture of the control process, taken by its own loop.

The server runs in a thread of its own and only ever reads the latest picture, so it answers while the
control loop is blocked, and the age of the picture tells that it is. While nobody asks, pictures are rare:
each takes the control loop some milliseconds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ringrift.learning.run_status import RunStatus

STALE_S = 10.0
FRESH_S = 1.0  # a picture of this age is as good as a new one
UNASKED_S = 5.0  # between two pictures that nobody asked for; liveness is read off their age


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSnapshot:
    """One picture."""

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
    """Holds the latest picture; written by the control loop, read by the server's thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest: ProbeSnapshot | None = None
        self._listeners: dict[object, Callable[[], None]] = {}
        self.ask: Callable[[], None] | None = None  # has a picture taken soon; from any thread

    @property
    def is_watched(self) -> bool:
        return bool(self._listeners)

    def show(self, snapshot: ProbeSnapshot) -> None:
        with self._lock:
            self._latest = snapshot
        self.wake()

    def listen(self, on_news: Callable[[], None]) -> Callable[[], None]:
        """Have *on_news* called, in the writer's thread, after every picture; returns how to leave."""
        ticket = object()
        with self._lock:
            self._listeners[ticket] = on_news
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
        for on_news in listeners:
            on_news()

    def latest(self) -> ProbeSnapshot | None:
        with self._lock:
            return self._latest


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """A yes or no with its reason."""

    yes: bool
    reason: str


def liveness(snapshot: ProbeSnapshot | None, *, now_s: float) -> ProbeAnswer:
    """Alive means: the control loop took a picture lately, and every critical daemon runs."""
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
