"""Events as they lie in the log: any body is an event or refused; an event survives the way there."""

import json

from tests.fuzz.mutation import mutated_json

from ringrift.engine.ports import LogRecord
from ringrift.errors import Corrupt, PayloadError
from ringrift.events.event import RouterEvent, decode_body, from_log, session_of, to_log

BODY = {"payload": {"config": "square8_2p", "games": [1, 2.5, None], "deep": {"a": {"b": True}}},
        "timestamp": 12.5, "source": "a", "trace_id": "t", "correlation_id": "c", "parent_event_id": "p",
        "success": False, "iteration": 3, "session": "s"}  # fmt: skip
SEEDS = [json.dumps(BODY).encode(), b"{}", b"[]", b"[" * 100_000, b'{"payload": {"a": NaN}}', b"\xff"]


def mutate(data: bytes, rng) -> bytes:
    return mutated_json(data, rng)


def run(data: bytes) -> None:
    record = LogRecord(seq=1, id="event-1", type="DATA_SYNC_COMPLETED", body=data, appended_s=1.0)
    try:
        body = decode_body(record)
    except Corrupt:
        return
    event = from_log(record, body)
    assert isinstance(event, RouterEvent)
    assert isinstance(event.payload, dict)
    try:
        again = to_log(event, session=session_of(body))
    except PayloadError:
        return
    second = decode_body(LogRecord(seq=2, id=again.id, type=again.type, body=again.body, appended_s=1.0))
    payload = body.get("payload") or {}
    if "\\ud" not in json.dumps(payload):  # half a character is stored in words
        assert (second.get("payload") or {}) == payload
