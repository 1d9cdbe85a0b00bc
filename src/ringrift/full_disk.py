"""A full disk, said once: when it is met first, and when it is over.

It stops everything that writes at the same time; what everybody else says of it meanwhile is left out and
counted. Loads no logging library: commands that answer at once read the engine's files too.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, MutableMapping
from typing import Any

from ringrift import clock
from ringrift.errors import StorageFull
from ringrift.process import process_scope

FULL, ROOM_AGAIN = "disk.full", "disk.has_room_again"
# Small writes still find a place on a disk that is too full for others.
OVER_AFTER_S = 10.0
_TOLD_AS = ("no space left for", os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))


class FullDisk:
    """Whether this process found no space to write; used from any thread."""

    def __init__(self) -> None:
        self.say: Callable[..., None] | None = None  # set where lines are logged; takes a level first
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
            advice = "free some space: what could not be written is tried again"
            self._tell(logging.ERROR, FULL, error=what, advice=advice)

    def wrote(self) -> None:
        """Something was written durably."""
        if self._since_s is None:
            return
        with self._lock:
            since_s, now_s = self._since_s, clock.monotonic_s()
            if since_s is None or now_s - self._last_s < OVER_AFTER_S:
                return
            self._since_s = None
        lasted_s, left_out = round(now_s - since_s), self.lines_left_out
        self._tell(logging.WARNING, ROOM_AGAIN, lasted_s=lasted_s, lines_left_out=left_out)

    def _tell(self, level: int, event: str, **fields: Any) -> None:
        if self.say is not None:
            self.say(level, event, **fields)

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
