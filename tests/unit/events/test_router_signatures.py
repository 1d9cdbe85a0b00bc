"""Calls in the documented order of arguments, as programs written for the RingRift documents make them."""

import inspect

import pytest

from ringrift.coordination import event_router as module
from ringrift.coordination.dead_letter_queue import DeadLetterQueue, DLQRetryDaemon, run_retry_daemon
from ringrift.coordination.event_buses import CrossProcessEventPoller, CrossProcessEventQueue
from ringrift.events.catalog.names import EventTypeValidator
from ringrift.events.event import EventSource
from ringrift.events.unified_router import UnifiedEventRouter

FLAGS = "route_to_data_bus route_to_stage_bus route_to_cross_process"

DOCUMENTED = [
    (UnifiedEventRouter, "enable_cross_process_polling poll_interval max_seen_events"),
    (UnifiedEventRouter.publish, f"self event_type payload source {FLAGS}"),
    (UnifiedEventRouter.publish_sync, "self event_type payload source"),
    (UnifiedEventRouter.subscribe, "self event_type callback subscriber_name persist"),
    (UnifiedEventRouter.get_history, "self event_type origin since limit"),
    (UnifiedEventRouter.validate_event_wiring, "self raise_on_error log_warnings"),
    (module.publish, f"event_type payload source {FLAGS}"),
    (module.publish_sync, "event_type payload source"),
    (module.subscribe, "event_type callback subscriber_name persist"),
    (module.validate_event_wiring, "raise_on_error log_warnings"),
    (EventTypeValidator, "strict"),
    (DeadLetterQueue, "db_path max_retries base_backoff_seconds max_backoff_seconds"),
    (DeadLetterQueue.capture, "self event_type payload handler_name error source"),
    (DeadLetterQueue.get_pending_events, "self limit event_type"),
    (DeadLetterQueue.get_failed_events, "self limit include_abandoned"),
    (DeadLetterQueue.retry_failed_events, "self max_events event_type"),
    (DLQRetryDaemon, "dlq interval_seconds max_events_per_cycle max_attempts max_stale_hours"),
    (run_retry_daemon, "dlq interval_seconds max_events_per_cycle"),
    (CrossProcessEventQueue, "db_path"),
    (CrossProcessEventQueue.publish, "self event_type payload source max_retries"),
    (CrossProcessEventQueue.subscribe, "self process_name event_types stable"),
    (CrossProcessEventQueue.poll, "self subscriber_id event_types limit since_event_id"),
    (CrossProcessEventPoller, "process_name event_types poll_interval db_path stable"),
]


@pytest.mark.parametrize(("call", "names"), DOCUMENTED, ids=lambda value: getattr(value, "__qualname__", ""))
def test_arguments_stand_in_the_documented_order(call, names):
    parameters = inspect.signature(call).parameters.values()
    ordered = [item.name for item in parameters if item.kind is item.POSITIONAL_OR_KEYWORD]
    assert ordered[: len(names.split())] == names.split()


async def test_flags_given_by_position_mean_the_same():
    router, heard = UnifiedEventRouter(False, 0.5, 100), []
    router.subscribe("MY_EVENT", lambda event: heard.append("data"), "a", False, bus=EventSource.DATA_BUS)
    router.subscribe("MY_EVENT", lambda event: heard.append("stage"), "b", True, bus=EventSource.STAGE_BUS)
    await router.publish("MY_EVENT", {}, "test", True, False, False)
    assert heard == ["data"]
