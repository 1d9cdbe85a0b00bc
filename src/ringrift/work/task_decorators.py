"""Functions and blocks as tasks: registered while they run, their end told.

    @coordinate_task("export")
    def export(config_key): ...

    with task_context("selfplay", board_type="hex8", num_players=2) as task: ...

A task that a limit refuses does not run: `Unavailable` says why and when to try again. What the function
raises is told as TASK_FAILED and raised on.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from ringrift.errors import ConfigError, Unavailable
from ringrift.runtime import Runtime, system_runtime
from ringrift.work.task_coordinator import TaskCoordinator, get_task_coordinator
from ringrift.work.task_types import TaskType, task_type_of

HEARTBEAT_S = 60.0
_FIELDS_SET_HERE = frozenset({"config_key", "start_time"})

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
    """Be a task for a block. Without *emit_events* nothing is registered and nothing told.

    *options* are the fields of the task: `task_id` (else one is made), `node_id`, `board_type`,
    `num_players`, `metadata`. Any other is a note of the caller's own, kept in the metadata.
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
    with _told(coordinator, task):
        yield task


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
    beating = asyncio.create_task(_beat(coordinator, task, runtime), name=f"heartbeats of {task.task_id}")
    try:
        async with _told_async(coordinator, task):
            yield task
    finally:
        beating.cancel()
        with suppress(asyncio.CancelledError):
            await beating


def coordinate_task(
    task_type: TaskType | str,
    emit_events: bool = True,  # noqa: FBT001, FBT002 - as the documents call it
    **options: Any,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make each call of a function a task; *options* are those of `task_context`, without `task_id`."""
    _refuse_fixed_id(options)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def as_task(*args: P.args, **kwargs: P.kwargs) -> R:
            with task_context(task_type, emit_events=emit_events, function=function.__name__, **options):
                return function(*args, **kwargs)

        return as_task

    return decorate


def coordinate_async_task(
    task_type: TaskType | str,
    emit_events: bool = True,  # noqa: FBT001, FBT002 - as the documents call it
    **options: Any,
) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R]]]:
    """Make each call of an asynchronous function a task; *options* are those of `coordinate_task`."""
    _refuse_fixed_id(options)

    def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        @functools.wraps(function)
        async def as_task(*args: P.args, **kwargs: P.kwargs) -> R:
            async with async_task_context(
                task_type, emit_events=emit_events, function=function.__name__, **options
            ):
                return await function(*args, **kwargs)

        return as_task

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
    if task_id is not None and (not isinstance(task_id, str) or not task_id):
        raise ConfigError(f"task_id is {task_id!r}; it must be text, or nothing for one that is made")
    if own := _FIELDS_SET_HERE & notes.keys():
        raise ConfigError(f"{min(own)} of a task follows from the others; give board_type and num_players")
    return TaskContext(
        task_id=f"{kind.value}-{runtime.new_id()}" if task_id is None else task_id,
        task_type=kind,
        start_time=runtime.now_s(),
        node_id=node_id,
        board_type=board_type,
        num_players=num_players,
        metadata={**(metadata or {}), **notes},
    )


def _refuse_fixed_id(options: Mapping[str, Any]) -> None:
    if "task_id" in options:
        raise ConfigError("every call is a task of its own; give task_id to a task_context in the function")


def _refuse_unless(ok: bool, reason: str) -> None:  # noqa: FBT001 - a pair as it comes
    if not ok:
        raise Unavailable(f"the task may not start: {reason}", retry_after_s=5.0)


@contextmanager
def _told(coordinator: TaskCoordinator, task: TaskContext) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        _tell_failure(coordinator, task, error)
        raise
    coordinator.complete_task(task.task_id)


@asynccontextmanager
async def _told_async(coordinator: TaskCoordinator, task: TaskContext) -> AsyncIterator[None]:
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


async def _beat(coordinator: TaskCoordinator, task: TaskContext, runtime: Runtime) -> None:
    while True:
        await runtime.sleep(HEARTBEAT_S)
        await asyncio.to_thread(coordinator.heartbeat_task, task.task_id)
