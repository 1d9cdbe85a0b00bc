"""Daemons of the data plane answer an event soon, and a stream of events by few cycles."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from ringrift.data.plane import WakingDaemon
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.testing.simulation import SimulatedRuntime, simulate

INTERVAL_S, WOKEN_EVERY_S = 300.0, 5.0


class Counting(WakingDaemon):
    woken_every_s = WOKEN_EVERY_S

    def __init__(self, runtime):
        router = UnifiedEventRouter(enable_cross_process_polling=False)
        super().__init__("counting", interval_s=INTERVAL_S, router=router, runtime=runtime)
        self.cycles_s = []

    async def _run_cycle(self):
        self.cycles_s.append(self._runtime.monotonic_s())


def cycles(*woken_s):
    """When the cycles of a daemon began that was woken at these times."""

    async def live():
        runtime = SimulatedRuntime()
        daemon, began_s = Counting(runtime), runtime.monotonic_s()
        running = asyncio.ensure_future(daemon.run())
        for at_s in woken_s:
            await runtime.sleep(began_s + at_s - runtime.monotonic_s())
            daemon.wake()
        await runtime.sleep(20.0)
        running.cancel()
        await asyncio.wait({running})
        return [each - began_s for each in daemon.cycles_s]

    return simulate(live())


def test_an_event_is_answered_at_once():
    assert [at_s for at_s in cycles(50.0, 100.0) if 50.0 <= at_s < 51.0 or 100.0 <= at_s < 101.0] == [
        50.2,
        100.2,
    ]


def test_a_stream_of_events_is_answered_by_one_cycle_in_so_long():
    found = [at_s for at_s in cycles(*(50.0 + 0.1 * number for number in range(300))) if at_s >= 50.0]
    gaps_s = [later - before for before, later in pairwise(found)]
    assert 6 <= len(found) <= 8
    assert min(gaps_s) >= WOKEN_EVERY_S - 0.01
