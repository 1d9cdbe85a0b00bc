"""Payloads as JSON: what a program puts into an event is often a little more than JSON knows.

Paths, enums, dates, tuples, sets and dataclasses have an obvious plain form. Any other object can only be
described; whoever asks is told which types that happened to, and decides whether it may. On the wire nothing
changes beyond that: what JSON would turn into something else in silence is refused, sets and bytes included.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from datetime import date, datetime
from enum import Enum
from pathlib import PurePath
from typing import Any, NamedTuple

from ringrift.engine.limits import JSON_DEPTH_MAX


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
