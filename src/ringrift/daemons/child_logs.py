"""The logs that children write: bounded while they grow, and their last lines for an error.

A child can put a link or a pipe in the place of its log; such a one is left alone.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

from ringrift.foreign_files.paths import is_plain_file
from ringrift.held_folder import open_file, remove_file

LOG_BYTES_MAX = 1_000_000
TAIL_BYTES = 4096
TAIL_LINES = 5


def keep_log_small(path: Path | None, *, bytes_max: int = LOG_BYTES_MAX) -> None:
    """Move the end of a log that grew too long aside and empty it; the child appends on."""
    if path is None or not is_plain_file(path) or path.stat().st_size <= bytes_max:
        return
    aside = path.with_suffix(path.suffix + ".1")
    end = _last_bytes(path, bytes_max)
    remove_file(aside)
    with os.fdopen(open_file(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        file.write(end)
    with os.fdopen(open_file(path, os.O_WRONLY | os.O_NOFOLLOW), "wb") as file:
        file.truncate(0)


def log_tail(path: Path | None, *, lines: int = TAIL_LINES) -> list[str]:
    """Return the last lines of a log, or none if there is no log."""
    if path is None or not is_plain_file(path):
        return []
    text = _last_bytes(path, TAIL_BYTES).decode("utf-8", "replace")
    return list(deque(text.splitlines(), maxlen=lines))


def _last_bytes(path: Path, count: int) -> bytes:
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - count, 0))
        return file.read(count)
