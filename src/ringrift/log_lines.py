"""What becomes of a log line before it is written: a condition that may pass is told without a traceback.

`Unavailable` and `Conflict` say what is the matter and are met in normal life, so where the program was when
they came up helps nobody; a bug keeps its traceback.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from ringrift.errors import Conflict, Unavailable


def told_without_traceback(
    _logger: object, _method: str, line: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """A structlog processor, to stand before the one that renders exceptions."""
    error = line.get("exc_info")
    if isinstance(error, Conflict | Unavailable):
        del line["exc_info"]
        line.setdefault("error", str(error))
    return line
