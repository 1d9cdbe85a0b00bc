"""The arguments of the ports: both adapters accept or refuse alike, and refuse with our errors only.

An input is a sequence of calls with values of every kind. The two adapters get the same calls under one clock
and must give the same answers; so a value that one of them keeps differently is a finding as well.
"""

import asyncio
import math
import shutil
import struct
import tempfile
from pathlib import Path
from typing import Any

from ringrift.engine.limits import WAIT_S_MAX
from ringrift.engine.memory import memory_engine
from ringrift.engine.ports import Claimant, Completion, CursorKey, Engine, LogEvent, NewWork, Position
from ringrift.engine.sqlite.engine import open_sqlite
from ringrift.engine.sqlite.files import SqliteConfig
from ringrift.errors import RingRiftError
from ringrift.testing.simulation import ManualRuntime

MEMORY_MB = 4_096  # address space: the stacks of the threads of both engines count
CALLS_MAX = 12
RUNS_MAX = 500  # then two fresh engines, or their content would grow without end
EDGES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63 - 1, 2**63, 2**70, -(2**63), 0.0, -0.0, 0.5, 1e12),
    *(
        math.nan,
        math.inf,
        -math.inf,
        5e-324,
        "",
        "a",
        "b",
        "k",
        "\x00",
        "\udcff",
        "\x1f",
        "\U0010ffff",
        "x" * 600,
    ),
    *(b"", b"a", (), [], {}, frozenset(), frozenset({"a"}), frozenset({""}), {1}, ("a",), {"a": 1}, {1: 1}),
    *(
        {"n": math.nan},
        {"n": (1,)},
        {"n": b""},
        {"n": {"1": 1}},
        object,
        1j,
        bytearray(b"x"),
        memoryview(b"x"),
    ),
)


class Values:
    """Values out of bytes; at the end of the bytes, zeros."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def over(self) -> bool:
        return self._at >= len(self._data)

    def byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    def take(self, count: int) -> bytes:
        return bytes(self.byte() for _ in range(count))

    def any(self, depth: int = 0) -> Any:
        tag = self.byte()
        if tag < 160:
            return EDGES[tag % len(EDGES)]
        if tag < 180:
            return self.take(self.byte() % 9).decode("utf-8", "surrogateescape")
        if tag < 190:
            return int.from_bytes(self.take(8), "big", signed=True)
        if tag < 200:
            return struct.unpack(">d", self.take(8))[0]
        if tag < 210:
            return self.take(self.byte() % 9)
        if tag < 235 and depth < 4:
            return {
                _hashable(self.any(3)) if tag > 230 else str(n): self.any(depth + 1)
                for n in range(self.byte() % 3)
            }
        if tag < 250 and depth < 4:
            return [self.any(depth + 1) for _ in range(self.byte() % 3)]
        return tag - 250

    def or_usual(self, usual: Any) -> Any:
        """The usual value in two of three cases, so that calls get past the first argument."""
        return self.any() if self.byte() % 3 == 0 else usual

    def wait_s(self) -> Any:
        found = self.or_usual(0.0)
        fine = isinstance(found, int | float) and not isinstance(found, bool) and 0 <= found <= WAIT_S_MAX
        return 0.0 if fine else found  # nobody advances the clock for one who waits


def _hashable(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        return "k"
    return value


def _key_values(v: Values, call: int) -> Any:
    key, value, ttl = v.or_usual("key"), v.or_usual(b"value"), v.or_usual(None)
    number = v.or_usual(1)
    return (
        lambda e: e.kv.put(key, value, ttl_s=ttl),
        lambda e: e.kv.create(key, value, ttl_s=ttl),
        lambda e: e.kv.update(key, value, revision=number, ttl_s=ttl),
        lambda e: e.kv.delete(key, revision=number),
        lambda e: e.kv.get(key),
        lambda e: e.kv.entries(key),
        lambda e: e.kv.changes(key, after=number, limit=5),
        lambda e: e.kv.changes(after=0, limit=number),
    )[call % 8]


def _event_log(v: Values, call: int) -> Any:
    event = LogEvent(id=v.or_usual("e"), type=v.or_usual("T"), body=v.or_usual(b"{}"))
    number, limit, wait_s = v.or_usual(0), v.or_usual(5), v.wait_s()
    position = Position(number, v.or_usual(()))
    key = CursorKey(_hashable(v.or_usual("c")), _hashable(v.or_usual("i")))
    return (
        lambda e: e.events.append([event]),
        lambda e: e.events.read(after=number, limit=limit, types=None),
        lambda e: e.events.read(after=0, limit=5, types=[event.type]),
        lambda e: e.events.seq_at(since_s=number),
        lambda e: e.events.wait(after=number, timeout_s=wait_s),
        lambda e: e.events.commit({key: position}),
        lambda e: e.events.forget([key]),
        lambda e: e.events.positions(key.instance),
    )[call % 8]


def _work_queue(v: Values, call: int) -> Any:
    item_id, token, result = v.or_usual("item"), v.or_usual(1), v.or_usual({"a": 1})
    new = NewWork(
        kind=v.or_usual("k"),
        id=v.or_usual("item"),
        payload=v.or_usual({}),
        priority=v.or_usual(0),
        requires=v.or_usual(frozenset()),
        node=v.or_usual(None),
        after=v.or_usual(()),
        idempotency_key=v.or_usual(None),
        attempts_max=v.or_usual(3),
        delay_s=v.or_usual(0.0),
        trace=v.or_usual({}),
    )
    new = new if new.id is not None else NewWork(kind="k", id="item")  # an id of its own would differ
    claimant = Claimant(
        worker=v.or_usual("w"), node=v.or_usual(""), capabilities=_hashable(v.or_usual(frozenset()))
    )
    lease_s, seconds, wait_s, limit = v.or_usual(30.0), v.or_usual(0.0), v.wait_s(), v.or_usual(2)
    error, final = v.or_usual("x"), v.or_usual(False)
    return (
        lambda e: e.queue.add([new]),
        lambda e: e.queue.claim(claimant, lease_s=lease_s, limit=limit, wait_s=wait_s),
        lambda e: e.queue.renew(item_id, token=token, lease_s=lease_s),
        lambda e: e.queue.complete(item_id, token=token, result=result),
        lambda e: e.queue.complete_many([Completion(id=item_id, token=token, result=result)]),
        lambda e: e.queue.fail(item_id, token=token, error=error, retry_after_s=seconds, final=final),
        lambda e: e.queue.release(item_id, token=token),
        lambda e: e.queue.cancel(item_id, reason=error),
        lambda e: e.queue.get(item_id),
        lambda e: e.queue.revive(item_id),
        lambda e: e.queue.unended(after=token, limit=limit),
        lambda e: e.queue.ended(after=token, limit=limit),
        lambda e: e.queue.dead(limit=limit),
    )[call % 13]


def _blobs(v: Values, call: int) -> Any:
    digest, content = v.or_usual("0" * 64), v.or_usual(b"content")
    return (
        lambda e: e.blobs.put_bytes(content),
        lambda e: e.blobs.has(digest),
        lambda e: e.blobs.size(digest),
        lambda e: e.blobs.delete(digest),
    )[call % 4]


PORTS = (_key_values, _event_log, _work_queue, _work_queue, _blobs)


class BothAdapters:
    """The two adapters under one clock."""

    def __init__(self) -> None:
        self.loop, self.runtime, self.runs = asyncio.new_event_loop(), ManualRuntime(), 0
        self.engines: list[Engine] = []
        self.folder: Path | None = None

    def fresh(self) -> None:
        for engine in self.engines[1:]:
            self.loop.run_until_complete(engine.close())
        if self.folder is not None:
            shutil.rmtree(self.folder)
        self.folder = folder = Path(tempfile.mkdtemp(prefix="ringrift-fuzz-ports-"))
        config = SqliteConfig(database=folder / "c.db", blob_dir=folder / "blobs", upkeep_s=1e9)
        self.engines = [memory_engine(self.runtime), open_sqlite(config, self.runtime)]
        self.runs = 0

    def expire_keys(self) -> None:
        """One adapter counts an expiry when it is due, the other at its next round: make that now."""
        for engine in self.engines:
            self.loop.run_until_complete(engine.kv.changes(after=0, limit=1))

    def ask(self, call: Any, *, numbered: bool) -> None:
        """*numbered*: the answer holds sequence numbers, which may have gaps in one and not in the other."""
        answers = []
        for engine in self.engines:
            try:
                answer = self.loop.run_until_complete(call(engine))
                answers.append("accepted" if numbered else repr(answer))
            except RingRiftError as error:
                str(error).encode()
                answers.append(f"{type(error).__name__}: {error}")
        assert answers[0] == answers[1], f"memory says {answers[0][:500]}, sqlite says {answers[1][:500]}"


BOTH = BothAdapters()


def seeds() -> list[bytes]:
    usual = b"\x01" * 40
    calls = [bytes([port, call]) + usual for port in range(len(PORTS)) for call in range(13)]
    edges = [
        bytes([port, call, 0, edge]) + usual
        for port in range(4)
        for call in range(8)
        for edge in range(0, 60, 7)
    ]
    return calls + edges


def run(data: bytes) -> None:
    if not BOTH.engines or BOTH.runs >= RUNS_MAX:
        BOTH.fresh()
    BOTH.runs += 1
    values = Values(data)
    for _ in range(CALLS_MAX):
        if values.over:
            break
        port, call = PORTS[values.byte() % len(PORTS)], values.byte()
        asked = port(values, call)
        if port is _key_values:
            BOTH.expire_keys()
        BOTH.ask(asked, numbered=port is _event_log)
    BOTH.runtime.advance(1.0)
    BOTH.ask(lambda engine: engine.queue.expire(), numbered=False)  # at the same time, whoever is asked first
    assert all(engine.failure == "" for engine in BOTH.engines)
