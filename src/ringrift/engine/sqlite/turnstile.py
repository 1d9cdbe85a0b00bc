"""Whose turn it is to write, across processes, in fair order and without polling.

Two file locks: who wants to write takes the turn, then the pen, and gives the turn on. Who has just
written must take the turn again, which by then belongs to the next in line; so nobody writes twice while
another waits. The kernel frees both when a process dies. The wait itself has no end here: the callers of
the writer have a deadline of their own, and leave with `Unavailable` when a stopped process holds the pen.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ringrift.errors import Unavailable

_RETRY_S = 0.02


class Turnstile:
    """One per process; used by its writer thread alone."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._turn = _open(database.with_name(database.name + ".turn"))
        self._pen = _open(database.with_name(database.name + ".pen"))

    @contextmanager
    def passed(self) -> Iterator[None]:
        """Wait for the turn, and hold the pen."""
        fcntl.flock(self._turn, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._pen, fcntl.LOCK_EX)
        finally:
            fcntl.flock(self._turn, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._pen, fcntl.LOCK_UN)

    @contextmanager
    def passed_within(self, wait_s: float) -> Iterator[None]:
        """As `passed`, with an end to the waiting: `Unavailable`. For the rare moments outside the writer."""
        pause, tries = threading.Event(), max(1, int(wait_s / _RETRY_S))
        for _ in range(tries):
            try:
                fcntl.flock(self._pen, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                pause.wait(_RETRY_S)
        else:
            raise Unavailable(f"another process has held {self._database} for {wait_s:g} s")
        try:
            yield
        finally:
            fcntl.flock(self._pen, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._turn)
        os.close(self._pen)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
