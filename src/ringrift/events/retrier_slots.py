"""Which retrier of dead letters is alive.

Each takes a number whose file lock the kernel frees at its end, however it ends. A claim that names the
number can so be told from one that a killed process left behind, without waiting for its time to run out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ringrift.engine.lock_files import LockFile
from ringrift.errors import StorageReadOnly, Unavailable
from ringrift.held_folder import make_folders

_SLOTS_MAX = 1_000


class RetrierSlots:
    """The numbers of one file of dead letters; *free* lets go of all that a number had claimed.

    It is called while the lock of that number is held, so that nobody can claim under it meanwhile.
    """

    def __init__(self, letters: Path, free: Callable[[int], None]) -> None:
        self._folder, self._free = letters.with_name(f"{letters.name}.retriers"), free
        self._files: dict[int, LockFile] = {}
        self._mine: int | None = None

    def mine(self) -> int:
        """The number of this retrier, taken at the first call."""
        if self._mine is None:
            for number in range(1, _SLOTS_MAX + 1):
                if self._file(number).try_lock():
                    self._free(number)
                    self._mine = number
                    return number
            raise Unavailable(f"{_SLOTS_MAX} processes retry the dead letters of {self._folder} already")
        return self._mine

    def free_if_gone(self, number: int) -> bool:
        """Free the claims under *number* if its holder has ended; whether it had."""
        if number in (0, self._mine) or not self._file(number).try_lock():
            return False
        try:
            self._free(number)
        finally:
            self._file(number).unlock()
        return True

    def close(self) -> None:
        """Let go of the number."""
        while self._files:
            self._files.popitem()[1].close()
        self._mine = None

    def _file(self, number: int) -> LockFile:
        if number not in self._files:
            try:
                make_folders(self._folder)
                self._files[number] = LockFile(self._folder / f"{number}.lock")
            except OSError as error:
                raise StorageReadOnly(f"{self._folder} cannot be used ({error.strerror})") from error
        return self._files[number]
