"""The bandwidth manager: shares of the line by host and in all, across the processes of a node.

The shares given out are one record in the key-value port, changed by compare-and-swap, so that two
processes never give out the same bytes. A share that nobody returns runs out by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from ringrift.data.handles import kv_of, one_per_process
from ringrift.data.kv_records import KvRecords
from ringrift.data.nodes import DataNodes
from ringrift.data.transfer.bandwidth_rules import (
    Ask,
    BandwidthAllocation,
    BandwidthLimits,
    answer,
    host_limit_kbps,
)
from ringrift.data.transfer.pacing import BYTES_PER_KB, KBPS_PER_MBPS
from ringrift.data.transfer.priorities import priority_of
from ringrift.engine.blocking import run_blocking
from ringrift.engine.ports import KeyValue
from ringrift.engine.run_reports import reported
from ringrift.runtime import Runtime, system_runtime

__all__ = [
    "BandwidthAllocation",
    "BandwidthLimits",
    "BandwidthManager",
    "bandwidth_allocation",
    "get_bandwidth_manager",
    "get_host_bandwidth_status",
    "get_optimal_transfer_time",
    "release_bandwidth",
    "request_bandwidth",
    "request_bandwidth_async",
]

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


class BandwidthBook(msgspec.Struct, frozen=True):
    """What is given out on one node, and what was done with it lately."""

    live: tuple[BandwidthAllocation, ...] = ()
    ended: tuple[EndedTransfer, ...] = ()
    granted_total: int = 0


class BandwidthManager:
    """Gives out and takes back shares. The plain calls block; inside a loop use those on `_async`."""

    def __init__(
        self,
        db_path: Path | str | None = None,
        *,
        kv: KeyValue | None = None,
        runtime: Runtime | None = None,
        nodes: DataNodes | None = None,
        limits: BandwidthLimits | None = None,
    ) -> None:
        self._runtime = runtime or system_runtime()
        self._kv, self._nodes, self.limits = kv_of(db_path, kv), nodes, limits or BandwidthLimits()
        self._place = "here" if nodes is None else nodes.this.name
        self._books = KvRecords(self._kv, PREFIX, BandwidthBook)
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
            await self._wait_for_change(left_s)

    async def release_async(
        self, allocation_id: str, bytes_transferred: int = 0, duration_seconds: float = 0.0
    ) -> bool:
        """Give a share back; False if it was given back before, or ran out."""
        now_s, found = self._runtime.now_s(), False

        def step(book: BandwidthBook | None) -> BandwidthBook | None:
            nonlocal found
            book = book or BandwidthBook()
            mine = [item for item in book.live if item.allocation_id == allocation_id]
            found = bool(mine) and mine[0].expires_at > now_s
            if not mine:
                return None
            ended = EndedTransfer(
                host=mine[0].host, bytes_moved=bytes_transferred, seconds=duration_seconds, ended_at=now_s
            )
            return msgspec.structs.replace(
                book,
                live=tuple(item for item in book.live if item.allocation_id != allocation_id),
                ended=(*book.ended, ended)[-ENDED_KEPT_MAX:] if bytes_transferred else book.ended,
            )

        await self._books.change(self._place, step)
        return found

    async def book(self) -> BandwidthBook:
        """Return what is given out now and what ended lately."""
        found = await self._books.get(self._place) or BandwidthBook()
        now_s = self._runtime.now_s()
        live = tuple(item for item in found.live if item.expires_at > now_s)
        return msgspec.structs.replace(found, live=live)

    def host_limit_kbps(self, host: str) -> int:
        node = self._nodes[host] if self._nodes is not None and host in self._nodes else None
        return host_limit_kbps(node, host, self.limits)

    async def _ask(self, ask: Ask) -> BandwidthAllocation:
        got = BandwidthAllocation(host=ask.host, granted=False)

        def step(book: BandwidthBook | None) -> BandwidthBook | None:
            nonlocal got
            book, now_s = book or BandwidthBook(), self._runtime.now_s()
            live = tuple(item for item in book.live if item.expires_at > now_s)
            got = answer(ask, live, self.limits, now_s)
            if not got.granted:
                return None  # a write would wake all who wait, for nothing
            return msgspec.structs.replace(book, live=(*live, got), granted_total=book.granted_total + 1)

        await self._books.change(self._place, step)
        self.refused_total += not got.granted
        return got

    async def _wait_for_change(self, seconds: float) -> None:
        """Until a share comes back or runs out, or the time is over."""
        live = (await self.book()).live
        next_end_s = min((item.expires_at for item in live), default=0.0) - self._runtime.now_s()
        wait_s = min(seconds, next_end_s) if next_end_s > 0 else seconds
        try:
            async with (
                asyncio.timeout(wait_s),
                aclosing(self._kv.watch(self._books.key(self._place))) as seen,
            ):
                if len((await self.book()).live) < len(live):
                    return  # one came back before the watch began
                await anext(seen)
        except TimeoutError:
            return

    # --- without a loop -------------------------------------------------------------------------------

    def request(self, host: str, estimated_mb: float = 0.0, priority: str = "normal") -> BandwidthAllocation:
        return run_blocking(self.request_async(host, estimated_mb, priority), timeout_s=ANSWER_S)

    def release(self, allocation_id: str, bytes_transferred: int = 0, duration_seconds: float = 0.0) -> bool:
        giving = self.release_async(allocation_id, bytes_transferred, duration_seconds)
        return run_blocking(giving, timeout_s=ANSWER_S)

    def get_host_status(self, host: str) -> dict[str, Any]:
        """Return what is used and left of one host's line."""
        book = run_blocking(self.book(), timeout_s=ANSWER_S)
        there = [item for item in book.live if item.host == host]
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
        book = run_blocking(self.book(), timeout_s=ANSWER_S)
        active = sum(item.host == host for item in book.live)
        return self._runtime.now_s() + SECONDS_PER_TRANSFER * active

    @property
    def works_here(self) -> bool:
        return self.refused_total > 0

    @reported
    def _refusals(self) -> dict[str, Any]:
        return {"refused": self.refused_total}

    def get_stats(self) -> dict[str, Any]:
        """Return counts and measured rates; the rates are of the last transfers that ended."""
        book = run_blocking(self.book(), timeout_s=ANSWER_S)
        moved, seconds = sum(i.bytes_moved for i in book.ended), sum(i.seconds for i in book.ended)
        return {
            "active_allocations": len(book.live),
            "used_kbps": sum(item.allocated_kbps for item in book.live),
            "total_kbps": self.limits.total_kbps,
            "granted": book.granted_total,
            **self._refusals(),
            "transfers_ended": len(book.ended),
            "bytes_transferred": moved,
            "mean_kbps": moved / seconds / 1000 if seconds else 0.0,
        }


# --- of this process ----------------------------------------------------------------------------------


def get_bandwidth_manager(
    db_path: Path | str | None = None, *, limits: BandwidthLimits | None = None
) -> BandwidthManager:
    """Return the manager of this process."""
    return one_per_process(BandwidthManager, BandwidthManager, db_path=db_path, limits=limits)


def request_bandwidth(host: str, estimated_mb: float = 0.0, priority: str = "normal") -> BandwidthAllocation:
    """Ask for a share of the line to a host."""
    return get_bandwidth_manager().request(host, estimated_mb, priority)


async def request_bandwidth_async(
    host: str, estimated_mb: float = 0.0, priority: str = "normal", *, wait_s: float = WAIT_S
) -> BandwidthAllocation:
    return await get_bandwidth_manager().request_async(host, estimated_mb, priority, wait_s=wait_s)


def release_bandwidth(allocation_id: str, bytes_transferred: int = 0, duration_seconds: float = 0.0) -> bool:
    """Give a share back; False the second time."""
    return get_bandwidth_manager().release(allocation_id, bytes_transferred, duration_seconds)


@contextmanager
def bandwidth_allocation(
    host: str, estimated_mb: float = 0.0, priority: str = "normal"
) -> Iterator[BandwidthAllocation]:
    """Hold a share for the length of a block; look at `granted` before you use it."""
    manager = get_bandwidth_manager()
    got = manager.request(host, estimated_mb, priority)
    try:
        yield got
    finally:
        if got.granted:
            manager.release(got.allocation_id)


def get_host_bandwidth_status(host: str) -> dict[str, Any]:
    return get_bandwidth_manager().get_host_status(host)


def get_optimal_transfer_time(host: str) -> float:
    return get_bandwidth_manager().get_optimal_time(host)
