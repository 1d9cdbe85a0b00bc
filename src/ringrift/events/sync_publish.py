"""Publishing from code that is not async, in a thread without a running loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from ringrift.engine.blocking import run_blocking
from ringrift.events.handed_work import HandedWork
from ringrift.events.routed_event import RouterEvent

Publish = Callable[[], Coroutine[Any, Any, RouterEvent]]

_PATIENCE_S = 24 * 3600.0  # each handler has its own limit; this bounds a chain of them


class SyncPublisher(Protocol):
    """The side of the router that this needs."""

    def hand_over(self, publish: Publish) -> HandedWork[RouterEvent] | None:
        """Publish on the router's own loop and wait; None if there is none, or none that begins it."""
        ...

    @property
    def is_lodging(self) -> bool:
        """Whether it lives on the background loop of the process, for want of one of its own."""
        ...

    async def borrowed(self, publish: Publish) -> RouterEvent:
        """Publish on a loop that the router uses only for this."""
        ...


def publish_and_wait(router: SyncPublisher, publish: Publish) -> RouterEvent:
    """Run *publish* where the router's handlers belong, and wait until all is handled.

    A program without any loop borrows the background loop of the process for as long as it takes. Raises
    `Unavailable` if the loop of the handlers ends with the event half delivered.
    """
    if not router.is_lodging and (handed := router.hand_over(publish)) is not None:
        return handed.result()
    return run_blocking(router.borrowed(publish), timeout_s=_PATIENCE_S)
