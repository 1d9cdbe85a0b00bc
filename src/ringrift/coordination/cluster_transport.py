"""Transfers between nodes: who moves what, by which way, at which pace, and whether it arrived."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ringrift.coordination.sync_bandwidth import (
    bandwidth_allocation,
    get_bandwidth_manager,
    get_host_bandwidth_status,
    get_optimal_transfer_time,
    release_bandwidth,
    request_bandwidth,
    request_bandwidth_async,
)
from ringrift.coordination.sync_base import open_data_plane
from ringrift.coordination.sync_durability import (
    SyncDeadLetterQueue,
    SyncWAL,
    SyncWALEntry,
    WalFull,
    get_sync_dlq,
    get_sync_wal,
)
from ringrift.coordination.sync_mutex import (
    SyncMutex,
    acquire_sync_lock,
    get_sync_mutex,
    release_sync_lock,
    sync_lock,
    sync_lock_required,
)
from ringrift.coordination.transfer_verification import (
    TransferVerifier,
    compute_batch_checksum,
    compute_file_checksum,
    get_transfer_verifier,
    quick_verify,
    verify_transfer,
    wire_transfer_events,
)
from ringrift.data.artifacts import Artifact
from ringrift.data.kv_records import one_per_process
from ringrift.data.transfer.contract import (
    CHUNK_BYTES,
    Moved,
    NodeUnreachable,
    Pace,
    Terms,
    TransferFailed,
    TransferPriority,
    TransferProgress,
    TransferRefused,
    Transport,
)
from ringrift.data.transfer.limits import (
    BandwidthAllocation,
    BandwidthLimits,
    BandwidthManager,
    GateLimits,
    TransferGates,
)
from ringrift.data.transfer.peers import BloomFilter, StallConfig, SyncStallHandler, TransferHealth
from ringrift.data.transfer.service import TransferConfig, TransferService
from ringrift.process import reset_of

# The documents import all of transfer from this one module, so it lists what its parts define.
__all__ = [
    "CHUNK_BYTES",
    "BandwidthAllocation",
    "BandwidthLimits",
    "BandwidthManager",
    "BloomFilter",
    "GateLimits",
    "Moved",
    "NodeUnreachable",
    "Pace",
    "SyncDeadLetterQueue",
    "SyncMutex",
    "SyncStallHandler",
    "SyncWAL",
    "SyncWALEntry",
    "Terms",
    "TransferConfig",
    "TransferFailed",
    "TransferGates",
    "TransferHealth",
    "TransferPriority",
    "TransferProgress",
    "TransferRefused",
    "TransferService",
    "TransferVerifier",
    "Transport",
    "WalFull",
    "acquire_sync_lock",
    "bandwidth_allocation",
    "compute_batch_checksum",
    "compute_file_checksum",
    "get_bandwidth_manager",
    "get_host_bandwidth_status",
    "get_optimal_transfer_time",
    "get_stall_handler",
    "get_sync_dlq",
    "get_sync_mutex",
    "get_sync_wal",
    "get_transfer_verifier",
    "quick_verify",
    "release_bandwidth",
    "release_sync_lock",
    "request_bandwidth",
    "request_bandwidth_async",
    "reset_stall_handler",
    "sync_lock",
    "sync_lock_required",
    "verify_transfer",
    "wire_transfer_events",
]


class ClusterTransport:
    """What moves files between this process's node and the others, by the healthiest way.

    Each call takes the transfers of the data plane that is open then. *node* is the name of a node.
    """

    async def send(self, node: str, artifacts: Sequence[Artifact], **options: Any) -> Moved:
        """Bring sealed files of this node to another; options as of the transfers of a data plane."""
        plane = await open_data_plane()
        # The service picks the transport and keeps to the limits; this only finds the one that is open now.
        return await plane.transfers.send(plane.nodes[node], artifacts, **options)

    async def fetch(self, node: str, artifacts: Sequence[Artifact], **options: Any) -> Moved:
        """Bring sealed files of another node here."""
        plane = await open_data_plane()
        return await plane.transfers.fetch(plane.nodes[node], artifacts, **options)


def get_cluster_transport() -> ClusterTransport:
    """Return what moves files between this process's node and the others; a call opens what it needs."""
    return ClusterTransport()


def get_stall_handler(
    db_path: Path | str | None = None, *, config: StallConfig | None = None
) -> SyncStallHandler:
    """Return the handler of this process."""
    return one_per_process(SyncStallHandler, SyncStallHandler, db_path=db_path, config=config)


reset_stall_handler = reset_of("reset_stall_handler", SyncStallHandler)
