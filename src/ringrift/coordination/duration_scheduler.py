"""When to run what takes long: estimates, and whether a host has room for an intensive task now.

For people and programs that plan by hand. Where workers live a host has room as the loop sees it: by what
holds its orders and by the slots. Elsewhere intensive tasks (training, optimization, whole pipelines) exclude
each other and stay out of busy hours. When there will be room follows from the measured durations, as the
time limits of jobs do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ringrift.coordination.safeguards import get_safeguards
from ringrift.engine.arguments import check_part
from ringrift.engine.blocking import blocking
from ringrift.learning.plan.plan import SELFPLAY, Capacity
from ringrift.process import SingletonMixin, getter_of, reset_of
from ringrift.runtime import Runtime, system_runtime
from ringrift.status import HealthCheckResult, reported_by_store
from ringrift.work.admission import SpawnGate
from ringrift.work.limits import SpawnVerdict
from ringrift.work.shares import PREPARING, slots_for
from ringrift.work.tasks import (
    DAY_S,
    DEFAULT_DURATIONS_S,
    INTENSIVE_TYPES,
    SELFPLAY_TYPES,
    DurationEstimate,
    DurationStore,
    RunningTask,
    TaskOutcome,
    TaskRegistry,
    TaskType,
    task_type_of,
)
from ringrift.work.worker.records import WorkerRecord

__all__ = [
    "DEFAULT_DURATIONS_S",
    "BusyHours",
    "DurationEstimate",
    "DurationScheduler",
    "DurationStore",
    "TaskOutcome",
    "can_schedule_task",
    "estimate_task_duration",
    "estimate_timeout_s",
    "get_duration_scheduler",
    "get_duration_store",
    "record_duration",
    "record_task_completion",
    "reset_duration_scheduler",
    "reset_duration_store",
]

ANSWER_S = 10.0
HOUR_S = 3600.0
_JOB_KINDS = {
    **dict.fromkeys(SELFPLAY_TYPES, SELFPLAY),
    TaskType.TRAINING: "train",
    TaskType.EVALUATION: "evaluate",
    TaskType.VALIDATION: "validate",
    TaskType.CMAES: "tune",
}
_PREPARING_TYPES = frozenset(task_type_of(kind) for kind in PREPARING) - {TaskType.OTHER}
LONGEST_S = DAY_S  # a running task counts as ended by then, whatever the estimate


# The measured durations as this process keeps them.
get_duration_store = getter_of("get_duration_store", DurationStore)
reset_duration_store = reset_of("reset_duration_store", DurationStore)


@dataclass(frozen=True, slots=True)
class BusyHours:
    """Hours of the day, in UTC, that intensive tasks avoid."""

    first: int = 14
    last: int = 22  # not included

    def left_s(self, wall_s: float) -> float:
        """How long the busy hours still last; 0 outside of them."""
        second_of_day = wall_s % DAY_S
        inside = self.first * HOUR_S <= second_of_day < self.last * HOUR_S
        return self.last * HOUR_S - second_of_day if inside else 0.0


class DurationScheduler(SingletonMixin):
    """Estimates and room on hosts, from measured durations and from what really runs."""

    def __init__(
        self,
        book: DurationStore | None = None,
        registry: TaskRegistry | None = None,
        *,
        busy: BusyHours | None = None,
        gate: SpawnGate | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self._durations = get_duration_store() if book is None else book
        self._registry = TaskRegistry() if registry is None else registry
        check_part("book", self._durations, DurationStore)
        check_part("registry", self._registry, TaskRegistry)
        self._busy, self._gate, self._runtime = busy or BusyHours(), gate, runtime or system_runtime()

    async def estimate_s(self, task_type: str, config: str = "", host: str = "") -> float:
        return (await self._durations.estimate(str(task_type), config, host)).seconds

    async def room_for(self, task_type: str, host: str = "") -> SpawnVerdict:
        """Whether *host* has room for the task now; if not why, and when it is expected to have."""
        kind, now_s = task_type_of(task_type), self._runtime.now_s()
        host = host or self._runtime.hostname
        if workers := await self._registry.workers(host):
            return await self._room_for_the_loop(_JOB_KINDS.get(kind, task_type), host, workers)
        if kind not in INTENSIVE_TYPES:
            return SpawnVerdict(True, "ok")
        for task in await self._registry.running():
            if task.node == host and task.task_type in INTENSIVE_TYPES:
                left_s = await self._left_s(task, now_s)
                why = f"{task.task_type.value} runs on {host}, for about {left_s / 60:.0f} min more"
                return SpawnVerdict(False, why, left_s, check="exclusive")
        # By the wall clock and not by the engine's time: these are hours of people.
        if (left_s := self._busy.left_s(self._runtime.wall_s())) > 0:
            why = f"intensive tasks wait until {self._busy.last}:00 UTC"
            return SpawnVerdict(False, why, left_s, check="busy_hours")
        return SpawnVerdict(True, "ok")

    async def _room_for_the_loop(self, kind: str, host: str, workers: Sequence[WorkerRecord]) -> SpawnVerdict:
        """As the loop decides about its next order, for the workers of one host."""
        held = await (self._gate or get_safeguards()).may_order(kind, host)
        if not held.ok:
            return held
        slots, now_s = slots_for(workers, kind), self._runtime.now_s()
        tasks = [each for each in await self._registry.running() if each.node == host]
        games = [each for each in tasks if each.task_type in SELFPLAY_TYPES]
        others = [each for each in tasks if each.task_type not in (*SELFPLAY_TYPES, *_PREPARING_TYPES)]
        if slots and Capacity(slots, len(games), len(others)).has_room_for(kind):
            return SpawnVerdict(True, "ok")
        if not slots:
            return SpawnVerdict(False, f"no worker of {host} takes such work", check="capacity")
        # Games give way to all else, so only games wait for games.
        before = [*games, *others] if kind == SELFPLAY else others
        left_s = min([await self._left_s(task, now_s) for task in before])
        have = f"{len(before)} jobs have the {slots} slots of {host}"
        why = f"{have}; one is expected to end in about {left_s / 60:.0f} min"
        return SpawnVerdict(False, why, left_s, check="capacity")

    async def running(self, host: str) -> list[dict[str, Any]]:
        """What runs on *host*, and when it is expected to end."""
        now_s = self._runtime.now_s()
        return [
            {
                "task_id": task.task_id,
                "task_type": task.task_type.value,
                "started": task.started_s,
                "expected_end": now_s + await self._left_s(task, now_s),
            }
            for task in await self._registry.running()
            if task.node == host
        ]

    @reported_by_store
    @blocking(timeout_s=ANSWER_S)
    async def health_check(self) -> HealthCheckResult:
        """It has no loop of its own: it is well while the tasks that it asks about can be read."""
        return HealthCheckResult.ok("", running=len(await self._registry.running()))

    async def _left_s(self, task: RunningTask, now_s: float) -> float:
        expected_s = await self.estimate_s(task.task_type.value, task.config_key, task.node)
        # An overdue task may end at any moment; a minute keeps callers from asking in a tight loop.
        return max(60.0, task.started_s + min(LONGEST_S, expected_s) - now_s)


def get_duration_scheduler(busy: BusyHours | None = None) -> DurationScheduler:
    """Return the scheduler of this process; other *busy* hours than it was made with are a `ConfigError`."""
    return DurationScheduler.get_instance() if busy is None else DurationScheduler.get_instance(busy=busy)


reset_duration_scheduler = DurationScheduler.reset_instance


@blocking(timeout_s=ANSWER_S)
async def estimate_task_duration(task_type: TaskType | str, config: str = "", host: str = "") -> float:
    """How many seconds such a task is expected to take."""
    return await get_duration_scheduler().estimate_s(task_type, config, host)


@blocking(timeout_s=ANSWER_S)
async def can_schedule_task(task_type: TaskType | str, host: str = "") -> tuple[bool, str]:
    """Whether *host* has room for the task now, and why not."""
    return (await get_duration_scheduler().room_for(task_type, host)).as_pair()


@blocking(timeout_s=ANSWER_S)
async def record_task_completion(
    task_type: TaskType | str, config: str = "", host: str = "", *, seconds: float, success: bool = True
) -> None:
    """Add a measured duration, for code without a loop."""
    outcome = TaskOutcome.OK if success else TaskOutcome.FAILED
    await get_duration_store().record(str(task_type), config, host, seconds, outcome=outcome)


# What whoever completes a job calls, and what the job runner asks before it starts one.


async def record_duration(
    kind: str, config: str, node: str, seconds: float, *, outcome: TaskOutcome = TaskOutcome.OK
) -> None:
    """Remember how long a job took, and how it ended."""
    await get_duration_store().record(kind, config, node, seconds, outcome=outcome)


async def estimate_timeout_s(kind: str, config: str = "") -> float:
    """How long a job may run before it counts as stuck: from the slow end of what succeeded."""
    return await get_duration_store().timeout_s(kind, config)
