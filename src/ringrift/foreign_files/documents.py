"""JSON from outside: bounded in size and depth, every key once, every number finite."""

from __future__ import annotations

import json
import math
import re
from typing import Any

DEPTH_MAX = 64
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[{\]}]', re.DOTALL)


class NoDocument(ValueError):
    """The text is not JSON that we read; the message says what is wrong, and where."""


def parse_json(text: bytes | str, *, depth_max: int = DEPTH_MAX) -> Any:
    """Return what *text* holds; raises `NoDocument`.

    Refused are texts that are no UTF-8, nest deeper than *depth_max*, name a key of an object twice (two
    readers may take one or the other), or hold a number that is not finite or has thousands of digits.
    """
    content = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    _check_depth(content, depth_max)
    try:
        return json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_object,
            parse_constant=_no_number,
            parse_float=_finite,
        )
    except UnicodeDecodeError as error:
        raise NoDocument(f"byte {error.start} is no UTF-8") from None
    except json.JSONDecodeError as error:
        raise NoDocument(f"line {error.lineno}, column {error.colno}: {error.msg}") from None
    except NoDocument:
        raise
    except (ValueError, RecursionError) as error:  # a number of thousands of digits
        raise NoDocument(str(error)) from None


def printable(text: str, length_max: int = 400) -> str:
    """*text* from outside as it may go to a terminal or a log: no control characters, and not without end."""
    shown = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text[:length_max])
    return shown if len(text) <= length_max else f"{shown}…"


def is_plain_text(text: str) -> bool:
    """Whether *text* has neither control characters nor bytes that are not UTF-8."""
    return not any(c < " " or c == "\x7f" or "\ud800" <= c <= "\udfff" for c in text)


def _check_depth(content: bytes, depth_max: int) -> None:
    if content.count(b"[") + content.count(b"{") <= depth_max:
        return
    depth = 0
    for found in _BRACKETS.finditer(content):
        first = content[found.start()]
        if first in b"[{":
            depth += 1
            if depth > depth_max:
                raise NoDocument(f"byte {found.start()}: deeper than {depth_max} levels")
        elif first in b"]}":
            depth -= 1


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise NoDocument(f"the key {twice[:80]!r} is there twice")
    return made


def _no_number(word: str) -> float:
    raise NoDocument(f"{word} is no number of JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise NoDocument(f"the number {digits[:40]} is too large")
    return value
