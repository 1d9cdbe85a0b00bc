"""Which event loop the router lives on, and the tasks that publish there on nobody's behalf.

A program may have several loops, each in a thread of its own, and may end any of them at any time. The
router lives on one of them; who publishes on another hands its event over and waits for it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

import structlog

from ringrift.errors import Unavailable
from ringrift.events.routed_event import RouterEvent
from ringrift.runtime import Runtime

log = structlog.get_logger()

T = TypeVar("T")

STOP_S = 5.0
_LOOK_AGAIN_S = 0.5
_ENDING_STEP_S, _ENDING_STEPS = 0.01, 100


class RouterLoop:
    """One loop at a time: the first that is used, until it ends or is left."""

    def __init__(self, taken_over: Callable[[], None], runtime: Runtime) -> None:
        self.current: asyncio.AbstractEventLoop | None = None
        self.borrowers = 0  # those who use a loop that is not the router's own
        self._taken_over, self._runtime = taken_over, runtime
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._tasks: set[asyncio.Task[RouterEvent]] = set()

    @property
    def running(self) -> asyncio.AbstractEventLoop | None:
        """The loop that handlers run on, if it runs."""
        return self.current if self.current is not None and self.current.is_running() else None

    def bind(self) -> asyncio.AbstractEventLoop | None:
        """Take the running loop; if another one has us and runs, return that one instead."""
        here = asyncio.get_running_loop()
        with self._lock:
            if self.running is not None:
                return None if self.current is here else self.current
            self.current, self._thread = here, threading.current_thread()
            self._tasks.clear()
        self._taken_over()
        return None

    async def at_home(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run *work* on the router's loop: this one, unless another one has the router and runs.

        Raises `Unavailable` if that other loop ends with the work half done.
        """
        while True:
            for _ in range(_ENDING_STEPS):
                if not self._is_ending():
                    break
                await self._runtime.sleep(_ENDING_STEP_S)
            if (owner := self.bind()) is None:
                return await work()
            handed = _Handed(work)
            if await handed.run_on(owner):
                return handed.result()

    def _is_ending(self) -> bool:
        """Whether the loop we live on has run out but still cancels, in its thread, what it has left."""
        current, thread = self.current, self._thread
        if current is None or current.is_running() or current.is_closed():
            return False
        return thread is not None and thread is not threading.current_thread() and thread.is_alive()

    def leave(self) -> None:
        self.current = None

    def keep(self, task: asyncio.Task[RouterEvent]) -> None:
        """Hold on to a task that publishes, and log its error if nobody asks for it."""
        self._tasks.add(task)
        task.add_done_callback(self._reap)

    def _reap(self, task: asyncio.Task[RouterEvent]) -> None:
        self._tasks.discard(task)
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
            asyncio.get_running_loop()
        except RuntimeError:
            # Without any loop, the first publish or start() on one does it.
            if (owner := self.running) is not None:
                owner.call_soon_threadsafe(act)
            return
        if self._is_ending():
            asyncio.get_running_loop().call_later(_ENDING_STEP_S, self.tell, act)
        elif (owner := self.bind()) is None:
            act()
        else:
            owner.call_soon_threadsafe(act)


class _Handed(Generic[T]):
    """Work on its way to another loop, which may end before it comes to it."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._work = work
        self._begun = False
        self._waiting: asyncio.Future[T] | None = None

    async def run_on(self, owner: asyncio.AbstractEventLoop) -> bool:
        """Wait until it is done; False if the loop ended before it began."""
        coroutine = self._begin()
        try:
            self._waiting = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, owner))
        except RuntimeError:  # closed between the question and the call
            coroutine.close()
            return False
        try:
            while not self._waiting.done() and not owner.is_closed():
                await asyncio.wait({self._waiting}, timeout=_LOOK_AGAIN_S)
        except asyncio.CancelledError:
            self._waiting.cancel()
            raise
        if self._waiting.done() and not self._waiting.cancelled():
            return True
        if self._begun:
            raise Unavailable("the event loop of the handlers ended with the event half delivered")
        coroutine.close()
        return False

    def result(self) -> T:
        assert self._waiting is not None
        return self._waiting.result()

    async def _begin(self) -> T:
        self._begun = True
        return await self._work()
