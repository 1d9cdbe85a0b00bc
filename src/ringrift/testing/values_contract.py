"""Promises about values: what is accepted comes back as it went in; what is refused changes nothing.

`BAD_CALLS` holds, for every call of the ports, values that some caller has handed over by mistake: another
type, a number that is not finite or out of range, text that cannot be stored, too much of it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringrift.engine.limits import (
    CALL_BYTES_MAX,
    CLAIM_ITEMS_MAX,
    DELAY_S_MAX,
    ERROR_CHARS_MAX,
    EVENT_TYPE_CHARS_MAX,
    JSON_DEPTH_MAX,
    KEY_CHARS_MAX,
    LEASE_S_MAX,
    ROWS_MAX,
    TTL_S_MAX,
    VALUE_BYTES_MAX,
    WAIT_S_MAX,
)
from ringrift.engine.ports import Claim, Claimant, Completion, CursorKey, Engine, LogEvent, NewWork, Position
from ringrift.errors import ConfigError, RingRiftError

if TYPE_CHECKING:
    from ringrift.testing.engine_contract import EngineBench

# ruff: noqa: ARG005 - every entry of the table has the same shape


BadCall = Callable[[Engine, Claim, Any], Awaitable[Any]]

HALF_A_PAIR = "shard-\udcff.npz"  # a file name that is not UTF-8, as Python shows it
WRONG_TEXT: tuple[Any, ...] = (
    "",
    "a\x00b",
    HALF_A_PAIR,
    "x" * (KEY_CHARS_MAX + 1),
    None,
    7,
    b"bytes",
    ["list"],
)
WRONG_NAMES: tuple[Any, ...] = (*WRONG_TEXT, "two\nlines", "bell\x07", "\x1f")
# 64 bits in the store; `True` is an int to Python
WRONG_INTEGERS: tuple[Any, ...] = (2**63, 2**70, -1, True, 1.0, "1", None, math.nan)
WRONG_LIMITS: tuple[Any, ...] = (*WRONG_INTEGERS, 0, ROWS_MAX + 1)
# Empty values pass a test for truth: each has to be refused by its type.
NOTHING_OF_A_WRONG_TYPE: tuple[Any, ...] = (None, 0, "", [], {})
_NO_SECONDS: tuple[Any, ...] = (math.nan, math.inf, -math.inf, -1.0, -0.001, 2**70, "1", None, True, 1j)


class _Color(Enum):
    RED = "red"


def nested(depth: int) -> dict[str, Any]:
    """Return a dict of *depth* levels."""
    value: dict[str, Any] = {}
    for _ in range(depth - 1):
        value = {"in": value}
    return value


def _itself() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["again"] = [value, value]  # twice: copying it would double with every level
    return value


def wrong_documents() -> tuple[Any, ...]:
    """Return payloads that JSON would change, or cannot hold."""
    return (
        {"loss": math.nan},
        {"loss": [1.0, math.inf]},
        {"deep": {"loss": -math.inf}},
        {1: "a"},
        {1: "a", "1": "b"},  # one key in JSON
        {"in": {None: 1}},
        {"in": {True: 1}},
        {"seen": {1, 2}},
        {"seen": frozenset()},
        {"raw": b"\x00"},
        {"raw": bytearray(b"x")},
        {"pair": (1, 2)},  # would come back as a list
        {"path": Path("/tmp")},
        {"color": _Color.RED},
        {"object": object()},
        {"name": HALF_A_PAIR},
        {HALF_A_PAIR: 1},
        {"big": "x" * VALUE_BYTES_MAX},
        {"number": 10**5000},  # more digits than Python turns into text
        nested(JSON_DEPTH_MAX + 1),
        nested(5_000),  # deeper than a recursive encoder goes
        _itself(),
        ["no", "dict"],
        "text",
        0,
        (),
        [],
    )


def _add(**fields: Any) -> BadCall:
    work: dict[str, Any] = {"kind": "k", **fields}
    # With a good one before it, to see that nothing of a refused call is kept.
    return lambda engine, claim, _: engine.queue.add([NewWork(kind="fine"), NewWork(**work)])


def _claim(claimant: Any = None, **fields: Any) -> BadCall:
    asked = Claimant(worker="w") if claimant is None else claimant
    given_: dict[str, Any] = {"lease_s": 5.0, **fields}
    return lambda engine, claim, _: engine.queue.claim(asked, **given_)


def _append(**fields: Any) -> BadCall:
    event: dict[str, Any] = {"id": "e", "type": "T", "body": b"", **fields}
    return lambda engine, claim, _: engine.events.append(
        [LogEvent(id="fine", type="T", body=b""), LogEvent(**event)]
    )


def _seconds(high: float, *, zero: bool = True) -> tuple[Any, ...]:
    return (*_NO_SECONDS, high * 1.01) if zero else (*_NO_SECONDS, 0, 0.0, high * 1.01)


# Per call and argument: what to call with the wrong value as the last argument, and the wrong values.
BAD_CALLS: dict[str, tuple[BadCall, Sequence[Any]]] = {
    "events.append events": (lambda e, c, v: e.events.append(v), (None, "text", [1], 7, [b"x"])),
    "events.append id": (lambda e, c, v: _append(id=v)(e, c, v), WRONG_TEXT),
    "events.append type": (
        lambda e, c, v: _append(type=v)(e, c, v),
        # Names that look empty, or like another one, on a page or in a log.
        (*WRONG_NAMES, " ", "\t", "\u200b", "X\u202eY", "X" * (EVENT_TYPE_CHARS_MAX + 1)),
    ),
    "events.append body": (
        lambda e, c, v: _append(body=v)(e, c, v),
        ("text", None, 7, bytearray(b"x"), memoryview(b"x"), bytes(VALUE_BYTES_MAX + 1)),
    ),
    "events.append total": (
        lambda e, c, v: e.events.append(v),
        ([LogEvent(id=str(n), type="T", body=bytes(VALUE_BYTES_MAX)) for n in range(65)],),
    ),
    "events.read after": (lambda e, c, v: e.events.read(after=v, limit=1), WRONG_INTEGERS),
    "events.read limit": (lambda e, c, v: e.events.read(after=0, limit=v), WRONG_LIMITS),
    "events.read types": (
        lambda e, c, v: e.events.read(after=0, limit=1, types=v),
        ("TEXT", 7, [7], [HALF_A_PAIR], [None], 0, ""),
    ),
    "events.seq_at since_s": (
        lambda e, c, v: e.events.seq_at(since_s=v),
        (math.nan, math.inf, -math.inf, "1", None, True, 2**70),
    ),
    "events.wait after": (lambda e, c, v: e.events.wait(after=v, timeout_s=0.0), WRONG_INTEGERS),
    "events.wait timeout_s": (lambda e, c, v: e.events.wait(after=0, timeout_s=v), _seconds(WAIT_S_MAX)),
    "events.positions instance": (lambda e, c, v: e.events.positions(v), WRONG_TEXT[1:]),
    "events.commit positions": (
        lambda e, c, v: e.events.commit(v),
        (
            None,
            7,
            {("c",): Position(1)},
            {CursorKey("c", "i"): 7},
            {CursorKey("", "i"): Position(1)},
            {CursorKey("c", HALF_A_PAIR): Position(1)},
            {CursorKey("c", "i"): Position(2**63)},
            {CursorKey("c", "i"): Position(-1)},
            {CursorKey("c", "i"): Position(math.nan)},  # type: ignore[arg-type]
            {CursorKey("c", "i"): Position(1, (2**70,))},
            {CursorKey("c", "i"): Position(1, ("2",))},  # type: ignore[arg-type]
        ),
    ),
    "events.forget keys": (
        lambda e, c, v: e.events.forget(v),
        (None, [7], [("c",)], [CursorKey("c", HALF_A_PAIR)]),
    ),
    "queue.add items": (lambda e, c, v: e.queue.add(v), (None, "text", [7], 7, [None])),
    "queue.add kind": (lambda e, c, v: _add(kind=v)(e, c, v), WRONG_NAMES),
    "queue.add id": (lambda e, c, v: _add(id=v)(e, c, v), [v for v in WRONG_TEXT if v is not None]),
    "queue.add idempotency_key": (
        lambda e, c, v: _add(idempotency_key=v)(e, c, v),
        [v for v in WRONG_TEXT if v is not None],
    ),
    "queue.add node": (lambda e, c, v: _add(node=v)(e, c, v), [v for v in WRONG_NAMES if v is not None]),
    "queue.add priority": (
        lambda e, c, v: _add(priority=v)(e, c, v),
        (2**31, -(2**31) - 1, 2**70, True, 1.5, "1", None, math.nan),
    ),
    "queue.add requires": (
        lambda e, c, v: _add(requires=v)(e, c, v),
        (
            "gpu",
            ["gpu"],
            {"gpu"},
            frozenset({""}),
            frozenset({"a\x1fb"}),
            frozenset({7}),
            frozenset({HALF_A_PAIR}),
            *NOTHING_OF_A_WRONG_TYPE,
            (),
            set(),
        ),
    ),
    "queue.add after": (
        lambda e, c, v: _add(after=v)(e, c, v),
        ("ab", ["a"], (7,), (HALF_A_PAIR,), 7, *NOTHING_OF_A_WRONG_TYPE, set(), frozenset()),
    ),
    "queue.add attempts_max": (
        lambda e, c, v: _add(attempts_max=v)(e, c, v),
        (0, -1, 2**31, 2**70, True, 1.5, "1", None),
    ),
    "queue.add delay_s": (lambda e, c, v: _add(delay_s=v)(e, c, v), _seconds(DELAY_S_MAX)),
    "queue.add payload": (lambda e, c, v: _add(payload=v)(e, c, v), wrong_documents()),
    "queue.add trace": (
        lambda e, c, v: _add(trace=v)(e, c, v),
        ({"a": 1}, {"a": None}, {1: "a"}, {"a": HALF_A_PAIR}, "text", ["a"], {"a": "x" * 20_000}, [], "", 0),
    ),
    "queue.add total": (
        lambda e, c, v: e.queue.add(v),
        (
            [NewWork(kind="k", payload={"x": "y" * (VALUE_BYTES_MAX - 100)})]
            * (CALL_BYTES_MAX // VALUE_BYTES_MAX + 1),
        ),
    ),
    "queue.claim claimant": (
        lambda e, c, v: _claim(v)(e, c, v),
        (
            "w",
            7,
            *(Claimant(worker=worker) for worker in WRONG_NAMES),
            *(Claimant(worker="w", node=node) for node in WRONG_NAMES[1:]),
            Claimant(worker="w", capabilities={"gpu"}),  # type: ignore[arg-type]
            Claimant(worker="w", capabilities=frozenset({7})),  # type: ignore[arg-type]
            *(Claimant(worker="w", capabilities=v) for v in NOTHING_OF_A_WRONG_TYPE),
            *(Claimant(worker="w", kinds=v) for v in NOTHING_OF_A_WRONG_TYPE if v is not None),
            Claimant(worker="w", kinds=["k"]),  # type: ignore[arg-type]
            Claimant(worker="w", kinds=frozenset({HALF_A_PAIR})),
        ),
    ),
    "queue.claim lease_s": (lambda e, c, v: _claim(lease_s=v)(e, c, v), _seconds(LEASE_S_MAX, zero=False)),
    "queue.claim limit": (
        lambda e, c, v: _claim(limit=v)(e, c, v),
        (*WRONG_LIMITS, CLAIM_ITEMS_MAX + 1),
    ),
    "queue.claim wait_s": (lambda e, c, v: _claim(wait_s=v)(e, c, v), _seconds(WAIT_S_MAX)),
    "queue.renew id": (lambda e, c, v: e.queue.renew(v, token=c.token, lease_s=5), WRONG_TEXT),
    "queue.renew token": (lambda e, c, v: e.queue.renew(c.id, token=v, lease_s=5), WRONG_INTEGERS),
    "queue.renew lease_s": (
        lambda e, c, v: e.queue.renew(c.id, token=c.token, lease_s=v),
        _seconds(LEASE_S_MAX, zero=False),
    ),
    "queue.complete id": (lambda e, c, v: e.queue.complete(v, token=c.token), WRONG_TEXT),
    "queue.complete token": (lambda e, c, v: e.queue.complete(c.id, token=v), WRONG_INTEGERS),
    "queue.complete result": (
        lambda e, c, v: e.queue.complete(c.id, token=c.token, result=v),
        wrong_documents(),
    ),
    "queue.complete_many": (
        lambda e, c, v: e.queue.complete_many(v),
        (
            None,
            "text",
            [7],
            [Completion(id=HALF_A_PAIR, token=1)],
            [Completion(id="a", token=2**70)],
            [Completion(id="a", token=1, result={"loss": math.nan})],
            [Completion(id="a", token=1, result=[])],  # type: ignore[arg-type]
        ),
    ),
    "queue.fail id": (lambda e, c, v: e.queue.fail(v, token=c.token, error="x"), WRONG_TEXT),
    "queue.fail token": (lambda e, c, v: e.queue.fail(c.id, token=v, error="x"), WRONG_INTEGERS),
    "queue.fail error": (
        lambda e, c, v: e.queue.fail(c.id, token=c.token, error=v),
        (HALF_A_PAIR, "a\x00b", None, 7, b"x", ValueError("x"), "x" * (ERROR_CHARS_MAX + 1)),
    ),
    "queue.fail retry_after_s": (
        lambda e, c, v: e.queue.fail(c.id, token=c.token, error="x", retry_after_s=v),
        _seconds(DELAY_S_MAX),
    ),
    "queue.fail final": (
        lambda e, c, v: e.queue.fail(c.id, token=c.token, error="x", final=v),
        (1, "yes", None, math.nan),
    ),
    "queue.release id": (lambda e, c, v: e.queue.release(v, token=c.token), WRONG_TEXT),
    "queue.release token": (lambda e, c, v: e.queue.release(c.id, token=v), WRONG_INTEGERS),
    "queue.cancel id": (lambda e, c, v: e.queue.cancel(v, reason="x"), WRONG_TEXT),
    "queue.cancel reason": (
        lambda e, c, v: e.queue.cancel(c.id, reason=v),
        (HALF_A_PAIR, "a\x00b", None, 7, "x" * (ERROR_CHARS_MAX + 1)),
    ),
    "queue.replace id": (lambda e, c, v: e.queue.replace(v, NewWork(kind="k"), reason="x"), WRONG_TEXT),
    "queue.get id": (lambda e, c, v: e.queue.get(v), WRONG_TEXT),
    "queue.dead limit": (lambda e, c, v: e.queue.dead(limit=v), WRONG_LIMITS),
    "queue.ready limit": (lambda e, c, v: e.queue.ready(limit=v), WRONG_LIMITS),
    "queue.delayed limit": (lambda e, c, v: e.queue.delayed(limit=v), WRONG_LIMITS),
    "queue.claimed limit": (lambda e, c, v: e.queue.claimed(limit=v), WRONG_LIMITS),
    "queue.unended after": (lambda e, c, v: e.queue.unended(after=v, limit=1), WRONG_INTEGERS),
    "queue.unended limit": (lambda e, c, v: e.queue.unended(after=0, limit=v), WRONG_LIMITS),
    "queue.ended after": (lambda e, c, v: e.queue.ended(after=v, limit=1), WRONG_INTEGERS),
    "queue.ended limit": (lambda e, c, v: e.queue.ended(after=0, limit=v), WRONG_LIMITS),
    "queue.revive id": (lambda e, c, v: e.queue.revive(v), WRONG_TEXT),
    # The last character of all has no successor, which a search by prefix needs.
    "kv.get key": (lambda e, c, v: e.kv.get(v), (*WRONG_TEXT, "\U0010ffff")),
    "kv.entries prefix": (lambda e, c, v: e.kv.entries(v), (*WRONG_TEXT[1:], "\U0010ffff")),
    "kv.create key": (lambda e, c, v: e.kv.create(v, b""), (*WRONG_TEXT, "\U0010ffff")),
    "kv.create value": (
        lambda e, c, v: e.kv.create("new", v),
        ("text", None, 7, bytearray(b"x"), memoryview(b"x"), {}, bytes(VALUE_BYTES_MAX + 1)),
    ),
    "kv.create ttl_s": (
        lambda e, c, v: e.kv.create("new", b"", ttl_s=v),
        [v for v in _seconds(TTL_S_MAX, zero=False) if v is not None],
    ),
    "kv.put key": (lambda e, c, v: e.kv.put(v, b""), (*WRONG_TEXT, "a\U0010ffff")),
    "kv.put value": (lambda e, c, v: e.kv.put("new", v), ("text", None, 7, bytearray(b"x"), [b"x"])),
    "kv.put ttl_s": (
        lambda e, c, v: e.kv.put("new", b"", ttl_s=v),
        [v for v in _seconds(TTL_S_MAX, zero=False) if v is not None],
    ),
    "kv.update key": (lambda e, c, v: e.kv.update(v, b"", revision=1), WRONG_TEXT),
    "kv.update value": (lambda e, c, v: e.kv.update("there", v, revision=1), ("text", None, 7)),
    "kv.update revision": (lambda e, c, v: e.kv.update("there", b"", revision=v), WRONG_INTEGERS),
    "kv.update ttl_s": (
        lambda e, c, v: e.kv.update("there", b"", revision=1, ttl_s=v),
        [v for v in _seconds(TTL_S_MAX, zero=False) if v is not None],
    ),
    "kv.delete key": (lambda e, c, v: e.kv.delete(v), WRONG_TEXT),
    "kv.delete revision": (
        lambda e, c, v: e.kv.delete("there", revision=v),
        [v for v in WRONG_INTEGERS if v is not None],
    ),
    "kv.watch prefix": (lambda e, c, v: anext(e.kv.watch(v)), WRONG_TEXT[1:]),
    "kv.watch after": (
        lambda e, c, v: anext(e.kv.watch("", after=v)),
        [v for v in WRONG_INTEGERS if v is not None],
    ),
    "kv.changes prefix": (lambda e, c, v: e.kv.changes(v, after=0), WRONG_TEXT[1:]),
    "kv.changes after": (lambda e, c, v: e.kv.changes(after=v), WRONG_INTEGERS),
    "kv.changes limit": (lambda e, c, v: e.kv.changes(after=0, limit=v), WRONG_LIMITS),
    "blobs.put path": (lambda e, c, v: e.blobs.put(v), (None, 7, "text", Path("/does/not/exist"), Path("/"))),
    "blobs.put_bytes content": (lambda e, c, v: e.blobs.put_bytes(v), ("text", None, 7, bytearray(b"x"), [])),
    **{
        f"blobs.{name} digest": (
            lambda e, c, v, name=name: getattr(e.blobs, name)(v),  # type: ignore[misc]
            (None, 7, "", "ab", "../../etc/passwd", "A" * 64, b"a" * 64, "\x00" * 64, HALF_A_PAIR),
        )
        for name in ("upload", "open", "path", "has", "size", "verify", "delete")
    },
}


async def _state(engine: Engine) -> Any:
    """Everything that a refused call must leave as it was."""
    return (
        await engine.queue.unended(after=0, limit=100),
        await engine.queue.ended(after=0, limit=100),
        await engine.kv.changes(after=0),
        await engine.events.read(after=0, limit=100),
        await engine.events.positions("i"),
        await engine.blobs.digests(),
    )


async def shared_handle(bench: EngineBench) -> Engine:
    """Return one handle for all the examples of a property, which share the bench."""
    engine: Engine | None = getattr(bench, "shared", None)
    if engine is None:
        engine = await bench.open()
        setattr(bench, "shared", engine)  # noqa: B010 - the bench of an adapter knows nothing of it
    return engine


_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec=None), max_size=8)
    | st.binary(max_size=4)
)
VALUES = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=6,
)
_DOCUMENTS = st.dictionaries(st.text(max_size=4) | st.integers(0, 1), VALUES, max_size=3)


class PortValuesContract:
    """One test per promise."""

    @pytest.mark.parametrize("port", ["events", "queue", "kv", "blobs"])
    async def test_a_bad_value_is_refused_and_changes_nothing(self, bench: EngineBench, port: str) -> None:
        engine, other = await bench.open(), await bench.open()
        await engine.queue.add([NewWork(kind="k", id="held"), NewWork(kind="other", id="free")])
        (claim,) = await engine.queue.claim(
            Claimant(worker="w", kinds=frozenset({"k"})), lease_s=LEASE_S_MAX / 2
        )
        await engine.kv.put("there", b"1")
        await engine.events.append([LogEvent(id="0", type="T", body=b"")])
        await engine.events.commit({CursorKey("c", "i"): Position(0)})
        before = await _state(engine)
        for call, (ask, wrong) in BAD_CALLS.items():
            for value in wrong if call.startswith(port + ".") else ():
                with pytest.raises(ConfigError) as refused:
                    await ask(engine, claim, value)
                text = str(refused.value)
                text.encode()  # the message itself can be stored and printed
                assert len(text) < 2_000, call
            assert await _state(other) == before, call  # through another handle, which has cached nothing
        await other.kv.put("next", b"1")
        await engine.kv.put("next", b"2")
        assert engine.failure == ""

    @settings(
        max_examples=40,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
        database=None,
    )
    @given(payload=_DOCUMENTS, result=_DOCUMENTS, error=st.text(st.characters(codec=None), max_size=8))
    async def test_a_document_comes_back_as_it_went_in_or_is_refused(
        self, bench: EngineBench, payload: Any, result: Any, error: str
    ) -> None:
        engine = await shared_handle(bench)
        worker = Claimant(worker="w", kinds=frozenset({"k"}))
        before = await engine.queue.counts()
        try:
            (item_id,) = await engine.queue.add([NewWork(kind="k", payload=payload)])
        except ConfigError:
            assert await engine.queue.counts() == before
            return
        (claim,) = await engine.queue.claim(worker, lease_s=60)
        assert _exactly(claim.payload, payload)
        try:
            await engine.queue.complete(item_id, token=claim.token, result=result)
        except ConfigError:
            try:
                await engine.queue.fail(item_id, token=claim.token, error=error, final=True)
            except ConfigError:
                await engine.queue.cancel(item_id, reason="refused")
                return
            item = await engine.queue.get(item_id)
            assert item is not None
            assert item.error == error
            return
        item = await engine.queue.get(item_id)
        assert item is not None
        assert item.result is not None
        assert _exactly(item.result, result)

    @settings(
        max_examples=40,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
        database=None,
    )
    @given(
        key=st.text(st.characters(codec=None), max_size=6),
        prefix=st.text(max_size=2),
        value=st.binary(max_size=8),
    )
    async def test_a_key_is_found_under_each_of_its_beginnings_or_refused(
        self, bench: EngineBench, key: str, prefix: str, value: bytes
    ) -> None:
        kv = (await shared_handle(bench)).kv
        key = prefix + key
        try:
            revision = await kv.put(key, value)
        except ConfigError:
            return
        for end in range(len(key) + 1):
            assert key in [entry.key for entry in await kv.entries(key[:end])]
        entry = await kv.get(key)
        assert entry is not None
        assert (entry.key, entry.value, entry.revision) == (key, value, revision)
        assert await kv.delete(key, revision=revision)

    async def test_the_largest_values_are_kept(self, bench: EngineBench) -> None:
        engine = await bench.open()
        document = {
            "n": 2**63 - 1,
            "low": -(2**63),
            "tiny": 5e-324,
            "zero": -0.0,
            "text": "é\u0000🙂",
            "in": nested(8),
        }
        await engine.queue.add(
            [
                NewWork(
                    kind="k" * KEY_CHARS_MAX,
                    id="i" * KEY_CHARS_MAX,
                    payload=document,
                    priority=2**31 - 1,
                    requires=frozenset({"é"}),
                    attempts_max=2**31 - 1,
                )
            ]
        )
        worker = Claimant(worker="w" * KEY_CHARS_MAX, capabilities=frozenset({"é", "x"}))
        (claim,) = await engine.queue.claim(worker, lease_s=LEASE_S_MAX, limit=CLAIM_ITEMS_MAX)
        assert _exactly(claim.payload, document)
        await engine.queue.fail(
            claim.id, token=claim.token, error="é" * ERROR_CHARS_MAX, retry_after_s=DELAY_S_MAX
        )
        item = await engine.queue.get(claim.id)
        assert item is not None
        assert item.error == "é" * ERROR_CHARS_MAX
        await engine.kv.put("k" * KEY_CHARS_MAX, bytes(VALUE_BYTES_MAX), ttl_s=TTL_S_MAX)
        assert [entry.key for entry in await engine.kv.entries("k" * 100)] == ["k" * KEY_CHARS_MAX]

    async def test_closing_ends_the_watches(self, bench: EngineBench) -> None:
        engine = await bench.open()
        changes = engine.kv.watch("nothing/")

        async def watch_to_the_end() -> None:
            with pytest.raises(RingRiftError):
                await asyncio.wait_for(anext(changes), 30)

        async with asyncio.TaskGroup() as group:
            group.create_task(watch_to_the_end())
            await bench.settle()
            await engine.close()


def _exactly(found: Any, given_: Any) -> bool:
    """Equal, and of the same types all the way down."""
    if type(found) is not type(given_):
        return False
    if isinstance(found, dict):
        return found.keys() == given_.keys() and all(_exactly(found[key], given_[key]) for key in found)
    if isinstance(found, list):
        return len(found) == len(given_) and all(map(_exactly, found, given_))
    return bool(repr(found) == repr(given_))
