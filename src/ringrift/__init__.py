"""Runs a self-play training cluster by itself, on a laptop or on many machines.

The names below are loaded when they are first used, so that importing the package costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ringrift.coordination.coordination_bootstrap import (
        COORDINATOR_REGISTRY,
        bootstrap_coordination,
        get_bootstrap_status,
        get_system_health,
        initialize_all_coordinators,
        shutdown_all_coordinators,
        shutdown_coordination,
        start_coordination,
    )
    from ringrift.coordination.daemon_manager import DaemonManager, get_daemon_manager
    from ringrift.coordination.event_router import (
        EventSource,
        RouterEvent,
        UnifiedEventRouter,
        get_router,
        has_subscribers,
        publish,
        subscribe,
        unsubscribe,
    )
    from ringrift.coordination.handler_base import HandlerBase
    from ringrift.daemons.types import (
        DaemonInfo,
        DaemonManagerConfig,
        DaemonState,
        DaemonType,
    )
    from ringrift.events.catalog.event_types import DataEventType
    from ringrift.events.tracing import get_trace_id, span, traced
    from ringrift.settings import Settings
    from ringrift.status import CoordinatorStatus, HealthCheckResult

_HOMES: dict[str, str] = {
    "COORDINATOR_REGISTRY": "ringrift.coordination.coordination_bootstrap",
    "bootstrap_coordination": "ringrift.coordination.coordination_bootstrap",
    "get_bootstrap_status": "ringrift.coordination.coordination_bootstrap",
    "get_system_health": "ringrift.coordination.coordination_bootstrap",
    "initialize_all_coordinators": "ringrift.coordination.coordination_bootstrap",
    "shutdown_all_coordinators": "ringrift.coordination.coordination_bootstrap",
    "shutdown_coordination": "ringrift.coordination.coordination_bootstrap",
    "start_coordination": "ringrift.coordination.coordination_bootstrap",
    "DaemonManager": "ringrift.coordination.daemon_manager",
    "get_daemon_manager": "ringrift.coordination.daemon_manager",
    "DaemonInfo": "ringrift.daemons.types",
    "DaemonManagerConfig": "ringrift.daemons.types",
    "DaemonState": "ringrift.daemons.types",
    "DaemonType": "ringrift.daemons.types",
    "DataEventType": "ringrift.events.catalog.event_types",
    "HandlerBase": "ringrift.coordination.handler_base",
    "EventSource": "ringrift.coordination.event_router",
    "RouterEvent": "ringrift.coordination.event_router",
    "UnifiedEventRouter": "ringrift.coordination.event_router",
    "get_router": "ringrift.coordination.event_router",
    "has_subscribers": "ringrift.coordination.event_router",
    "publish": "ringrift.coordination.event_router",
    "subscribe": "ringrift.coordination.event_router",
    "unsubscribe": "ringrift.coordination.event_router",
    "get_trace_id": "ringrift.events.tracing",
    "span": "ringrift.events.tracing",
    "traced": "ringrift.events.tracing",
    "Settings": "ringrift.settings",
    "get_settings": "ringrift.coordination.coordinator_config",
    "CoordinatorStatus": "ringrift.status",
    "HealthCheckResult": "ringrift.status",
}

__all__ = [
    "COORDINATOR_REGISTRY",
    "CoordinatorStatus",
    "DaemonInfo",
    "DaemonManager",
    "DaemonManagerConfig",
    "DaemonState",
    "DaemonType",
    "DataEventType",
    "EventSource",
    "HandlerBase",
    "HealthCheckResult",
    "RouterEvent",
    "Settings",
    "UnifiedEventRouter",
    "bootstrap_coordination",
    "get_bootstrap_status",
    "get_daemon_manager",
    "get_router",
    "get_settings",
    "get_system_health",
    "get_trace_id",
    "has_subscribers",
    "initialize_all_coordinators",
    "publish",
    "shutdown_all_coordinators",
    "shutdown_coordination",
    "span",
    "start_coordination",
    "subscribe",
    "traced",
    "unsubscribe",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
