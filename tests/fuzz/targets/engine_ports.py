"""The ports' arguments: whatever is handed over is done or refused, and the engine works on.

An input is a JSON list of calls: a port, a method, and arguments by name. Both adapters get them.
"""

import asyncio
import json
import tempfile
from pathlib import Path

from tests.fuzz.mutation import mutated_json

from ringrift.engine.memory.engine import MemoryStore, memory_engine
from ringrift.engine.ports import Claimant, LogEvent, NewWork
from ringrift.engine.sqlite.config import SqliteConfig
from ringrift.engine.sqlite.engine import open_sqlite
from ringrift.errors import RingRiftError
from ringrift.runtime import SystemRuntime

CALLS_MAX = 20
CALLS = [
    ["events", "append", {"events": [{"id": "e1", "type": "DATA_SYNC_COMPLETED", "body": "{}"}]}],
    ["events", "read", {"after": 0, "limit": 10, "types": ["DATA_SYNC_COMPLETED"]}],
    ["events", "positions", {"instance": "a"}],
    ["queue", "add", {"items": [{"kind": "selfplay", "payload": {"a": 1}, "id": "w1", "delay_s": 0.0}]}],
    ["queue", "claim", {"claimant": {"worker": "w", "node": "n"}, "limit": 1, "lease_s": 30.0}],
    ["queue", "renew", {"item_id": "w1", "token": 1, "lease_s": 30.0}],
    ["queue", "complete", {"item_id": "w1", "token": 1, "result": {"games": 3}}],
    ["queue", "fail", {"item_id": "w1", "token": 1, "error": "x", "retry_after_s": 1.0}],
    ["queue", "cancel", {"item_id": "w1", "reason": "x"}],
    ["queue", "get", {"item_id": "w1"}],
    ["kv", "put", {"key": "a/b", "value": "text", "ttl_s": 5.0}],
    ["kv", "create", {"key": "a/c", "value": "text"}],
    ["kv", "update", {"key": "a/b", "value": "text", "revision": 1}],
    ["kv", "entries", {"prefix": "a/"}],
    ["kv", "changes", {"prefix": "", "after": 0, "limit": 10}],
    ["kv", "delete", {"key": "a/b", "revision": 1}],
]
METHODS = {(port, method) for port, method, _ in CALLS}
SEEDS = [json.dumps([call]).encode() for call in CALLS] + [json.dumps(CALLS).encode()]
MADE = {"events": LogEvent, "items": NewWork, "claimant": Claimant}

LOOP = asyncio.new_event_loop()
RUNTIME = SystemRuntime()
FOLDER = Path(tempfile.mkdtemp())
DURABLE = open_sqlite(SqliteConfig(database=FOLDER / "c.db", blob_dir=FOLDER / "blobs"), RUNTIME)


def mutate(data: bytes, rng) -> bytes:
    return mutated_json(data, rng)


def _made(name: str, value):
    """Arguments that are objects are built of their fields; other values go as they are."""
    kind = MADE.get(name)
    if kind is None:
        return value.encode("utf8", "surrogatepass") if name == "value" and isinstance(value, str) else value
    if isinstance(value, list):
        return [_made(name, each) for each in value]
    if not isinstance(value, dict):
        return value
    fields = {key: each for key, each in value.items() if key in kind.__dataclass_fields__}
    if isinstance(fields.get("body"), str):
        fields["body"] = fields["body"].encode("utf8", "surrogatepass")
    try:
        return kind(**fields)
    except (TypeError, RingRiftError):
        return value


async def _call(engine, calls) -> None:
    for call in calls[:CALLS_MAX]:
        if not (isinstance(call, list) and len(call) == 3 and isinstance(call[2], dict)):
            continue
        port, method, given = call
        if not isinstance(port, str) or not isinstance(method, str) or (port, method) not in METHODS:
            continue
        allowed = next(each for each in CALLS if each[:2] == [port, method])[2]
        arguments = {name: _made(name, value) for name, value in given.items() if name in allowed}
        if arguments.keys() != allowed.keys():
            continue
        try:
            await getattr(getattr(engine, port), method)(**arguments)
        except RingRiftError as refusal:
            assert str(refusal)
    await engine.kv.put("alive", b"yes")
    entry = await engine.kv.get("alive")
    assert entry is not None
    assert entry.value == b"yes"
    assert engine.failure == ""


async def _both(calls) -> None:
    memory = memory_engine(RUNTIME, MemoryStore())
    try:
        async with asyncio.timeout(50):
            await _call(memory, calls)
            await _call(DURABLE, calls)
    finally:
        await memory.close()


def run(data: bytes) -> None:
    try:
        calls = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(calls, list):
        LOOP.run_until_complete(_both(calls))
