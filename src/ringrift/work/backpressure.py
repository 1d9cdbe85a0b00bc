"""How full things are: levels, depths of queues and what becomes of them, and one signal of it all."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from typing import Any

import msgspec

from ringrift.daemons.running import attempt
from ringrift.decoding import decode_as
from ringrift.engine.ports import Engine, KeyValue, WorkState
from ringrift.engine.records import read_record, write_record
from ringrift.engine.run_reports import reported
from ringrift.errors import ConfigError
from ringrift.health.run_status import RunStatus, read_run_status
from ringrift.machine import NodeResources
from ringrift.runtime import Runtime, system_runtime

# How full is too full: one ordered level, from the depth of a queue and its two limits.
#
# Pure decisions. A level rises as soon as the depth reaches it, and falls only when the depth is a tenth
# below it, so that a depth that wavers around a threshold changes nothing. More depth never means a lower
# level.


BAND = 0.1  # how far below its threshold a depth must fall before the level does
TREND_SHARE = 0.1  # a change by less than this share of the former depth is no trend


class BackpressureLevel(IntEnum):
    """Ordered: `level >= BackpressureLevel.HIGH` means what it says. `str(level)` is the written name."""

    NONE = 0
    LOW = 1
    SOFT = 2  # production should slow down from here on
    MEDIUM = 3
    HARD = 4
    HIGH = 5
    CRITICAL = 6
    STOP = 7  # nothing more until the queue drains

    @classmethod
    def _missing_(cls, value: object) -> BackpressureLevel | None:
        """Read a written name, in any case."""
        return cls.__members__.get(value.upper()) if isinstance(value, str) else None

    def __str__(self) -> str:
        return self.name.lower()

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    @property
    def throttle_factor(self) -> float:
        """The share of full speed at which producers should run."""
        return _FACTORS[self]

    @property
    def throttles(self) -> bool:
        return self >= BackpressureLevel.SOFT


_FACTORS = {
    BackpressureLevel.NONE: 1.0,
    BackpressureLevel.LOW: 0.75,
    BackpressureLevel.SOFT: 0.5,
    BackpressureLevel.MEDIUM: 0.25,
    BackpressureLevel.HARD: 0.1,
    BackpressureLevel.HIGH: 0.05,
    BackpressureLevel.CRITICAL: 0.01,
    BackpressureLevel.STOP: 0.0,
}
_OF_SOFT = ((BackpressureLevel.NONE, 0.5), (BackpressureLevel.LOW, 0.75), (BackpressureLevel.SOFT, 1.0))
_OF_HARD = (
    (BackpressureLevel.MEDIUM, 0.5),
    (BackpressureLevel.HARD, 0.75),
    (BackpressureLevel.HIGH, 0.9),
    (BackpressureLevel.CRITICAL, 1.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """What one queue may hold, and how fast it usually empties."""

    soft: float
    hard: float
    target: float
    drain_per_hour: float

    def __post_init__(self) -> None:
        if not 0 < self.target <= self.soft < self.hard or self.drain_per_hour <= 0:
            raise ConfigError("a queue needs 0 < target <= soft < hard and drain_per_hour above 0")

    def drain_s(self, depth: float) -> float:
        """How long the queue needs to come down to its target."""
        return max(0.0, depth - self.target) / self.drain_per_hour * 3600.0


def level_of(depth: float, limits: QueueLimits) -> BackpressureLevel:
    """The level of a depth by itself, without its past."""
    for level, share in _OF_SOFT:
        if depth < share * limits.soft:
            return level
    for level, share in _OF_HARD:
        if depth < share * limits.hard:
            return level
    return BackpressureLevel.STOP


def next_level(previous: BackpressureLevel, depth: float, limits: QueueLimits) -> BackpressureLevel:
    """The level after *previous*: up at once, down only below the band."""
    rising = level_of(depth, limits)
    falling = level_of(depth / (1.0 - BAND), limits)
    return max(rising, min(previous, falling))


def level_for_speed(multiplier: float) -> BackpressureLevel:
    """The mildest level that slows producers down to *multiplier* of full speed or further."""
    return next(level for level in BackpressureLevel if _FACTORS[level] <= multiplier + 1e-9)


def trend_of(depth: float, former: float | None) -> str:
    """Where a depth is going, against its mean five to ten minutes ago: rising, falling or stable."""
    if former is None:
        return "stable"
    change = depth - former
    if abs(change) <= TREND_SHARE * former or change == 0:
        return "stable"
    return "rising" if change > 0 else "falling"


# The named queues, what each may hold, and how deep each is now.
#
# Depths are read, never kept: jobs that wait come from the engine's work queue; rows, games and models that
# wait for training, their check or a verdict from the status that the control process stores; files that have
# yet to reach a node from the records of deliveries.


DELIVERIES = "data/deliveries/"  # one record for each file and target

WorkCounts = Mapping[str, Mapping[WorkState, int]]


class QueueType(StrEnum):
    """What can pile up."""

    TRAINING_DATA = "training_data"  # accepted rows that no training has been offered and the next needs not
    PENDING_GAMES = "pending_games"  # games whose check by the rules is due
    EVALUATION = "evaluation_queue"
    PROMOTION = "promotion_queue"  # models that wait for a verdict
    SYNC = "sync_queue"  # files on their way to a node, or due to be sent again
    EXPORT = "export_queue"

    @classmethod
    def _missing_(cls, value: object) -> QueueType | None:
        """Read the short names too: `evaluation` is `evaluation_queue`."""
        return cls.__members__.get(value.upper().removesuffix("_QUEUE")) if isinstance(value, str) else None


QUEUE_LIMITS: Mapping[QueueType, QueueLimits] = {
    QueueType.TRAINING_DATA: QueueLimits(soft=100_000, hard=500_000, target=50_000, drain_per_hour=10_000),
    QueueType.PENDING_GAMES: QueueLimits(soft=1_000, hard=5_000, target=500, drain_per_hour=500),
    QueueType.EVALUATION: QueueLimits(soft=50, hard=200, target=20, drain_per_hour=20),
    QueueType.PROMOTION: QueueLimits(soft=10, hard=50, target=5, drain_per_hour=5),
    QueueType.SYNC: QueueLimits(soft=100, hard=500, target=50, drain_per_hour=100),
    QueueType.EXPORT: QueueLimits(soft=20, hard=100, target=10, drain_per_hour=10),
}

_KINDS = {
    QueueType.EVALUATION: ("evaluate", "evaluation", "gauntlet", "tournament"),
    QueueType.EXPORT: ("export",),
}
_WAITING = (WorkState.READY, WorkState.BLOCKED)


def waiting(counts: WorkCounts, kinds: tuple[str, ...]) -> int:
    """How many items of *kinds* are not claimed yet."""
    return sum(counts.get(kind, {}).get(state, 0) for kind in kinds for state in _WAITING)


def waiting_in_all(counts: WorkCounts) -> int:
    return waiting(counts, tuple(counts))


def in_hand(counts: WorkCounts, kinds: tuple[str, ...]) -> int:
    """How many items of *kinds* are claimed now."""
    return sum(counts.get(kind, {}).get(WorkState.CLAIMED, 0) for kind in kinds)


class _Delivery(msgspec.Struct, frozen=True):
    """The part of a record that says whether its file has yet to arrive."""

    status: str = "pending"
    next_retry_at: float | None = None

    @property
    def is_open(self) -> bool:
        return self.status != "verified" and (self.status != "failed" or self.next_retry_at is not None)


class OpenDeliveries:
    """How many files have yet to reach their nodes. Keeps which do, and reads only what changed."""

    def __init__(self) -> None:
        self._open: set[str] = set()
        self._revision = 0

    async def count(self, kv: KeyValue) -> int:
        while True:
            page = await kv.changes(DELIVERIES, after=self._revision)
            for change in page.changes:
                if change.value is not None and decode_as(change.value, _Delivery).is_open:
                    self._open.add(change.key)
                else:
                    self._open.discard(change.key)
            self._revision = page.revision
            if page.complete:
                return len(self._open)


def depths_of(counts: WorkCounts, run: RunStatus | None, *, deliveries: int) -> dict[QueueType, int]:
    """How deep every queue is. Without a run there is nothing that waits for training or a check."""
    configs = () if run is None else run.configs.values()
    # What the plan gathers on purpose is no backlog.
    untrained = sum(max(0, each.rows - each.trained_rows - each.rows_collected) for each in configs)
    unchecked = sum(max(0, each.games_unchecked - each.games_collected) for each in configs)
    return {
        QueueType.TRAINING_DATA: untrained,
        QueueType.PENDING_GAMES: unchecked,
        QueueType.PROMOTION: sum(config.candidates for config in configs),
        QueueType.SYNC: deliveries,
        **{queue: waiting(counts, kinds) for queue, kinds in _KINDS.items()},
    }


async def read_depths(engine: Engine, deliveries: OpenDeliveries | None = None) -> dict[QueueType, int]:
    """Read how deep every queue is now; with the *deliveries* of the last time, only what changed of them."""
    run = await read_run_status(engine.kv)
    under_way = await (deliveries or OpenDeliveries()).count(engine.kv)
    return depths_of(await engine.queue.counts(), run, deliveries=under_way)


# The pressure on the whole machine as one number, and what producers make of it. Pure decisions.


FULL_SPEED_BELOW = 0.2
STANDSTILL_ABOVE = 0.7
PAUSE_BELOW = 0.1
HEALTHY_BELOW = 0.3
COOLDOWN_S = 60.0

_RANGES = {
    "queue": (5.0, 50.0),
    "training": (1.0, 5.0),
    "disk": (40.0, 75.0),
    "sync": (3.0, 30.0),
    "memory": (30.0, 70.0),
}
_WEIGHTS = {"queue": 0.25, "memory": 0.25, "training": 0.20, "disk": 0.15, "sync": 0.15}
_TRAINING = ("train", "training")
_SYNC = ("sync", "data_sync")


@dataclass(frozen=True, slots=True)
class BackpressureSignal:
    """Pressures from 0 to 1 and what follows from them."""

    queue_pressure: float
    training_pressure: float
    disk_pressure: float
    sync_pressure: float
    memory_pressure: float
    at_s: float

    @property
    def overall_pressure(self) -> float:
        return sum(weight * float(getattr(self, f"{name}_pressure")) for name, weight in _WEIGHTS.items())

    @property
    def spawn_rate_multiplier(self) -> float:
        """1 at low pressure, 0 at high pressure, in proportion between."""
        span = STANDSTILL_ABOVE - FULL_SPEED_BELOW
        return min(1.0, max(0.0, (STANDSTILL_ABOVE - self.overall_pressure) / span))

    @property
    def should_pause(self) -> bool:
        return self.spawn_rate_multiplier < PAUSE_BELOW

    @property
    def is_healthy(self) -> bool:
        return self.overall_pressure < HEALTHY_BELOW

    @property
    def level(self) -> BackpressureLevel:
        return level_for_speed(self.spawn_rate_multiplier)

    @property
    def highest(self) -> str:
        """What presses most, by its weight."""
        return max(_WEIGHTS, key=lambda name: _WEIGHTS[name] * float(getattr(self, f"{name}_pressure")))

    def to_dict(self) -> dict[str, Any]:
        return {
            **{f"{name}_pressure": round(getattr(self, f"{name}_pressure"), 3) for name in _WEIGHTS},
            "overall_pressure": round(self.overall_pressure, 3),
            "spawn_rate_multiplier": round(self.spawn_rate_multiplier, 3),
            "should_pause": self.should_pause,
            "is_healthy": self.is_healthy,
            "level": str(self.level),
            "timestamp": self.at_s,
        }


def signal_of(counts: WorkCounts, resources: NodeResources, *, now_s: float) -> BackpressureSignal:
    """Put work and machine together. Training counts its jobs, memory what the machine has in use."""
    return BackpressureSignal(
        queue_pressure=_ramp("queue", waiting_in_all(counts)),
        training_pressure=_ramp("training", waiting(counts, _TRAINING) + in_hand(counts, _TRAINING)),
        disk_pressure=_ramp("disk", resources.disk_percent),
        sync_pressure=_ramp("sync", waiting(counts, _SYNC) + in_hand(counts, _SYNC)),
        memory_pressure=_ramp("memory", resources.memory_percent),
        at_s=now_s,
    )


def _ramp(name: str, value: float) -> float:
    low, high = _RANGES[name]
    return min(1.0, max(0.0, (value - low) / (high - low)))


# What was announced stands in the store with what was measured last: it outlives the daemon that told it,
# and whoever holds something back because of it looks there. An event only makes him look at once.


ANNOUNCED_KEY = "backpressure/announced"
MEASURED_S_MAX = 60.0  # some of QUEUE_MONITOR's intervals: what nobody measures any more holds nothing


@dataclass(frozen=True, slots=True)
class Announced:
    """Whether the world was told that producers should slow down, and since when."""

    active: bool = False
    changed_s: float | None = None
    level: BackpressureLevel = BackpressureLevel.NONE
    reason: str = ""  # as it was last measured
    measured_s: float = 0.0

    def step(
        self, level: BackpressureLevel, now_s: float, *, cooldown_s: float = COOLDOWN_S
    ) -> tuple[Announced, bool]:
        """Return what is announced next and whether that is news; there is no news in the cooldown."""
        wanted = level.throttles
        # After a clock was set back the cooldown would last as long as that.
        resting = self.changed_s is not None and 0 <= now_s - self.changed_s < cooldown_s
        if wanted == self.active or resting:
            worst = max(self.level, level) if self.active else self.level
            return replace(self, level=worst), False
        return Announced(wanted, now_s, level if wanted else self.level), True

    def is_measured(self, now_s: float) -> bool:
        """Whether somebody has measured it lately. A time to come was written before a clock was set back."""
        return 0 <= now_s - self.measured_s < MEASURED_S_MAX

    def why_held(self, now_s: float) -> str:
        """Why producers are to rest now; empty if they are not, or if nobody knows."""
        return self.reason or "producers are too fast" if self.active and self.is_measured(now_s) else ""

    def in_force(self, now_s: float) -> BackpressureLevel:
        return self.level if self.why_held(now_s) else BackpressureLevel.NONE


async def read_announced(kv: KeyValue) -> Announced:
    """What was last announced of backpressure, by whichever process."""
    return await read_record(kv, ANNOUNCED_KEY, Announced) or Announced()


async def keep_announced(kv: KeyValue, announced: Announced) -> None:
    await write_record(kv, ANNOUNCED_KEY, announced)


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


# The named queues, watched: level, trend and time to drain of each, and who is told of a change.


FRESH_S = 10.0

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
