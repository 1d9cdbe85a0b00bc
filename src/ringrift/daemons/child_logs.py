"""The logs that children write: bounded while they grow, and their last lines for an error."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

LOG_BYTES_MAX = 1_000_000
TAIL_BYTES = 4096
TAIL_LINES = 5


def keep_log_small(path: Path | None, *, bytes_max: int = LOG_BYTES_MAX) -> None:
    """Move the end of a log that grew too long aside and empty it; the child appends on."""
    if path is None or not path.exists() or path.stat().st_size <= bytes_max:
        return
    path.with_suffix(path.suffix + ".1").write_bytes(_last_bytes(path, bytes_max))
    os.truncate(path, 0)


def log_tail(path: Path | None, *, lines: int = TAIL_LINES) -> list[str]:
    """Return the last lines of a log, or none if there is no log."""
    if path is None or not path.exists():
        return []
    text = _last_bytes(path, TAIL_BYTES).decode("utf-8", "replace")
    return list(deque(text.splitlines(), maxlen=lines))


def _last_bytes(path: Path, count: int) -> bytes:
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - count, 0))
        return file.read(count)
