"""Transfers between nodes: who moves what, by which way, at which pace, and whether it arrived.

The home of the capability; each part is in a file of its own.
"""

from __future__ import annotations

from ringrift.data.transfer.bandwidth import (
    BandwidthAllocation,
    BandwidthLimits,
    BandwidthManager,
    bandwidth_allocation,
    get_bandwidth_manager,
    get_host_bandwidth_status,
    get_optimal_transfer_time,
    release_bandwidth,
    request_bandwidth,
    request_bandwidth_async,
)
from ringrift.data.transfer.bloom import BloomFilter
from ringrift.data.transfer.contract import (
    CHUNK_BYTES,
    Moved,
    Pace,
    Terms,
    TransferFailed,
    TransferProgress,
    Transport,
)
from ringrift.data.transfer.durability import (
    SyncDeadLetterQueue,
    SyncWAL,
    SyncWALEntry,
    WalFull,
    get_sync_dlq,
    get_sync_wal,
)
from ringrift.data.transfer.gates import GateLimits, TransferGates
from ringrift.data.transfer.priorities import TransferPriority
from ringrift.data.transfer.ranking import TransferHealth
from ringrift.data.transfer.refusals import NodeUnreachable, TransferRefused
from ringrift.data.transfer.service import TransferConfig, TransferService
from ringrift.data.transfer.stalls import SyncStallHandler, get_stall_handler
from ringrift.data.transfer.sync_locks import (
    acquire_sync_lock,
    get_sync_mutex,
    release_sync_lock,
    sync_lock,
    sync_lock_required,
)
from ringrift.data.transfer.sync_mutex import SyncMutex
from ringrift.data.transfer.verification import (
    TransferVerifier,
    compute_batch_checksum,
    compute_file_checksum,
    get_transfer_verifier,
    quick_verify,
    verify_transfer,
    wire_transfer_events,
)

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
    "sync_lock",
    "sync_lock_required",
    "verify_transfer",
    "wire_transfer_events",
]
