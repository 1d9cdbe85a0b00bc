"""What becomes of a log line before it is written.

A condition of the outside is told without a traceback: `Unavailable`, `Conflict` and `Corrupt` say what is
the matter, so where the program was when they came up helps nobody. A bug keeps its traceback.
What only says again that the disk is full is left out.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import structlog

from ringrift.errors import Conflict, Corrupt, Unavailable
from ringrift.full_disk import full_disk

log = structlog.get_logger()


def log_full_disk() -> None:
    """Let a full disk be said in the log of this process."""
    full_disk().say = log.log


def prepare_line(_logger: object, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor, to stand before the one that renders exceptions."""
    if full_disk().leaves_out(line):
        raise structlog.DropEvent
    error = line.get("exc_info")
    if isinstance(error, Conflict | Corrupt | Unavailable):
        del line["exc_info"]
        line.setdefault("error", str(error))
    return line
