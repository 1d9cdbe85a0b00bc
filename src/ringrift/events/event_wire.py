"""An event as bytes in the log, and back."""

from __future__ import annotations

import json
from typing import Any

import structlog

from ringrift.engine.ports import LogEvent, LogRecord
from ringrift.errors import Corrupt, PayloadError
from ringrift.events.plain_values import to_wire
from ringrift.events.routed_event import EventSource, RouterEvent

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
}


def to_log(event: RouterEvent, *, session: str, strict: bool = False) -> LogEvent:
    """Encode an event. Raises `PayloadError` when that cannot be done.

    An object that JSON has no form for is described in words to other processes; strict: refused.
    """
    body: dict[str, Any] = {name: getattr(event, name) for name in _CARRIED if getattr(event, name)}
    for name, usual in _CARRIED_IF_SET.items():
        if getattr(event, name) != usual:
            body[name] = getattr(event, name)
    body["session"] = session
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
        found = body.get(name)
        if found is not None and (
            not isinstance(found, kinds) or (kinds is not bool and isinstance(found, bool))
        ):
            raise Corrupt(f"event {record.id}", found=f"{name} is {type(found).__name__}", advice="skipped")
    return body


def from_log(record: LogRecord, body: dict[str, Any], *, redelivered: bool = False) -> RouterEvent:
    """Rebuild an event that another process, or an earlier run, published."""
    event = RouterEvent(
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
    event._seq = record.seq
    return event
