"""Functions that use the router of this process: publish, subscribe, and what it can say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from ringrift.coordination.coordinator_config import get_settings
from ringrift.errors import RingRiftError
from ringrift.events.dead_letter_queue import ProcessDeadLetters
from ringrift.events.event import EventSource, RouterEvent, get_event_payload
from ringrift.events.positions import process_log_connection
from ringrift.events.subscriptions import Callback, SubscriptionHandle
from ringrift.events.unified_router import Surroundings, UnifiedEventRouter
from ringrift.process import process_scope

log = structlog.get_logger()

__all__ = [
    "CoordinatorStats",
    "EventSource",
    "RouterEvent",
    "UnifiedEventCoordinator",
    "UnifiedEventRouter",
    "emit_event",
    "get_coordinator_stats",
    "get_event_coordinator",
    "get_event_payload",
    "get_event_stats",
    "get_orphaned_events",
    "get_router",
    "has_subscribers",
    "publish",
    "publish_sync",
    "reset_router",
    "safe_emit_event",
    "safe_emit_event_async",
    "start_coordinator",
    "stop_coordinator",
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
    around = Surroundings(
        settings=settings, log_connection=process_log_connection(settings), dead_letters=ProcessDeadLetters()
    )
    return UnifiedEventRouter(surroundings=around)


def reset_router() -> None:
    """Drop the router of this process; the next `get_router` makes a fresh one."""
    router = process_scope().drop(UnifiedEventRouter)
    if router is not None:
        router.let_go()


async def publish(
    event_type: Any,
    payload: Mapping[str, Any] | None = None,
    source: str = "",
    route_to_data_bus: bool = True,  # noqa: FBT001, FBT002 - the flags in the published order
    route_to_stage_bus: bool = True,  # noqa: FBT001, FBT002
    route_to_cross_process: bool = True,  # noqa: FBT001, FBT002
) -> RouterEvent:
    """Publish at the router of this process; see `UnifiedEventRouter.publish`."""
    return await get_router().publish(
        event_type, payload, source, route_to_data_bus, route_to_stage_bus, route_to_cross_process
    )


def publish_sync(event_type: Any, payload: Mapping[str, Any] | None = None, source: str = "") -> RouterEvent:
    """Publish from code that is not async; see `UnifiedEventRouter.publish_sync`."""
    return get_router().publish_sync(event_type, payload, source)


def subscribe(
    event_type: Any,
    callback: Callback,
    subscriber_name: str | None = None,
    persist: bool = False,  # noqa: FBT001, FBT002 - in the published order
    *,
    timeout: float | None = None,
) -> SubscriptionHandle:
    """Subscribe at the router of this process; see `UnifiedEventRouter.subscribe`."""
    return get_router().subscribe(event_type, callback, subscriber_name, persist, timeout=timeout)


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


def validate_event_wiring(
    raise_on_error: bool = False,  # noqa: FBT001, FBT002 - in the published order
    log_warnings: bool = True,  # noqa: FBT001, FBT002
) -> dict[str, Any]:
    return get_router().validate_event_wiring(raise_on_error, log_warnings)


async def emit_event(
    event_type: Any, payload: Mapping[str, Any] | None = None, source: str = ""
) -> RouterEvent:
    return await publish(event_type, payload, source)


async def safe_emit_event_async(
    event_type: Any, payload: Mapping[str, Any] | None = None, source: str = ""
) -> bool:
    """Publish; False, with a line in the log, where `publish` would raise."""
    try:
        await publish(event_type, payload, source)
    except RingRiftError as error:
        log.error("events.emit_failed", event_type=str(event_type), error=str(error))
        return False
    return True


def safe_emit_event(event_type: Any, payload: Mapping[str, Any] | None = None, source: str = "") -> bool:
    """Publish from code that is not async; False, with a line in the log, where that would raise.

    Inside a running loop the event is on its way when this returns; its failure is logged later.
    """
    try:
        publish_sync(event_type, payload, source)
    except RingRiftError as error:
        log.error("events.emit_failed", event_type=str(event_type), error=str(error))
        return False
    return True


# --- the older names of the router ------------------------------------------------------------------------

UnifiedEventCoordinator = UnifiedEventRouter
get_event_coordinator = get_router


@dataclass(frozen=True, slots=True)
class CoordinatorStats:
    """The counts that the coordinator of that name had."""

    total_events_routed: int
    events_by_source: dict[str, int]
    duplicates_prevented: int
    subscriber_count: int
    is_running: bool


def get_coordinator_stats() -> CoordinatorStats:
    stats = get_router().get_stats()
    return CoordinatorStats(
        total_events_routed=stats["total_events_routed"],
        events_by_source=stats["events_by_source"],
        duplicates_prevented=stats["total_duplicates_prevented"],
        subscriber_count=stats["subscriber_count"],
        is_running=get_router().is_running,
    )


async def start_coordinator() -> bool:
    await get_router().start()
    return True


async def stop_coordinator() -> None:
    await get_router().stop()
