"""Watches the named queues: level, trend and time to drain of each, and who is told of a change."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ringrift.daemons.running import attempt
from ringrift.engine.ports import Engine
from ringrift.engine.run_reports import reported
from ringrift.runtime import Runtime, system_runtime
from ringrift.work.backpressure import (
    QUEUE_LIMITS,
    Announced,
    BackpressureLevel,
    BackpressureSignal,
    NodeResources,
    OpenDeliveries,
    QueueLimits,
    QueueType,
    keep_announced,
    next_level,
    read_announced,
    read_depths,
    signal_of,
    trend_of,
)

# How deep a queue was: every few seconds for ten minutes, every five minutes for a week.


BUCKET_S = 300.0
KEPT_S = 7 * 86_400.0
SAMPLE_S = 5.0  # samples that come faster replace each other
TREND_FROM_S, TREND_TO_S = 600.0, 300.0


@dataclass(slots=True)
class DepthBucket:
    """Five minutes of one queue."""

    start_s: float
    samples: int = 0
    total: float = 0.0
    highest: float = 0.0

    @property
    def mean(self) -> float:
        return self.total / self.samples if self.samples else 0.0


class DepthHistory:
    """Bounded in both resolutions; what is older falls out."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=int(TREND_FROM_S / SAMPLE_S) + 2)
        self._buckets: deque[DepthBucket] = deque(maxlen=int(KEPT_S / BUCKET_S))

    def note(self, depth: float, now_s: float) -> None:
        if self._samples and 0 <= now_s - self._samples[-1][0] < SAMPLE_S:
            self._samples[-1] = (self._samples[-1][0], depth)
        else:
            self._samples.append((now_s, depth))
        start_s = now_s - now_s % BUCKET_S
        if not self._buckets or self._buckets[-1].start_s != start_s:
            self._buckets.append(DepthBucket(start_s))
        bucket = self._buckets[-1]
        bucket.samples += 1
        bucket.total += depth
        bucket.highest = max(bucket.highest, depth)

    def former(self, now_s: float) -> float | None:
        """The mean depth five to ten minutes ago; None if nothing is known of then."""
        then = [depth for at_s, depth in self._samples if TREND_TO_S <= now_s - at_s <= TREND_FROM_S]
        return sum(then) / len(then) if then else None

    def buckets(self, limit: int = 100) -> list[DepthBucket]:
        """Return up to *limit* buckets, oldest first."""
        return list(self._buckets)[-limit:] if limit > 0 else []


FRESH_S = 10.0
ANSWER_S = 10.0

LevelChanged = Callable[[QueueType, BackpressureLevel, BackpressureLevel], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """One queue, now."""

    queue: QueueType
    depth: float
    level: BackpressureLevel
    trend: str
    drain_s: float
    limits: QueueLimits
    at_s: float

    def to_dict(self) -> dict[str, Any]:
        return {
            "queue_type": self.queue.value,
            "current_depth": self.depth,
            "backpressure": str(self.level),
            "throttle_factor": self.level.throttle_factor,
            "trend": self.trend,
            "estimated_drain_time": round(self.drain_s, 1),
            "soft_limit": self.limits.soft,
            "hard_limit": self.limits.hard,
            "target_depth": self.limits.target,
            "timestamp": self.at_s,
        }


class QueueLevels:
    """Levels with their memory. Depths come from the engine; only hysteresis and history live here."""

    def __init__(
        self,
        engine: Callable[[], Awaitable[Engine]],
        *,
        resources: Callable[[], Awaitable[NodeResources]],
        runtime: Runtime | None = None,
        limits: Mapping[QueueType, QueueLimits] = QUEUE_LIMITS,
    ) -> None:
        self._engine, self._runtime = engine, runtime or system_runtime()
        self._limits = limits
        self._resources = resources
        self._lock = threading.Lock()
        self._levels = dict.fromkeys(limits, BackpressureLevel.NONE)
        self._depths: dict[QueueType, float] = {}
        self._deliveries = OpenDeliveries()
        self._history = {queue: DepthHistory() for queue in limits}
        self._callbacks: list[LevelChanged] = []
        self._read_at_s: float | None = None
        self._signal: BackpressureSignal | None = None
        self.level_changes = 0
        self.callback_errors = 0

    # --- measuring ------------------------------------------------------------------------------------

    async def refresh(self) -> dict[QueueType, QueueStatus]:
        """Read all depths, and tell whoever asked about each level that changed."""
        for queue, depth in (await read_depths(await self._engine(), self._deliveries)).items():
            self.note(queue, depth)
        self._read_at_s = self._runtime.now_s()
        return {queue: self.status(queue) for queue in self._limits}

    async def signal(self) -> BackpressureSignal:
        """Return the pressure on the machine, measured in the last ten seconds."""
        now_s = self._runtime.now_s()
        if self._signal is None or not 0 <= now_s - self._signal.at_s < FRESH_S:
            counts = await (await self._engine()).queue.counts()
            self._signal = signal_of(counts, await self._resources(), now_s=now_s)
        return self._signal

    async def announced(self) -> Announced:
        """What was last told of backpressure, by whichever process and daemon."""
        return await read_announced((await self._engine()).kv)

    async def keep(self, announced: Announced) -> None:
        await keep_announced((await self._engine()).kv, announced)

    def note(self, queue: QueueType, depth: float) -> BackpressureLevel:
        """Take a depth in and return the level."""
        queue, now_s = QueueType(queue), self._runtime.now_s()
        with self._lock:
            before = self._levels[queue]
            after = next_level(before, depth, self._limits[queue])
            self._levels[queue], self._depths[queue] = after, depth
            self._history[queue].note(depth, now_s)
        if after is not before:
            self._tell(queue, before, after)
        return after

    @property
    def is_fresh(self) -> bool:
        age_s = None if self._read_at_s is None else self._runtime.now_s() - self._read_at_s
        return age_s is not None and 0 <= age_s < FRESH_S

    # --- what it knows --------------------------------------------------------------------------------

    def level(self, queue: QueueType) -> BackpressureLevel:
        return self._levels[QueueType(queue)]

    def overall(self) -> BackpressureLevel:
        """The worst level of all queues."""
        return max(self._levels.values())

    def fullest(self) -> QueueStatus:
        """The queue with the worst level; of equals the one that is fuller for its size."""
        statuses = [self.status(queue) for queue in self._limits]
        return max(statuses, key=lambda item: (item.level, item.depth / item.limits.hard))

    def status(self, queue: QueueType) -> QueueStatus:
        queue, now_s = QueueType(queue), self._runtime.now_s()
        with self._lock:
            depth, former = self._depths.get(queue, 0.0), self._history[queue].former(now_s)
            level = self._levels[queue]
        limits = self._limits[queue]
        return QueueStatus(
            queue=queue,
            depth=depth,
            level=level,
            trend=trend_of(depth, former),
            drain_s=limits.drain_s(depth),
            limits=limits,
            at_s=now_s,
        )

    def history(self, queue: QueueType, limit: int = 100) -> list[DepthBucket]:
        with self._lock:
            return self._history[QueueType(queue)].buckets(limit)

    @property
    def works_here(self) -> bool:
        return bool(self._depths)

    @reported
    def get_stats(self) -> dict[str, Any]:
        return {
            "overall": str(self.overall()),
            "queues": {queue.value: self.status(queue).to_dict() for queue in self._limits},
            "level_changes": self.level_changes,
            "callback_errors": self.callback_errors,
        }

    # --- who is told ----------------------------------------------------------------------------------

    def on_change(self, callback: LevelChanged) -> Callable[[], None]:
        """Call *callback* with queue, old and new level; returns what ends that."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback) if callback in self._callbacks else None

    def _tell(self, queue: QueueType, before: BackpressureLevel, after: BackpressureLevel) -> None:
        self.level_changes += 1
        for callback in tuple(self._callbacks):

            def tell(callback: LevelChanged = callback) -> None:
                callback(queue, before, after)

            ended = attempt("backpressure callback", tell)
            self.callback_errors += ended.error is not None
