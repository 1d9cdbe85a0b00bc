"""Tasks: their types, the records of those that run, the work queue in the words of the documents, and how
long they take.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import quote, unquote

import msgspec
import structlog

from ringrift.engine.arguments import check_name
from ringrift.engine.opening import engine_on_demand, shared_kv
from ringrift.engine.ports import Engine, Entry, KeyValue, WorkItem, WorkQueue, WorkState
from ringrift.engine.records import KvRecords, change_record, read_record
from ringrift.engine.work_rules import LEASE_RAN_OUT
from ringrift.errors import ConfigError, Unavailable
from ringrift.runtime import Runtime, system_runtime
from ringrift.work.worker.records import WorkerRecord, live_workers

# The types of tasks that limits and estimates know, and how job kinds map to them.


class TaskType(StrEnum):
    """What a task is, as limits, durations and events name it."""

    SELFPLAY = "selfplay"
    GPU_SELFPLAY = "gpu_selfplay"
    HYBRID_SELFPLAY = "hybrid_selfplay"
    TRAINING = "training"
    EVALUATION = "evaluation"
    TOURNAMENT = "tournament"
    VALIDATION = "validation"
    EXPORT = "export"
    SYNC = "sync"
    CMAES = "cmaes"
    PIPELINE = "pipeline"
    IMPROVEMENT_LOOP = "improvement_loop"
    OTHER = "other"  # a user's own kind of work


_OF_KIND = {
    **{known.value: known for known in TaskType},
    "train": TaskType.TRAINING,
    "evaluate": TaskType.EVALUATION,
    "gauntlet": TaskType.EVALUATION,
    "validate": TaskType.VALIDATION,
    "data_sync": TaskType.SYNC,
    "tune": TaskType.CMAES,
    "gpu_cmaes": TaskType.CMAES,
    "cpu_cmaes": TaskType.CMAES,
    "hyperparam_sweep": TaskType.CMAES,
}
SELFPLAY_TYPES = frozenset({TaskType.SELFPLAY, TaskType.GPU_SELFPLAY, TaskType.HYBRID_SELFPLAY})
INTENSIVE_TYPES = frozenset(
    {TaskType.TRAINING, TaskType.CMAES, TaskType.PIPELINE, TaskType.IMPROVEMENT_LOOP}
)  # two of them on one machine get in each other's way


def task_type_of(kind: str) -> TaskType:
    """The type of a job kind or of a written type; text that is neither is OTHER."""
    check_name("task_type", kind)
    return _OF_KIND.get(kind, TaskType.OTHER)


def canonical_kind(kind: str) -> str:
    """One name for what job kinds and types call differently: `train` is `training`."""
    known = task_type_of(kind)
    return kind if known is TaskType.OTHER else known.value


def family(task_type: TaskType) -> TaskType:
    """The type that limits count: all kinds of self-play are one."""
    return TaskType.SELFPLAY if task_type in SELFPLAY_TYPES else task_type


# The work queue in the words of the documents: what is pending, runs, was completed or failed.


PENDING_SHOWN = 10
RUNNING_SHOWN = 1000
DEAD_LOOKED_AT = 1000
ENDS_AT_ONCE, PAGES_MAX = 500, 40
ANSWER_S = 10.0

STATUS_OF = {
    WorkState.BLOCKED: "pending",
    WorkState.READY: "pending",
    WorkState.CLAIMED: "running",
    WorkState.DONE: "completed",
    WorkState.DEAD: "failed",
    WorkState.CANCELLED: "cancelled",
}


_PARTS = ("total_items", "by_status", "by_type", "pending", "running", "stats")


async def work_queue_status(engine: Engine | None) -> dict[str, Any]:
    """The reply of the documents. Totals count what the queue still keeps of ended items.

    Without an engine every part is None, which is what nobody knows.
    """
    if engine is None:
        return dict.fromkeys(_PARTS)
    counts = await engine.queue.counts()
    by_status: Counter[str] = Counter()
    for states in counts.values():
        by_status.update({STATUS_OF[state]: number for state, number in states.items()})
    dead = await engine.queue.dead(limit=DEAD_LOOKED_AT)
    total = by_status.total()
    return {
        "total_items": total,
        "by_status": dict(by_status),
        "by_type": {kind: sum(states.values()) for kind, states in counts.items()},
        "pending": [as_documented(item) for item in await engine.queue.ready(limit=PENDING_SHOWN)],
        "running": [as_documented(item) for item in await engine.queue.claimed(limit=RUNNING_SHOWN)],
        "stats": {
            "total_added": total,
            "total_completed": by_status["completed"],
            "total_failed": by_status["failed"],
            "total_timeout": sum(item.error == LEASE_RAN_OUT for item in dead),
        },
    }


async def _newest_end(queue: WorkQueue) -> int:
    """A number that no end is above; the number of the newest if there is one."""
    low, high = 0, 1
    while await queue.ended(after=high, limit=1):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if await queue.ended(after=middle, limit=1) else (low, middle)
    return high


async def ends_before(queue: WorkQueue, pages: int) -> int:
    """The number after which the newest *pages* of ends begin."""
    return max(0, await _newest_end(queue) - pages * ENDS_AT_ONCE)


async def newest_ended(queue: WorkQueue, *, limit: int, kind: str | None = None) -> list[WorkItem]:
    """Up to *limit* items that ended last, of one kind or of all, newest first.

    The queue tells ends from the oldest on; the number of the newest is found by halving. A kind that is rare
    among thousands of ends may be found in part only.
    """
    high = await _newest_end(queue)
    found: list[WorkItem] = []
    until = high
    for _ in range(PAGES_MAX):
        if until <= 0 or len(found) >= limit:
            break
        page = await queue.ended(after=max(0, until - ENDS_AT_ONCE), limit=ENDS_AT_ONCE)
        ended = [each for each in page if each.number <= until and kind in (None, each.item.kind)]
        found += [each.item for each in reversed(ended)]
        until -= ENDS_AT_ONCE
    return found[:limit]


def as_documented(item: WorkItem) -> dict[str, Any]:
    """One item with the field names of the documents."""
    return {
        "work_id": item.id,
        "work_type": item.kind,
        "priority": item.priority,
        "config": dict(item.payload),
        "status": STATUS_OF[item.state],
        "claimed_by": item.holder or "",
        "attempts": item.attempts,
        "max_attempts": item.attempts_max,
        "created_at": item.added_s,
        "claimed_at": item.changed_s if item.state is WorkState.CLAIMED else 0.0,
        "result": item.result,
        "error": item.error,
    }


# Every task that runs: the claims of the work queue, and what programs registered themselves.
#
# Claims are the queue's own truth and need no record. A task that somebody registers has one in the key-value
# port, which its heartbeats keep alive; so all processes count the same tasks.


log = structlog.get_logger()

TASK_PREFIX = "tasks/running/"
RESERVED_PREFIX = "tasks/reserved/"
KEPT_S = 86_400.0  # without a heartbeat; long after it counts as orphaned
ENDED_KEY = "tasks/ended"
TASKS_MAX = 10_000
ORPHAN_AFTER_S = 300.0


class RunningTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task that somebody said is running."""

    task_id: str
    task_type: TaskType
    node: str
    started_s: float
    heartbeat_s: float
    pid: int | None = None
    config_key: str = ""
    claimed: bool = False  # a claim of the work queue, kept alive by its lease

    def silent_s(self, now_s: float) -> float:
        return max(0.0, now_s - self.heartbeat_s)

    def is_orphaned(self, now_s: float, *, after_s: float = ORPHAN_AFTER_S) -> bool:
        """A claim is never an orphan: the queue itself ends it."""
        return not self.claimed and self.silent_s(now_s) > after_s


class EndedTotals(msgspec.Struct, frozen=True, kw_only=True):
    """How the tasks that programs registered came to their ends, all of them so far."""

    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    abandoned: int = 0
    seconds: float = 0.0  # that they took

    @property
    def tasks(self) -> int:
        return self.completed + self.failed + self.cancelled + self.abandoned

    def with_one(self, how: str, took_s: float) -> EndedTotals:
        return msgspec.structs.replace(self, **{how: getattr(self, how) + 1}, seconds=self.seconds + took_s)


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """A node that one kind of work has for itself for a while."""

    node: str
    purpose: str
    until_s: float


class TaskRegistry:
    """Reads and writes the tasks. Every call goes to the engine; nothing is kept here."""

    def __init__(
        self, engine: Callable[[], Awaitable[Engine]] = engine_on_demand, *, runtime: Runtime | None = None
    ) -> None:
        self._engine, self._runtime = engine, runtime or system_runtime()

    async def add(self, task: RunningTask) -> None:
        """Store *task*; the same id again replaces the record. `ConfigError` when there are too many."""
        kv = (await self._engine()).kv
        if len(await kv.entries(TASK_PREFIX)) >= TASKS_MAX:
            raise ConfigError(f"{TASKS_MAX} tasks are registered; end those that no longer run")
        await _tasks(kv).put(task.task_id, task, ttl_s=KEPT_S)

    async def heartbeat(self, task_id: str) -> bool:
        """Note that the task lives; False if it is not registered."""

        def beat(task: RunningTask | None) -> RunningTask | None:
            return task and msgspec.structs.replace(task, heartbeat_s=self._runtime.now_s())

        tasks = _tasks((await self._engine()).kv)
        return await tasks.change(task_id, beat, ttl_s=KEPT_S) is not None

    async def end(self, task_id: str, how: str = "completed") -> RunningTask | None:
        """Take the task off and count its end (a field of `EndedTotals`); None if it was not registered."""
        kv = (await self._engine()).kv
        entry = await kv.get(TASK_PREFIX + task_id)
        if entry is None or not await kv.delete(entry.key):
            return None  # or somebody else took it off, and counted it
        task = _tasks(kv).read(entry)
        took_s = max(0.0, self._runtime.now_s() - task.started_s)
        try:
            await change_record(
                kv, ENDED_KEY, EndedTotals, lambda ended: (ended or EndedTotals()).with_one(how, took_s)
            )
        except Unavailable as error:  # it has ended all the same
            log.warning("tasks.end_not_counted", how=how, error=str(error))
        return task

    async def ended(self) -> EndedTotals:
        kv = (await self._engine()).kv
        return await read_record(kv, ENDED_KEY, EndedTotals) or EndedTotals()

    async def registered(self) -> list[RunningTask]:
        return await _tasks((await self._engine()).kv).all()

    async def running(self) -> list[RunningTask]:
        """Return claims and registered tasks; a job that is both counts once."""
        engine = await self._engine()
        items = await engine.queue.claimed(limit=TASKS_MAX)
        nodes = await _nodes_of_workers(engine.kv) if items else {}
        claims = [_of_claim(item, nodes) for item in items]
        known = {task.task_id for task in claims}
        now_s = self._runtime.now_s()
        others = [task for task in await self.registered() if task.task_id not in known]
        return claims + [task for task in others if not task.is_orphaned(now_s)]

    async def workers(self, node: str) -> list[WorkerRecord]:
        """The workers that live on *node*."""
        return [each for each in await live_workers((await self._engine()).kv) if each.node == node]

    async def outcomes(self) -> EndedTotals:
        """How tasks ended: jobs as long as the queue keeps them, registered tasks all of them."""
        jobs: Counter[WorkState] = Counter()
        for states in (await (await self._engine()).queue.counts()).values():
            jobs.update(states)
        others = await self.ended()
        return msgspec.structs.replace(
            others,
            completed=others.completed + jobs[WorkState.DONE],
            failed=others.failed + jobs[WorkState.DEAD],
            cancelled=others.cancelled + jobs[WorkState.CANCELLED],
        )

    async def newest_ended(self, limit: int, *, kind: str | None = None) -> list[WorkItem]:
        """The jobs that ended last, newest first."""
        return await newest_ended((await self._engine()).queue, limit=limit, kind=kind)

    async def is_work_item(self, task_id: str) -> bool:
        """Whether the work queue itself keeps this task."""
        return await (await self._engine()).queue.get(task_id) is not None

    async def cancel_claim(self, task_id: str, *, reason: str) -> bool:
        """Cancel a job in the work queue; False if there is none of that id that has not ended."""
        return await (await self._engine()).queue.cancel(task_id, reason=reason)

    # --- reservations ---------------------------------------------------------------------------------

    async def reserve(self, node: str, *, purpose: str, for_s: float) -> bool:
        """Keep *node* for *purpose*; False if it is kept for another."""
        kv = (await self._engine()).kv
        held = Reservation(node=node, purpose=purpose, until_s=self._runtime.now_s() + for_s)
        return await KvRecords(kv, RESERVED_PREFIX, Reservation).create(node, held, ttl_s=for_s)

    async def free(self, node: str) -> bool:
        return await (await self._engine()).kv.delete(RESERVED_PREFIX + node)

    async def reservation(self, node: str) -> Reservation | None:
        return await read_record((await self._engine()).kv, RESERVED_PREFIX + node, Reservation)


def counted(tasks: Sequence[RunningTask], *, node: str | None = None) -> Counter[TaskType]:
    """How many tasks of each type run, on *node* or everywhere."""
    return Counter(task.task_type for task in tasks if node is None or task.node == node)


def _tasks(kv: KeyValue) -> KvRecords[RunningTask]:
    advice = "Delete the key; the task registers again when it next begins."
    return KvRecords(kv, TASK_PREFIX, RunningTask, advice=advice, what="no record of a task")


async def _nodes_of_workers(kv: KeyValue) -> dict[str, str]:
    return {worker.name: worker.node for worker in await live_workers(kv)}


def _of_claim(item: WorkItem, nodes: Mapping[str, str]) -> RunningTask:
    holder = item.holder or ""
    return RunningTask(
        task_id=item.id,
        task_type=task_type_of(item.kind),
        node=nodes.get(holder, holder),  # a worker that says nothing of itself counts as a node of its own
        started_s=item.changed_s,
        heartbeat_s=item.changed_s,
        config_key=str(item.payload.get("config", "")),
        claimed=True,
    )


# How long a task takes, from how long such tasks took.
#
# An estimate prefers what is most like the task: same kind, config and node; same kind and config; same kind;
# the table of defaults. A timeout comes from the slow end of what succeeded; a task that ran into it gets
# twice the time at the next attempt, so that work which grew is not killed forever.


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
        if await kv.get(key) is None:
            await self._make_room(kv, kind)
        await _measured(kv).change(key, lambda known: [*(known or ()), task][-TASKS_KEPT:], ttl_s=FAR_S)
        self._cached.pop(kind, None)

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
        kv = await self._kv()
        series = [_read(_measured(kv), entry) for entry in await kv.entries(_prefix(kind))]
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


def _measured(kv: KeyValue) -> KvRecords[list[Measured]]:
    advice = "Delete the key; the durations are measured anew."
    return KvRecords(kv, "", list[Measured], advice=advice, what="no list of measurements")


def _read(records: KvRecords[list[Measured]], entry: Entry) -> MeasuredSeries:
    kind, config, node = (unquote(part) for part in entry.key.removeprefix(PREFIX).split("/"))
    return MeasuredSeries(kind, config, node, records.read(entry))
