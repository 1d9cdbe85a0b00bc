"""The life of every task: begun, heard of, ended, or fallen silent.

What runs and what ended is read from the task records and the work queue, so every process answers the same;
this notices tasks that fell silent, and knows which nodes are gone. `check_orphans` is called in turn by the
work queue's daemon.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import psutil

from ringrift.coordination.handler_base import HearingCoordinator, says_that_we_are_gone
from ringrift.coordination.safeguards import get_task_admission
from ringrift.engine.arguments import check_part
from ringrift.engine.blocking import blocking
from ringrift.engine.opening import existing_engine
from ringrift.engine.ports import WorkItem, WorkState
from ringrift.engine.run_reports import reported, reported_health
from ringrift.events.event import RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.learning.situation import stored_status
from ringrift.runtime import Runtime, system_runtime
from ringrift.status import HealthCheckResult
from ringrift.work.admission import TaskAdmission
from ringrift.work.tasks import ORPHAN_AFTER_S, EndedTotals, RunningTask, counted

NAME = "task_coordinator"
TIMED_MAX = 500  # jobs that the mean duration is of
ORPHANS_MAX = 1000
GIVEN_UP_AFTER = 10  # times the threshold of silence
ANSWER_S = 10.0


class TaskStatus(StrEnum):
    """How a task ended, or that it has not."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    ORPHANED = "orphaned"


@dataclass(frozen=True, slots=True)
class EndedTask:
    """A job of the work queue that came to its end."""

    task_id: str
    task_type: str
    node: str
    status: TaskStatus
    at_s: float
    duration_s: float | None
    error: str = ""


_STATUS_OF = {
    WorkState.DONE: TaskStatus.COMPLETED,
    WorkState.DEAD: TaskStatus.FAILED,
    WorkState.CANCELLED: TaskStatus.CANCELLED,
}
_UNKNOWN = (
    "active",
    "spawned",
    "completed",
    "failed",
    "cancelled",
    "abandoned",
    "orphaned",
    "success_rate",
    "mean_duration_seconds",
    "nodes_offline",
)


class TaskLifecycleCoordinator(HearingCoordinator):
    """The coordinator of the lives of tasks."""

    emits = ("TASK_ORPHANED", "TASK_ABANDONED")
    subscribes = (
        "TASK_SPAWNED",
        "TASK_COMPLETED",
        "TASK_FAILED",
        "TASK_HEARTBEAT",
        "TASK_ORPHANED",
        "TASK_CANCELLED",
        "HOST_ONLINE",
        "HOST_OFFLINE",
        "NODE_RECOVERED",
    )

    def __init__(
        self,
        admission: TaskAdmission | None = None,
        *,
        heartbeat_threshold_s: float = ORPHAN_AFTER_S,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        super().__init__(NAME, router=router)
        self.heartbeat_threshold_s = heartbeat_threshold_s
        self._admission = get_task_admission() if admission is None else admission
        check_part("admission", self._admission, TaskAdmission)
        self._runtime = runtime or system_runtime()
        self._totals: Counter[str] = Counter()  # events heard here
        self._orphans: dict[str, float] = {}  # told about, and when

    def _hears(self) -> Mapping[str, Callback]:
        return dict.fromkeys(self.subscribes, self._on_event)

    # --- tasks that fell silent -----------------------------------------------------------------------

    async def check_orphans(self) -> list[RunningTask]:
        """Tell of registered tasks that fell silent; drop those that cannot come back. Returns the news."""
        now_s, reports = self._runtime.now_s(), []
        registered = await self._admission.registry.registered()
        # One that ended or was abandoned in another process is missed no longer; no event here says so.
        for gone in self._orphans.keys() - {task.task_id for task in registered}:
            del self._orphans[gone]
        for task in registered:
            why = self._why_orphaned(task, now_s)
            if why and task.task_id not in self._orphans:
                reports.append(task)
                await self._tell_orphaned(task, why, now_s)
            if why and self._is_given_up(task, now_s):
                await self.abandon(task.task_id, reason=why)
        return reports

    async def abandon(self, task_id: str, *, reason: str) -> bool:
        """Drop a task on purpose and say so; False if nobody registered it."""
        task = await self._admission.registry.end(task_id, "abandoned")
        self._orphans.pop(task_id, None)
        if task is None:
            return False
        payload = {
            "task_id": task_id,
            "task_type": task.task_type.value,
            "node_id": task.node,
            "reason": reason,
            "component": NAME,
        }
        await self.router.publish("TASK_ABANDONED", payload, NAME)
        return True

    def _why_orphaned(self, task: RunningTask, now_s: float) -> str:
        # In the order of certainty: a process that is gone is a fact, a silence is a guess.
        if self._is_dead_here(task):
            return f"its process {task.pid} is gone"
        if task.node in self._admission.offline:
            return f"its node is offline: {self._admission.offline[task.node]}"
        if task.is_orphaned(now_s, after_s=self.heartbeat_threshold_s):
            return f"no heartbeat for {task.silent_s(now_s):.0f} s"
        return ""

    def _is_dead_here(self, task: RunningTask) -> bool:
        return (
            task.pid is not None
            and self._admission.is_this_machine(task.node)
            and not psutil.pid_exists(task.pid)
        )

    def _is_given_up(self, task: RunningTask, now_s: float) -> bool:
        # A node that is offline may come back with its tasks, so that alone ends none of them.
        long_silent = task.silent_s(now_s) > GIVEN_UP_AFTER * self.heartbeat_threshold_s
        return long_silent or self._is_dead_here(task)

    async def _tell_orphaned(self, task: RunningTask, why: str, now_s: float) -> None:
        # One that is pushed out is at worst told a second time.
        while len(self._orphans) >= ORPHANS_MAX:
            self._orphans.pop(next(iter(self._orphans)))
        self._orphans[task.task_id] = now_s
        payload = {
            "task_id": task.task_id,
            "task_type": task.task_type.value,
            "node_id": task.node,
            "last_heartbeat": task.heartbeat_s,
            "seconds_since_heartbeat": task.silent_s(now_s),
            "reason": why,
        }
        await self.router.publish("TASK_ORPHANED", payload, NAME)

    # --- what it knows --------------------------------------------------------------------------------

    async def stats(self) -> dict[str, Any]:
        """What runs, by type and node, and what became of the rest.

        Of jobs the queue's own record counts, which it keeps for some days; of registered tasks all count.
        """
        registry, now_s = self._admission.registry, self._runtime.now_s()
        tasks, ended = await registry.running(), await registry.outcomes()
        silent = [task for task in await registry.registered() if self._why_orphaned(task, now_s)]
        judged = ended.completed + ended.failed
        return {
            "active": len(tasks),
            "by_type": {kind.value: number for kind, number in counted(tasks).items()},
            "by_node": dict(Counter(task.node for task in tasks)),
            "spawned": len(tasks) + ended.tasks,
            "completed": ended.completed,
            "failed": ended.failed,
            "cancelled": ended.cancelled,
            "abandoned": ended.abandoned,
            "orphaned": len(silent),
            "success_rate": ended.completed / judged if judged else None,
            "mean_duration_seconds": await self._mean_duration_s(await registry.ended()),
            **await asyncio.to_thread(self._heard_of_nodes),
        }

    @reported
    def _heard_of_nodes(self) -> dict[str, Any]:
        return {"nodes_offline": dict(self._admission.offline) if self.is_subscribed else None}

    async def _mean_duration_s(self, others: EndedTotals) -> float | None:
        """Of the newest jobs and of all registered tasks; None if nothing has ended."""
        jobs = [task.duration_s for task in await self.ended(TIMED_MAX) if task.duration_s is not None]
        number = len(jobs) + others.tasks
        return (sum(jobs) + others.seconds) / number if number else None

    async def ended(self, limit: int = 100) -> list[EndedTask]:
        """The jobs that ended last, newest first, as long as the queue keeps them."""
        return [_ended(item) for item in await self._admission.registry.newest_ended(limit)]

    @reported
    def get_metrics(self) -> dict[str, Any]:
        heard = {"events_heard": self._totals.total(), "tasks_silent": len(self._orphans)}
        return {"name": self.name, "status": self.status.value, **heard}

    @reported_health
    def health_check(self) -> HealthCheckResult:
        """Degraded while tasks are missing."""
        silent = len(self._orphans)
        return super().health_check().or_degraded(f"{silent} tasks fell silent" if silent else "")

    # --- what is said ---------------------------------------------------------------------------------

    async def _on_event(self, event: RouterEvent) -> None:
        # Counted for the health check only; what runs and ended is read from the store.
        self._totals[event.event_type] += 1
        said = event.payload
        task_id, node = str(said.get("task_id", "")), str(said.get("node_id") or "")
        match event.event_type:
            case "HOST_OFFLINE" if not says_that_we_are_gone(event, self._runtime):
                self._admission.offline[node] = str(said.get("reason") or "reported offline")
                await self.check_orphans()
            case "HOST_ONLINE" | "NODE_RECOVERED":
                self._admission.offline.pop(node, None)
            case "TASK_ORPHANED":
                pass  # told by this, or by a worker that found a job of a killed one
            case _:
                self._orphans.pop(task_id, None)


def _ended(item: WorkItem) -> EndedTask:
    report = item.result or {}
    took = report.get("wall_s")
    return EndedTask(
        item.id,
        item.kind,
        str(report.get("node") or item.holder or ""),
        _STATUS_OF[item.state],
        item.changed_s,
        float(took) if isinstance(took, int | float) else None,
        (item.error or "")[:500],
    )


def get_task_lifecycle_coordinator(
    heartbeat_threshold_s: float | None = None,
) -> TaskLifecycleCoordinator:
    """Return the coordinator of this process; another threshold than it was made with is a `ConfigError`."""
    if heartbeat_threshold_s is None:
        return TaskLifecycleCoordinator.get_instance()
    return TaskLifecycleCoordinator.get_instance(heartbeat_threshold_s=heartbeat_threshold_s)


reset_task_lifecycle_coordinator = TaskLifecycleCoordinator.reset_instance


def wire_task_events(
    heartbeat_threshold: float | None = None, router: UnifiedEventRouter | None = None
) -> TaskLifecycleCoordinator:
    """Return the coordinator of this process, subscribed; for another *router*, one of its own."""
    coordinator = (
        get_task_lifecycle_coordinator() if router is None else TaskLifecycleCoordinator(router=router)
    )
    if heartbeat_threshold is not None:
        coordinator.heartbeat_threshold_s = heartbeat_threshold
    coordinator.wire()
    return coordinator


@blocking(timeout_s=ANSWER_S)
async def get_task_stats() -> dict[str, Any]:
    """What runs, by type and node, and what became of the rest; for code without a loop.

    The same in every process; where there is no run and no task was registered, all of it is None.
    """
    unknown: dict[str, Any] = {"by_type": {}, "by_node": {}, **dict.fromkeys(_UNKNOWN)}
    if await existing_engine() is None:
        return unknown
    found, run = await get_task_lifecycle_coordinator().stats(), await stored_status()
    # A store that others use is no run yet, and its nothing is no zero.
    return found if run is not None or found["spawned"] or found["abandoned"] else unknown
