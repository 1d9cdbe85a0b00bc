"""Which event loop the router lives on, and the tasks that publish there on nobody's behalf.

A program may have several loops, each in a thread of its own, and may end any of them at any time. The
router lives on one of them; who publishes on another hands its event over and waits for it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import structlog

from ringrift.events.handed_work import HandedWork
from ringrift.events.loop_watch import LoopWatch
from ringrift.events.routed_event import RouterEvent
from ringrift.runtime import Runtime

log = structlog.get_logger()

T = TypeVar("T")

STOP_S = 5.0
_ENDING_STEP_S, _ENDING_STEPS = 0.01, 100


class RouterLoop:
    """One loop at a time: the first that is used, until it ends or is left."""

    def __init__(self, taken_over: Callable[[], None], runtime: Runtime) -> None:
        self.current: asyncio.AbstractEventLoop | None = None
        self.borrowers = 0  # those who use a loop that is not the router's own
        self._taken_over, self._runtime = taken_over, runtime
        self._thread: threading.Thread | None = None
        self._watch: LoopWatch | None = None
        self._lock = threading.Lock()
        self._tasks: dict[asyncio.Task[RouterEvent], RouterEvent] = {}

    @property
    def running(self) -> asyncio.AbstractEventLoop | None:
        """The loop that handlers run on, if it runs and is not about to end."""
        current = self.current
        return current if current is not None and current.is_running() and not self.is_ending() else None

    def is_ending(self) -> bool:
        """Whether the loop we live on has cancelled all it had, and finishes nothing begun from now on."""
        watch = self._watch
        return watch is not None and watch.is_ending

    def bind(self) -> asyncio.AbstractEventLoop | None:
        """Take the running loop; if another one has us and runs, return that one instead."""
        here = asyncio.get_running_loop()
        with self._lock:
            if self.current is here:
                return None
            if self.running is not None:
                return self.current
            self._stop_watch()
            self.current, self._thread, self._watch = here, threading.current_thread(), LoopWatch(here)
            self._tasks.clear()
        self._taken_over()
        return None

    async def at_home(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run *work* on the router's loop: this one, unless another one has the router and runs.

        Raises `Unavailable` if that other loop ends with the work half done.
        """
        while True:
            for _ in range(_ENDING_STEPS):
                if not self._ends_elsewhere():
                    break
                await self._runtime.sleep(_ENDING_STEP_S)
            if (owner := self.bind()) is None:
                return await work()
            handed = HandedWork(work, self.is_ending)
            if await handed.run_on(owner):
                return handed.result()

    def from_thread(self, work: Callable[[], Coroutine[Any, Any, T]]) -> HandedWork[T] | None:
        """Run *work* on the router's loop for a thread without one; None if there is no such loop."""
        owner = self.running
        handed = HandedWork(work, self.is_ending)
        return handed if owner is not None and handed.run_blocking_on(owner) else None

    def _ends_elsewhere(self) -> bool:
        """Whether another thread's loop, which we live on, has run out but still ends what it has left."""
        current, thread = self.current, self._thread
        if current is None or self.running is not None or current.is_closed():
            return False
        return thread is not None and thread is not threading.current_thread() and thread.is_alive()

    def leave(self) -> None:
        self.current = None
        self._stop_watch()

    def _stop_watch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop()

    def keep(self, task: asyncio.Task[RouterEvent], event: RouterEvent) -> None:
        """Hold on to a task that publishes *event*, and log its error: perhaps nobody waits for it."""
        self._tasks[task] = event
        task.add_done_callback(self._reap)

    def task_of(self, event: RouterEvent) -> asyncio.Task[RouterEvent] | None:
        """Return the kept task that publishes *event*; None when there is none (any more)."""
        return next((task for task, published in self._tasks.items() if published is event), None)

    def _reap(self, task: asyncio.Task[RouterEvent]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("events.publish_failed", exc_info=error)

    async def finish_tasks(self) -> None:
        """Wait for the kept tasks, and for those they add."""
        while self._tasks:
            _, late = await asyncio.wait(tuple(self._tasks), timeout=STOP_S)
            if late:
                log.warning("events.publishers_still_busy", tasks=len(late))
                return

    def tell(self, act: Callable[[], None]) -> None:
        """Call *act* on the router's loop, taking the running one if there is none; else later."""
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            # Without any loop, the first publish or start() on one does it.
            if (owner := self.running) is not None:
                _call_on(owner, act)
            return
        if self._ends_elsewhere():
            here.call_later(_ENDING_STEP_S, self.tell, act)
        elif (owner := self.bind()) is None:
            act()
        elif not _call_on(owner, act):
            here.call_soon(self.tell, act)


def _call_on(owner: asyncio.AbstractEventLoop, act: Callable[[], None]) -> bool:
    try:
        owner.call_soon_threadsafe(act)
    except RuntimeError:  # closed between the question and the call
        return False
    return True
