"""The event that every subscriber receives, its delivery, and how it is written to the log and read back."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator, KeysView, Mapping
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, is_dataclass
from datetime import date, datetime
from enum import Enum, StrEnum
from pathlib import PurePath
from typing import Any, NamedTuple

import structlog

from ringrift.engine.limits import JSON_DEPTH_MAX
from ringrift.engine.ports import LogEvent, LogRecord
from ringrift.errors import Corrupt, PayloadError
from ringrift.runtime import system_runtime

# Payloads as JSON: what a program puts into an event is often a little more than JSON knows.
#
# Paths, enums, dates, tuples, sets and dataclasses have an obvious plain form. Any other object can only be
# described; whoever asks is told which types that happened to, and decides whether it may. On the wire
# nothing changes beyond that: what JSON would turn into something else in silence is refused, sets and bytes
# included.


class PlainJson(NamedTuple):
    """JSON text, and the types whose values are only described in it."""

    text: str
    foreign: tuple[str, ...]


def to_json(value: Any) -> PlainJson:
    """Encode *value*. Raises `ValueError` or `RecursionError` for one that contains itself or is too deep."""
    foreign: dict[str, None] = {}

    def plain(found: Any) -> Any:
        known = _plain_form(found)
        if known is not None:
            return known
        foreign[type(found).__qualname__] = None
        return repr(found)

    try:
        text = _dump(value, plain)
    except TypeError:
        text = _dump(_with_text_keys(value), plain)  # the only thing that `plain` is not asked about
    return PlainJson(text, tuple(foreign))


def to_wire(value: Mapping[str, Any]) -> PlainJson:
    """Encode what other processes read. `ValueError` for what would not come back.

    That is a key that is no text (1 and "1" would be one), a set (it would be a list), bytes (they would be
    text), and nesting beyond the limit. Text that UTF-8 cannot hold, as in the name of a file, gets visible
    escapes. NaN and infinity come back as what they are.
    """
    foreign: dict[str, None] = {}
    return PlainJson(_dump(_exact(value, foreign, 0), repr), tuple(foreign))


def _exact(value: Any, foreign: dict[str, None], depth: int) -> Any:
    if value is None or isinstance(value, bool | int | float):
        # A member of an enum of numbers is a number to Python; readers get its value.
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, str):
        return _utf8(value)
    if isinstance(value, set | frozenset | bytes | bytearray | memoryview):
        raise ValueError(  # noqa: TRY004 - as for keys
            f"it has a value of type {type(value).__name__}, which would come back as another; "
            "send a list or text"
        )
    if depth >= JSON_DEPTH_MAX:
        raise ValueError(f"it is nested more than {JSON_DEPTH_MAX} levels deep")
    if isinstance(value, dict):
        return {_text_key(key): _exact(item, foreign, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_exact(item, foreign, depth + 1) for item in value]
    known = _plain_form(value)
    if known is None:
        foreign[type(value).__qualname__] = None
        known = repr(value)
    return _exact(known, foreign, depth + 1)


def _text_key(key: Any) -> str:
    if not isinstance(key, str):
        raise ValueError(  # noqa: TRY004 - all that does not come back is one kind of error
            f"it has a key of type {type(key).__name__}; keys are text"
        )
    return _utf8(key)


def _utf8(text: str) -> str:
    plain = str.__str__(text)  # of a text enum, its value
    return plain if plain.isascii() else plain.encode(errors="backslashreplace").decode()


def digest_of(value: Any) -> str:
    """Return 16 hex digits that are the same for the same content, in whatever order it is written."""
    text = _dump(_sorted(value), repr)
    # Names of files may hold lone surrogates; a digest needs bytes, not valid text.
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _sorted(item) for key, item in sorted(value.items(), key=lambda pair: str(pair[0]))}
    if isinstance(value, list | tuple):
        return [_sorted(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((_sorted(item) for item in value), key=repr)
    return value


def _dump(value: Any, plain: Callable[[Any], Any]) -> str:
    return json.dumps(value, default=plain, separators=(",", ":"), ensure_ascii=False)


def _plain_form(found: Any) -> Any:
    if isinstance(found, Enum):
        return found.value
    if isinstance(found, PurePath):
        return str(found)
    if isinstance(found, datetime | date):
        return found.isoformat()
    if isinstance(found, set | frozenset):
        return sorted(found, key=repr)
    if isinstance(found, Mapping):
        return dict(found)
    if is_dataclass(found) and not isinstance(found, type):
        return asdict(found)
    return None


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key if _is_key(key) else str(key): _with_text_keys(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_text_keys(item) for item in value]
    return value


def _is_key(key: Any) -> bool:
    return key is None or isinstance(key, str | int | float)


# The event that every subscriber receives, whichever bus name it used.


# What a repeated or forwarded event may differ in and still say the same.
_VOLATILE_KEYS = frozenset({"timestamp", "created_at", "node_name", "source", "routed"})


Announcement = tuple[str, dict[str, Any]]  # an event, by its name, and its payload, before it is published


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


@dataclass(slots=True, eq=False)
class Delivery:
    """One event on its way to its subscriptions, and its place in a causal chain.

    The first of a chain counts what is queued for the whole chain: its publisher waits for all of it.
    """

    event: RouterEvent
    log_seq: int = 0  # its number in the log of the router; 0: it is not there
    first: Delivery | None = None  # of the chain; None: this one is
    depth: int = 0  # how many deliveries caused it, one the other
    # Handlers at work: what their context publishes meanwhile belongs to the chain.
    running: int = field(default=0, init=False)
    queued: int = field(default=0, init=False)
    settled: asyncio.Future[None] | None = field(default=None, init=False)  # what the publisher waits for

    def queue(self) -> None:
        """One more handler of the chain runs later, and not in the task of its publisher."""
        (self.first or self).queued += 1

    def unqueue(self) -> None:
        """One of those has ended, or will never begin."""
        first = self.first or self
        first.queued -= 1
        waiting = first.settled
        # On a closed loop setting a result raises, and nobody waits there any more.
        if first.queued or waiting is None or waiting.done() or waiting.get_loop().is_closed():
            return
        waiting.set_result(None)


# The delivery whose handler is running in this context.
current_delivery: ContextVar[Delivery | None] = ContextVar("ringrift_current_delivery", default=None)


def get_event_payload(event: Any) -> dict[str, Any]:
    """Return the payload of a RouterEvent, a mapping, a dataclass or any object with a `payload`."""
    found = event if isinstance(event, Mapping) else getattr(event, "payload", None)
    if isinstance(found, Mapping):
        # A mapping is a payload, or an event as a dictionary with its payload inside.
        inner = found.get("payload") if isinstance(event, Mapping) else None
        return dict(inner) if isinstance(inner, Mapping) else dict(found)
    if is_dataclass(event) and not isinstance(event, type):
        return asdict(event)
    return dict(getattr(event, "__dict__", {}))


# An event as bytes in the log, and back.


log = structlog.get_logger()

# Left out because the log stores them itself, or because every reader sets its own.
_CARRIED = ("payload", "timestamp", "source", "trace_id", "correlation_id", "parent_event_id")
_CARRIED_IF_SET = {"success": True, "iteration": 0}
_KINDS: dict[str, type | tuple[type, ...]] = {
    "payload": dict,
    "timestamp": (int, float),
    "source": str,
    "trace_id": str,
    "correlation_id": str,
    "parent_event_id": str,
    "success": bool,
    "iteration": int,
    "session": str,
    "hostname": str,
}


def to_log(event: RouterEvent, *, session: str, hostname: str = "", strict: bool = False) -> LogEvent:
    """Encode an event, published on *hostname*. Raises `PayloadError` when that cannot be done.

    An object that JSON has no form for is described in words to other processes; strict: refused.
    """
    body: dict[str, Any] = {name: getattr(event, name) for name in _CARRIED if getattr(event, name)}
    for name, usual in _CARRIED_IF_SET.items():
        if getattr(event, name) != usual:
            body[name] = getattr(event, name)
    # By this the reader of this process knows its own events, which it has dispatched already.
    body["session"] = session
    if hostname:
        body["hostname"] = hostname
    try:
        text, foreign = to_wire(body)
    except (ValueError, RecursionError) as error:
        problem = f"it crosses processes, so it must be JSON: {error}"
        raise PayloadError(event.event_type, problems=(problem,)) from error
    if foreign:
        problem = f"it crosses processes, so it must be JSON, which has no {', '.join(foreign)}"
        if strict:
            raise PayloadError(event.event_type, problems=(problem,))
        log.warning("events.payload_described", event_type=event.event_type, types=foreign)
    return LogEvent(id=event.event_id, type=event.event_type, body=text.encode())


def session_of(body: dict[str, Any]) -> str:
    """Return which run of which process published this."""
    return str(body.get("session", ""))


def decode_body(record: LogRecord) -> dict[str, Any]:
    """Return the stored fields. Raises `Corrupt` when the body is not one of ours."""
    try:
        body = json.loads(record.body)
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"event {record.id}", found=f"its body is no JSON: {error}", advice="skipped") from None
    if not isinstance(body, dict):
        raise Corrupt(f"event {record.id}", found="its body is no object", advice="skipped")
    for name, kinds in _KINDS.items():
        # Another program may write to the log; a handler must not fail on the types of its fields.
        found = body.get(name)
        if found is not None and (
            not isinstance(found, kinds) or (kinds is not bool and isinstance(found, bool))
        ):
            raise Corrupt(f"event {record.id}", found=f"{name} is {type(found).__name__}", advice="skipped")
    return body


def from_log(record: LogRecord, body: dict[str, Any], *, redelivered: bool = False) -> RouterEvent:
    """Rebuild an event that another process, or an earlier run, published."""
    return RouterEvent(
        record.type,
        body.get("payload") or {},
        record.appended_s if body.get("timestamp") is None else body["timestamp"],
        body.get("source") or "",
        EventSource.CROSS_PROCESS,
        record.id,
        body.get("trace_id") or "",
        body.get("correlation_id") or "",
        body.get("parent_event_id") or "",
        body.get("success") is not False,
        body.get("iteration") or 0,
        cross_process_event=record,
        redelivered=redelivered,
    )
