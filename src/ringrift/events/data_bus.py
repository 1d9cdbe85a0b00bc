"""The data bus: a view of the router for those who speak in `DataEvent`s."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ringrift.events.event_types import DataEventType
from ringrift.events.normalization import normalize_event_type
from ringrift.events.routed_event import EventSource, RouterEvent
from ringrift.events.router import get_router
from ringrift.events.subscriptions import SubscriptionHandle, callback_name
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.process import process_scope
from ringrift.runtime import system_runtime
from ringrift.status import HealthCheckResult

__all__ = ["DataCallback", "DataEvent", "DataEventBus", "EventBus", "get_data_bus", "get_event_bus"]

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
        self._handles.setdefault((name, callback), []).append(handle)
        return handle

    def unsubscribe(self, event_type: Any, callback: DataCallback) -> bool:
        name = None if event_type is None else normalize_event_type(event_type)
        handles = self._handles.get((name, callback), [])
        return bool(handles) and handles.pop(0).cancel()

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
            "subscriptions": sum(len(handles) for handles in self._handles.values()),
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
            except Exception:
                self._errors += 1
                raise
            finally:
                self._latencies_s.append(runtime.monotonic_s() - begun_s)

        return handle


EventBus = DataEventBus


def as_data_event(event: RouterEvent) -> DataEvent:
    """Return a routed event as the data bus shows it."""
    name = event.event_type
    kind = DataEventType[name] if name in DataEventType.__members__ else name
    return DataEvent(kind, event.payload, event.timestamp, event.source)


def get_event_bus() -> DataEventBus:
    """Return the data bus of this process."""
    return process_scope().get(DataEventBus, DataEventBus)


get_data_bus = get_event_bus
