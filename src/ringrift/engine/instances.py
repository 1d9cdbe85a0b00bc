"""Which process this is, for reading positions that outlive it.

A process takes the first free numbered slot of its name, guarded by a file lock that the kernel frees at
its end, however it ends. A restarted process so gets its old identity back, and two that live at the same
time never share one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ringrift.engine.lock_files import LockFile
from ringrift.errors import StorageReadOnly, Unavailable
from ringrift.held_folder import make_folders
from ringrift.settings import Settings

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
