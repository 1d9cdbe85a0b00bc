"""Holding a transfer to a rate."""

from __future__ import annotations

from ringrift.data.transfer.contract import CHUNK_BYTES, Pace
from ringrift.errors import ConfigError
from ringrift.runtime import Runtime

BYTES_PER_MBIT = 125_000
BYTES_PER_KB = 1_000
KBPS_PER_MBPS = BYTES_PER_MBIT / BYTES_PER_KB
"""One Mbit/s is 125 KB/s."""

_BURST_S = 0.25


class RatePace:
    """See `Pace`. Several callers share the rate; each waits for its own bytes."""

    def __init__(self, bytes_per_s: float, runtime: Runtime) -> None:
        if bytes_per_s <= 0:
            raise ConfigError(f"a pace of {bytes_per_s:g} bytes/s moves nothing")
        self.bytes_per_s: float | None = bytes_per_s
        self._rate, self._runtime = bytes_per_s, runtime
        self._burst_s = max(_BURST_S, CHUNK_BYTES / bytes_per_s)
        self._due_s = runtime.monotonic_s() - self._burst_s

    async def spend(self, count: int) -> None:
        now_s = self._runtime.monotonic_s()
        self._due_s = max(self._due_s, now_s - self._burst_s) + count / self._rate
        if self._due_s > now_s:
            await self._runtime.sleep(self._due_s - now_s)


class BothPaces:
    """See `Pace`. Goes at the slower of two."""

    def __init__(self, first: Pace, second: Pace) -> None:
        self._paces = first, second

    @property
    def bytes_per_s(self) -> float | None:
        rates = [pace.bytes_per_s for pace in self._paces if pace.bytes_per_s is not None]
        return min(rates, default=None)

    async def spend(self, count: int) -> None:
        for pace in self._paces:
            await pace.spend(count)
