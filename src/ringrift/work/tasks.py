"""Tasks: their types, the records of those that run, and the work queue in the words of the documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec
import structlog

from ringrift.decoding import decode_as
from ringrift.engine.blocking import run_blocking
from ringrift.engine.encoding import UNREADABLE, decode_entry
from ringrift.engine.opening import engine_on_demand, existing_engine
from ringrift.engine.ports import Engine, Entry, KeyValue, WorkItem, WorkQueue, WorkState
from ringrift.engine.work_rules import LEASE_RAN_OUT
from ringrift.errors import AlreadyExists, ConfigError, Corrupt, RevisionMismatch
from ringrift.runtime import Runtime, system_runtime
from ringrift.work.worker.records import live_workers

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
    """The type of a job kind or of a written type; what is neither is OTHER."""
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


async def work_queue_status(engine: Engine) -> dict[str, Any]:
    """The reply of the documents. Totals count what the queue still keeps of ended items."""
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


def get_work_queue_status() -> dict[str, Any]:
    """`work_queue_status` of this process's engine, for code without a loop; None is what nobody knows."""
    return run_blocking(_shared_status(), timeout_s=ANSWER_S)


async def _shared_status() -> dict[str, Any]:
    engine = await existing_engine()
    return dict.fromkeys(_PARTS) if engine is None else await work_queue_status(engine)


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
COUNT_TRIES = 50  # others count at the same time
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
        await kv.put(TASK_PREFIX + task.task_id, msgspec.json.encode(task), ttl_s=KEPT_S)

    async def heartbeat(self, task_id: str) -> bool:
        """Note that the task lives; False if it is not registered."""
        kv = (await self._engine()).kv
        entry = await kv.get(TASK_PREFIX + task_id)
        if entry is None:
            return False
        task = msgspec.structs.replace(_task(entry), heartbeat_s=self._runtime.now_s())
        try:
            await kv.update(entry.key, msgspec.json.encode(task), revision=entry.revision, ttl_s=KEPT_S)
        except RevisionMismatch:
            return await kv.get(entry.key) is not None  # another heartbeat, or its end, came first
        return True

    async def end(self, task_id: str, how: str = "completed") -> RunningTask | None:
        """Take the task off and count its end (a field of `EndedTotals`); None if it was not registered."""
        kv = (await self._engine()).kv
        entry = await kv.get(TASK_PREFIX + task_id)
        if entry is None or not await kv.delete(entry.key):
            return None  # or somebody else took it off, and counted it
        task = _task(entry)
        await self._count(kv, how, max(0.0, self._runtime.now_s() - task.started_s))
        return task

    async def _count(self, kv: KeyValue, how: str, took_s: float) -> None:
        for _ in range(COUNT_TRIES):
            entry = await kv.get(ENDED_KEY)
            known = EndedTotals() if entry is None else decode_entry(entry, EndedTotals)
            value = msgspec.json.encode(known.with_one(how, took_s))
            try:
                if entry is None:
                    await kv.create(ENDED_KEY, value)
                else:
                    await kv.update(ENDED_KEY, value, revision=entry.revision)
            except (AlreadyExists, RevisionMismatch):
                continue
            return
        log.warning("tasks.end_not_counted", how=how, tries=COUNT_TRIES)

    async def ended(self) -> EndedTotals:
        entry = await (await self._engine()).kv.get(ENDED_KEY)
        return EndedTotals() if entry is None else decode_entry(entry, EndedTotals)

    async def registered(self) -> list[RunningTask]:
        return [_task(entry) for entry in await (await self._engine()).kv.entries(TASK_PREFIX)]

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
        kv, key = (await self._engine()).kv, RESERVED_PREFIX + node
        held = Reservation(node=node, purpose=purpose, until_s=self._runtime.now_s() + for_s)
        try:
            await kv.create(key, msgspec.json.encode(held), ttl_s=for_s)
        except AlreadyExists:
            return False
        return True

    async def free(self, node: str) -> bool:
        return await (await self._engine()).kv.delete(RESERVED_PREFIX + node)

    async def reservation(self, node: str) -> Reservation | None:
        entry = await (await self._engine()).kv.get(RESERVED_PREFIX + node)
        return None if entry is None else decode_entry(entry, Reservation)


def counted(tasks: Sequence[RunningTask], *, node: str | None = None) -> Counter[TaskType]:
    """How many tasks of each type run, on *node* or everywhere."""
    return Counter(task.task_type for task in tasks if node is None or task.node == node)


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


def _task(entry: Entry) -> RunningTask:
    try:
        return decode_as(entry.value, RunningTask)
    except UNREADABLE as error:
        advice = "Delete the key; the task registers again when it next begins."
        raise Corrupt(entry.key, found=f"no record of a task: {error}", advice=advice) from None
