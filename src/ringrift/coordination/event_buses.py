"""The buses of the documents: the data bus and the stage bus, both views of the one router.

The names of the queue between processes are listed here too, as the documents import them together.
"""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from ringrift.coordination.cross_process_events import (
    CrossProcessEvent,
    CrossProcessEventPoller,
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
from ringrift.coordination.event_mappings import StageCompletionResult, StageEvent
from ringrift.coordination.event_router import get_router
from ringrift.errors import described
from ringrift.events.catalog.event_types import DataEventType
from ringrift.events.catalog.names import normalize_event_type
from ringrift.events.catalog.table import ALIASES
from ringrift.events.event import EventSource, RouterEvent
from ringrift.events.subscriptions import SubscriptionHandle, callback_name
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.process import getter_of, reset_of
from ringrift.runtime import system_runtime
from ringrift.status import HealthCheckResult

__all__ = [
    "CallbackError",
    "CrossProcessEvent",
    "CrossProcessEventPoller",
    "CrossProcessEventQueue",
    "DataCallback",
    "DataEvent",
    "DataEventBus",
    "EventBus",
    "StageCallback",
    "StageEventBus",
    "ack_event",
    "ack_events",
    "bridge_to_cross_process",
    "create_pipeline_callbacks",
    "get_data_bus",
    "get_data_event_bus",
    "get_event_bus",
    "get_event_queue",
    "get_stage_event_bus",
    "poll_events",
    "publish_event",
    "register_standard_callbacks",
    "reset_data_event_bus",
    "reset_event_queue",
    "reset_stage_event_bus",
    "subscribe_process",
]


# The data bus: a view of the router for those who speak in `DataEvent`s.


_SAMPLES_MAX = 1000
_ERROR_SHARE_MAX = 0.1
_SLOW_S = 1.0


def _now_s() -> float:
    return system_runtime().now_s()


@dataclass(slots=True)
class DataEvent:
    """An event as the data bus shows it: the type is the enum member, where there is one."""

    event_type: DataEventType | str
    payload: dict[str, Any] = field(default_factory=dict)
    timestamp: float = field(default_factory=_now_s)
    source: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "event_type": str(self.event_type),
            "payload": dict(self.payload),
            "timestamp": self.timestamp,
            "source": self.source,
        }


DataCallback = Callable[[DataEvent], Any]


class DataEventBus:
    """DataEvents in, DataEvents out; the router in between."""

    def __init__(self, max_history: int = 1000, *, router: UnifiedEventRouter | None = None) -> None:
        self._own_router = router
        self._max_history = max_history
        # A list: a callback may be subscribed several times, and each `unsubscribe` ends one of them.
        self._handles: dict[tuple[str | None, DataCallback], list[SubscriptionHandle]] = {}
        self._latencies_s: deque[float] = deque(maxlen=_SAMPLES_MAX)
        self._handled = self._errors = 0

    @property
    def router(self) -> UnifiedEventRouter:
        return self._own_router or get_router()

    def subscribe(self, event_type: Any, callback: DataCallback) -> SubscriptionHandle:
        """Call *callback* with each event of a type (None: of every type)."""
        name = None if event_type is None else normalize_event_type(event_type)
        handle = self.router.subscribe(
            event_type,
            self._adapter(callback),
            f"data:{name or 'all'}/{callback_name(callback)}",
            bus=EventSource.DATA_BUS,
        )
        # Those that were ended by their own handles are still in this table.
        known = [each for each in self._handles.get((name, callback), ()) if each.active]
        self._handles[name, callback] = [*known, handle]
        return handle

    def unsubscribe(self, event_type: Any, callback: DataCallback) -> bool:
        name = None if event_type is None else normalize_event_type(event_type)
        handles = self._handles.get((name, callback), [])
        while handles:
            if handles.pop(0).cancel():
                return True
        return False

    def list_subscribers(self, event_type: Any = None) -> list[dict[str, Any]]:
        found = self.router.list_subscribers(event_type)
        return [item for item in found if item["bus"] == EventSource.DATA_BUS]

    def has_subscribers(self, event_type: Any) -> bool:
        return self.router.has_subscribers(event_type)

    async def publish(self, event: DataEvent, *, bridge_cross_process: bool = True) -> RouterEvent:
        return await self.router.publish(event, route_to_cross_process=bridge_cross_process)

    def publish_sync(self, event: DataEvent) -> RouterEvent:
        return self.router.publish_sync(event)

    def emit(
        self, event_type: Any, payload: Mapping[str, Any] | None = None, source: str = ""
    ) -> RouterEvent:
        return self.publish_sync(DataEvent(event_type, dict(payload or {}), source=source))

    async def emit_async(
        self, event_type: Any, payload: Mapping[str, Any] | None = None, source: str = ""
    ) -> RouterEvent:
        return await self.publish(DataEvent(event_type, dict(payload or {}), source=source))

    def get_history(self, event_type: Any = None, limit: int = 100) -> list[DataEvent]:
        """Return the events of the router, newest last."""
        events = self.router.get_history(event_type, limit=min(limit, self._max_history))
        return [as_data_event(event) for event in events]

    def get_metrics(self) -> dict[str, Any]:
        ordered = sorted(self._latencies_s)

        def percentile(share: float) -> float:
            return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0

        return {
            "callbacks_run": self._handled,
            "callback_errors": self._errors,
            "latency_p50_s": percentile(0.5),
            "latency_p95_s": percentile(0.95),
            "latency_p99_s": percentile(0.99),
            "subscriptions": sum(each.active for handles in self._handles.values() for each in handles),
        }

    def health_check(self) -> HealthCheckResult:
        metrics = self.get_metrics()
        if self._handled and self._errors / self._handled > _ERROR_SHARE_MAX:
            return HealthCheckResult.degraded("more than 10 % of the callbacks failed", **metrics)
        if metrics["latency_p95_s"] > _SLOW_S:
            return HealthCheckResult.degraded("callbacks take longer than 1 s", **metrics)
        return HealthCheckResult.ok("", **metrics)

    def _adapter(self, callback: DataCallback) -> Callable[[RouterEvent], Any]:
        async def handle(event: RouterEvent) -> None:
            runtime = system_runtime()
            begun_s = runtime.monotonic_s()
            self._handled += 1
            try:
                result = callback(as_data_event(event))
                if inspect.isawaitable(result):
                    await result
            # Counted and passed on: isolation and dead letters are the router's.
            except Exception:
                self._errors += 1
                raise
            finally:
                # Also after a time-out, which comes as a cancellation: slow calls are what this is to show.
                self._latencies_s.append(runtime.monotonic_s() - begun_s)

        return handle


EventBus = DataEventBus


def as_data_event(event: RouterEvent) -> DataEvent:
    """Return a routed event as the data bus shows it."""
    name = event.event_type
    kind = DataEventType[name] if name in DataEventType.__members__ else name
    return DataEvent(kind, event.payload, event.timestamp, event.source)


get_data_event_bus = getter_of("get_data_event_bus", DataEventBus)
reset_data_event_bus = reset_of("reset_data_event_bus", DataEventBus)
get_data_bus = get_data_event_bus


# The stage bus: a view of the router for those who speak in pipeline stages.
#
# What is emitted here is an event of the router like any other, and every subscriber of either side gets it
# once.


log = structlog.get_logger()

StageCallback = Callable[[StageCompletionResult], Any]

_ERRORS_MAX = 100


@dataclass(frozen=True, slots=True)
class CallbackError:
    """One failure of a stage callback."""

    event: StageEvent
    callback: str
    error: str
    timestamp: float


class StageEventBus:
    """Stages in, stages out; the router in between."""

    def __init__(self, max_history: int = 100, *, router: UnifiedEventRouter | None = None) -> None:
        self._own_router = router
        self._history: deque[StageCompletionResult] = deque(maxlen=max_history)
        self._errors: deque[CallbackError] = deque(maxlen=_ERRORS_MAX)
        self._handles: dict[tuple[StageEvent, StageCallback], SubscriptionHandle] = {}
        self._answers: dict[str, list[Any]] = {}
        self._say: Callable[[str], Any] | None = None

    @property
    def router(self) -> UnifiedEventRouter:
        return self._own_router or get_router()

    def subscribe(self, event: StageEvent, callback: StageCallback) -> SubscriptionHandle:
        """Call *callback* with each result of a stage. Subscribing the same one again changes nothing."""
        stage = StageEvent(event)
        known = self._handles.get((stage, callback))
        # One that was ended by its own handle is still in this table.
        if known is not None and known.active:
            return known
        handle = self.router.subscribe(
            stage,
            self._adapter(stage, callback),
            f"stage:{stage.value}/{callback_name(callback)}",
            bus=EventSource.STAGE_BUS,
        )
        self._handles[stage, callback] = handle
        return handle

    def unsubscribe(self, event: StageEvent, callback: StageCallback) -> bool:
        handle = self._handles.pop((StageEvent(event), callback), None)
        return handle is not None and handle.cancel()

    def clear_subscribers(self, event: StageEvent | None = None) -> int:
        """End the subscriptions to a stage (None: to all); return how many."""
        keys = [key for key in self._handles if event is None or key[0] == event]
        return sum(self._handles.pop(key).cancel() for key in keys)

    def subscriber_count(self, event: StageEvent | None = None) -> int:
        return sum(event is None or stage == event for stage in self._subscribed())

    def _subscribed(self) -> list[StageEvent]:
        """The stage of every subscription that was not ended, here or by its own handle."""
        return [stage for (stage, _), handle in self._handles.items() if handle.active]

    async def emit(self, result: StageCompletionResult) -> int:
        """Publish a result; return how many callbacks of this bus handled it well."""
        return len(await self._emit(result))

    async def emit_and_wait(self, result: StageCompletionResult, timeout: float = 30.0) -> list[Any]:
        """Publish a result and return what the callbacks returned; nothing if they take too long."""
        try:
            async with asyncio.timeout(timeout):
                return await self._emit(result)
        except TimeoutError:
            log.error("stage_bus.timeout", stage=result.event.value, timeout_s=timeout)
            return []

    async def _emit(self, result: StageCompletionResult) -> list[Any]:
        event = RouterEvent(
            result.event,
            {key: value for key, value in result.to_dict().items() if value is not None},
            source="stage_bus",
            origin=EventSource.STAGE_BUS,
            success=result.success,
            iteration=result.iteration,
            stage_result=result,
        )
        # By event: callbacks also get what others publish, and nobody collects their answers then.
        answers = self._answers[event.event_id] = []
        try:
            await self.router.publish_event(event)
        finally:
            del self._answers[event.event_id]
        self._history.append(result)
        if self._say is not None:
            self._say(f"{result.event.value}: {'ok' if result.success else result.error or 'failed'}")
        return answers

    def _adapter(self, stage: StageEvent, callback: StageCallback) -> Callable[[RouterEvent], Any]:
        async def handle(event: RouterEvent) -> None:
            result = as_stage_result(event, stage)
            if result is None:
                return
            try:
                answer = callback(result)
                if inspect.isawaitable(answer):
                    answer = await answer
            except Exception as error:
                text, name = described(error), callback_name(callback)
                self._errors.append(CallbackError(stage, name, text, system_runtime().now_s()))
                raise
            if (answers := self._answers.get(event.event_id)) is not None:
                answers.append(answer)

        return handle

    def get_history(self, event: StageEvent | None = None, limit: int = 50) -> list[StageCompletionResult]:
        """Return results, newest first."""
        return [result for result in reversed(self._history) if event in (None, result.event)][:limit]

    def get_callback_errors(self, limit: int = 20) -> list[CallbackError]:
        return list(self._errors)[-limit:] if limit > 0 else []

    def set_logger(self, say: Callable[[str], Any] | None) -> None:
        """Have *say* called with a line for each emitted result."""
        self._say = say

    def get_stats(self) -> dict[str, Any]:
        counts = Counter(stage.value for stage in self._subscribed())
        return {
            "total_subscribers": counts.total(),
            "subscribers_by_event": dict(counts),
            "history_size": len(self._history),
            "callback_errors": len(self._errors),
            "supported_events": [stage.value for stage in StageEvent],
        }


def as_stage_result(event: RouterEvent, stage: StageEvent) -> StageCompletionResult | None:
    """Return the event as the end of *stage*; None if it is the end of another one."""
    if event.stage_result is not None:
        return event.stage_result if event.stage_result.event == stage else None
    said = event.payload.get("event")
    if isinstance(said, str) and said in StageEvent._value2member_map_:
        if said != stage:
            return None
    else:
        # Several stages share one event; what tells them apart is in the payload.
        alias = ALIASES.get(stage.name)
        if alias is not None and any(event.payload.get(key) != value for key, value in alias.sets):
            return None
    own = {"success": event.success, "iteration": event.iteration, "timestamp": str(event.timestamp)}
    return StageCompletionResult.from_dict({**own, **event.payload, "event": stage})


get_stage_event_bus = getter_of("get_stage_event_bus", StageEventBus)
reset_stage_event_bus = reset_of("reset_stage_event_bus", StageEventBus)


def get_event_bus() -> StageEventBus:
    """Return the stage bus of this process. Deprecated: use the router."""
    warnings.warn("get_event_bus() is deprecated; use get_router()", DeprecationWarning, stacklevel=2)
    return get_stage_event_bus()


def create_pipeline_callbacks() -> dict[StageEvent, StageCallback]:
    """Return callbacks that write one log line at the end of each main stage."""
    stages = (
        StageEvent.SELFPLAY_COMPLETE,
        StageEvent.SYNC_COMPLETE,
        StageEvent.TRAINING_COMPLETE,
        StageEvent.EVALUATION_COMPLETE,
    )
    return dict.fromkeys(stages, _log_stage)


def _log_stage(result: StageCompletionResult) -> None:
    log.info(
        "pipeline.stage_ended",
        stage=result.event.value,
        success=result.success,
        iteration=result.iteration,
        error=result.error,
    )


def register_standard_callbacks(bus: StageEventBus | None = None) -> int:
    """Subscribe the callbacks of `create_pipeline_callbacks`; return how many."""
    target = bus or get_stage_event_bus()
    callbacks = create_pipeline_callbacks()
    for stage, callback in callbacks.items():
        target.subscribe(stage, callback)
    return len(callbacks)
