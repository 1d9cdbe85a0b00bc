"""The tasks of an object that is started and stopped: none is lost, no error is unseen, all end with it.

A function that starts tasks waits for them in an `asyncio.TaskGroup`. An object that lives from `start()` to
`stop()` cannot: a group is left by the task that entered it. It has a `TaskOwner` instead, which keeps the
same promises, with one difference: an error of one task does not end the others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from contextvars import Context
from typing import Any, TypeVar

import structlog

log = structlog.get_logger()

ERRORS_KEPT = 16

T = TypeVar("T")


class TaskOwner:
    """Starts tasks, sees how each ends, and ends those that are left. One event loop may use it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: set[asyncio.Task[Any]] = set()
        self._errors: deque[BaseException] = deque(maxlen=ERRORS_KEPT)  # the newest; the log has them all
        self._is_stopped = False
        self.errors = 0  # how many tasks ended with one

    def __len__(self) -> int:
        """How many tasks run."""
        return sum(not task.done() for task in self._tasks)

    def __bool__(self) -> bool:
        return True  # also without tasks: it is there

    @property
    def is_stopped(self) -> bool:
        return self._is_stopped

    def create_task(
        self, work: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        """Start *work*. Raises `RuntimeError` after `stop`: nobody would end it any more."""
        if self._is_stopped:
            work.close()
            raise RuntimeError(f"{self._name} has stopped and starts no task any more")
        task = asyncio.get_running_loop().create_task(work, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._note_end)
        return task

    async def wait(self, timeout_s: float) -> tuple[BaseException, ...]:
        """Wait until no task is left, also of those that start meanwhile; return the errors there were."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._tasks:
                    await asyncio.wait(tuple(self._tasks))
        return tuple(self._errors)

    async def stop(self, timeout_s: float) -> tuple[BaseException, ...]:
        """Cancel the tasks and wait for their end; return the errors there were, also before.

        After *timeout_s* it waits no longer for a task that ignores cancellation: the log names it.
        """
        self._is_stopped = True
        # What one of the tasks stops cannot wait for that task.
        ending = self._tasks - {asyncio.current_task()}
        for task in ending:
            task.cancel()
        if ending:
            _, left = await asyncio.wait(ending, timeout=timeout_s)
            for task in left:
                log.error("tasks.not_stopped", owner=self._name, task=task.get_name(), after_s=timeout_s)
        return tuple(self._errors)

    def _note_end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        self.errors += 1
        self._errors.append(error)
        log.error("tasks.failed", owner=self._name, task=task.get_name(), exc_info=error)
