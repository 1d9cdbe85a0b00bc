"""Between code without an event loop and the asynchronous machine: one loop in a thread, and its life.

Every blocking call of the product goes over this one bridge. It begins with the first call; `shutdown` ends
it, and the next call begins it anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from ringrift.engine.blocking import BackgroundLoop, run_blocking
from ringrift.errors import Conflict
from ringrift.process import SingletonMixin, getter_of, process_scope
from ringrift.status import CoordinatorStatus, HealthCheckResult

__all__ = [
    "AsyncBridge",
    "AsyncBridgeManager",
    "get_bridge_manager",
    "reset_bridge_manager",
    "run_async",
    "run_in_thread",
]

P = ParamSpec("P")
T = TypeVar("T")

ANSWER_S = 30.0


class AsyncBridge(SingletonMixin):
    """The bridge of this process."""

    @property
    def is_running(self) -> bool:
        # A look must not begin the loop, so this peeks where a call would make one.
        return process_scope().peek(BackgroundLoop) is not None

    def run(self, work: Coroutine[Any, Any, T], *, timeout_s: float = ANSWER_S) -> T:
        """Run *work* on the loop of the bridge; `Unavailable` at the time-out."""
        return run_blocking(work, timeout_s=timeout_s)

    async def in_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a blocking function from an event loop, which goes on meanwhile."""
        return await asyncio.to_thread(call, *args, **kwargs)

    def under_way(self) -> list[str]:
        """What runs on the loop now, such as the renewal of a role or of a training slot."""
        loop = process_scope().peek(BackgroundLoop)
        return [] if loop is None else loop.under_way()

    def shutdown(self) -> bool:
        """End the loop and its thread; False if there was none.

        Raises `Conflict` while something is under way: a lease that nobody renews any more would be lost.
        """
        if busy := self.under_way():
            raise Conflict(f"the bridge is in use by {', '.join(busy)}; end that first")
        # Dropped before it is closed: a call from another thread meanwhile begins a loop of its own.
        loop = process_scope().drop(BackgroundLoop)
        if loop is not None:
            loop.close()
        return loop is not None

    def health_check(self) -> HealthCheckResult:
        if not self.is_running:
            return HealthCheckResult(False, CoordinatorStatus.STOPPED, "no call has begun its loop yet")
        return HealthCheckResult.ok("", **self.get_stats())

    def get_stats(self) -> dict[str, Any]:
        return {"running": self.is_running, "under_way": self.under_way()}


# The documents use both names for the same thing.
AsyncBridgeManager = AsyncBridge


get_bridge_manager = getter_of("get_bridge_manager", AsyncBridge)
reset_bridge_manager = AsyncBridge.reset_instance


def run_async(work: Coroutine[Any, Any, T], *, timeout_s: float = ANSWER_S) -> T:
    """Run *work* from code without an event loop."""
    return get_bridge_manager().run(work, timeout_s=timeout_s)


async def run_in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a blocking function from an event loop."""
    return await get_bridge_manager().in_thread(call, *args, **kwargs)
