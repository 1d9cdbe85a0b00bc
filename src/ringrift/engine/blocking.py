"""Calling the asynchronous engine from plain threads and from code without an event loop; ending threads."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, ParamSpec, TypeVar, overload

from ringrift.engine.arguments import check_wait
from ringrift.errors import ConfigError, Unavailable
from ringrift.process import process_scope

P = ParamSpec("P")
T = TypeVar("T")

UNDER_WAY_S = 10.0


def loop_is_running() -> bool:
    """Whether an event loop runs in this thread, where a blocking wait would hold up everybody else."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class BackgroundLoop:
    """An event loop in a thread of its own, for the life of the process."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ringrift-blocking", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], *, timeout_s: float) -> T:
        # It would wait for its own answer, for ever.
        if threading.current_thread() is self._thread:
            work.close()
            raise ConfigError("a blocking call from the blocking-call loop would wait for itself")
        future = self.begin(work)
        try:
            return future.result(timeout_s)
        except FutureTimeout:
            if future.done():
                raise  # the work itself timed out
            future.cancel()
            raise Unavailable(f"no answer in {timeout_s:g} s") from None

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Have *work* done without waiting for it; from any thread, also on an event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def under_way(self) -> list[str]:
        """Return the names of what runs on the loop: calls, and what calls began and left running there."""

        async def names() -> list[str]:
            own = asyncio.current_task()
            return sorted(task.get_name() for task in asyncio.all_tasks() if task is not own)

        return self.run(names(), timeout_s=UNDER_WAY_S)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def run_blocking(work: Coroutine[Any, Any, T], *, timeout_s: float = 30.0) -> T:
    """Run *work* on the background loop and return its result; `Unavailable` at the time-out."""
    try:
        check_wait("timeout_s", timeout_s)
    except ConfigError:
        work.close()
        raise
    return background_loop().run(work, timeout_s=timeout_s)


def background_loop() -> BackgroundLoop:
    """The loop of this process on which blocking calls run."""
    return process_scope().get(BackgroundLoop, BackgroundLoop)


@overload
def blocking(
    call: Callable[P, Coroutine[Any, Any, T]], *, timeout_s: float = 30.0, plus: str = ""
) -> Callable[P, T]: ...


@overload
def blocking(
    *, timeout_s: float, plus: str = ""
) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, T]]: ...


def blocking(call: Any = None, *, timeout_s: float = 30.0, plus: str = "") -> Any:
    """Return the twin of an async function or method for code without an event loop.

    `plain = blocking(in_a_loop)` where both have a name, and above the function as a decorator where only the
    blocking one has. The whole body runs on the background loop, so nothing in it may block; what asks the
    store by a blocking call of its own, such as `reported`, stays outside.

    *plus* names the argument that says how long the call itself may wait, which comes on top of *timeout_s*:
    its own error then comes before the time-out of the twin.
    """
    if call is None:
        return functools.partial(blocking, timeout_s=timeout_s, plus=plus)
    signature = inspect.signature(call)

    @functools.wraps(call)
    def run(*args: Any, **kwargs: Any) -> Any:
        work, wait_s = call(*args, **kwargs), 0.0  # first: it names itself to whoever calls it wrongly
        if plus:
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            wait_s = given.arguments[plus]
            try:
                check_wait(plus, wait_s)
            except ConfigError:
                work.close()
                raise
        return background_loop().run(work, timeout_s=timeout_s + wait_s)

    return run


async def take_in_thread(take: Callable[[], T], give_back: Callable[[T], object]) -> T:
    """Take something to hold, in a thread; whoever is cancelled meanwhile holds nothing.

    The thread itself cannot be cancelled: it gives back what it takes for one who has left.
    """
    taken: list[T] = []
    decided = threading.Lock()  # by the first of the two: the thread that took it, or the caller that left

    def work() -> T:
        taken.append(take())
        if not decided.acquire(blocking=False):
            give_back(taken[0])
        return taken[0]

    try:
        return await asyncio.to_thread(work)
    except asyncio.CancelledError:
        if not decided.acquire(blocking=False):
            await asyncio.to_thread(give_back, taken[0])
        raise


def end_threads(pool: ThreadPoolExecutor, *, wait_s: float) -> bool:
    """Let *pool* begin nothing more and wait for what it does; return False if it still does it then."""
    pool.shutdown(wait=False, cancel_futures=True)
    ending = threading.Thread(target=pool.shutdown, name="ringrift-closing", daemon=True)
    ending.start()
    ending.join(wait_s)
    return not ending.is_alive()
