"""Driving somebody else's coroutine by hand: to where it really waits, and to an end that it cannot refuse.

Most handlers never wait. Those cost no timer and no task; the others are awaited from where they stopped, in
the same task. A coroutine that is cancelled gets a while to clean up; one that has not ended by then, because
it swallows its cancellation or waits for something that does, is closed and left: it holds nobody up.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Coroutine, Generator
from types import CoroutineType
from types import coroutine as coroutine_of_generator
from typing import Any

from ringrift.process import process_scope

GRACE_S = 5.0  # what a cancelled coroutine has to clean up
_UNCLOSED_MAX = 100


class IgnoredCancellation(TimeoutError):
    """It did not end when it was cancelled, and was left."""


class Resumed:
    """A coroutine whose first step was driven by hand and which waits for *pending*."""

    __slots__ = ("coroutine", "pending")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], pending: Any) -> None:
        self.coroutine, self.pending = coroutine, pending


def first_step(result: Any) -> Resumed | None:
    """Drive an awaitable as far as it goes without waiting; None if it is finished."""
    coroutine: Coroutine[Any, Any, Any]
    if type(result) is CoroutineType:
        coroutine = result
    elif inspect.isawaitable(result):
        coroutine = _awaited(result)
    else:
        return None  # a plain callback that returned something
    try:
        pending = coroutine.send(None)
    except StopIteration:
        return None
    return Resumed(coroutine, pending)


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


async def await_ending(awaitable: Awaitable[Any]) -> Any:
    """Await somebody else's code; when the caller is cancelled it is left `GRACE_S` later at the latest."""
    coroutine = awaitable if isinstance(awaitable, CoroutineType) else _awaited(awaitable)
    try:
        pending = coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    try:
        return await finish(Resumed(coroutine, pending))
    except IgnoredCancellation as error:
        raise asyncio.CancelledError from error


async def finish(waiting: Resumed, *, grace_s: float = GRACE_S) -> Any:
    """Go on with a coroutine until it returns. Raises what it raises.

    Cancelling the caller cancels what the coroutine waits for, as awaiting it would; `IgnoredCancellation`
    if it has not ended *grace_s* later.
    """
    coroutine, pending = waiting.coroutine, waiting.pending
    loop = asyncio.get_running_loop()
    leave_s: float | None = None  # when a coroutine that was cancelled is left
    try:
        while True:
            error: BaseException | None = _unfit(pending, loop)
            try:
                if error is None:
                    await _until_done(pending, loop, leave_s)
            except asyncio.CancelledError as cancelled:
                leave_s = leave_s or loop.time() + grace_s
                error = cancelled
                if pending is not None and pending.cancel():
                    # Like a task: it hears of the cancellation from what it waits for, if that lets it.
                    await _until_done(pending, loop, leave_s, once_more=True)
                    error = cancelled if pending.cancelled() else None
            if leave_s is not None and loop.time() >= leave_s:
                raise IgnoredCancellation(f"it ignored its cancellation for {grace_s:g} s")
            try:
                pending = coroutine.send(None) if error is None else coroutine.throw(error)
            except StopIteration as stop:
                return stop.value
    finally:
        _close(coroutine)


def _unfit(pending: Any, loop: asyncio.AbstractEventLoop) -> BaseException | None:
    """What a task says to a coroutine that waits for something else than a future of its loop."""
    if pending is None or (asyncio.isfuture(pending) and pending.get_loop() is loop):
        return None
    return RuntimeError(
        f"a handler can wait only for what its event loop knows, not for {type(pending).__name__}"
    )


@coroutine_of_generator
def _one_turn() -> Generator[None, None, None]:
    """Let the event loop turn once, as a coroutine asks for that yields nothing."""
    yield


async def _until_done(
    pending: asyncio.Future[Any] | None,
    loop: asyncio.AbstractEventLoop,
    leave_s: float | None,
    *,
    once_more: bool = False,
) -> None:
    """Return when *pending* is done, or at *leave_s*.

    Waits for a future of its own: a cancellation then wakes this task, and not only what it waits for.
    """
    if pending is None:
        await _one_turn()
        return
    pending._asyncio_future_blocking = False
    if pending.done():
        return
    woken: asyncio.Future[None] = loop.create_future()

    def wake(_: object = None) -> None:
        if not woken.done():
            woken.set_result(None)

    pending.add_done_callback(wake)
    timer = None if leave_s is None else loop.call_at(leave_s, wake)
    try:
        await woken
    except asyncio.CancelledError:
        if not once_more:
            raise
    finally:
        pending.remove_done_callback(wake)
        if timer is not None:
            timer.cancel()


class _Unclosed:
    """Coroutines that refuse to end at all; kept, because collecting them makes them refuse again."""

    def __init__(self) -> None:
        self.coroutines: deque[Coroutine[Any, Any, Any]] = deque(maxlen=_UNCLOSED_MAX)


def _close(coroutine: Coroutine[Any, Any, Any]) -> None:
    try:
        coroutine.close()
    except RuntimeError:
        process_scope().get(_Unclosed, _Unclosed).coroutines.append(coroutine)
