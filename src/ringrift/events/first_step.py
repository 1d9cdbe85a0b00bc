"""Driving a handler by hand up to the point where it really waits.

Most handlers never wait. Those cost no timer and no task; the others are awaited from where they stopped,
in the same task.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Coroutine, Generator
from types import CoroutineType
from typing import Any


class Resumed:
    """Goes on awaiting a coroutine whose first step was driven by hand and yielded *pending*."""

    __slots__ = ("_coroutine", "_pending")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], pending: Any) -> None:
        self._coroutine, self._pending = coroutine, pending

    def __await__(self) -> Generator[Any, Any, Any]:
        coroutine, pending = self._coroutine, self._pending
        try:
            while True:
                try:
                    sent = yield pending
                except GeneratorExit:
                    coroutine.close()
                    raise
                except BaseException as error:  # noqa: BLE001 - handed on into the coroutine, not kept
                    pending = coroutine.throw(error)
                else:
                    pending = coroutine.send(sent)
        except StopIteration as stop:
            return stop.value


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
