"""What holds transfers back: how many run at once, and the shares of the line by host and in all.

The shares given out are one record in the key-value port, changed by compare-and-swap, so that two processes
never give out the same bytes. A share that nobody returns runs out by itself.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Unpack

import msgspec
from msgspec.structs import replace

from ringrift.data.config import DataNode, DataNodes
from ringrift.data.kv_records import StoreHandle, StoreParts
from ringrift.data.transfer.contract import CHUNK_BYTES, Pace, TransferPriority, TransferRefused, priority_of
from ringrift.engine.blocking import blocking, run_blocking
from ringrift.engine.records import KvRecords
from ringrift.engine.run_reports import reported
from ringrift.engine.waiting import entry_changed
from ringrift.errors import ConfigError
from ringrift.runtime import Runtime
from ringrift.status import HealthCheckResult, reported_by_store

__all__ = ["BandwidthAllocation", "BandwidthLimits", "BandwidthManager"]


# How many transfers run at once, in all and per node; the urgent go in first.


WAITING_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GateLimits:
    """At most so many at once."""

    total: int = 12
    per_node: int = 5

    def __post_init__(self) -> None:
        if not 1 <= self.per_node <= self.total:
            raise ConfigError("transfers at once: per node at least 1, and in all at least as many")


@dataclass(order=True, slots=True)
class _Waiter:
    rank: int  # lower goes first
    number: int
    node: str = field(compare=False)
    turn: asyncio.Future[None] = field(compare=False)


class TransferGates:
    """One gate per process. Of the waiting, the most urgent whose node has room is let in."""

    def __init__(self, limits: GateLimits | None = None) -> None:
        self.limits = limits or GateLimits()
        self._inside: Counter[str] = Counter()
        self._waiting: list[_Waiter] = []
        self._count = 0

    @property
    def active(self) -> int:
        return self._inside.total()

    @asynccontextmanager
    async def entered(self, node: str, *, priority: TransferPriority, wait_s: float) -> AsyncIterator[None]:
        """Hold a slot for the length of the block; `TransferRefused` if none comes free in *wait_s*."""
        await self._enter(node, priority, wait_s)
        try:
            yield
        finally:
            self._leave(node)

    async def _enter(self, node: str, priority: TransferPriority, wait_s: float) -> None:
        if not self._waiting and self._has_room(node):
            self._inside[node] += 1
            return
        if len(self._waiting) >= WAITING_MAX:
            raise TransferRefused(node, reason=f"{WAITING_MAX} transfers wait already", retry_after_s=30.0)
        self._count += 1
        turn = asyncio.get_running_loop().create_future()
        waiter = _Waiter(-priority.rank, self._count, node, turn)
        heapq.heappush(self._waiting, waiter)
        self._let_in()
        try:
            async with asyncio.timeout(wait_s):
                await turn
        except BaseException as error:
            self._give_up(waiter)
            if isinstance(error, TimeoutError):
                why = f"all {self.limits.per_node} slots of the node or {self.limits.total} in all are taken"
                raise TransferRefused(node, reason=why, retry_after_s=10.0) from None
            raise

    def _give_up(self, waiter: _Waiter) -> None:
        if waiter.turn.done() and not waiter.turn.cancelled():
            self._leave(waiter.node)  # it was let in just as it left
            return
        if waiter in self._waiting:
            self._waiting.remove(waiter)
            heapq.heapify(self._waiting)

    def _leave(self, node: str) -> None:
        self._inside[node] -= 1
        if not self._inside[node]:
            del self._inside[node]
        self._let_in()

    def _let_in(self) -> None:
        kept: list[_Waiter] = []
        while self._waiting and self.active < self.limits.total:
            waiter = heapq.heappop(self._waiting)
            if waiter.turn.cancelled():
                continue
            if self._has_room(waiter.node):
                self._inside[waiter.node] += 1
                waiter.turn.set_result(None)
            else:
                kept.append(waiter)
        for waiter in kept:
            heapq.heappush(self._waiting, waiter)

    def _has_room(self, node: str) -> bool:
        return self.active < self.limits.total and self._inside[node] < self.limits.per_node


# Holding a transfer to a rate.


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


# How the line is shared out: limits, what a host can take, and the answer to one request.
#
# All rates are KB/s of 1,000 bytes, as the public API has them; `allocated_mbps` is Mbit/s.


PROVIDER_KBPS = {
    "lambda": 100_000,
    "vast": 50_000,
    "runpod": 100_000,
    "vultr": 25_000,
    "nebius": 50_000,
    "hetzner": 100_000,
    "local": 100_000,
}
HOST_KBPS = {"gh200*": 312_500, "*-gh200*": 312_500}


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthLimits:
    """KB/s, counts and seconds."""

    max_kbps: int = 150_000  # of one transfer
    min_kbps: int = 1_000  # less is not worth beginning
    per_host_kbps: int = 50_000
    total_kbps: int = 300_000
    concurrent_per_host: int = 5
    concurrent_total: int = 12
    expires_s: float = 3_600.0

    def __post_init__(self) -> None:
        rates = 0 < self.min_kbps <= self.per_host_kbps <= self.total_kbps and self.min_kbps <= self.max_kbps
        counts = 1 <= self.concurrent_per_host <= self.concurrent_total
        if not rates or not counts or self.expires_s <= 0:
            raise ConfigError("bandwidth limits must hold: 0 < min <= per host <= total, min <= max")


class BandwidthAllocation(msgspec.Struct, frozen=True, kw_only=True):
    """A share of the line, or why there is none."""

    host: str
    granted: bool
    allocation_id: str = ""
    allocated_kbps: int = 0
    priority: TransferPriority = TransferPriority.NORMAL
    estimated_mb: float = 0.0
    granted_at: float = 0.0
    expires_at: float = 0.0
    reason: str = ""

    @property
    def allocated_mbps(self) -> float:
        return self.allocated_kbps / KBPS_PER_MBPS

    @property
    def bytes_per_s(self) -> float:
        return float(self.allocated_kbps * BYTES_PER_KB)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request for a share."""

    id: str
    host: str
    host_kbps: int  # what the host can take in all
    priority: TransferPriority
    estimated_mb: float = 0.0
    limit_kbps: float | None = None  # the caller wants no more


def host_limit_kbps(node: DataNode | None, name: str, limits: BandwidthLimits) -> int:
    """What a host can take: its own entry, then its name, then its provider, then the usual."""
    if node is not None and node.bandwidth_mbps > 0:
        return max(limits.min_kbps, round(node.bandwidth_mbps * KBPS_PER_MBPS))
    for pattern, kbps in HOST_KBPS.items():
        if fnmatch(name.lower(), pattern):
            return kbps
    provider = "" if node is None else node.provider
    return PROVIDER_KBPS.get(provider, limits.per_host_kbps)


def answer(
    ask: Ask, present: Sequence[BandwidthAllocation], limits: BandwidthLimits, now_s: float
) -> BandwidthAllocation:
    """Grant a share that fits the limits of the host and of all, or say why not."""
    live = [item for item in present if item.expires_at > now_s]
    there = [item for item in live if item.host == ask.host]
    refused = BandwidthAllocation(host=ask.host, granted=False, priority=ask.priority)
    if len(there) >= limits.concurrent_per_host:
        return replace(refused, reason=f"Max concurrent transfers per host ({limits.concurrent_per_host})")
    if len(live) >= limits.concurrent_total:
        return replace(refused, reason=f"Max concurrent transfers total ({limits.concurrent_total})")
    left_at_host = ask.host_kbps - sum(item.allocated_kbps for item in there)
    left = limits.total_kbps - sum(item.allocated_kbps for item in live)
    # A low priority must not ask a slow host for so little that nothing ever begins.
    wanted = min(max(ask.host_kbps * ask.priority.share, limits.min_kbps), limits.max_kbps)
    share = min(wanted, left_at_host, left)
    # A caller may ask for less than the least that is worth beginning; the line cannot offer less.
    if share < limits.min_kbps:
        return replace(refused, reason="Insufficient bandwidth available")
    if ask.limit_kbps is not None:
        share = max(1.0, min(share, ask.limit_kbps))
    return BandwidthAllocation(
        host=ask.host,
        granted=True,
        allocation_id=ask.id,
        allocated_kbps=int(share),
        priority=ask.priority,
        estimated_mb=ask.estimated_mb,
        granted_at=now_s,
        expires_at=now_s + limits.expires_s,
    )


# The bandwidth manager: shares of the line, across the processes of a node.


PREFIX = "data/bandwidth/"
WAIT_S = 60.0
ENDED_KEPT_MAX = 100
ANSWER_S = 10.0
SECONDS_PER_TRANSFER = 30.0


class EndedTransfer(msgspec.Struct, frozen=True, kw_only=True):
    """What a share was used for."""

    host: str
    bytes_moved: int
    seconds: float
    ended_at: float


class BandwidthUse(msgspec.Struct, frozen=True):
    """What is given out on one node, and what was done with it lately."""

    live: tuple[BandwidthAllocation, ...] = ()
    ended: tuple[EndedTransfer, ...] = ()
    granted_total: int = 0


class BandwidthManager(StoreHandle):
    """Gives out and takes back shares. The plain calls block; inside a loop use those on `_async`."""

    def __init__(
        self,
        db_path: Path | str | None = None,
        *,
        nodes: DataNodes | None = None,
        limits: BandwidthLimits | None = None,
        **parts: Unpack[StoreParts],
    ) -> None:
        super().__init__(db_path, **parts)
        self._nodes, self.limits = nodes, limits or BandwidthLimits()
        self._place = "here" if nodes is None else nodes.this.name
        self._uses = KvRecords(self._kv, PREFIX, BandwidthUse)
        self.refused_total = 0  # by this process

    # --- in a loop ------------------------------------------------------------------------------------

    async def request_async(
        self,
        host: str,
        estimated_mb: float = 0.0,
        priority: str = "normal",
        *,
        limit_bytes_per_s: float | None = None,
        wait_s: float = 0.0,
    ) -> BandwidthAllocation:
        """Ask for a share; wait up to *wait_s* for one that does not come at once."""
        ask = Ask(
            id=self._runtime.new_id(),
            host=host,
            host_kbps=self.host_limit_kbps(host),
            priority=priority_of(priority),
            estimated_mb=estimated_mb,
            limit_kbps=None if limit_bytes_per_s is None else limit_bytes_per_s / BYTES_PER_KB,
        )
        deadline_s = self._runtime.monotonic_s() + wait_s
        while True:
            got = await self._ask(ask)
            left_s = deadline_s - self._runtime.monotonic_s()
            if got.granted or left_s <= 0:
                return got
            await self._wait_for_change(ask, left_s)

    async def release_async(
        self, allocation_id: str, bytes_transferred: int = 0, duration_seconds: float = 0.0
    ) -> bool:
        """Give a share back; False if it was given back before, or ran out."""
        now_s, found = self._runtime.now_s(), False

        def step(use: BandwidthUse | None) -> BandwidthUse | None:
            nonlocal found
            use = use or BandwidthUse()
            mine = [item for item in use.live if item.allocation_id == allocation_id]
            found = bool(mine) and mine[0].expires_at > now_s
            if not mine:
                return None
            ended = EndedTransfer(
                host=mine[0].host, bytes_moved=bytes_transferred, seconds=duration_seconds, ended_at=now_s
            )
            return replace(
                use,
                live=tuple(item for item in use.live if item.allocation_id != allocation_id),
                ended=(*use.ended, ended)[-ENDED_KEPT_MAX:] if bytes_transferred else use.ended,
            )

        await self._uses.change(self._place, step)
        return found

    async def use(self) -> BandwidthUse:
        """Return what is given out now and what ended lately."""
        found = await self._uses.get(self._place) or BandwidthUse()
        now_s = self._runtime.now_s()
        live = tuple(item for item in found.live if item.expires_at > now_s)
        return replace(found, live=live)

    def host_limit_kbps(self, host: str) -> int:
        node = self._nodes[host] if self._nodes is not None and host in self._nodes else None
        return host_limit_kbps(node, host, self.limits)

    async def _ask(self, ask: Ask) -> BandwidthAllocation:
        got = BandwidthAllocation(host=ask.host, granted=False)

        def step(use: BandwidthUse | None) -> BandwidthUse | None:
            nonlocal got
            use, now_s = use or BandwidthUse(), self._runtime.now_s()
            live = tuple(item for item in use.live if item.expires_at > now_s)
            got = answer(ask, live, self.limits, now_s)
            if not got.granted:
                return None  # a write would wake all who wait, for nothing
            return replace(use, live=(*live, got), granted_total=use.granted_total + 1)

        await self._uses.change(self._place, step)
        self.refused_total += not got.granted
        return got

    async def _wait_for_change(self, ask: Ask, seconds: float) -> None:
        """Until a share comes back or runs out, or the time is over."""
        entry = await self._kv.get(self._uses.key(self._place))
        if entry is None:  # nothing is given out, so no share can come back
            await self._runtime.sleep(seconds)
            return
        live, now_s = self._uses.read(entry).live, self._runtime.now_s()
        if answer(ask, live, self.limits, now_s).granted:
            return  # one came back since the answer was no
        ends_s = [item.expires_at - now_s for item in live if item.expires_at > now_s]
        with suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, *ends_s)):
                await entry_changed(self._kv, entry)

    # --- without a loop -------------------------------------------------------------------------------

    def request(self, host: str, estimated_mb: float = 0.0, priority: str = "normal") -> BandwidthAllocation:
        return run_blocking(self.request_async(host, estimated_mb, priority), timeout_s=ANSWER_S)

    release = blocking(release_async, timeout_s=ANSWER_S)
    _use = blocking(use, timeout_s=ANSWER_S)

    def get_host_status(self, host: str) -> dict[str, Any]:
        """Return what is used and left of one host's line."""
        use = self._use()
        there = [item for item in use.live if item.host == host]
        used, limit = sum(item.allocated_kbps for item in there), self.host_limit_kbps(host)
        left = max(0, limit - used)
        return {
            "host": host,
            "active_transfers": len(there),
            "used_kbps": used,
            "used_mbps": used / KBPS_PER_MBPS,
            "limit_kbps": limit,
            "limit_mbps": limit / KBPS_PER_MBPS,
            "available_kbps": left,
            "available_mbps": left / KBPS_PER_MBPS,
            "transfers": [msgspec.to_builtins(item) for item in there],
        }

    def get_optimal_time(self, host: str) -> float:
        """When a transfer to the host would have the line to itself, by the clock: now if it is idle."""
        use = self._use()
        active = sum(item.host == host for item in use.live)
        return self._runtime.now_s() + SECONDS_PER_TRANSFER * active

    @property
    def works_here(self) -> bool:
        return self.refused_total > 0

    @reported
    def _refusals(self) -> dict[str, Any]:
        return {"refused": self.refused_total}

    def get_stats(self) -> dict[str, Any]:
        """Return counts and measured rates; the rates are of the last transfers that ended."""
        use = self._use()
        moved, seconds = sum(i.bytes_moved for i in use.ended), sum(i.seconds for i in use.ended)
        return {
            "active_allocations": len(use.live),
            "used_kbps": sum(item.allocated_kbps for item in use.live),
            "total_kbps": self.limits.total_kbps,
            "granted": use.granted_total,
            **self._refusals(),
            "transfers_ended": len(use.ended),
            "bytes_transferred": moved,
            "mean_kbps": moved / seconds / 1000 if seconds else 0.0,
        }

    @reported_by_store
    def health_check(self) -> HealthCheckResult:
        stats = self.get_stats()
        if stats["used_kbps"] > stats["total_kbps"]:
            why = f"{stats['used_kbps']} kbit/s are given out, and the limit is {stats['total_kbps']} by now"
            return HealthCheckResult.degraded(why, **stats)
        return HealthCheckResult.ok("", **stats)
