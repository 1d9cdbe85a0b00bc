"""File locks that end with the process that took them, however it ends.

The kernel frees such a lock when the last copy of its descriptor is closed. Programs that are started get
none (close-on-exec); a forked child closes its copies here, so that a parent's death frees them at once.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from pathlib import Path

from ringrift.private_files import open_private


class LockFile:
    """A file whose only purpose is to be locked; its content does not matter.

    A folder can be locked as well: nobody can take its lock away by removing a file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.is_dir():
            self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        else:
            self._descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
        self._open = True
        mine = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _close_copy(mine()))

    def lock(self) -> None:
        """Take the lock, waiting for as long as another process has it."""
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def try_lock(self) -> bool:
        """Take the lock if it is free, or already ours."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    @property
    def descriptor(self) -> int:
        return self._descriptor

    def stat(self) -> os.stat_result:
        """Of what is open here, wherever its path leads by now."""
        return os.fstat(self._descriptor)

    def close(self) -> None:
        """Close the file, which frees the lock. Safe to call twice."""
        if self._open:
            self._open = False
            os.close(self._descriptor)


def _close_copy(file: LockFile | None) -> None:
    if file is not None:
        file.close()
