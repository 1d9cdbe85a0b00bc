"""How payloads and results are written down: JSON that comes back as it went in, or is refused.

JSON itself would take more and give something else back: NaN as null, a tuple or set as a list, bytes as
text, the key 1 as "1". What is written is therefore read back and compared before anything is stored.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ringrift.decoding import decode_as, decoder_of
from ringrift.engine.arguments import check_names_and_text, refuse, shown
from ringrift.engine.limits import JSON_DEPTH_MAX, TRACE_BYTES_MAX, VALUE_BYTES_MAX
from ringrift.engine.ports import Entry
from ringrift.errors import ConfigError, Corrupt, storable_text

# Names of blobs (SHA-256 in lower-case hex), and short hashes by which a damaged record is told.


_DIGEST = re.compile(r"[0-9a-f]{64}")


def check_digest(digest: str) -> None:
    """Refuse anything that is not a digest, such as a path that leads elsewhere."""
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise ConfigError(f"a digest is {shown(digest)}; it must be SHA-256 in 64 lower-case hex digits")


def is_digest(text: str) -> bool:
    return _DIGEST.fullmatch(text) is not None


def record_hash(content: bytes) -> str:
    """The hash that is kept beside a record; it shows damage, not who wrote it."""
    return blake2b(content, digest_size=16).hexdigest()


def row_hash(values: Iterable[object]) -> str:
    """As `record_hash`, of a row of a database."""
    return record_hash(repr(tuple(values)).encode(errors="surrogatepass"))


def mismatch(place: Path | str, digest: str, found: str) -> Corrupt:
    """The error for content that is not what its name says."""
    return Corrupt(
        place,
        found=f"the content has digest {found}, not {digest}",
        advice="Fetch it again from a place that has a verified copy",
    )


T = TypeVar("T")
_ERROR_CHARS_MAX = 200

_encode = msgspec.json.Encoder().encode
_decode = decoder_of(dict[str, Any]).decode
EMPTY_JSON = b"{}"
# What a decoder raises for bytes that are not what it expects.
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ConfigError)
_SCALARS = (str, int, float, bool, type(None))
_LOOKED_AT_MAX = 10_000  # a value that contains itself grows without end


def encode_json(what: str, value: Mapping[str, Any], *, size_max: int = VALUE_BYTES_MAX) -> bytes:
    """Return *value* as JSON; `ConfigError` if it is too large or deep, or would not come back as it is."""
    if not isinstance(value, dict):
        refuse(what, value, "a dict with text for keys")
    if not value:
        return EMPTY_JSON
    try:
        text = _encode(value)
        same = len(text) > size_max or _decode(text) == value
    except (TypeError, OverflowError, ValueError, RecursionError) as error:
        raise ConfigError(f"{what} cannot be written as JSON: {_first_unfit(what, value) or error}") from None
    if not same:
        raise ConfigError(f"{what} would not come back as it is: {_first_unfit(what, value)}")
    if len(text) > size_max:
        raise ConfigError(f"{what} has {len(text)} bytes; at most {size_max} fit, larger content is a blob")
    # Few brackets cannot be nested deeply; only a value with many is walked.
    if text.count(b"{") + text.count(b"[") > JSON_DEPTH_MAX and _depth(value) > JSON_DEPTH_MAX:
        raise ConfigError(f"{what} is nested more than {JSON_DEPTH_MAX} levels deep")
    return text


def encode_trace(trace: Mapping[str, str]) -> bytes:
    """Return a tracing context as JSON: names with text, and little of it."""
    if not trace:
        return encode_json("trace", trace)
    text = encode_json("trace", trace, size_max=TRACE_BYTES_MAX)
    check_names_and_text("trace", trace)
    return text


def decode_json(what: str, text: bytes) -> dict[str, Any]:
    """Read what `encode_json` wrote; `Corrupt` for anything else."""
    if text == EMPTY_JSON:
        return {}
    try:
        return _decode(text)
    except (*UNREADABLE, TypeError) as error:
        raise Corrupt(what, found=f"its content is damaged ({error})", advice="Restore a backup") from None


NOT_NEEDED = "Delete the key if it is not needed"


def decode_entry(entry: Entry, kind: type[T], *, advice: str = NOT_NEEDED, what: str = "") -> T:
    """Read a value of the key-value store as *kind*; `Corrupt` with the key for anything else.

    *what* says what was found instead, where the name of the type says it badly.
    """
    return decode_value(entry.key, entry.value, kind, advice=advice, what=what)


def decode_value(key: str, value: bytes, kind: type[T], *, advice: str = NOT_NEEDED, what: str = "") -> T:
    try:
        return decode_as(value, kind)
    except UNREADABLE as error:
        why = storable_text(error, chars_max=_ERROR_CHARS_MAX)
        found = f"{what or f'its value is no {kind.__name__}'} ({why})"
        raise Corrupt(key, found=found, advice=advice) from None


def _depth(value: Any) -> int:
    """Return how deeply lists and dicts are nested, without recursion."""
    deepest, level = 0, [value]
    while level:
        deepest += 1
        inner = [item for each in level for item in (each.values() if isinstance(each, dict) else each)]
        level = [item for item in inner if isinstance(item, dict | list)]
    return deepest


def _first_unfit(what: str, value: Any) -> str:
    """Say which part does not fit; "" if it is not a single part. Bounded by the depth that is allowed."""
    level, looked_at = [(what, value)], 0
    for _ in range(JSON_DEPTH_MAX + 1):
        looked_at += len(level)
        if looked_at > _LOOKED_AT_MAX:
            return ""
        below: list[tuple[str, Any]] = []
        for place, found in level:
            problem = _unfit(found)
            if problem:
                return f"{place} {problem}"
            if isinstance(found, dict):
                below += [(f"{place}[{shown(key)}]", item) for key, item in found.items()]
            elif isinstance(found, list):
                below += [(f"{place}[{number}]", item) for number, item in enumerate(found)]
        level = below
    return f"it is nested more than {JSON_DEPTH_MAX} levels deep" if level else ""


def _unfit(found: Any) -> str:
    if isinstance(found, float) and not math.isfinite(found):
        return f"is {found}, which is no JSON number"
    if isinstance(found, str):
        return "" if _is_utf8(found) else "is text that UTF-8 cannot hold"
    if isinstance(found, dict):
        for key in found:
            if not isinstance(key, str):
                return f"has a key of type {type(key).__name__}; keys are text"
            if not _is_utf8(key):
                return "has a key that UTF-8 cannot hold"
        return ""
    if isinstance(found, (*_SCALARS, list)):
        return ""
    return f"is of type {type(found).__name__}, which JSON has not"


def _is_utf8(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)
