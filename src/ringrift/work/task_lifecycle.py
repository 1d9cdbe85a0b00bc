"""The life of every task: begun, heard of, ended, or fallen silent.

What runs is read from the task records; this keeps the history of what ended, notices tasks that fell silent,
and knows which nodes are gone. `check_orphans` is called in turn by the work queue's daemon.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import psutil

from ringrift.engine.arguments import check_part
from ringrift.engine.blocking import run_blocking
from ringrift.events.routed_event import RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.events.wired import WiredCoordinator
from ringrift.health.history import BoundedHistory
from ringrift.runtime import Runtime, system_runtime
from ringrift.status import HealthCheckResult
from ringrift.work.task_admission import TaskAdmission, get_task_admission
from ringrift.work.task_registry import ORPHAN_AFTER_S, RunningTask, counted

NAME = "task_coordinator"
HISTORY_MAX = 1000
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
    """One line of the history."""

    task_id: str
    task_type: str
    node: str
    status: TaskStatus
    at_s: float
    duration_s: float | None
    error: str = ""


_ENDS = {
    "TASK_COMPLETED": TaskStatus.COMPLETED,
    "TASK_FAILED": TaskStatus.FAILED,
    "TASK_CANCELLED": TaskStatus.CANCELLED,
    "TASK_ORPHANED": TaskStatus.ORPHANED,
}


class TaskLifecycleCoordinator(WiredCoordinator):
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
        self.history: BoundedHistory[EndedTask] = BoundedHistory(HISTORY_MAX)
        self._totals: Counter[str] = Counter()
        self._orphans: dict[str, float] = {}  # told about, and when

    def _hears(self) -> Mapping[str, Callback]:
        return dict.fromkeys(self.subscribes, self._on_event)

    # --- tasks that fell silent -----------------------------------------------------------------------

    async def check_orphans(self) -> list[RunningTask]:
        """Tell of registered tasks that fell silent; drop those that cannot come back. Returns the news."""
        now_s, news = self._runtime.now_s(), []
        for task in await self._admission.registry.registered():
            why = self._why_orphaned(task, now_s)
            if why and task.task_id not in self._orphans:
                news.append(task)
                await self._tell_orphaned(task, why, now_s)
            if why and self._is_given_up(task, now_s):
                await self.abandon(task.task_id, reason=why)
        return news

    async def abandon(self, task_id: str, *, reason: str) -> bool:
        """Drop a task on purpose and say so; False if nobody registered it."""
        task = await self._admission.registry.end(task_id)
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
        long_silent = task.silent_s(now_s) > GIVEN_UP_AFTER * self.heartbeat_threshold_s
        return long_silent or self._is_dead_here(task)

    async def _tell_orphaned(self, task: RunningTask, why: str, now_s: float) -> None:
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
        """What runs, by type and node, and what became of the rest."""
        tasks = await self._admission.registry.running()
        ended = {status.value: self._totals[status.value] for status in _ENDS.values()}
        judged = ended["completed"] + ended["failed"]
        durations = [item.duration_s for item in self.history if item.duration_s is not None]
        return {
            "active": len(tasks),
            "by_type": {kind.value: number for kind, number in counted(tasks).items()},
            "by_node": dict(Counter(task.node for task in tasks)),
            "spawned": self._totals["spawned"],
            "heartbeats": self._totals["heartbeats"],
            **ended,
            "success_rate": ended["completed"] / judged if judged else None,
            "mean_duration_seconds": sum(durations) / len(durations) if durations else None,
            "nodes_offline": dict(self._admission.offline),
        }

    def get_metrics(self) -> dict[str, Any]:
        return {"name": self.name, "status": self.status.value, **self._totals}

    def health_check(self) -> HealthCheckResult:
        """Degraded while tasks are missing."""
        if not self._subscriptions:
            return HealthCheckResult(False, self.status, "not wired", self.get_metrics())
        if self._orphans:
            return HealthCheckResult.degraded(f"{len(self._orphans)} tasks fell silent", **self.get_metrics())
        return HealthCheckResult.ok("", **self.get_metrics())

    # --- what is said ---------------------------------------------------------------------------------

    async def _on_event(self, event: RouterEvent) -> None:
        said = event.payload
        task_id, node = str(said.get("task_id", "")), str(said.get("node_id") or "")
        match event.event_type:
            case "TASK_SPAWNED":
                self._totals["spawned"] += 1
                self._orphans.pop(task_id, None)
            case "TASK_HEARTBEAT":
                self._totals["heartbeats"] += 1
                self._orphans.pop(task_id, None)
            case "HOST_OFFLINE":
                self._admission.offline[node] = str(said.get("reason") or "reported offline")
                await self.check_orphans()
            case "HOST_ONLINE" | "NODE_RECOVERED":
                self._admission.offline.pop(node, None)
            case ended:
                self._note_end(_ENDS[ended], task_id, node, said)

    def _note_end(self, status: TaskStatus, task_id: str, node: str, said: dict[str, Any]) -> None:
        self._totals[status.value] += 1
        if status is not TaskStatus.ORPHANED:
            self._orphans.pop(task_id, None)
        took = said.get("duration_seconds")
        self.history.append(
            EndedTask(
                task_id,
                str(said.get("task_type", "")),
                node,
                status,
                self._runtime.now_s(),
                float(took) if isinstance(took, int | float) else None,
                str(said.get("error") or said.get("reason") or "")[:500],
            )
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


def get_task_stats() -> dict[str, Any]:
    """What runs, by type and node, and what became of the rest; for code without a loop."""
    return run_blocking(get_task_lifecycle_coordinator().stats(), timeout_s=ANSWER_S)
