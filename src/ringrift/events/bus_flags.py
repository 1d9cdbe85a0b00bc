"""Which buses a publisher wants to reach, and events that come in through one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ringrift.events.routed_event import EventSource, RouterEvent
from ringrift.events.subscriptions import Subscription


class BusFlags(NamedTuple):
    """Which subscribers a publisher wants to reach besides the router's own."""

    data_bus: bool
    stage_bus: bool
    cross_process: bool

    def allow(self, targets: Sequence[Subscription]) -> tuple[Subscription, ...]:
        barred = {EventSource.DATA_BUS: not self.data_bus, EventSource.STAGE_BUS: not self.stage_bus}
        return tuple(item for item in targets if not barred.get(item.bus))


ALL_BUSES = BusFlags(True, True, True)


def flags_of(data_bus: bool, stage_bus: bool, cross_process: bool, /) -> BusFlags:  # noqa: FBT001 - as published
    """The usual case is one object, so that it is recognised by identity."""
    return (
        ALL_BUSES
        if data_bus and stage_bus and cross_process
        else BusFlags(data_bus, stage_bus, cross_process)
    )


def as_router_event(found: Any, source: str = "") -> RouterEvent:
    """Take a RouterEvent as it is, and anything with a type and a payload as an event of the data bus."""
    if isinstance(found, RouterEvent):
        return found
    event = RouterEvent(
        found.event_type,
        dict(getattr(found, "payload", None) or {}),
        source=source or getattr(found, "source", ""),
        origin=EventSource.DATA_BUS,
        data_event=found,
    )
    event.timestamp = getattr(found, "timestamp", event.timestamp)
    event.success = bool(event.payload.get("success", True))
    return event
