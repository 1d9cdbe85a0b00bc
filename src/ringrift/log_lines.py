"""What becomes of a log line before it is written, and a full disk that is said once.

A condition that may pass is told without a traceback: `Unavailable` and `Conflict` say what is the matter and
are met in normal life, so where the program was when they came up helps nobody. A bug keeps its traceback.

A full disk stops everything that writes at the same time. It is said when it is met first and when it is
over; what everybody else says of it meanwhile is left out and counted.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import MutableMapping
from typing import Any

import structlog

from ringrift import clock
from ringrift.errors import Conflict, StorageFull, Unavailable
from ringrift.process import process_scope

log = structlog.get_logger()

FULL, ROOM_AGAIN = "disk.full", "disk.has_room_again"
# Small writes still find a place on a disk that is too full for others.
OVER_AFTER_S = 10.0
_TOLD_AS = ("no space left for", os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))


class FullDisk:
    """Whether this process found no space to write; used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since_s: float | None = None
        self._last_s = 0.0
        self.lines_left_out = 0

    @property
    def is_met(self) -> bool:
        """Whether something could not be written, and it is not known to be over."""
        return self._since_s is not None

    def met(self, what: str) -> None:
        """There was no space for a write."""
        with self._lock:
            self._last_s, first = clock.monotonic_s(), self._since_s is None
            if first:
                self._since_s, self.lines_left_out = self._last_s, 0
        if first:
            log.error(FULL, error=what, advice="free some space: what could not be written is tried again")

    def wrote(self) -> None:
        """Something was written durably."""
        if self._since_s is None:
            return
        with self._lock:
            since_s, now_s = self._since_s, clock.monotonic_s()
            if since_s is None or now_s - self._last_s < OVER_AFTER_S:
                return
            self._since_s = None
        log.warning(ROOM_AGAIN, lasted_s=round(now_s - since_s), lines_left_out=self.lines_left_out)

    def leaves_out(self, line: MutableMapping[str, Any]) -> bool:
        """Whether *line* only says again that the disk is full."""
        if self._since_s is None or line.get("event") in (FULL, ROOM_AGAIN):
            return False
        texts = [value for name, value in line.items() if name != "event" and isinstance(value, str)]
        again = isinstance(line.get("exc_info"), StorageFull)
        if again or any(told in text for text in texts for told in _TOLD_AS):
            self.lines_left_out += 1
            return True
        return False


def full_disk() -> FullDisk:
    """What this process knows of its disk."""
    return process_scope().get(FullDisk, FullDisk)


def prepare_line(_logger: object, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor, to stand before the one that renders exceptions."""
    if full_disk().leaves_out(line):
        raise structlog.DropEvent
    error = line.get("exc_info")
    if isinstance(error, Conflict | Unavailable):
        del line["exc_info"]
        line.setdefault("error", str(error))
    return line
