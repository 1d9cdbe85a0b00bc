"""Bringing data from node to node: when asked (facade), by itself (daemon), by what is urgent (scheduler)."""

from __future__ import annotations

from ringrift.data.sync.advice import (
    SyncScheduler,
    execute_priority_sync,
    get_cluster_data_status,
    get_sync_recommendations,
    get_sync_scheduler,
)
from ringrift.data.sync.auto_sync import AutoSyncDaemon, create_sync_daemon
from ringrift.data.sync.config import AutoSyncConfig
from ringrift.data.sync.constants import SyncAction, SyncPriority, SyncState, SyncStrategy
from ringrift.data.sync.coordinator import SyncCoordinator, get_sync_coordinator, wire_sync_events
from ringrift.data.sync.facade import SyncFacade, get_sync_facade, reset_sync_facade, sync
from ringrift.data.sync.requests import SyncBackend, SyncRequest, SyncResponse
from ringrift.data.sync.router import SyncRouter, get_sync_router
from ringrift.data.sync.scheduler import ClusterDataStatus, HostState, SyncRecommendation

__all__ = [
    "AutoSyncConfig",
    "AutoSyncDaemon",
    "ClusterDataStatus",
    "HostState",
    "SyncAction",
    "SyncBackend",
    "SyncCoordinator",
    "SyncFacade",
    "SyncPriority",
    "SyncRecommendation",
    "SyncRequest",
    "SyncResponse",
    "SyncRouter",
    "SyncScheduler",
    "SyncState",
    "SyncStrategy",
    "create_sync_daemon",
    "execute_priority_sync",
    "get_cluster_data_status",
    "get_sync_coordinator",
    "get_sync_facade",
    "get_sync_recommendations",
    "get_sync_router",
    "get_sync_scheduler",
    "reset_sync_facade",
    "sync",
    "wire_sync_events",
]
