"""What the calls of the ports accept: types, ranges, text and sizes, checked before anything is stored.

Every adapter asks here first, so that a value which one of them could not keep is refused by all of them, in
the same words. What is accepted comes back as it went in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn

from ringrift.engine.limits import (
    CALL_BYTES_MAX,
    CALL_ITEMS_MAX,
    CLAIM_ITEMS_MAX,
    DELAY_S_MAX,
    ERROR_CHARS_MAX,
    EVENT_TYPE_CHARS_MAX,
    KEY_CHARS_MAX,
    LEASE_S_MAX,
    LEASE_S_MIN,
    NAMES_MAX,
    ROWS_MAX,
    TTL_S_MAX,
    TTL_S_MIN,
    VALUE_BYTES_MAX,
    WAIT_S_MAX,
)
from ringrift.engine.ports import Claimant, Completion, CursorKey, LogEvent, NewWork, Position, WriteGuard
from ringrift.engine.work_rules import hold_key, is_whole
from ringrift.errors import ConfigError

INTEGER_MAX = 2**63 - 1  # what a column of the database holds
_TIME_S_MAX = 1e12  # a wall-clock time; some thirty thousand years
_SHOWN_CHARS = 80
_SHOWN_BITS = 256
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
LAST_CHARACTER = "\U0010ffff"  # ends a range of keys, so no key may contain it


# --- one value ------------------------------------------------------------------------------------------


def shown(value: object) -> str:
    """Return *value* for an error message: short, printable, and never an error of its own."""
    if value is None or isinstance(value, bool | float):
        return repr(value)
    if isinstance(value, int):
        bits = int(value).bit_length()
        return str(int(value)) if bits <= _SHOWN_BITS else f"a number of {bits} bits"
    if isinstance(value, str):
        return repr(value[:_SHOWN_CHARS]) + ("..." if len(value) > _SHOWN_CHARS else "")
    return f"of type {type(value).__name__[:_SHOWN_CHARS]}"


def refuse(what: str, value: object, allowed: str) -> NoReturn:
    raise ConfigError(f"{what} is {shown(value)}; it must be {allowed}")


def check_part(what: str, value: object, kind: type) -> None:
    """Refuse what is not a *kind* when an object is made, before its first call fails at a distance."""
    if not isinstance(value, kind):
        refuse(what, value, f"of type {kind.__name__}, or left out")


def check_database(what: str, path: object) -> Path | None:
    """Return the path of a database file; None, which stands for this process's engine, stays None."""
    if path is None:
        return None
    if not isinstance(path, str | Path):
        refuse(what, path, "the path of a database file, or left out")
    if Path(path).is_dir():
        raise ConfigError(f"{path} is a folder; name the database file in it")
    return Path(path)


def check_integer(what: str, value: object, *, low: int = 0, high: int = INTEGER_MAX) -> None:
    # bool is an int to Python, but True is no number to anybody who reads it back.
    if type(value) is not int or not low <= value <= high:
        refuse(what, value, f"a whole number from {low} to {high}")


def check_seconds(what: str, value: object, *, low: float = 0.0, high: float) -> None:
    """Refuse what is no finite number in the range; the comparison is false for NaN as well."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        refuse(what, value, f"a number of seconds from {low:g} to {high:.0f}")


def check_flag(what: str, value: object) -> None:
    if not isinstance(value, bool):
        refuse(what, value, "True or False")


def check_text(what: str, value: object, *, chars_max: int = KEY_CHARS_MAX, empty: bool = False) -> None:
    """Refuse what is not text that every adapter keeps: no NUL, no half of a surrogate pair, not too long."""
    if type(value) is str and (value or empty) and len(value) <= chars_max and "\x00" not in value:
        if value.isascii():
            return
        try:
            value.encode()
        except UnicodeEncodeError:
            pass
        else:
            return
    if isinstance(value, str) and isinstance(value, Enum):  # its member is equal to its text
        check_text(what, str.__str__(value), chars_max=chars_max, empty=empty)
        return
    low = 0 if empty else 1
    refuse(what, value, f"text of {low} to {chars_max} characters that UTF-8 can hold, without NUL")


def check_name(what: str, value: object, *, chars_max: int = KEY_CHARS_MAX, empty: bool = False) -> None:
    """As `check_text`, for what people read in lists: no control characters either."""
    check_text(what, value, chars_max=chars_max, empty=empty)
    if isinstance(value, str) and not value.isprintable() and _CONTROL.search(value):
        refuse(what, value, "text without control characters")


def check_event_type(event_type: object) -> None:
    check_name("event type", event_type, chars_max=EVENT_TYPE_CHARS_MAX)
    assert isinstance(event_type, str)
    # What shows nothing, or turns the text around it, cannot be told from another type in any list.
    if event_type.isspace() or not event_type.isprintable():
        refuse("event type", event_type, "printable, and more than white space")


def check_bytes(what: str, value: object, *, size_max: int = VALUE_BYTES_MAX) -> None:
    if type(value) is not bytes:
        refuse(what, value, "bytes")
    if len(value) > size_max:
        hint = ", larger content is a blob" if size_max == VALUE_BYTES_MAX else ""
        raise ConfigError(f"{what} has {len(value)} bytes; at most {size_max} fit{hint}")


def check_path(path: object) -> None:
    if not isinstance(path, Path):
        refuse("path", path, "a pathlib.Path")
    if not path.is_file():
        raise ConfigError(f"{path} is not a file")


def _check_many(what: str, values: object, kind: type, *, count_max: int) -> None:
    if not isinstance(values, Sequence) or isinstance(values, str | bytes | bytearray | memoryview):
        refuse(what, values, f"a list of {kind.__name__}")
    if len(values) > count_max:
        raise ConfigError(f"{what} has {len(values)} entries; at most {count_max} fit into one call")
    for number, value in enumerate(values):
        if not isinstance(value, kind):
            refuse(f"{what}[{number}]", value, f"a {kind.__name__}")


def _check_names(what: str, names: object) -> None:
    if not isinstance(names, frozenset):
        refuse(what, names, "a frozenset of text")
    if len(names) > NAMES_MAX:
        raise ConfigError(f"{what} has {len(names)} entries; at most {NAMES_MAX} are allowed")
    for name in names:
        check_name(f"an entry of {what}", name)


def check_call_size(what: str, sizes: Iterable[int]) -> None:
    """Bound what one call brings: while it is stored, all other processes wait."""
    total = sum(sizes)
    if total > CALL_BYTES_MAX:
        raise ConfigError(f"{what} bring {total} bytes; at most {CALL_BYTES_MAX} fit into one call")


def check_limit(limit: object) -> None:
    check_integer("limit", limit, low=1, high=ROWS_MAX)


def check_page(after: object, limit: object) -> None:
    check_integer("after", after)
    check_limit(limit)


# --- events ---------------------------------------------------------------------------------------------


def check_events(events: Sequence[LogEvent]) -> None:
    _check_many("events", events, LogEvent, count_max=CALL_ITEMS_MAX)
    for event in events:
        check_text("event id", event.id)
        check_event_type(event.type)
        check_bytes(f"the body of event {event.id}", event.body)
    if len(events) > 1:
        check_call_size("events", (len(event.body) for event in events))


def check_read(after: int, limit: int, types: Sequence[str] | None) -> None:
    check_page(after, limit)
    if types is not None:
        _check_many("types", types, str, count_max=CALL_ITEMS_MAX)
        for name in types:
            check_text("event type", name)


def check_since(since_s: float) -> None:
    check_seconds("since_s", since_s, low=-_TIME_S_MAX, high=_TIME_S_MAX)


def check_wait(what: str, wait_s: float) -> None:
    """Every wait has an end."""
    check_seconds(what, wait_s, high=WAIT_S_MAX)


def check_log_wait(after: int, timeout_s: float) -> None:
    check_integer("after", after)
    check_wait("timeout_s", timeout_s)


def check_positions(positions: Mapping[CursorKey, Position]) -> None:
    if not isinstance(positions, Mapping):
        refuse("positions", positions, "a mapping of CursorKey to Position")
    if len(positions) > CALL_ITEMS_MAX:
        raise ConfigError(
            f"positions has {len(positions)} entries; at most {CALL_ITEMS_MAX} fit into one call"
        )
    check_cursor_keys(list(positions))
    for position in positions.values():
        if not isinstance(position, Position):
            refuse("a position", position, "a Position")
        check_integer("floor", position.floor)
        _check_many("done_above", position.done_above, int, count_max=CALL_ITEMS_MAX)
        for seq in position.done_above:
            check_integer("an entry of done_above", seq)


def check_cursor_keys(keys: Sequence[CursorKey]) -> None:
    _check_many("keys", keys, tuple, count_max=CALL_ITEMS_MAX)
    for key in keys:
        if len(key) != 2:
            refuse("a cursor key", key, "a consumer and an instance")
        check_text("consumer", key[0])
        check_text("instance", key[1], empty=True)


# --- work -----------------------------------------------------------------------------------------------


def check_new_work(items: Sequence[NewWork]) -> None:
    """Refuse items that no adapter could keep or hand out; the contents are checked when they are encoded."""
    _check_many("items", items, NewWork, count_max=CALL_ITEMS_MAX)
    for new in items:
        check_name("kind", new.kind)
        if new.id is not None:
            check_text("id", new.id)
        if new.idempotency_key is not None:
            check_text("idempotency key", new.idempotency_key)
        if new.node is not None:
            check_name("node", new.node)
        if new.group != "":
            _check_group(new.group)
        _check_names("requires", new.requires)
        if new.after != ():
            if not isinstance(new.after, tuple):
                refuse("after", new.after, "a tuple of ids")
            _check_many("after", new.after, str, count_max=NAMES_MAX)
            for needed in new.after:
                check_text("an entry of after", needed)
        check_integer("attempts_max", new.attempts_max, low=1, high=2**31 - 1)
        check_integer("priority", new.priority, low=-(2**31), high=2**31 - 1)
        check_seconds("delay_s", new.delay_s, high=DELAY_S_MAX)


def _check_group(group: str) -> None:
    check_name("group", group)
    if is_whole(group):
        refuse("group", group, "the name of one group; this stands for all of them")
    if len(hold_key(group)) > KEY_CHARS_MAX:
        refuse("group", group, f"short enough for a key of {KEY_CHARS_MAX} characters")


def check_claim(claimant: Claimant, lease_s: float, limit: int, wait_s: float) -> None:
    if not isinstance(claimant, Claimant):
        refuse("claimant", claimant, "a Claimant")
    check_name("worker", claimant.worker)
    check_name("node", claimant.node, empty=True)
    _check_names("capabilities", claimant.capabilities)
    if claimant.kinds is not None:
        _check_names("kinds", claimant.kinds)
    _check_names("except_kinds", claimant.except_kinds)
    check_lease(lease_s)
    check_integer("limit", limit, low=1, high=CLAIM_ITEMS_MAX)
    check_wait("wait_s", wait_s)


def check_lease(lease_s: float) -> None:
    check_seconds("lease_s", lease_s, low=LEASE_S_MIN, high=LEASE_S_MAX)


def check_completions(done: Sequence[Completion]) -> None:
    _check_many("completions", done, Completion, count_max=CALL_ITEMS_MAX)
    for each in done:
        check_held(each.id, each.token)


def check_held(item_id: str, token: int) -> None:
    check_text("item id", item_id)
    check_integer("token", token)


def check_failure(item_id: str, token: int, error: str, *, retry_after_s: float, final: bool) -> None:
    check_held(item_id, token)
    check_text("error", error, chars_max=ERROR_CHARS_MAX, empty=True)
    check_seconds("retry_after_s", retry_after_s, high=DELAY_S_MAX)
    check_flag("final", final)


def check_cancel(item_id: str, reason: str) -> None:
    check_text("item id", item_id)
    check_text("reason", reason, chars_max=ERROR_CHARS_MAX, empty=True)


# --- keys and values ------------------------------------------------------------------------------------


def check_key(key: str) -> None:
    check_text("key", key)
    if LAST_CHARACTER in key:
        refuse("key", key, "text without U+10FFFF")


def check_prefix(prefix: str) -> None:
    check_text("prefix", prefix, empty=True)
    if LAST_CHARACTER in prefix:
        refuse("prefix", prefix, "text without U+10FFFF")


def check_entry(key: str, value: bytes, ttl_s: float | None) -> None:
    check_key(key)
    check_bytes(f"the value of {key!r}", value)
    if ttl_s is not None:
        check_seconds("ttl_s", ttl_s, low=TTL_S_MIN, high=TTL_S_MAX)


def check_guard(guard: WriteGuard) -> None:
    if not isinstance(guard, WriteGuard):
        refuse("guard", guard, "a WriteGuard")
    check_key(guard.key)
    check_integer("revision of a guard", guard.revision)


def check_watch(prefix: str, after: int | None) -> None:
    check_prefix(prefix)
    if after is not None:
        check_integer("after", after)


def check_names_and_text(what: str, carried: Mapping[str, Any]) -> None:
    """Refuse a tracing context that is more than a few names with text."""
    for name, text in carried.items():
        if not isinstance(name, str) or not isinstance(text, str):
            refuse(f"an entry of {what}", text if isinstance(name, str) else name, "text")
