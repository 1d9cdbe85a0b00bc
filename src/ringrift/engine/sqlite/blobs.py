"""Blobs as files named by their digest.

A blob appears under its name only when it is complete, synced and read back; whoever sees the file may
trust it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, TypeVar

from ringrift.engine.arguments import check_bytes, check_path
from ringrift.engine.blocking import end_threads
from ringrift.engine.encoding import check_digest, mismatch
from ringrift.engine.limits import BLOB_CALL_BYTES_MAX, BLOB_WAIT_S
from ringrift.engine.sqlite.blob_folder import BlobFolder, OpenedFile, digest_of
from ringrift.engine.sqlite.writer import contained
from ringrift.errors import Unavailable
from ringrift.files import HeldPath, remove_file, sync_folder
from ringrift.runtime import Runtime

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
            digest = digest_of(path)
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
                found = digest_of(self._folder.place(digest))
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
        found = digest_of(opened.path)
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
