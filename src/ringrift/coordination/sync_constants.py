"""The numbers and the words of sync, as the sync daemon uses them."""

from __future__ import annotations

from ringrift.data.config import (
    BROADCAST_BYTES_MAX,
    CONCURRENT_NODES,
    CRITICAL_S,
    DISK_PERCENT_MAX,
    EPHEMERAL_FACTOR,
    EPHEMERAL_INTERVAL_S,
    FILES_PER_TRIP,
    GAMES_MIN,
    GOSSIP_INTERVAL_S,
    NEIGHBOURS,
    PERSISTENT_FACTOR,
    STALE_S,
    SYNC_INTERVAL_S,
    SyncAction,
    SyncPriority,
    SyncState,
    SyncStrategy,
)

__all__ = [
    "BROADCAST_BYTES_MAX",
    "CONCURRENT_NODES",
    "CRITICAL_S",
    "DISK_PERCENT_MAX",
    "EPHEMERAL_FACTOR",
    "EPHEMERAL_INTERVAL_S",
    "FILES_PER_TRIP",
    "GAMES_MIN",
    "GOSSIP_INTERVAL_S",
    "NEIGHBOURS",
    "PERSISTENT_FACTOR",
    "STALE_S",
    "SYNC_INTERVAL_S",
    "SyncAction",
    "SyncPriority",
    "SyncState",
    "SyncStrategy",
]
