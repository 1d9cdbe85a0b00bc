"""Publishing from code that is not async, on whatever thread it runs."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from ringrift.engine.blocking import run_blocking
from ringrift.events.routed_event import RouterEvent

Publish = Callable[[], Coroutine[Any, Any, RouterEvent]]

_LOOK_AGAIN_S = 1.0
_PATIENCE_S = 24 * 3600.0  # each handler has its own limit; this bounds a chain of them


class SyncPublisher(Protocol):
    """The side of the router that this needs."""

    @property
    def bound_loop(self) -> asyncio.AbstractEventLoop | None: ...

    @property
    def is_lodging(self) -> bool:
        """Whether it lives on the background loop of the process, for want of one of its own."""
        ...

    def keep(self, task: asyncio.Task[RouterEvent]) -> None: ...

    async def borrowed(self, publish: Publish) -> RouterEvent:
        """Publish on a loop that the router uses only for this."""
        ...


def publish_from_anywhere(router: SyncPublisher, publish: Publish) -> RouterEvent | asyncio.Task[RouterEvent]:
    """Run *publish* where the router's handlers belong.

    A program without any loop borrows the background loop of the process for as long as it takes.
    """
    try:
        here = asyncio.get_running_loop()
    except RuntimeError:
        owner = None if router.is_lodging else router.bound_loop
        if owner is not None and (event := _on_loop(owner, publish)) is not None:
            return event
        return run_blocking(router.borrowed(publish), timeout_s=_PATIENCE_S)
    task = here.create_task(publish())
    router.keep(task)
    return task


def _on_loop(owner: asyncio.AbstractEventLoop, publish: Publish) -> RouterEvent | None:
    """Run on the router's loop in its own thread; None if that loop ended before it could."""
    coroutine = publish()
    try:
        waiting = asyncio.run_coroutine_threadsafe(coroutine, owner)
    except RuntimeError:  # closed between the question and the call
        coroutine.close()
        return None
    while True:
        try:
            return waiting.result(timeout=_LOOK_AGAIN_S)
        except concurrent.futures.CancelledError:
            return None
        except TimeoutError:
            if waiting.done():
                raise
            if owner.is_closed():
                coroutine.close()
                return None
