"""Task coordination: who may start what where, the state of the whole, and functions and blocks as tasks.

Tasks are records in the engine (`work.tasks`); what other processes say about theirs arrives as events and
lands in the same records. `can_spawn` and its like serve code without a loop; each has an async twin.

    @coordinate_task("export")
    def export(config_key): ...

    with task_context("selfplay", board_type="hex8", num_players=2) as task: ...
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, ParamSpec, TypeVar

from ringrift.coordination.handler_base import HearingCoordinator
from ringrift.coordination.safeguards import (
    EmergencyStop,
    Safeguards,
    check_before_spawn,
    clear_emergency_stop,
    emergency_notice,
    get_emergency_stop,
    get_safeguards,
    get_task_admission,
    reset_safeguards,
    turn_on_emergency_stop,
)
from ringrift.coordination.task_lifecycle_coordinator import (
    EndedTask,
    TaskLifecycleCoordinator,
    TaskStatus,
    get_task_lifecycle_coordinator,
    get_task_stats,
    reset_task_lifecycle_coordinator,
    wire_task_events,
)
from ringrift.engine.arguments import check_integer, check_name, check_part, refuse
from ringrift.engine.blocking import blocking, run_blocking
from ringrift.engine.opening import existing_engine
from ringrift.engine.run_reports import reported, reported_health
from ringrift.errors import ConfigError, Unavailable
from ringrift.events.event import EventSource, RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.process import getter_of
from ringrift.runtime import Runtime, system_runtime
from ringrift.status import HealthCheckResult
from ringrift.task_owner import TaskOwner
from ringrift.work.admission import TaskAdmission
from ringrift.work.limits import (
    SPAWN_ORDER,
    CoordinatorState,
    EmergencyNotice,
    SpawnVerdict,
    TaskLimits,
    TokenBucket,
    judge,
)
from ringrift.work.tasks import (
    EndedTotals,
    RunningTask,
    TaskRegistry,
    TaskType,
    counted,
    task_type_of,
    work_queue_status,
)

__all__ = [
    "CoordinatorState",
    "EmergencyNotice",
    "EmergencyStop",
    "EndedTask",
    "RunningTask",
    "Safeguards",
    "SpawnVerdict",
    "TaskContext",
    "TaskCoordinator",
    "TaskLifecycleCoordinator",
    "TaskLimits",
    "TaskRegistry",
    "TaskStatus",
    "TaskType",
    "TokenBucket",
    "async_task_context",
    "can_spawn",
    "can_spawn_async",
    "check_before_spawn",
    "clear_emergency_stop",
    "coordinate_async_task",
    "coordinate_task",
    "emergency_notice",
    "get_emergency_stop",
    "get_safeguards",
    "get_task_coordinator",
    "get_task_lifecycle_coordinator",
    "get_task_stats",
    "get_work_queue_status",
    "reset_safeguards",
    "reset_task_coordinator",
    "reset_task_lifecycle_coordinator",
    "task_context",
    "task_type_of",
    "turn_on_emergency_stop",
    "wire_task_events",
    "wire_task_limits",
    "work_queue_status",
]

NAME = "global_task_coordinator"
ANSWER_S = 10.0
_ENDS = {"TASK_COMPLETED": "completed", "TASK_FAILED": "failed", "TASK_CANCELLED": "cancelled"}


class TaskCoordinator(HearingCoordinator):
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

    @blocking(timeout_s=ANSWER_S)
    async def can_spawn(self, task_type: str, node_id: str = "") -> tuple[bool, str]:
        return (await self.verdict(task_type, node_id)).as_pair()

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
        # The router is told outside of the background loop: its home is another one.
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
        check_name("task_id", task_id)
        check_name("node_id", node_id, empty=True)
        check_name("config_key", config_key, empty=True)
        if pid is not None:
            check_integer("pid", pid, low=1)
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
        """Change it for all processes; *for_s* ends the change by itself. What is no RUNNING is a pause.

        EMERGENCY is the emergency stop, and leaving it clears that.
        """
        if state is CoordinatorState.EMERGENCY:
            await self._emergency.turn_on(reason or "asked for", for_s=for_s)
            # The next question must not be answered from a view of before the stop.
            self.admission.forget_view()
            return
        if (await self.admission.state()).state is CoordinatorState.EMERGENCY:
            await self._emergency.clear()
        await self.admission.set_state(state, reason, for_s=for_s)

    @blocking(timeout_s=ANSWER_S)
    async def get_state(self) -> CoordinatorState:
        return (await self.admission.state()).state

    @blocking(timeout_s=ANSWER_S)
    async def pause(self, reason: str = "asked for", *, for_s: float | None = None) -> None:
        await self.set_state(CoordinatorState.PAUSED, reason, for_s=for_s)

    @blocking(timeout_s=ANSWER_S)
    async def drain(self, reason: str = "asked for") -> None:
        await self.set_state(CoordinatorState.DRAINING, reason)

    @blocking(timeout_s=ANSWER_S)
    async def resume(self) -> None:
        await self.set_state(CoordinatorState.RUNNING)

    @blocking(timeout_s=ANSWER_S)
    async def emergency_stop(self, reason: str) -> None:
        await self.set_state(CoordinatorState.EMERGENCY, reason)

    @blocking(timeout_s=ANSWER_S)
    async def reserve_node(self, node_id: str, purpose: str, *, for_s: float = 3600.0) -> bool:
        """Keep a node for one type of task for a while; False if it is kept for another."""
        return await self.admission.registry.reserve(node_id, purpose=purpose, for_s=for_s)

    @blocking(timeout_s=ANSWER_S)
    async def release_node(self, node_id: str) -> bool:
        return await self.admission.registry.free(node_id)

    # --- what it knows --------------------------------------------------------------------------------

    @blocking(timeout_s=ANSWER_S)
    async def get_tasks(self, task_type: str | None = None, node_id: str | None = None) -> list[RunningTask]:
        """Return what runs now: claims of the work queue and registered tasks."""
        wanted = None if task_type is None else task_type_of(task_type)
        tasks = await self.admission.registry.running()
        return [task for task in tasks if wanted in (None, task.task_type) and node_id in (None, task.node)]

    def get_stats(self) -> dict[str, Any]:
        """What runs and how tasks ended, the same in every process; *asked* and *refused* are of this one."""
        tasks, ended = self.get_tasks(), self._ended_so_far()
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

    @blocking(timeout_s=ANSWER_S)
    async def _ended_so_far(self) -> EndedTotals:
        return await self.admission.registry.outcomes()

    @reported
    def _held_back(self) -> dict[str, Any]:
        return {"open_breakers": self.admission.open_breakers()}

    @reported
    def get_metrics(self) -> dict[str, Any]:
        return {"name": self.name, "status": self.status.value, **self._counts}

    @reported_health
    def health_check(self) -> HealthCheckResult:
        held = self.admission.open_breakers()
        return (
            super().health_check().or_degraded(f"held back after failures: {', '.join(held)}" if held else "")
        )

    # --- what others say ------------------------------------------------------------------------------

    async def _on_event(self, event: RouterEvent) -> None:
        # What a coordinator of any process said stands in the records already; writing it again could
        # bring a task back that has ended meanwhile.
        said, recorded = event.payload, event.source == NAME
        here = recorded and event.origin is not EventSource.CROSS_PROCESS
        task_id, reported_kind = str(said.get("task_id", "")), str(said.get("task_type") or TaskType.OTHER)
        kind = task_type_of(reported_kind)
        node = str(said.get("node_id") or "")
        match event.event_type:
            case "TASK_SPAWNED" if recorded:
                # Its own start was counted when it was stored.
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
        known_pid = pid if isinstance(pid, int) and pid > 0 else None
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


get_task_coordinator = getter_of("get_task_coordinator", TaskCoordinator)
reset_task_coordinator = TaskCoordinator.reset_instance
wire_task_limits = TaskCoordinator.wired


def can_spawn(task_type: TaskType | str, node_id: str = "") -> tuple[bool, str]:
    """Whether a task may start on a node now, and why not."""
    return get_task_coordinator().can_spawn(task_type, node_id)


async def can_spawn_async(task_type: TaskType | str, node_id: str = "") -> tuple[bool, str]:
    return (await get_task_coordinator().verdict(task_type, node_id)).as_pair()


# Functions and blocks as tasks: registered while they run, their end told.
#
# A task that a limit refuses does not run: `Unavailable` says why and when to try again. What the function
# raises is told as TASK_FAILED and raised on.


# Several fit into the time after which a silent task is an orphan.
HEARTBEAT_S = 60.0
_FIELDS_SET_HERE = frozenset({"config_key", "start_time"})
_OPTIONS = ("task_id", "node_id", "board_type", "num_players", "metadata")
_MISTYPED = 0.85  # how alike two names are of which one is meant for the other
_PLAYERS_MAX = 10  # no game that can be installed has more

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """The task that a function or block is."""

    task_id: str
    task_type: TaskType
    start_time: float
    node_id: str = ""  # empty: this machine
    board_type: str = ""
    num_players: int = 0
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def config_key(self) -> str:
        return f"{self.board_type}_{self.num_players}p" if self.board_type and self.num_players else ""


@contextmanager
def task_context(
    task_type: TaskType | str, *, emit_events: bool = True, check_limits: bool = False, **options: Any
) -> Iterator[TaskContext]:
    """Be a task for a block, with heartbeats. Without *emit_events* nothing is registered and nothing told.

    *options* are the fields of the task: `task_id` (else one is made), `node_id`, `board_type`,
    `num_players`, `metadata`. Any other is a note of the caller's own, kept in the metadata, unless its name
    is nearly that of a field: then it is refused.
    """
    runtime, coordinator = system_runtime(), get_task_coordinator()
    task = _new_task(task_type, runtime, **options)
    if check_limits:
        _refuse_unless(*coordinator.can_spawn(task.task_type, task.node_id))
    if not emit_events:
        yield task
        return
    coordinator.register_task(
        task.task_id, task.task_type, task.node_id, pid=runtime.pid, config_key=task.config_key
    )
    # On the background loop, as the block has none: without them a long one would be taken for silent.
    heartbeats = run_blocking(_start_beating(coordinator, task, runtime), timeout_s=ANSWER_S)
    try:
        with _reporting(coordinator, task):
            yield task
    finally:
        run_blocking(heartbeats.stop(ANSWER_S), timeout_s=2 * ANSWER_S)


@asynccontextmanager
async def async_task_context(
    task_type: TaskType | str, *, emit_events: bool = True, check_limits: bool = False, **options: Any
) -> AsyncIterator[TaskContext]:
    """`task_context` for a block of asynchronous code; its heartbeats come by themselves."""
    runtime, coordinator = system_runtime(), get_task_coordinator()
    task = _new_task(task_type, runtime, **options)
    if check_limits:
        _refuse_unless(*(await coordinator.verdict(task.task_type, task.node_id)).as_pair())
    if not emit_events:
        yield task
        return
    await coordinator.register(
        task.task_id, task.task_type, task.node_id, pid=runtime.pid, config_key=task.config_key
    )
    # Not a task group: what the block raises must reach its caller as it is.
    heartbeats = await _start_beating(coordinator, task, runtime)
    try:
        async with _reporting_async(coordinator, task):
            yield task
    finally:
        await heartbeats.stop(ANSWER_S)


def coordinate_task(
    task_type: TaskType | str,
    emit_events: bool = True,  # noqa: FBT001, FBT002 - as the documents call it
    **options: Any,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make each call of a function a task; *options* are those of `task_context`, without `task_id`."""
    _check_decorated(task_type, options)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        # As a decorator a context is made anew for each call.
        named = task_context(task_type, emit_events=emit_events, function=function.__name__, **options)
        return named(function)

    return decorate


def coordinate_async_task(
    task_type: TaskType | str,
    emit_events: bool = True,  # noqa: FBT001, FBT002 - as the documents call it
    **options: Any,
) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R]]]:
    """Make each call of an asynchronous function a task; *options* are those of `coordinate_task`."""
    _check_decorated(task_type, options)

    def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        named = async_task_context(task_type, emit_events=emit_events, function=function.__name__, **options)
        return named(function)

    return decorate


def _new_task(
    task_type: TaskType | str,
    runtime: Runtime,
    *,
    task_id: str | None = None,
    node_id: str = "",
    board_type: str = "",
    num_players: int = 0,
    metadata: Mapping[str, Any] | None = None,
    **notes: Any,
) -> TaskContext:
    kind = task_type_of(task_type)
    if task_id is not None:
        check_name("task_id", task_id)
    check_name("node_id", node_id, empty=True)
    check_name("board_type", board_type, empty=True)
    check_integer("num_players", num_players, high=_PLAYERS_MAX)
    if metadata is not None and not (
        isinstance(metadata, Mapping) and all(isinstance(name, str) for name in metadata)
    ):
        refuse("metadata", metadata, "a mapping of names to values")
    if own := _FIELDS_SET_HERE & notes.keys():
        raise ConfigError(f"{min(own)} of a task follows from the others; give board_type and num_players")
    for note in notes:
        if near := get_close_matches(note, _OPTIONS, n=1, cutoff=_MISTYPED):
            raise ConfigError(
                f"{note} is no option of a task; did you mean {near[0]}? A note so called goes into metadata"
            )
    return TaskContext(
        task_id=f"{kind.value}-{runtime.new_id()}" if task_id is None else task_id,
        task_type=kind,
        start_time=runtime.now_s(),
        node_id=node_id,
        board_type=board_type,
        num_players=num_players,
        metadata={**(metadata or {}), **notes},
    )


def _check_decorated(task_type: TaskType | str, options: Mapping[str, Any]) -> None:
    """Refuse options where the decorator is written, and not at the first call."""
    if "task_id" in options:
        raise ConfigError("every call is a task of its own; give task_id to a task_context in the function")
    _new_task(task_type, system_runtime(), **options)


def _refuse_unless(ok: bool, reason: str) -> None:  # noqa: FBT001 - a pair as it comes
    if not ok:
        raise Unavailable(f"the task may not start: {reason}", retry_after_s=5.0)


@contextmanager
def _reporting(coordinator: TaskCoordinator, task: TaskContext) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        # Also for an interrupt: a task without an end counts as running until it falls silent.
        _tell_failure(coordinator, task, error)
        raise
    coordinator.complete_task(task.task_id)


@asynccontextmanager
async def _reporting_async(coordinator: TaskCoordinator, task: TaskContext) -> AsyncIterator[None]:
    try:
        yield
    except BaseException as error:
        await asyncio.to_thread(_tell_failure, coordinator, task, error)
        raise
    await asyncio.to_thread(coordinator.complete_task, task.task_id)


def _tell_failure(coordinator: TaskCoordinator, task: TaskContext, error: BaseException) -> None:
    if isinstance(error, asyncio.CancelledError):
        coordinator.cancel_task(task.task_id, "cancelled", requested_by="its caller")
        return
    name = type(error).__name__
    coordinator.fail_task(task.task_id, f"{name}: {error}" if str(error) else name)


async def _start_beating(coordinator: TaskCoordinator, task: TaskContext, runtime: Runtime) -> TaskOwner:
    heartbeats = TaskOwner(f"heartbeats of {task.task_id}")
    heartbeats.create_task(_beat(coordinator, task, runtime))
    return heartbeats


async def _beat(coordinator: TaskCoordinator, task: TaskContext, runtime: Runtime) -> None:
    while True:
        await runtime.sleep(HEARTBEAT_S)
        # In a thread, as it blocks on the background loop.
        await asyncio.to_thread(coordinator.heartbeat_task, task.task_id)


@blocking(timeout_s=ANSWER_S)
async def get_work_queue_status() -> dict[str, Any]:
    """What the queue holds, for code without a loop; None is what nobody knows."""
    return await work_queue_status(await existing_engine())
