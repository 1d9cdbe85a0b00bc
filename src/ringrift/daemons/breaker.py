"""Stops a cascade: when one category, or everything, keeps crashing, restarts wait together.

Critical daemons are never blocked, and nothing is in the first minutes, when much starts at once.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ringrift.daemons.types import DaemonCategory

STARTUP_S = 300.0
CRASHES_KEPT_MAX = 1000


@dataclass(frozen=True, slots=True)
class Limit:
    """How many restarts in a window are too many, and how long to wait then."""

    restarts: int
    cooldown_s: float
    window_s: float = 300.0
    counts_globally: bool = True


LIMITS: dict[DaemonCategory, Limit] = {
    DaemonCategory.EVENT: Limit(10, 30, counts_globally=False),
    DaemonCategory.PIPELINE: Limit(8, 45, counts_globally=False),
    DaemonCategory.FEEDBACK: Limit(8, 45, counts_globally=False),
    DaemonCategory.AUTONOMOUS: Limit(8, 30, counts_globally=False),
    DaemonCategory.SYNC: Limit(6, 60),
    DaemonCategory.HEALTH: Limit(6, 60),
    DaemonCategory.QUEUE: Limit(5, 60),
    DaemonCategory.RESOURCE: Limit(5, 90),
    DaemonCategory.EVALUATION: Limit(5, 90),
    DaemonCategory.DISTRIBUTION: Limit(4, 90),
    DaemonCategory.RECOVERY: Limit(8, 180, window_s=600),
    DaemonCategory.PROVIDER: Limit(3, 120),
    DaemonCategory.MISC: Limit(4, 120),
}
GLOBAL_LIMIT = Limit(25, 120)


@dataclass(frozen=True, slots=True)
class Tripped:
    """A breaker that just opened; *category* is None for the global one."""

    category: DaemonCategory | None
    restarts: int
    until_s: float


class CascadeBreaker:
    """Counts restarts by category. Times are monotonic and come in."""

    def __init__(self, *, started_s: float) -> None:
        self._started_s = started_s
        self._restarts: dict[DaemonCategory | None, deque[float]] = {}
        self._open_until_s: dict[DaemonCategory | None, float] = {}

    def record(self, category: DaemonCategory, *, now_s: float) -> list[Tripped]:
        """Count a restart; return the breakers that it opened."""
        opened = self._count(category, LIMITS[category], now_s=now_s)
        if LIMITS[category].counts_globally:
            opened += self._count(None, GLOBAL_LIMIT, now_s=now_s)
        return opened

    def blocked(self, category: DaemonCategory, *, critical: bool, now_s: float) -> tuple[float, str]:
        """Return until when restarts of *category* wait, and why; (0.0, "") when they don't."""
        if critical or now_s - self._started_s < STARTUP_S:
            return 0.0, ""
        asked: list[DaemonCategory | None] = [category]
        if LIMITS[category].counts_globally:
            asked.append(None)
        until_s, who = max(((self._open_until_s.get(key, 0.0), key) for key in asked), key=lambda p: p[0])
        if until_s <= now_s:
            return 0.0, ""
        name = "too many daemons crash" if who is None else f"too many {who} daemons crash"
        return until_s, f"{name}; restarts wait {until_s - now_s:.0f} s"

    def status(self, *, now_s: float) -> dict[str, float]:
        """Return the open breakers with the seconds they stay open."""
        return {
            "global" if key is None else key.value: until_s - now_s
            for key, until_s in self._open_until_s.items()
            if until_s > now_s
        }

    def _count(self, key: DaemonCategory | None, limit: Limit, *, now_s: float) -> list[Tripped]:
        times = self._restarts.setdefault(key, deque(maxlen=CRASHES_KEPT_MAX))
        times.append(now_s)
        while times[0] <= now_s - limit.window_s:
            times.popleft()
        if len(times) < limit.restarts or self._open_until_s.get(key, 0.0) > now_s:
            return []
        if now_s - self._started_s < STARTUP_S:
            return []
        self._open_until_s[key] = now_s + limit.cooldown_s
        return [Tripped(key, len(times), now_s + limit.cooldown_s)]
