"""The event that every subscriber receives, whichever bus name it used."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, KeysView, Mapping
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, is_dataclass
from enum import StrEnum
from typing import Any

from ringrift.events.plain_values import digest_of
from ringrift.runtime import system_runtime

# What a repeated or forwarded event may differ in and still say the same.
_VOLATILE_KEYS = frozenset({"timestamp", "created_at", "node_name", "source", "routed"})


class EventSource(StrEnum):
    """Which bus an event came from."""

    DATA_BUS = "data_bus"
    STAGE_BUS = "stage_bus"
    CROSS_PROCESS = "cross_process"
    ROUTER = "router"


def _now_s() -> float:
    return system_runtime().now_s()


def _new_id() -> str:
    return system_runtime().new_id()


@dataclass(slots=True, eq=False)
class RouterEvent:
    """One event. It reads like its payload: `event["model_path"]`, `event.get("config_key")`.

    A key that the payload lacks falls back to the event's own field of that name, so that handlers
    written for dictionaries work unchanged.
    """

    event_type: str
    payload: dict[str, Any] = field(default_factory=dict)
    timestamp: float = field(default_factory=_now_s)
    source: str = ""
    origin: EventSource = EventSource.ROUTER
    event_id: str = field(default_factory=_new_id)
    trace_id: str = ""
    correlation_id: str = ""
    parent_event_id: str = ""
    success: bool = True
    iteration: int = 0
    data_event: Any = None
    stage_result: Any = None
    cross_process_event: Any = None
    # True when an earlier run of this process may have handled the event before it was recorded.
    redelivered: bool = False

    # The router's own notes: place in the log, causal depth, handler runs in progress, and on the first
    # event of a causal chain the deliveries still queued and the publisher that waits for them.
    _seq: int = field(default=0, repr=False)
    _depth: int = field(default=0, repr=False)
    _open: int = field(default=0, repr=False)
    _root: RouterEvent | None = field(default=None, repr=False)
    _queued: int = field(default=0, repr=False)
    _settled: asyncio.Future[None] | None = field(default=None, repr=False)

    @property
    def content_hash(self) -> str:
        """16 hex digits over type and payload; nested order, tuple or list make no difference."""
        content = {k: v for k, v in self.payload.items() if k not in _VOLATILE_KEYS}
        return digest_of([self.event_type, content])

    def get(self, key: str, default: Any = None) -> Any:
        if key in self.payload:
            return self.payload[key]
        return getattr(self, key) if key in EVENT_FIELDS else default

    def __getitem__(self, key: str) -> Any:
        if key in self.payload:
            return self.payload[key]
        if key in EVENT_FIELDS:
            return getattr(self, key)
        raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return key in self.payload or key in EVENT_FIELDS

    def __iter__(self) -> Iterator[str]:
        return iter(self.payload)

    def keys(self) -> KeysView[str]:
        return self.payload.keys()

    def values(self) -> Any:
        return self.payload.values()

    def items(self) -> Any:
        return self.payload.items()

    def again(self) -> RouterEvent:
        """The same event for another delivery, which its handler can tell from the first."""
        kept = {name: getattr(self, name) for name in (*WIRE_FIELDS, *_BUS_OBJECTS)}
        return RouterEvent(**kept, redelivered=True)

    def to_dict(self) -> dict[str, Any]:
        """The event as plain values; bus objects are left out."""
        return {name: getattr(self, name) for name in WIRE_FIELDS}


WIRE_FIELDS = (
    "event_type",
    "payload",
    "timestamp",
    "source",
    "origin",
    "event_id",
    "trace_id",
    "correlation_id",
    "parent_event_id",
    "success",
    "iteration",
)
_BUS_OBJECTS = ("data_event", "stage_result", "cross_process_event")
EVENT_FIELDS = frozenset(WIRE_FIELDS) | {"content_hash", "redelivered"}

# The event whose handler is running in this context.
current_event: ContextVar[RouterEvent | None] = ContextVar("ringrift_current_event", default=None)


def get_event_payload(event: Any) -> dict[str, Any]:
    """Return the payload of a RouterEvent, a mapping, a dataclass or any object with a `payload`."""
    found = event if isinstance(event, Mapping) else getattr(event, "payload", None)
    if isinstance(found, Mapping):
        inner = found.get("payload") if isinstance(event, Mapping) else None
        return dict(inner) if isinstance(inner, Mapping) else dict(found)
    if is_dataclass(event) and not isinstance(event, type):
        return asdict(event)
    return dict(getattr(event, "__dict__", {}))
