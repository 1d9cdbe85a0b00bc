"""What an event may be: names and payloads that others get as they were given, or a clear refusal."""

import math
from dataclasses import dataclass
from enum import Enum, StrEnum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringrift.engine.limits import EVENT_TYPE_CHARS_MAX, JSON_DEPTH_MAX
from ringrift.engine.ports import LogRecord
from ringrift.errors import ConfigError, Corrupt, PayloadError, described, storable_text
from ringrift.events.event import RouterEvent, decode_body, from_log, to_log
from ringrift.events.router_reports import FailureKind, failure_of
from ringrift.events.subscriptions import Subscription
from ringrift.events.unified_router import UnifiedEventRouter

HALF_A_PAIR = "shard-\udcff.npz"
NO_NAMES = [
    "",
    " ",
    "\t\n",
    "A\x00B",
    "two\nlines",
    "bell\x07",
    HALF_A_PAIR,
    "X" * (EVENT_TYPE_CHARS_MAX + 1),
]


def wired(payload):
    """The payload as another process gets it."""
    entry = to_log(RouterEvent("ANY_EVENT", payload), session="s")
    record = LogRecord(seq=1, id=entry.id, type=entry.type, body=entry.body, appended_s=1.0)
    return from_log(record, decode_body(record)).payload


@pytest.mark.parametrize("name", [*NO_NAMES, None, 7, 1.5, b"EVENT", ["EVENT"], object()])
async def test_what_is_no_name_is_not_published(name):
    router, heard = UnifiedEventRouter(), []
    router.subscribe(None, heard.append)
    with pytest.raises(ConfigError):
        await router.publish(name, {})
    assert heard == []
    assert router.get_stats()["total_events_routed"] == 0
    await router.publish("CHECKPOINT_SAVED", {})
    assert len(heard) == 1


@pytest.mark.parametrize("name", NO_NAMES)
def test_what_is_no_name_is_not_subscribed_to(name):
    router = UnifiedEventRouter()
    with pytest.raises(ConfigError):
        router.subscribe(name, print)
    if name.strip():  # without one, where the callback is written names it
        with pytest.raises(ConfigError):
            router.subscribe("CHECKPOINT_SAVED", print, name * 3)
    for wrong in (math.nan, math.inf, -1.0, 0.0):
        with pytest.raises(ConfigError):
            router.subscribe("CHECKPOINT_SAVED", print, timeout=wrong)
    assert router.list_subscribers() == []


def deep(levels):
    value = {}
    for _ in range(levels):
        value = {"in": [value]}
    return value


@pytest.mark.parametrize(
    "payload",
    [
        {1: "a"},
        {"by_pair": {("a", 1): 2}},
        {"in": {None: 1}},
        {1: "a", "1": "b"},
        deep(JSON_DEPTH_MAX),
        deep(5_000),
    ],
)
def test_what_would_not_come_back_does_not_cross(payload):
    with pytest.raises(PayloadError, match="JSON"):
        wired(payload)


class Kind(Enum):
    RED = "red"


class Word(StrEnum):
    YES = "yes"


@dataclass
class Point:
    x: int


def test_what_has_a_plain_form_crosses_in_it():
    given_ = {
        "kind": Kind.RED,
        "word": Word.YES,
        "at": Path("/a"),
        "pair": (1, 2),
        "point": Point(3),
    }
    assert wired(given_) == {
        "kind": "red",
        "word": "yes",
        "at": "/a",
        "pair": [1, 2],
        "point": {"x": 3},
    }


def test_text_of_the_operating_system_crosses_with_visible_escapes():
    got = wired({"path": Path(f"/data/{HALF_A_PAIR}"), HALF_A_PAIR: HALF_A_PAIR})
    assert got == {"path": "/data/shard-\\udcff.npz", "shard-\\udcff.npz": "shard-\\udcff.npz"}


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(payload=st.dictionaries(st.text(max_size=3), JSON_VALUES, max_size=3))
def test_json_comes_back_as_it_went_in(payload):
    assert wired(payload) == payload


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"\xff",
        b"{",
        b'{"payload": 7}',
        b'{"payload": [1]}',
        b'{"timestamp": "now"}',
        b'{"timestamp": true}',
        b'{"source": 7}',
        b'{"success": "yes"}',
        b'{"session": {}}',
        b"[" * 100_000,
    ],
)
def test_a_record_that_is_no_event_is_corrupt_and_nothing_else(body):
    record = LogRecord(seq=1, id="e", type="T", body=body, appended_s=1.0)
    with pytest.raises(Corrupt, match="event e"):
        decode_body(record)


class Untold(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def test_every_error_can_be_told_and_stored():
    for error in (Untold(), OSError(2, "x", HALF_A_PAIR), ValueError(HALF_A_PAIR), ValueError("a\x00b")):
        text = described(error)
        text.encode()
        assert "\x00" not in text
        failure = failure_of(RouterEvent("T"), Subscription("s", None, print), error, FailureKind.RAISED)
        failure.error.encode()
    assert storable_text(HALF_A_PAIR) == "shard-\\udcff.npz"
    assert len(storable_text("x" * 50_000, chars_max=100)) <= 100
    str(ConfigError(f"no file {HALF_A_PAIR}")).encode()
