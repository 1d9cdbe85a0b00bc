"""How long a task takes, from how long such tasks took.

An estimate prefers what is most like the task: same kind, config and node; same kind and config; same kind;
the table of defaults. A timeout comes from the slow end of what succeeded; a task that ran into it gets twice
the time at the next attempt, so that work which grew is not killed forever.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import quote, unquote

import msgspec

from ringrift.decoding import decode_as
from ringrift.engine.encoding import UNREADABLE
from ringrift.engine.opening import shared_kv
from ringrift.engine.ports import Entry, KeyValue
from ringrift.errors import AlreadyExists, ConfigError, Corrupt, RevisionMismatch, Unavailable
from ringrift.runtime import Runtime, system_runtime
from ringrift.work.tasks import TaskType, canonical_kind, task_type_of

# Estimates and timeouts: pure decisions.


DAY_S = 86_400.0
SUCCESSES_MIN = 3
ESTIMATE_MARGIN = 1.2
NEAR_S, FAR_S = 7 * DAY_S, 30 * DAY_S
TIMEOUT_MARGIN = 3.0
TIMEOUT_FLOOR_S, TIMEOUT_CEILING_S = 300.0, DAY_S

DEFAULT_DURATIONS_S = {
    TaskType.SELFPLAY: 3600.0,
    TaskType.GPU_SELFPLAY: 7200.0,
    TaskType.HYBRID_SELFPLAY: 7200.0,
    TaskType.TRAINING: 14_400.0,
    TaskType.CMAES: 28_800.0,
    TaskType.TOURNAMENT: 1800.0,
    TaskType.EVALUATION: 3600.0,
    TaskType.VALIDATION: 1800.0,
    TaskType.SYNC: 600.0,
    TaskType.EXPORT: 300.0,
    TaskType.PIPELINE: 21_600.0,
    TaskType.IMPROVEMENT_LOOP: 43_200.0,
    TaskType.OTHER: 3600.0,
}


class TaskOutcome(StrEnum):
    """How a measured task ended."""

    OK = "ok"
    FAILED = "failed"
    TIMED_OUT = "timed_out"


class Measured(msgspec.Struct, frozen=True, array_like=True):
    """One task that ran."""

    at_s: float
    seconds: float
    outcome: TaskOutcome = TaskOutcome.OK


@dataclass(frozen=True, slots=True)
class MeasuredSeries:
    """What is known of one kind, config and node, oldest first."""

    kind: str
    config: str
    node: str
    tasks: Sequence[Measured]


@dataclass(frozen=True, slots=True)
class DurationEstimate:
    """Seconds, and where they come from: exact, config, kind or default."""

    seconds: float
    source: str
    samples: int = 0


def default_duration_s(kind: str) -> float:
    return DEFAULT_DURATIONS_S[task_type_of(kind)]


def estimate(
    series: Iterable[MeasuredSeries], *, kind: str, config: str, node: str, now_s: float
) -> DurationEstimate:
    """The expected duration of a task of *kind*."""
    known = [item for item in series if item.kind == kind]
    of_config = [item for item in known if item.config == config]
    exact = [item for item in of_config if item.node == node]
    for source, items, age_s in (
        ("exact", exact, NEAR_S),
        ("config", of_config, NEAR_S),
        ("kind", known, FAR_S),
    ):
        seconds = _successes(items, since_s=now_s - age_s)
        if len(seconds) >= SUCCESSES_MIN:
            return DurationEstimate(ESTIMATE_MARGIN * sum(seconds) / len(seconds), source, len(seconds))
    return DurationEstimate(default_duration_s(kind), "default")


def timeout_s(series: Iterable[MeasuredSeries], *, kind: str, config: str, now_s: float) -> float:
    """How long a task of *kind* may run before it counts as stuck."""
    known = [item for item in series if item.kind == kind and item.config == config]
    seconds = _successes(known, since_s=now_s - FAR_S)
    enough = len(seconds) >= SUCCESSES_MIN
    wanted_s = TIMEOUT_MARGIN * percentile_95(seconds) if enough else 2.0 * default_duration_s(kind)
    tasks = sorted((task for item in known for task in item.tasks), key=lambda task: task.at_s)
    for task in reversed(tasks):
        if task.outcome is TaskOutcome.OK:
            break
        if task.outcome is TaskOutcome.TIMED_OUT:
            wanted_s = max(wanted_s, 2.0 * task.seconds)
    return min(TIMEOUT_CEILING_S, max(TIMEOUT_FLOOR_S, wanted_s))


def percentile_95(seconds: Sequence[float]) -> float:
    """The nearest rank, so that it is a duration that really happened."""
    ordered = sorted(seconds)
    return ordered[math.ceil(0.95 * len(ordered)) - 1]


def _successes(series: Iterable[MeasuredSeries], *, since_s: float) -> list[float]:
    return [
        task.seconds
        for item in series
        for task in item.tasks
        if task.outcome is TaskOutcome.OK and task.at_s >= since_s
    ]


# The measured durations, in the key-value port: the last of each kind, config and node.


PREFIX = "durations/"
TASKS_KEPT = 50  # of each kind, config and node
SERIES_MAX = 5_000  # of each kind; the one that nobody added to for longest goes first
CACHE_S = 30.0
TRIES_MAX = 8


class DurationStore:
    """Reads and writes the measurements. Several processes may write at once."""

    def __init__(
        self, kv: Callable[[], Awaitable[KeyValue]] | None = None, *, runtime: Runtime | None = None
    ) -> None:
        self._kv, self._runtime = kv or shared_kv, runtime or system_runtime()
        self._cached: dict[str, tuple[float, list[MeasuredSeries]]] = {}

    async def record(
        self, kind: str, config: str, node: str, seconds: float, *, outcome: TaskOutcome = TaskOutcome.OK
    ) -> None:
        """Add one measurement."""
        kind = canonical_kind(kind)
        if not seconds >= 0:
            raise ConfigError(f"a task took {seconds} s; a duration is 0 or more")
        kv, key = await self._kv(), _key(kind, config, node)
        task = Measured(self._runtime.now_s(), seconds, TaskOutcome(outcome))
        for _ in range(TRIES_MAX):
            entry = await kv.get(key)
            known = [] if entry is None else _tasks(entry)
            value = msgspec.json.encode([*known, task][-TASKS_KEPT:])
            try:
                if entry is None:
                    await self._make_room(kv, kind)
                    await kv.create(key, value, ttl_s=FAR_S)
                else:
                    await kv.update(key, value, revision=entry.revision, ttl_s=FAR_S)
            except (AlreadyExists, RevisionMismatch):
                continue
            self._cached.pop(kind, None)
            return
        raise Unavailable(f"{TRIES_MAX} others wrote the durations of {kind} at the same time")

    async def estimate(self, kind: str, config: str = "", node: str = "") -> DurationEstimate:
        kind = canonical_kind(kind)
        series = await self._series(kind)
        return estimate(series, kind=kind, config=config, node=node, now_s=self._runtime.now_s())

    async def timeout_s(self, kind: str, config: str = "") -> float:
        """How long a job of *kind* may run before it counts as stuck."""
        kind = canonical_kind(kind)
        return timeout_s(await self._series(kind), kind=kind, config=config, now_s=self._runtime.now_s())

    async def _series(self, kind: str) -> list[MeasuredSeries]:
        now_s = self._runtime.monotonic_s()
        cached = self._cached.get(kind)
        if cached is not None and now_s - cached[0] < CACHE_S:
            return cached[1]
        entries = await (await self._kv()).entries(_prefix(kind))
        series = [_read(entry) for entry in entries]
        self._cached[kind] = (now_s, series)
        return series

    async def _make_room(self, kv: KeyValue, kind: str) -> None:
        entries = await kv.entries(_prefix(kind))
        if len(entries) >= SERIES_MAX:
            oldest = min(entries, key=lambda entry: entry.revision)
            await kv.delete(oldest.key, revision=oldest.revision)


def _prefix(kind: str) -> str:
    return f"{PREFIX}{quote(kind, safe='')}/"


def _key(kind: str, config: str, node: str) -> str:
    return f"{_prefix(kind)}{quote(config, safe='')}/{quote(node, safe='')}"


def _read(entry: Entry) -> MeasuredSeries:
    kind, config, node = (unquote(part) for part in entry.key.removeprefix(PREFIX).split("/"))
    return MeasuredSeries(kind, config, node, _tasks(entry))


def _tasks(entry: Entry) -> list[Measured]:
    try:
        return decode_as(entry.value, list[Measured])
    except UNREADABLE as error:
        advice = "Delete the key; the durations are measured anew."
        raise Corrupt(entry.key, found=f"no list of measurements: {error}", advice=advice) from None
