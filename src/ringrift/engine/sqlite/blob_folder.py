"""How blobs lie in a folder, for code that works in threads.

A file appears under its digest only when it is complete, synced and verified. Unfinished files lie in a
folder of their own, locked by the process that writes them, so that the leftovers of a dead process are
told from the work of a living one.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ringrift.engine.encoding import is_digest
from ringrift.engine.sqlite.faults import translated_errors
from ringrift.files import (
    is_folder,
    link_file,
    make_folders,
    open_file,
    open_private,
    remove_file,
    rename_file,
    stat_file,
    sync_folder,
)

_INCOMING = ".incoming"
_DIGEST_LETTERS = 64
_FRESH = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_SYNCING_THREADS = 8  # a file system joins syncs that wait at the same time
_PRIVATE_LEFTOVER_S = 60.0
_UPLOAD_LEFTOVER_S = 86_400.0  # an upload may be continued for this long


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """An unfinished file that this process alone writes."""

    path: Path
    file: BinaryIO


class BlobFolder:
    """Places, names and durability. Whatever blocks runs in the caller's thread."""

    def __init__(self, folder: Path, new_id: Callable[[], str]) -> None:
        self.folder, self.incoming = folder, folder / _INCOMING
        self._new_id = new_id

    def place(self, digest: str) -> Path:
        return self.folder / digest[:2] / digest

    def digests(self) -> list[str]:
        return sorted(file.name for file in self.folder.glob("[0-9a-f][0-9a-f]/*") if is_digest(file.name))

    def free_bytes(self) -> int:
        """Space that an ordinary user may still fill."""
        with translated_errors(self.folder):
            make_folders(self.incoming)
            room = os.statvfs(self.incoming)
        return room.f_bavail * room.f_frsize

    def private_name(self, digest: str | None = None) -> Path:
        """A name nobody else uses; one with a digest is kept as long as an upload."""
        make_folders(self.incoming)
        return self.incoming / (self._new_id() if digest is None else f"{digest}.{self._new_id()}")

    def write_private(self, digest: str, content: bytes | memoryview) -> Path:
        """Write an unfinished file in one go; it has no lock, as it is kept long enough without."""
        path = self.incoming / f"{digest}.{self._new_id()}"
        try:
            descriptor = open_file(path, _FRESH, 0o600)
        except FileNotFoundError:
            make_folders(self.incoming)
            descriptor = open_file(path, _FRESH, 0o600)
        try:
            done = 0
            while done < len(content):
                done += os.write(descriptor, content[done:])
        except OSError:
            remove_file(path)
            raise
        finally:
            os.close(descriptor)
        return path

    def open_private(self) -> OpenedFile:
        opened = self.open_locked(self.private_name())
        assert opened is not None, "a fresh name is nobody else's"
        return opened

    def open_locked(self, path: Path, *, anywhere: bool = False) -> OpenedFile | None:
        """Open for appending, or for writing *anywhere*, and lock; None if another process writes it now."""
        make_folders(path.parent)
        file: BinaryIO = _open_anywhere(path) if anywhere else _open_to_append(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            same = os.fstat(file.fileno()).st_ino == stat_file(path).st_ino
        except (BlockingIOError, FileNotFoundError):
            same = False
        if not same:  # another writes it, or it was finished or swept between opening and locking
            file.close()
            return None
        return OpenedFile(path, file)

    def publish(self, verified: Mapping[str, Path]) -> None:
        """Give complete and verified files their names, durably; all of them share the waits for the disk."""
        if not verified:
            return
        places = {digest: self.place(digest) for digest in verified}
        folders = {place.parent for place in places.values()}
        if new := [folder for folder in folders if not is_folder(folder)]:
            for folder in new:
                make_folders(folder)
            sync_folder(self.folder)
        _each(verified.values(), _sync_file)
        for digest, path in verified.items():
            rename_file(path, places[digest])
        _each(folders, sync_folder)

    def sweep(self, wall_s: float) -> None:
        """Remove what dead processes left unfinished."""
        with translated_errors(self.folder):
            for leftover in self.incoming.glob("*"):
                _sweep_one(leftover, wall_s)


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def move_damaged(place: Path, digest: str, aside: Path) -> bool:
    """Move a file that is not what its name says out of the way; return False if it is sound by now, or gone.

    It is read again here, as whoever found it damaged may have read one that was replaced since. A sound file
    keeps its name all the time, except for one that comes between the last look and the move.
    """
    try:
        file = os.fdopen(open_file(place, os.O_RDONLY), "rb")
    except FileNotFoundError:
        return False
    with file:  # kept open: no other file gets its number meanwhile
        if hashlib.file_digest(file, "sha256").hexdigest() == digest:
            return False
        make_folders(aside.parent)
        damaged = os.fstat(file.fileno())
        try:
            if not os.path.samestat(damaged, stat_file(place)):
                return False
            rename_file(place, aside)
        except FileNotFoundError:
            return False
    if os.path.samestat(damaged, stat_file(aside)):
        return True
    try:
        link_file(aside, place)
    except FileExistsError:
        pass  # yet another one came
    except OSError:  # a file system without links
        rename_file(aside, place)
        return False
    remove_file(aside)
    return False


def _open_anywhere(path: Path) -> BinaryIO:
    return os.fdopen(open_private(path, os.O_RDWR | os.O_CREAT), "r+b")


def _open_to_append(path: Path) -> BinaryIO:
    return os.fdopen(open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab")


def _sync_file(path: Path) -> None:
    descriptor = open_file(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _each(paths: Iterable[Path], work: Callable[[Path], None]) -> None:
    waiting = list(paths)
    if len(waiting) == 1:
        work(waiting[0])
        return
    with ThreadPoolExecutor(min(_SYNCING_THREADS, len(waiting)), thread_name_prefix="ringrift-sync") as pool:
        for _ in pool.map(work, waiting):
            pass  # an error of any of them comes out here


def _sweep_one(leftover: Path, wall_s: float) -> None:
    continued = is_digest(leftover.name[:_DIGEST_LETTERS])
    kept_s = _UPLOAD_LEFTOVER_S if continued else _PRIVATE_LEFTOVER_S
    try:
        if leftover.is_dir() or leftover.stat().st_mtime > wall_s - kept_s:
            return
        with leftover.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_file(leftover)
    except (FileNotFoundError, BlockingIOError):
        return  # gone already, or still being written
