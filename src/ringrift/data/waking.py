"""Daemons that work in cycles and can be woken for the next one.

A handler of an event only wakes: whoever published does not wait for a transfer, and a burst of events costs
one cycle.
"""

from __future__ import annotations

import asyncio

from ringrift.data.plane import DataPlane, open_data_plane
from ringrift.events.handlers import HandlerBase
from ringrift.events.routed_event import RouterEvent
from ringrift.events.router import get_router
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.runtime import Runtime, first_of

GATHER_S = 0.2  # events that come together are answered together


class WakingDaemon(HandlerBase):
    """Looks at the data plane now and then, and soon after it was woken."""

    def __init__(
        self,
        name: str,
        *,
        interval_s: float,
        plane: DataPlane | None = None,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        super().__init__(name, cycle_interval=interval_s, router=router, runtime=runtime)
        self.router = router or get_router()
        self._plane = plane
        self._woken = asyncio.Event()

    def wake(self, _event: RouterEvent | None = None) -> None:
        """Have the next cycle begin at once."""
        self._woken.set()

    async def _opened(self) -> DataPlane:
        """The data plane that was given, or this process's."""
        self._plane = self._plane or await open_data_plane()
        return self._plane

    async def _rest(self) -> None:
        await first_of(self._runtime.sleep(self._cycle_interval), self._woken.wait())
        if self._woken.is_set():
            await self._runtime.sleep(GATHER_S)
            self._woken.clear()
