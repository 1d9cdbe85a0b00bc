"""Files as a whole: their checksum, writing them all or not at all, and setting bad ones aside.

All calls block; inside a loop they belong in a thread. A file that changes while it is read is busy, which
says nothing about whether it is sound.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from ringrift.engine.sqlite.faults import told_in_our_words
from ringrift.engine.sqlite.files import SIDECARS
from ringrift.errors import ConfigError, Unavailable
from ringrift.held_folder import create_file, make_folders, remove_file, rename_file, sync_folder

__all__ = [
    "ALGORITHMS",
    "FileBusy",
    "FileMissing",
    "FileUnreadable",
    "atomic_file_write",
    "compute_file_checksum",
    "set_aside",
]

ALGORITHMS = ("sha256", "sha1", "md5", "blake2b")


class FileBusy(Unavailable):
    """Somebody is using the file; whether it is sound can be told when they are done."""


class FileUnreadable(Unavailable, OSError):
    """The file cannot be read. Also an `OSError`, which is what a caller expects of a path that is wrong."""

    def __init__(self, path: Path, error: OSError) -> None:
        why = error.strerror or str(error)
        super().__init__(f"{path}: {why}", retry_after_s=5.0)
        self.path, self.errno, self.strerror, self.filename = path, error.errno, why, str(path)

    def __str__(self) -> str:
        return self.what  # waiting does not help against a wrong path


class FileMissing(FileUnreadable, FileNotFoundError):
    """There is no such file."""


def compute_file_checksum(path: Path | str, algorithm: str = "sha256") -> str:
    """Return the checksum of the whole file in hex, whatever its size.

    `FileBusy` if it was changed meanwhile, `FileMissing` if there is none, `FileUnreadable` if it cannot be
    read otherwise; the last two are `OSError` too.
    """
    if algorithm not in ALGORITHMS:
        raise ConfigError(f"no checksum is called {algorithm!r}; there are: {', '.join(ALGORITHMS)}")
    path = Path(path)
    try:
        with path.open("rb") as file:
            before = os.fstat(file.fileno())
            digest = hashlib.file_digest(file, algorithm).hexdigest()
            after = path.stat()
    except FileNotFoundError as error:
        raise FileMissing(path, error) from error
    except OSError as error:
        raise FileUnreadable(path, error) from error
    if (before.st_ino, before.st_size, before.st_mtime_ns) != (
        after.st_ino,
        after.st_size,
        after.st_mtime_ns,
    ):
        raise FileBusy(f"{path} was changed while it was read")
    return digest


@contextmanager
def atomic_file_write(path: Path | str) -> Iterator[BinaryIO]:
    """Write a file that appears under its name complete and on the disk, or not at all."""
    path = Path(path)
    with told_in_our_words(path):
        make_folders(path.parent)
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            with create_file(draft) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            rename_file(draft, path)
            sync_folder(path.parent)
        finally:
            remove_file(draft)


def set_aside(path: Path | str, folder: Path, *, now_s: float) -> Path:
    """Move a file, and what SQLite keeps beside it, into *folder*; return its new place.

    Nothing is lost on the way: a move to another disk is a copy that is on that disk before the file goes.
    """
    path = Path(path)
    moment = datetime.fromtimestamp(now_s, UTC).strftime("%Y%m%d_%H%M%S")
    place = folder / f"{moment}_{secrets.token_hex(3)}_{path.name}"
    with told_in_our_words(path):
        make_folders(folder)
        # The file goes last: as long as it is there, its sidecars are not orphans of a living database.
        for suffix in SIDECARS:
            beside = path.with_name(path.name + suffix)
            if beside.exists():
                _move(beside, place.with_name(place.name + suffix))
        _move(path, place)
    return place


def _move(source: Path, target: Path) -> None:
    try:
        rename_file(source, target)
    except OSError:
        draft = target.with_name(f".{target.name}.draft")
        with source.open("rb") as original, create_file(draft) as copy:
            shutil.copyfileobj(original, copy)
            copy.flush()
            found = os.fstat(original.fileno())
            os.fchmod(copy.fileno(), stat.S_IMODE(found.st_mode))
            os.utime(copy.fileno(), ns=(found.st_atime_ns, found.st_mtime_ns))
            os.fsync(copy.fileno())
        rename_file(draft, target)
        remove_file(source)
    sync_folder(target.parent)
