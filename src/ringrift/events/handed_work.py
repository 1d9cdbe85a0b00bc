"""Work on its way from one thread to the event loop of another, which may end before it comes to it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from ringrift.errors import Unavailable

T = TypeVar("T")

_LOOK_AGAIN_S = 0.5


class HandedWork(Generic[T]):
    """Begins *work* on the other loop unless *is_ending* says, there and then, that it is too late.

    Until it begins there is no coroutine and no task, so a loop that ends has nothing of it to drop.
    """

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]], is_ending: Callable[[], bool]) -> None:
        self._work, self._is_ending = work, is_ending
        self._answer: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._task: asyncio.Task[T] | None = None
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
        self._task = asyncio.get_running_loop().create_task(self._work())
        self._task.add_done_callback(self._end)

    def _withdraw(self) -> None:
        self._unwanted = True
        if self._task is not None:
            self._task.cancel()

    def _end(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self._answer.cancel()
        elif (error := task.exception()) is not None:
            self._answer.set_exception(error)
        else:
            self._answer.set_result(task.result())
