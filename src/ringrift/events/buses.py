"""The bus names of the RingRift documents, all of them views of the one router and its log."""

from __future__ import annotations

from ringrift.events.data_bus import DataEvent, DataEventBus, EventBus, get_data_bus
from ringrift.events.process_poller import CrossProcessEventPoller
from ringrift.events.process_queue import (
    CrossProcessEventQueue,
    ack_event,
    ack_events,
    bridge_to_cross_process,
    get_event_queue,
    poll_events,
    publish_event,
    reset_event_queue,
    subscribe_process,
)
from ringrift.events.process_subscribers import CrossProcessEvent
from ringrift.events.stage_bus import (
    StageEventBus,
    create_pipeline_callbacks,
    get_event_bus,
    get_stage_event_bus,
    register_standard_callbacks,
)

__all__ = [
    "CrossProcessEvent",
    "CrossProcessEventPoller",
    "CrossProcessEventQueue",
    "DataEvent",
    "DataEventBus",
    "EventBus",
    "StageEventBus",
    "ack_event",
    "ack_events",
    "bridge_to_cross_process",
    "create_pipeline_callbacks",
    "get_data_bus",
    "get_event_bus",
    "get_event_queue",
    "get_stage_event_bus",
    "poll_events",
    "publish_event",
    "register_standard_callbacks",
    "reset_event_queue",
    "subscribe_process",
]
