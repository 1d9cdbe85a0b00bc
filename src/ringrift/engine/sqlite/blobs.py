"""Blobs as files named by their digest.

A blob appears under its name only when it is complete, synced and read back; whoever sees the file may
trust it.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

from ringrift.engine.arguments import check_bytes, check_path
from ringrift.engine.blocking import end_threads
from ringrift.engine.encoding import check_digest, is_digest, mismatch
from ringrift.engine.limits import BLOB_CALL_BYTES_MAX, BLOB_WAIT_S
from ringrift.engine.sqlite.faults import translated_errors
from ringrift.engine.sqlite.writer import contained
from ringrift.errors import Unavailable
from ringrift.files import (
    HeldPath,
    file_sha256,
    is_folder,
    link_file,
    make_folders,
    open_file,
    open_private,
    remove_file,
    rename_file,
    stat_file,
    sync_file,
    sync_folder,
)
from ringrift.runtime import Runtime

# --- how blobs lie in a folder, for code that works in threads ----------------------------------------
#
# A file appears under its digest only when it is complete, synced and verified. Unfinished files lie in a
# folder of their own, locked by the process that writes them, so that the leftovers of a dead process are
# told from the work of a living one.


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
        _each(verified.values(), sync_file)
        for digest, path in verified.items():
            rename_file(path, places[digest])
        _each(folders, sync_folder)

    def sweep(self, wall_s: float) -> None:
        """Remove what dead processes left unfinished."""
        with translated_errors(self.folder):
            for leftover in self.incoming.glob("*"):
                _sweep_one(leftover, wall_s)


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


# --- the port -----------------------------------------------------------------------------------------


T = TypeVar("T")

_CHUNK_BYTES = 1 << 20
_THREADS = 4


class FileBlobs:
    """See `Blobs`."""

    def __init__(self, folder: Path, runtime: Runtime, database: HeldPath) -> None:
        self._folder, self._runtime = BlobFolder(folder, runtime.new_id), runtime
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="ringrift-blobs")
        self._database = database
        self._uploads: set[FileUpload] = set()
        self._closed = False

    async def put(self, path: Path) -> str:
        def work() -> str:
            check_path(path)
            digest = file_sha256(path)
            if self._folder.place(digest).exists():
                return digest
            # The source may have changed since it was hashed: the copy has the last word.
            with path.open("rb") as source:
                return self._write_new(iter(lambda: source.read(_CHUNK_BYTES), b""), expected=None)

        return await self.run(work)

    async def put_bytes(self, content: bytes) -> str:
        check_bytes("content", content, size_max=BLOB_CALL_BYTES_MAX)

        def work() -> str:
            digest = hashlib.sha256(content).hexdigest()
            if self._folder.place(digest).exists():
                return digest
            return self._write_new([content], expected=digest)

        return await self.run(work)

    async def upload(self, digest: str) -> FileUpload:
        check_digest(digest)

        def work() -> FileUpload:
            shared = self._folder.incoming / digest
            opened = self._folder.open_locked(shared) or self._folder.open_private()
            return FileUpload(self, digest, opened)

        upload = await self.run(work)
        self._uploads.add(upload)
        return upload

    async def open(self, digest: str) -> BinaryIO:
        check_digest(digest)

        def work() -> BinaryIO:
            try:
                return self._folder.place(digest).open("rb")
            except FileNotFoundError:
                raise KeyError(digest) from None

        return await self.run(work)

    async def path(self, digest: str) -> Path | None:
        check_digest(digest)
        place = self._folder.place(digest)
        return place if await self.run(place.exists) else None

    async def has(self, digest: str) -> bool:
        return await self.path(digest) is not None

    async def size(self, digest: str) -> int | None:
        check_digest(digest)

        def work() -> int | None:
            try:
                return self._folder.place(digest).stat().st_size
            except FileNotFoundError:
                return None

        return await self.run(work)

    async def verify(self, digest: str) -> None:
        check_digest(digest)

        def work() -> None:
            try:
                found = file_sha256(self._folder.place(digest))
            except FileNotFoundError:
                raise KeyError(digest) from None
            if found != digest:
                raise mismatch(self._folder.place(digest), digest, found)

        await self.run(work)

    async def delete(self, digest: str) -> bool:
        check_digest(digest)

        def work() -> bool:
            place = self._folder.place(digest)
            if not remove_file(place):
                return False
            sync_folder(place.parent)
            return True

        return await self.run(work)

    async def digests(self) -> list[str]:
        return await self.run(self._folder.digests)

    async def run(self, work: Callable[[], T]) -> T:
        """Do *work* in a thread, its errors told in our words."""

        def guarded() -> T:
            with contained(self._folder.folder, passing=KeyError):
                # Where the database was exchanged, the files under these names are of somebody else as well.
                if problem := self._database.problem():
                    raise Unavailable(problem)
                return work()

        if self._closed:
            raise Unavailable(f"the blob folder {self._folder.folder} is closed")
        try:
            async with asyncio.timeout(BLOB_WAIT_S):
                return await asyncio.get_running_loop().run_in_executor(self._threads, guarded)
        except TimeoutError:
            raise Unavailable(f"{self._folder.folder} did not answer in {BLOB_WAIT_S:g} s") from None

    def ended(self, upload: FileUpload) -> None:
        self._uploads.discard(upload)

    def close(self, *, wait_s: float) -> bool:
        """End the threads; return False if one is stuck, which finishes or leaves what the sweep removes."""
        self._closed = True
        ended = end_threads(self._threads, wait_s=wait_s)
        if ended:
            for upload in self._uploads:
                upload.let_go()
        return ended

    def sweep(self) -> None:
        """Remove what dead processes left unfinished."""
        self._folder.sweep(self._runtime.wall_s())

    def _write_new(self, chunks: Iterable[bytes], *, expected: str | None) -> str:
        opened = self._folder.open_private()
        try:
            with opened.file:
                for chunk in chunks:
                    opened.file.write(chunk)
                return self.settle(opened, expected=expected)
        finally:
            remove_file(opened.path)

    def settle(self, opened: OpenedFile, *, expected: str | None) -> str:
        """Sync, read back and give the blob its name; bytes that are not the expected ones go."""
        opened.file.flush()
        os.fsync(opened.file.fileno())
        found = file_sha256(opened.path)
        if expected is not None and found != expected:
            remove_file(opened.path)
            raise mismatch(opened.path, expected, found)
        self._folder.publish({found: opened.path})
        return found


class FileUpload:
    """See `Upload`."""

    def __init__(self, blobs: FileBlobs, digest: str, opened: OpenedFile) -> None:
        self._blobs, self._digest, self._opened = blobs, digest, opened
        self._offset = opened.file.tell()

    @property
    def offset(self) -> int:
        return self._offset

    async def write(self, chunk: bytes) -> None:
        check_bytes("chunk", chunk, size_max=BLOB_CALL_BYTES_MAX)

        def work() -> None:
            self._opened.file.write(chunk)
            self._opened.file.flush()

        await self._blobs.run(work)
        self._offset += len(chunk)

    async def commit(self) -> str:
        def work() -> str:
            with self._opened.file:
                return self._blobs.settle(self._opened, expected=self._digest)

        digest = await self._blobs.run(work)
        self._blobs.ended(self)
        return digest

    async def abort(self) -> None:
        def work() -> None:
            remove_file(self._opened.path)
            self.let_go()

        await self._blobs.run(work)
        self._blobs.ended(self)

    def let_go(self) -> None:
        """Close the file; what was received stays, to be continued."""
        self._opened.file.close()
