"""The router and event loops: which one it lives on, how other threads hand it work, how its end is told.

A program may have several loops, each in a thread of its own, and may end any of them at any time.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, Generic, TypeVar

import structlog

from ringrift.errors import RingRiftError, Unavailable
from ringrift.events.event import RouterEvent
from ringrift.runtime import Runtime
from ringrift.task_owner import TaskOwner

# Work on its way from one thread to the event loop of another, which may end before it comes to it.


T = TypeVar("T")
Publish = Callable[[], Coroutine[Any, Any, RouterEvent]]

# A loop that is closed answers nobody, so whoever waits for it has to look now and then.
_LOOK_AGAIN_S = 0.5


class HandedWork(Generic[T]):
    """Begins *work* on the other loop unless *is_ending* says, there and then, that it is too late.

    Until it begins there is no coroutine and no task, so a loop that ends has nothing of it to drop.
    """

    def __init__(
        self, work: Callable[[], Coroutine[Any, Any, T]], is_ending: Callable[[], bool], tasks: TaskOwner
    ) -> None:
        self._work, self._is_ending, self._tasks = work, is_ending, tasks
        self._answer: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._task: asyncio.Task[T | RingRiftError] | None = None
        self._unwanted = False

    async def run_on(self, owner: asyncio.AbstractEventLoop) -> bool:
        """Wait until it is done; False if it did not begin. `Unavailable` if the loop ended half way."""
        if not self._send_to(owner):
            return False
        answer = asyncio.wrap_future(self._answer)
        try:
            while not answer.done() and not owner.is_closed():
                await asyncio.wait({answer}, timeout=_LOOK_AGAIN_S)
        except asyncio.CancelledError:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it has ended the work itself
                owner.call_soon_threadsafe(self._withdraw)
            raise
        return self._is_done()

    def run_blocking_on(self, owner: asyncio.AbstractEventLoop) -> bool:
        """As `run_on`, for a thread without a loop."""
        if not self._send_to(owner):
            return False
        while not self._answer.done() and not owner.is_closed():
            concurrent.futures.wait([self._answer], timeout=_LOOK_AGAIN_S)
        return self._is_done()

    def result(self) -> T:
        """What the work returned; raises what it raised."""
        return self._answer.result(timeout=0)

    def _send_to(self, owner: asyncio.AbstractEventLoop) -> bool:
        try:
            owner.call_soon_threadsafe(self._begin)
        except RuntimeError:  # closed between the question and the call
            return False
        return True

    def _is_done(self) -> bool:
        if self._answer.done() and not self._answer.cancelled():
            return True
        if self._task is not None:
            raise Unavailable("the event loop of the handlers ended with the event half delivered")
        return False

    # --- on the loop it was handed to -----------------------------------------------------------------

    def _begin(self) -> None:
        if self._unwanted or self._is_ending():
            self._answer.cancel()
            return
        self._task = self._tasks.create_task(self._run())
        self._task.add_done_callback(self._end)

    def _withdraw(self) -> None:
        self._unwanted = True
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> T | RingRiftError:
        try:
            return await self._work()
        except RingRiftError as error:
            return error  # for whoever handed the work over; any other is a bug, which the owner logs

    def _end(self, task: asyncio.Task[T | RingRiftError]) -> None:
        if task.cancelled():
            self._answer.cancel()
        elif (error := task.exception()) is not None:
            self._answer.set_exception(error)
        elif isinstance(result := task.result(), RingRiftError):
            self._answer.set_exception(result)
        else:
            self._answer.set_result(result)


# Telling that an event loop is ending while it still runs.
#
# Whoever ends a loop in good order (`asyncio.run` does) cancels all of its tasks once, before any of them
# goes on, and then runs it only until those are through. A task started after that is never finished. The
# loop itself does not say so; a task that nobody has any other reason to cancel does.


class LoopWatch:
    """One idle task on a loop; it takes no time and holds nothing."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tasks: TaskOwner) -> None:
        self._loop = loop
        self._task = tasks.create_task(_wait_for_the_end(), name="ringrift-loop-watch", context=Context())
        # A program may also drop a loop without ending its tasks; this one is no loss worth a message.
        self._task._log_destroy_pending = False  # type: ignore[attr-defined]

    @property
    def is_ending(self) -> bool:
        """Whether everything on the loop has been cancelled; may be asked from any thread."""
        return self._task.done() or self._task.cancelling() > 0

    def stop(self) -> None:
        """End the watch, from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._task.cancel)
        except RuntimeError:  # the loop is closed, and its tasks with it
            return


async def _wait_for_the_end() -> None:
    await asyncio.get_running_loop().create_future()


# Which event loop the router lives on, and the tasks that publish there on nobody's behalf.
#
# A program may have several loops, each in a thread of its own, and may end any of them at any time. The
# router lives on one of them; who publishes on another hands its event over and waits for it.


log = structlog.get_logger()


STOP_S = 5.0
_OWNER = "publishers of events"
# One second in all: a loop that has not ended its tasks by then is no longer waited for.
_ENDING_STEP_S, _ENDING_STEPS = 0.01, 100


class RouterLoop:
    """One loop at a time: the first that is used, until it ends or is left."""

    def __init__(self, taken_over: Callable[[], None], runtime: Runtime) -> None:
        self.current: asyncio.AbstractEventLoop | None = None
        # The same, but None while something that `publish_soon` was given there has not begun: what is
        # published then waits for its turn, and at any other time that costs nothing.
        self.direct: asyncio.AbstractEventLoop | None = None
        self.borrowers = 0  # those who use a loop that is not the router's own
        self._taken_over, self._runtime = taken_over, runtime
        self._thread: threading.Thread | None = None
        self._watch: LoopWatch | None = None
        self._lock = threading.Lock()
        self._tasks = TaskOwner(_OWNER)
        self._publishers: dict[asyncio.Task[RouterEvent], RouterEvent] = {}
        # By loop, because each thread has an order of its own.
        self._not_begun: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}

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
        # Two threads may come with their loops at once; one of them gets the router.
        with self._lock:
            if self.current is here:
                return None
            if self.running is not None:
                return self.current
            self._stop_watch()
            self._tasks = TaskOwner(_OWNER)  # a loop that is gone has ended what it had
            self.current, self._thread = here, threading.current_thread()
            self._watch = LoopWatch(here, self._tasks)
            self._publishers.clear()
            self._look_for_direct()
        # Outside of the lock: it may write dead letters, and others ask meanwhile which loop it is.
        self._taken_over()
        return None

    async def at_home(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run *work* on the router's loop: this one, unless another one has the router and runs.

        Raises `Unavailable` if that other loop ends with the work half done.
        """
        while True:
            # Let a loop that ends do so first: what it still cancels is recorded before this one takes over.
            for _ in range(_ENDING_STEPS):
                if not self._ends_elsewhere():
                    break
                await self._runtime.sleep(_ENDING_STEP_S)
            if (owner := self.bind()) is None:
                return await work()
            handed = HandedWork(work, self.is_ending, self._tasks)
            if await handed.run_on(owner):
                return handed.result()

    async def in_turn(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """As `at_home`, after what `publish_soon` was given before on this loop has begun."""
        if earlier := self._not_begun.get(asyncio.get_running_loop()):
            await asyncio.wait(tuple(earlier), timeout=STOP_S)
        return await self.at_home(work)

    def from_thread(self, work: Callable[[], Coroutine[Any, Any, T]]) -> HandedWork[T] | None:
        """Run *work* on the router's loop for a thread without one; None if there is no such loop."""
        owner = self.running
        handed = HandedWork(work, self.is_ending, self._tasks)
        return handed if owner is not None and handed.run_blocking_on(owner) else None

    def _ends_elsewhere(self) -> bool:
        """Whether another thread's loop, which we live on, has run out but still ends what it has left."""
        current, thread = self.current, self._thread
        if current is None or self.running is not None or current.is_closed():
            return False
        return thread is not None and thread is not threading.current_thread() and thread.is_alive()

    def leave(self) -> None:
        self.current = self.direct = None
        self._stop_watch()

    def _stop_watch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop()

    def publish_soon(self, publish: Publish, event: RouterEvent) -> None:
        """Publish *event* in a task of the running loop; its error is logged: perhaps nobody waits for it."""
        here = asyncio.get_running_loop()
        begun = here.create_future()

        def begin(_: object = None) -> None:
            if begun.done():
                return
            begun.set_result(None)
            self._not_begun[here].remove(begun)
            if not self._not_begun[here]:
                del self._not_begun[here]
            self._look_for_direct()

        async def publish_now() -> RouterEvent:
            begin()
            return await publish()

        task = self._tasks.create_task(publish_now(), name=f"publish {event.event_type}")
        self._publishers[task] = event
        task.add_done_callback(lambda _: self._publishers.pop(task, None))
        task.add_done_callback(begin)  # one that was cancelled too early never begins
        self._not_begun.setdefault(here, []).append(begun)
        self._look_for_direct()

    def _look_for_direct(self) -> None:
        # Its own thread alone changes it, so that no other one overwrites what that has just found.
        if (here := asyncio.get_running_loop()) is self.current:
            self.direct = None if here in self._not_begun else here

    def task_of(self, event: RouterEvent) -> asyncio.Task[RouterEvent] | None:
        """Return the task that publishes *event*; None when there is none (any more)."""
        return next((task for task, published in self._publishers.items() if published is event), None)

    async def finish_tasks(self) -> None:
        """Wait for the tasks that publish, and for those they add."""
        while self._publishers:
            _, late = await asyncio.wait(tuple(self._publishers), timeout=STOP_S)
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

    def tell_if_running(self, act: Callable[[], None]) -> None:
        """Call *act* on the router's loop, or here and now if that does not run: then nobody is at work."""
        owner = self.running
        if owner is None or self._thread is threading.current_thread() or not _call_on(owner, act):
            act()


def _call_on(owner: asyncio.AbstractEventLoop, act: Callable[[], None]) -> bool:
    try:
        owner.call_soon_threadsafe(act)
    except RuntimeError:  # closed between the question and the call
        return False
    return True
