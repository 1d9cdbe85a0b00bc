"""Which event loop the router lives on, and the tasks that publish there on nobody's behalf."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import structlog

from ringrift.events.routed_event import RouterEvent

log = structlog.get_logger()

STOP_S = 5.0


class RouterLoop:
    """One loop at a time: the first that is used, until it ends or is left."""

    def __init__(self, taken_over: Callable[[], None]) -> None:
        self.current: asyncio.AbstractEventLoop | None = None
        self.borrowers = 0  # those who use a loop that is not the router's own
        self._taken_over = taken_over
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
            self.current = here
            self._tasks.clear()
        self._taken_over()
        return None

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
        if (owner := self.bind()) is None:
            act()
        else:
            owner.call_soon_threadsafe(act)
