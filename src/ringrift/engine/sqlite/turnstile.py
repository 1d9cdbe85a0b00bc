"""Whose turn it is to write, across processes, in fair order and without polling.

Two file locks: who wants to write takes the turn, then the pen, and gives the turn on. Who has just
written must take the turn again, which by then belongs to the next in line; so nobody writes twice while
another waits. The kernel frees both when a process dies. The wait itself has no end here: the callers of
the writer have a deadline of their own, and leave with `Unavailable` when a stopped process holds the pen.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ringrift.engine.lock_files import LockFile
from ringrift.errors import Unavailable
from ringrift.process_identity import who_locks

_RETRY_S = 0.02


class Turnstile:
    """One per process; used by its writer thread alone."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._turn = LockFile(database.with_name(database.name + ".turn"))
        self._pen = LockFile(database.with_name(database.name + ".pen"))

    @contextmanager
    def passed(self) -> Iterator[None]:
        """Wait for the turn, and hold the pen."""
        self._turn.lock()
        try:
            self._pen.lock()
        finally:
            self._turn.unlock()
        try:
            yield
        finally:
            self._pen.unlock()

    @contextmanager
    def passed_within(self, wait_s: float) -> Iterator[None]:
        """As `passed`, with an end to the waiting: `Unavailable`. For the rare moments outside the writer."""
        pause, tries = threading.Event(), max(1, int(wait_s / _RETRY_S))
        for _ in range(tries):
            if self._pen.try_lock():
                break
            pause.wait(_RETRY_S)
        else:
            raise Unavailable(f"{self.holder()} has held {self._database} for {wait_s:g} s")
        try:
            yield
        finally:
            self._pen.unlock()

    def holder(self) -> str:
        """Who keeps the others waiting, in words."""
        return who_locks(self._pen.path, self._turn.path)

    def close(self) -> None:
        self._turn.close()
        self._pen.close()
