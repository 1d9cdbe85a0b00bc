"""BatchRsync: files for several hosts in one go, by rsync where it reaches them.

A batch is a plan of the sync, carried out as every other: under the sync lock of each host, with a share of
the line, verified by the receiver, noted in ledger and history. rsync is tried first; where it fails, the
next way has its turn, and the result says by which way each file arrived.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ringrift.coordination.sync_base import open_data_plane
from ringrift.data.artifacts import Artifact
from ringrift.data.kv_records import one_per_process
from ringrift.data.plane import DataPlane
from ringrift.data.sync.executor import NodeTransferResult, SyncExecutor, SyncPace
from ringrift.data.sync.plan import NodeTransfer, SyncPlan
from ringrift.data.sync.requests import PRIORITIES
from ringrift.data.transfer.limits import WAIT_S, BandwidthAllocation, BandwidthLimits, BandwidthManager
from ringrift.data.transfer.peers import PREFERRED
from ringrift.data.transfer.ssh_transports import RSYNC
from ringrift.engine.arguments import check_integer, check_part, refuse
from ringrift.engine.blocking import blocking
from ringrift.engine.encoding import is_digest
from ringrift.errors import ConfigError
from ringrift.process import reset_of

__all__ = ["BatchRsync", "BatchRsyncResult"]

HOSTS_AT_ONCE = 3
TIMEOUT_S = 3_600.0
# Megabits as the line is sold: a million bits are 125,000 bytes.
_MBPS_IN_BYTES = 125_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRsyncResult:
    """What became of one host's part; every count comes from receipts."""

    host: str
    success: bool  # everything is there, verified
    files_transferred: int = 0
    files_already_there: int = 0
    bytes_transferred: int = 0
    duration_seconds: float = 0.0
    methods: dict[str, str] = field(default_factory=dict)  # digest: the way by which it arrived now
    errors: list[str] = field(default_factory=list)


class BatchRsync:
    """Collects what is to go where, and brings it. Without a plane of its own it uses this process's."""

    def __init__(
        self,
        plane: DataPlane | None = None,
        *,
        max_concurrent: int = HOSTS_AT_ONCE,
        priority: str = "normal",
        bandwidth_limit_mbps: float | None = None,
    ) -> None:
        if plane is not None:
            check_part("plane", plane, DataPlane)
        check_integer("max_concurrent", max_concurrent, low=1)
        if priority not in tuple(PRIORITIES):
            refuse("priority", priority, f"one of {', '.join(PRIORITIES)}")
        limit = bandwidth_limit_mbps
        if limit is not None and (type(limit) not in (int, float) or not limit > 0):
            refuse("bandwidth_limit_mbps", limit, "a number above 0")
        self._plane, self._width, self._priority = plane, max_concurrent, priority
        self._limit = None if bandwidth_limit_mbps is None else bandwidth_limit_mbps * _MBPS_IN_BYTES
        self._wanted: dict[
            str, dict[str, None]
        ] = {}  # by host, digests in the order in which they were added

    def add(self, host: str, files: Sequence[Artifact | str]) -> None:
        """Have sealed files of this node, or their digests, go to *host*; the same one goes once."""
        if isinstance(files, str):
            raise ConfigError(f"files is {files!r}; it must be a list of artifacts or digests")
        for each in files:
            digest = each if isinstance(each, str) else each.digest
            if not is_digest(digest):
                raise ConfigError(
                    f"{digest!r} is no digest of a sealed file; only those are verified on arrival"
                )
            self._wanted.setdefault(host, {})[digest] = None

    def __len__(self) -> int:
        return sum(len(digests) for digests in self._wanted.values())

    async def run_async(self) -> list[BatchRsyncResult]:
        """Bring everything that was added, and forget it; one result for each host, in their order."""
        plane = self._plane or await open_data_plane()
        # Taken in one step: what is added while this runs goes with the next batch.
        wanted, self._wanted = self._wanted, {}
        cards = {card.digest: card for card in (await plane.view()).cards}
        lacking = {
            host: [
                f"{host}: {digest[:12]}: the manifest does not know it"
                for digest in digests
                if digest not in cards
            ]
            for host, digests in wanted.items()
        }
        sends = tuple(
            NodeTransfer(
                node=host,
                artifacts=tuple(cards[digest] for digest in digests if digest in cards),
                reason="a batch",
            )
            for host, digests in wanted.items()
            if host in plane.nodes
        )
        pace = SyncPace(
            priority=self._priority,
            bytes_per_s=self._limit,
            # What is avoided is not closed: those ways have their turn after rsync.
            avoid=frozenset(PREFERRED) - {RSYNC},
            lock_wait_s=60.0,
        )
        plan = SyncPlan(
            sends=tuple(transfer for transfer in sends if transfer.artifacts),
            width=self._width,
        )
        result = await SyncExecutor(plane).carry_out(plan, pace)
        ends = {end.transfer.node: end for end in result.transfers}
        return [_result(plane, host, ends.get(host), lacking[host]) for host in wanted]

    run = blocking(run_async, timeout_s=TIMEOUT_S)


def _result(
    plane: DataPlane, host: str, end: NodeTransferResult | None, lacking: list[str]
) -> BatchRsyncResult:
    if end is None:
        unknown = [] if host in plane.nodes else [f"{host}: no node is called that"]
        return BatchRsyncResult(host=host, success=False, errors=[*unknown, *lacking])
    return BatchRsyncResult(
        host=host,
        success=end.complete and not lacking,
        files_transferred=len(end.moved.receipts),
        files_already_there=len(end.moved.already_there),
        bytes_transferred=end.moved.bytes_sent,
        duration_seconds=end.seconds,
        methods={receipt.digest: receipt.verifier for receipt in end.moved.receipts},
        errors=[*end.errors, *lacking],
    )


# The shares of lines that this process hands out.


def get_bandwidth_manager(
    db_path: Path | str | None = None, *, limits: BandwidthLimits | None = None
) -> BandwidthManager:
    """Return the manager of this process."""
    return one_per_process(BandwidthManager, BandwidthManager, db_path=db_path, limits=limits)


reset_bandwidth_manager = reset_of("reset_bandwidth_manager", BandwidthManager)


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
