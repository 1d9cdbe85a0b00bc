"""The router of this process, and the module-level functions that use it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ringrift.events.log_seat import process_seat
from ringrift.events.process_dead_letters import ProcessDeadLetters
from ringrift.events.routed_event import EventSource, RouterEvent, get_event_payload
from ringrift.events.subscriptions import Callback, SubscriptionHandle
from ringrift.events.surroundings import Surroundings
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.process import process_scope
from ringrift.settings import get_settings

__all__ = [
    "EventSource",
    "RouterEvent",
    "UnifiedEventRouter",
    "get_event_payload",
    "get_event_stats",
    "get_orphaned_events",
    "get_router",
    "has_subscribers",
    "publish",
    "publish_sync",
    "reset_router",
    "subscribe",
    "unsubscribe",
    "validate_event_flow",
    "validate_event_wiring",
]


def get_router() -> UnifiedEventRouter:
    """Return the router of this process."""
    return process_scope().get(UnifiedEventRouter, _make_router)


def _make_router() -> UnifiedEventRouter:
    settings = get_settings()
    around = Surroundings(settings=settings, seat=process_seat(settings), dead_letters=ProcessDeadLetters())
    return UnifiedEventRouter(surroundings=around)


def reset_router() -> None:
    """Drop the router of this process; the next `get_router` makes a fresh one."""
    router = process_scope().drop(UnifiedEventRouter)
    if router is not None:
        router.reset()


async def publish(
    event_type: Any,
    payload: Mapping[str, Any] | None = None,
    source: str = "",
    *,
    route_to_data_bus: bool = True,
    route_to_stage_bus: bool = True,
    route_to_cross_process: bool = True,
) -> RouterEvent:
    """Publish at the router of this process; see `UnifiedEventRouter.publish`."""
    return await get_router().publish(
        event_type,
        payload,
        source,
        route_to_data_bus=route_to_data_bus,
        route_to_stage_bus=route_to_stage_bus,
        route_to_cross_process=route_to_cross_process,
    )


def publish_sync(
    event_type: Any, payload: Mapping[str, Any] | None = None, source: str = ""
) -> RouterEvent | asyncio.Task[RouterEvent]:
    """Publish from code that is not async; see `UnifiedEventRouter.publish_sync`."""
    return get_router().publish_sync(event_type, payload, source)


def subscribe(
    event_type: Any, callback: Callback, subscriber_name: str | None = None, *, timeout: float | None = None
) -> SubscriptionHandle:
    """Subscribe at the router of this process; see `UnifiedEventRouter.subscribe`."""
    return get_router().subscribe(event_type, callback, subscriber_name, timeout=timeout)


def unsubscribe(event_type: Any, callback: Callback) -> bool:
    return get_router().unsubscribe(event_type, callback)


def has_subscribers(event_type: Any) -> bool:
    return get_router().has_subscribers(event_type)


def get_event_stats() -> dict[str, Any]:
    return get_router().get_stats()


def get_orphaned_events() -> dict[str, Any]:
    return get_router().get_orphaned_events()


def validate_event_flow() -> dict[str, Any]:
    return get_router().validate_event_flow()


def validate_event_wiring(*, raise_on_error: bool = False, log_warnings: bool = True) -> dict[str, Any]:
    return get_router().validate_event_wiring(raise_on_error=raise_on_error, log_warnings=log_warnings)
