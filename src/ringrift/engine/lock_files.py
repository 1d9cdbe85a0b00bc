"""File locks that end with the process that took them, however it ends.

The kernel frees such a lock when the last copy of its descriptor is closed. Programs that are started get
none (close-on-exec); a forked child closes its copies here, so that a parent's death frees them at once.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ringrift.errors import Corrupt, StorageReadOnly, Unavailable
from ringrift.files import make_folders, open_private
from ringrift.foreign_files.paths import read_regular
from ringrift.process_identity import is_alive
from ringrift.settings import Settings


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


# Which process this is, for reading positions that outlive it.
#
# A process takes the first free numbered slot of its name, guarded by a file lock that the kernel frees at
# its end, however it ends. A restarted process so gets its old identity back, and two that live at the same
# time never share one.


_FOLDER = "instances"
_SLOTS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class InstanceSlot:
    """A held identity; it lasts until `close` or the end of the process. A forked child has none of it."""

    name: str
    _lock: LockFile

    def close(self) -> None:
        """Let another process have this identity. Safe to call twice."""
        self._lock.close()


def base_name(settings: Settings, argv: Sequence[str]) -> str:
    """Return the configured name, or one that the same command line always gets."""
    if settings.process_name is not None:
        return settings.process_name
    program = Path(argv[0]).stem if argv and argv[0] else "python"
    arguments = hashlib.sha256("\0".join(argv[1:]).encode(errors="surrogateescape")).hexdigest()
    return f"{_file_safe(program)}-{arguments[:8]}"


def take_instance_slot(settings: Settings, argv: Sequence[str]) -> InstanceSlot:
    """Take the first free slot of this process's name."""
    name = base_name(settings, argv)
    folder = settings.coordination_dir / _FOLDER
    try:
        make_folders(folder)
        for number in range(1, _SLOTS_MAX + 1):
            slot = _try_slot(folder, name, number)
            if slot is not None:
                return slot
    except OSError as error:
        raise StorageReadOnly(f"{folder} cannot be used ({error.strerror})") from error
    raise Unavailable(f"{_SLOTS_MAX} processes named {name!r} run already")


def _try_slot(folder: Path, name: str, number: int) -> InstanceSlot | None:
    lock = LockFile(folder / f"{name}.{number}.lock")
    if lock.try_lock():
        return InstanceSlot(f"{name}:{number}", lock)
    lock.close()
    return None


def _file_safe(text: str) -> str:
    return "".join(character if character.isalnum() or character in "._-" else "_" for character in text)[:60]


# What others read of the PID file: whether a master loop runs on the data folder.
#
# A number whose process is gone, or began at another time than the file says (the number was given out
# again), is a stale file.


PID_FILE = "master_loop.pid"
# The file holds a few words; a larger one is not ours, and is not read.
PID_BYTES_MAX = 1_000


OWN_PROGRAM = "own_program"  # a program that runs the loop alone, beside daemons of its own


@dataclass(frozen=True, slots=True)
class MasterLoop:
    """The process that the PID file names."""

    pid: int
    began_s: float | None  # None: the file was written by something that does not tell
    profile: str = ""  # of its daemons; empty: it does not tell; `OWN_PROGRAM`: they are none of a run

    @property
    def is_alive(self) -> bool:
        return is_alive(self.pid, self.began_s)


def read_pid_file(path: Path) -> MasterLoop | None:
    """Return what the file says; None if there is no file, or nothing that names a process in it."""
    try:
        words = read_regular(path, bytes_max=PID_BYTES_MAX).decode().split()
        began_s = float(words[1]) if len(words) > 1 else None
        return MasterLoop(int(words[0]), began_s, words[2] if len(words) > 2 else "")
    except (FileNotFoundError, Corrupt, ValueError, IndexError):
        return None
