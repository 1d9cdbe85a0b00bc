"""The engine's time: what leases, delays, expiry and ages are counted in.

It goes by the time since the machine started, which nobody can set, from an anchor that is stored with the
state; so all processes agree, and a wall clock that is set, for one process or for all, changes nothing.
Only the first use after a start of the machine looks at the wall clock, to count the time that it was off;
the engine's time never goes back.
"""

from __future__ import annotations

from ringrift.clock import ClockAnchor
from ringrift.runtime import Runtime


class EngineClock:
    """The time of one engine in one process, which keeps the same time from then on."""

    def __init__(self, runtime: Runtime, anchor: ClockAnchor) -> None:
        self._runtime, self._anchor = runtime, anchor
        runtime.keep_time(anchor)

    def now_s(self) -> float:
        return self._anchor.at(self._runtime.boot_s())
