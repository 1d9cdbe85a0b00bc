"""Task limits and admission: who may start what where, and the state of the whole.

Tasks are records in the engine (`task_registry`); what other processes say about theirs arrives as events and
lands in the same records. `can_spawn` and its like serve code without a loop; each has an async twin.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ringrift.engine.arguments import check_part
from ringrift.engine.blocking import run_blocking
from ringrift.engine.run_reports import reported, reported_health
from ringrift.events.routed_event import EventSource, RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.events.wired import WiredCoordinator
from ringrift.runtime import Runtime, system_runtime
from ringrift.status import HealthCheckResult
from ringrift.work.emergency import EmergencyStop, get_emergency_stop
from ringrift.work.limits import CoordinatorState, SpawnVerdict, StateNotice
from ringrift.work.limits_checks import SPAWN_ORDER, judge
from ringrift.work.task_admission import TaskAdmission, get_task_admission
from ringrift.work.task_registry import RunningTask, counted
from ringrift.work.task_types import TaskType, task_type_of

NAME = "global_task_coordinator"
ANSWER_S = 10.0
_ENDS = {"TASK_COMPLETED": "completed", "TASK_FAILED": "failed", "TASK_CANCELLED": "cancelled"}


class TaskCoordinator(WiredCoordinator):
    """The coordinator of limits."""

    emits = ("TASK_SPAWNED", "TASK_CANCELLED", "TASK_COMPLETED", "TASK_FAILED", "TASK_HEARTBEAT")
    subscribes = ("TASK_SPAWNED", "TASK_HEARTBEAT", "TASK_COMPLETED", "TASK_FAILED", "TASK_CANCELLED")

    def __init__(
        self,
        admission: TaskAdmission | None = None,
        *,
        emergency: EmergencyStop | None = None,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        super().__init__(NAME, router=router)
        self.admission = get_task_admission() if admission is None else admission
        check_part("admission", self.admission, TaskAdmission)
        self._emergency = emergency or get_emergency_stop()
        self._runtime = runtime or system_runtime()
        self._counts = dict.fromkeys(("asked", "refused"), 0)  # here; what became of tasks is in the store

    def _hears(self) -> Mapping[str, Callback]:
        return dict.fromkeys(self.subscribes, self._on_event)

    # --- may it start? --------------------------------------------------------------------------------

    async def verdict(self, task_type: str, node_id: str = "") -> SpawnVerdict:
        """Whether a task may start on a node now; the first refusal in the order of the checks."""
        question = await self.admission.question(task_type_of(task_type), node_id)
        answer = judge(question, self.admission.limits, SPAWN_ORDER)
        self._counts["asked"] += 1
        self._counts["refused"] += not answer.ok
        return answer

    def can_spawn(self, task_type: str, node_id: str = "") -> tuple[bool, str]:
        return run_blocking(self.verdict(task_type, node_id), timeout_s=ANSWER_S).as_pair()

    # --- the life of a task ---------------------------------------------------------------------------

    async def register(
        self, task_id: str, task_type: str, node_id: str = "", *, pid: int | None = None, config_key: str = ""
    ) -> str:
        """Store that a task runs, and say so."""
        task = await self._store(task_id, task_type, node_id, pid, config_key)
        await self.router.publish("TASK_SPAWNED", _about(task), NAME)
        return task_id

    def register_task(
        self,
        task_id: str,
        task_type: str,
        node_id: str = "",
        pid: int | None = None,
        config_key: str = "",
    ) -> str:
        storing = self._store(task_id, task_type, node_id, pid, config_key)
        task = run_blocking(storing, timeout_s=ANSWER_S)
        self.router.publish_sync("TASK_SPAWNED", _about(task), NAME)
        return task_id

    def heartbeat_task(self, task_id: str) -> bool:
        """Say that a task lives; False if nobody registered it."""
        known = run_blocking(self.admission.registry.heartbeat(task_id), timeout_s=ANSWER_S)
        if known:
            payload = {"task_id": task_id, "node_id": self._runtime.hostname}
            self.router.publish_sync("TASK_HEARTBEAT", payload, NAME)
        return known

    def complete_task(self, task_id: str, result: dict[str, Any] | None = None) -> bool:
        """Take a task off that ended well; False if nobody registered it."""
        return self._end(task_id, "TASK_COMPLETED", {} if result is None else {"result": result})

    def fail_task(self, task_id: str, error: str) -> bool:
        return self._end(task_id, "TASK_FAILED", {"error": error})

    def cancel_task(self, task_id: str, reason: str = "asked for", *, requested_by: str = "operator") -> bool:
        """Take a task off and tell whoever runs it. A claim is cancelled in the work queue itself."""
        if run_blocking(self.admission.registry.cancel_claim(task_id, reason=reason), timeout_s=ANSWER_S):
            return True
        return self._end(task_id, "TASK_CANCELLED", {"reason": reason, "requested_by": requested_by})

    def _end(self, task_id: str, event: str, extra: dict[str, Any]) -> bool:
        task = run_blocking(self.admission.registry.end(task_id, _ENDS[event]), timeout_s=ANSWER_S)
        if task is None:
            return False
        took_s = max(0.0, self._runtime.now_s() - task.started_s)
        timed = {} if event == "TASK_CANCELLED" else {"duration_seconds": took_s}
        self.router.publish_sync(event, {**_about(task, short=True), **timed, **extra}, NAME)
        return True

    async def _store(
        self, task_id: str, task_type: str, node_id: str, pid: int | None, config_key: str
    ) -> RunningTask:
        now_s, node = self._runtime.now_s(), node_id or self._runtime.hostname
        task = RunningTask(
            task_id=task_id,
            task_type=task_type_of(task_type),
            node=node,
            started_s=now_s,
            heartbeat_s=now_s,
            pid=pid,
            config_key=config_key,
        )
        await self.admission.registry.add(task)
        self.admission.started(task.task_type, node)
        return task

    # --- the state of the whole -----------------------------------------------------------------------

    async def set_state(
        self, state: CoordinatorState, reason: str = "", *, for_s: float | None = None
    ) -> None:
        """Change it for all processes; *for_s* ends the change by itself.

        EMERGENCY is the emergency stop, and leaving it clears that.
        """
        now_s = self._runtime.now_s()
        if state is CoordinatorState.EMERGENCY:
            await self._emergency.turn_on(reason or "asked for", for_s=for_s)
            self.admission.forget_view()
            return
        if (await self.admission.state()).state is CoordinatorState.EMERGENCY:
            await self._emergency.clear()
        until_s = None if for_s is None else now_s + for_s
        await self.admission.set_state(
            StateNotice(state=state, reason=reason, since_s=now_s, until_s=until_s)
        )

    def get_state(self) -> CoordinatorState:
        return run_blocking(self.admission.state(), timeout_s=ANSWER_S).state

    def pause(self, reason: str = "asked for", *, for_s: float | None = None) -> None:
        run_blocking(self.set_state(CoordinatorState.PAUSED, reason, for_s=for_s), timeout_s=ANSWER_S)

    def drain(self, reason: str = "asked for") -> None:
        run_blocking(self.set_state(CoordinatorState.DRAINING, reason), timeout_s=ANSWER_S)

    def resume(self) -> None:
        run_blocking(self.set_state(CoordinatorState.RUNNING), timeout_s=ANSWER_S)

    def emergency_stop(self, reason: str) -> None:
        run_blocking(self.set_state(CoordinatorState.EMERGENCY, reason), timeout_s=ANSWER_S)

    def reserve_node(self, node_id: str, purpose: str, *, for_s: float = 3600.0) -> bool:
        """Keep a node for one type of task for a while; False if it is kept for another."""
        keeping = self.admission.registry.reserve(node_id, purpose=purpose, for_s=for_s)
        return run_blocking(keeping, timeout_s=ANSWER_S)

    def release_node(self, node_id: str) -> bool:
        return run_blocking(self.admission.registry.free(node_id), timeout_s=ANSWER_S)

    # --- what it knows --------------------------------------------------------------------------------

    def get_tasks(self, task_type: str | None = None, node_id: str | None = None) -> list[RunningTask]:
        """Return what runs now: claims of the work queue and registered tasks."""
        wanted = None if task_type is None else task_type_of(task_type)
        tasks = run_blocking(self.admission.registry.running(), timeout_s=ANSWER_S)
        return [task for task in tasks if wanted in (None, task.task_type) and node_id in (None, task.node)]

    def get_stats(self) -> dict[str, Any]:
        """What runs and how tasks ended, the same in every process; *asked* and *refused* are of this one."""
        tasks, ended = self.get_tasks(), run_blocking(self.admission.registry.outcomes(), timeout_s=ANSWER_S)
        return {
            **self.get_metrics(),
            "state": self.get_state().value,
            "tasks": len(tasks),
            "spawned": len(tasks) + ended.tasks,
            "completed": ended.completed,
            "failed": ended.failed,
            "cancelled": ended.cancelled,
            "by_type": {kind.value: number for kind, number in counted(tasks).items()},
            **self._held_back(),
        }

    @reported
    def _held_back(self) -> dict[str, Any]:
        return {"open_breakers": self.admission.open_breakers()}

    @reported
    def get_metrics(self) -> dict[str, Any]:
        return {"name": self.name, "status": self.status.value, **self._counts}

    @reported_health
    def health_check(self) -> HealthCheckResult:
        if not self._subscriptions:
            return HealthCheckResult(False, self.status, "not wired", self.get_metrics())
        if held := self.admission.open_breakers():
            return HealthCheckResult.degraded(
                f"held back after failures: {', '.join(held)}", **self.get_metrics()
            )
        return HealthCheckResult.ok("", **self.get_metrics())

    # --- what others say ------------------------------------------------------------------------------

    async def _on_event(self, event: RouterEvent) -> None:
        # What a coordinator of any process said stands in the records already; writing it again could
        # bring a task back that has ended meanwhile.
        said, recorded = event.payload, event.source == NAME
        here = recorded and event.origin is not EventSource.CROSS_PROCESS
        task_id, kind = str(said.get("task_id", "")), task_type_of(str(said.get("task_type", "")))
        node = str(said.get("node_id") or "")
        match event.event_type:
            case "TASK_SPAWNED" if recorded:
                if not here:
                    self.admission.started(kind, node)
            case "TASK_SPAWNED":
                await self._note_spawned(task_id, kind, node, said)
            case "TASK_HEARTBEAT" if not recorded:
                await self.admission.registry.heartbeat(task_id)
            case "TASK_COMPLETED":
                await self._ended(task_id, "completed")
                self.admission.succeeded(kind, node)
            case "TASK_FAILED":
                await self._ended(task_id, "failed")
                await self.admission.failed(kind, node, str(said.get("error", "")))
            case "TASK_CANCELLED":
                await self._ended(task_id, "cancelled")

    async def _note_spawned(self, task_id: str, kind: TaskType, node: str, said: Mapping[str, Any]) -> None:
        if await self.admission.registry.is_work_item(task_id):
            self.admission.started(kind, node)  # a worker's job; the queue itself keeps it
            return
        pid = said.get("pid")
        known_pid = pid if isinstance(pid, int) else None
        await self._store(task_id, kind, node, known_pid, str(said.get("config_key") or ""))

    async def _ended(self, task_id: str, how: str) -> None:
        await self.admission.registry.end(task_id, how)
        self.admission.forget_view()


def _about(task: RunningTask, *, short: bool = False) -> dict[str, Any]:
    about: dict[str, Any] = {
        "task_id": task.task_id,
        "task_type": task.task_type.value,
        "node_id": task.node,
    }
    if not short and task.config_key:
        about["config_key"] = task.config_key
    if not short and task.pid is not None:
        about["pid"] = task.pid
    return about


def get_task_coordinator() -> TaskCoordinator:
    """Return the coordinator of this process."""
    return TaskCoordinator.get_instance()


reset_task_coordinator = TaskCoordinator.reset_instance


def wire_task_limits(router: UnifiedEventRouter | None = None) -> TaskCoordinator:
    """Return the coordinator of this process, subscribed; for another *router*, one of its own."""
    coordinator = get_task_coordinator() if router is None else TaskCoordinator(router=router)
    coordinator.wire()
    return coordinator


def can_spawn(task_type: TaskType | str, node_id: str = "") -> tuple[bool, str]:
    """Whether a task may start on a node now, and why not."""
    return get_task_coordinator().can_spawn(task_type, node_id)


async def can_spawn_async(task_type: TaskType | str, node_id: str = "") -> tuple[bool, str]:
    return (await get_task_coordinator().verdict(task_type, node_id)).as_pair()
