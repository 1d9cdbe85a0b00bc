"""One large file on its way in: chunks in any order, from several threads.

A chunk that came is written only after its hash was right. The file is read back from its start as it grows,
so that its digest is known soon after the last chunk. There is no record of progress that could be wrong:
what an earlier attempt left is hashed again before it counts. Chunks that another file here has are copied
inside the kernel and count on the digest of the whole; if that is wrong, they are looked at one by one.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import NoReturn

import msgspec
import structlog

from ringrift.data.transfer.chunks import (
    ChunkIndex,
    chunk_count,
    chunk_length,
    copy_bytes,
    hash_of,
    read_chunk,
)
from ringrift.data.transfer.contract import CHUNK_BYTES
from ringrift.decoding import decode_as
from ringrift.engine.digests import mismatch
from ringrift.engine.sqlite.blob_folder import BlobFolder
from ringrift.engine.sqlite.faults import told_in_our_words
from ringrift.errors import DigestMismatch, Unavailable
from ringrift.held_folder import remove_file, write_file

log = structlog.get_logger()

PARTS, BEGUN = ".parts", ".begun"
_READ_BACK_AT_ONCE = 32  # chunks that one caller reads back before it goes on with its own work
_SYNCED_AT_ONCE = 32  # chunks after which the disk begins to write, so that little is left at the end
_WRITERS_END_S = 60.0


class ChunksLacking(Unavailable):
    """Not all chunks were counted since the file was opened; ask again what is missing."""


class _State(Enum):
    OPEN = "open"
    SEALED = "sealed"
    LET_GO = "let go"


class Incoming:
    """A file that only this process receives. Its bytes survive a crash; the object holds nothing else."""

    def __init__(self, folder: BlobFolder, index: ChunkIndex, digest: str, size: int) -> None:
        self.digest, self.size = digest, size
        self._folder, self._index = folder, index
        self._hashes: list[bytes | None] = [None] * chunk_count(size)  # of the chunks that are here
        self._copied: dict[int, str] = {}  # those that were taken from other blobs, unhashed
        self._changing = threading.Condition()
        self._state, self._writers, self._receiving, self._touched = _State.OPEN, 0, 0, True
        self._unsynced = 0  # chunks written since somebody last saw to the disk
        self._reading_back, self._syncing = threading.Lock(), threading.Lock()
        self._whole, self._read_back = hashlib.sha256(), 0
        self._buffer = memoryview(bytearray(min(size, CHUNK_BYTES)))
        path = folder.incoming / (digest + PARTS)
        self._begun_path = folder.incoming / (digest + BEGUN)
        self._begun: dict[int, int] = {}  # bytes of chunks that are not whole
        with told_in_our_words(path):
            opened = folder.open_locked(path, anywhere=True)
            if opened is None:
                raise Unavailable(f"another process is receiving {digest[:12]}", retry_after_s=5.0)
            self._opened, self._descriptor = opened, opened.file.fileno()
            try:
                self._continued = os.fstat(self._descriptor).st_size > 0
                os.ftruncate(self._descriptor, size)
                if self._continued:
                    self._begun = self._read_begun()
            except OSError:
                opened.file.close()  # with it the lock, before anybody hears of the failure and tries again
                raise

    def _read_begun(self) -> dict[int, int]:
        """A hint like all that earlier attempts left: the hash of the chunk decides."""
        try:
            found = decode_as(self._begun_path.read_bytes(), dict[int, int])
        except (FileNotFoundError, msgspec.MsgspecError, ValueError):
            return {}
        return {
            position: done
            for position, done in found.items()
            if 0 <= position < len(self._hashes) and 0 < done < chunk_length(self.size, position)
        }

    @property
    def is_open(self) -> bool:
        return self._state is _State.OPEN

    def was_touched(self) -> bool:
        """Whether anybody used it since this was last asked."""
        touched, self._touched = self._touched or self._writers > 0 or self._receiving > 0, False
        return touched

    @contextmanager
    def receiving(self) -> Iterator[None]:
        """Chunks of it are on their way, which may take minutes: nobody lets go of it meanwhile."""
        with self._changing:
            self._receiving += 1
        try:
            yield
        finally:
            with self._changing:
                self._receiving -= 1
                self._touched = True

    @property
    def complete(self) -> bool:
        return None not in self._hashes

    def missing(self, first: int, hashes: Sequence[bytes]) -> list[int]:
        """Return the positions, of *hashes* from *first* on, that must be sent.

        The others are here: from an earlier attempt, or copied now from another file.
        """
        wanted = {first + offset: expected for offset, expected in enumerate(hashes)}
        with self._writing() as may_write:
            wanted = {p: expected for p, expected in wanted.items() if self._known(p) != expected}
            if may_write and wanted:
                if self._continued:
                    self._count_what_is_here(wanted)
                self._copy_from_other_files(wanted)
        self._advance()
        return sorted(wanted)

    def write(self, position: int, expected: bytes, payload: memoryview) -> None:
        """Take one chunk; `DigestMismatch` if its bytes are not the expected ones."""
        self._forget_begun(position)
        self._check_chunk(position, expected, payload)
        with self._writing() as may_write:
            if self._known(position) == expected:
                return
            if not may_write:
                raise Unavailable(f"{self.digest[:12]} was ended meanwhile", retry_after_s=1.0)
            self._put(position, expected, payload)
        self._advance()

    def begun(self, positions: Sequence[int]) -> tuple[int, ...]:
        """How many bytes there are of each of these chunks, from attempts that broke off."""
        with self._changing:
            return tuple(self._begun.get(position, 0) for position in positions)

    def beginning(self, position: int, into: memoryview) -> None:
        """Read the first bytes of a chunk that an earlier attempt brought."""
        with self._writing() as is_open, told_in_our_words(self._opened.path):
            if is_open:
                read_chunk(self._descriptor, position, into)

    def keep_begun(self, position: int, beginning: memoryview) -> None:
        """Keep the first bytes of a chunk whose line broke; its hash decides when the rest is here."""
        with self._writing() as is_open:
            if not is_open or self._known(position) is not None or not beginning:
                return
            with told_in_our_words(self._opened.path):
                self._write(position, beginning)
                with self._changing:
                    self._begun[position] = len(beginning)
                    told = msgspec.json.encode(self._begun)
                write_file(self._begun_path, told)

    def _forget_begun(self, position: int) -> None:
        with self._changing:
            self._begun.pop(position, None)

    def seal(self) -> None:
        """Read back the rest and publish; `DigestMismatch` drops everything. Safe to call twice."""
        with self._reading_back:
            if self._state is _State.SEALED:
                return
            was_open = self.is_open
            self._stop_writers(_State.LET_GO)
            if not was_open or not self.complete:
                self._opened.file.close()
                raise ChunksLacking(f"{self.digest[:12]} lacks chunks", retry_after_s=0.0)
            with told_in_our_words(self._opened.path), self._opened.file:
                self._read_back_up_to(len(self._hashes))
                if (found := self._whole.hexdigest()) != self.digest:
                    self._refuse(found)
                self._folder.publish({self.digest: self._opened.path})
                remove_file(self._begun_path)
            self._state = _State.SEALED
        self._index.keep(self.digest, b"".join(known for known in self._hashes if known is not None))

    def _refuse(self, found: str) -> NoReturn:
        """Drop a file that is not what its name says, or only what was copied wrong into it."""
        if blobs := self._wrong_copies():
            for blob in blobs:
                log.warning("transfer.damaged_copy", digest=blob, found_in=self.digest)
                self._index.forget(blob)
            raise ChunksLacking(f"{self.digest[:12]} took wrong chunks from another file", retry_after_s=0.0)
        remove_file(self._opened.path)
        remove_file(self._begun_path)
        error = mismatch(self._opened.path, self.digest, found)
        raise DigestMismatch(error.path, found=error.found, advice=error.advice)

    def let_go(self) -> None:
        """Close the file; what came stays, to be continued."""
        with self._reading_back:
            if self._state is _State.OPEN:
                self._stop_writers(_State.LET_GO)
                self._opened.file.close()

    # --- chunks ---------------------------------------------------------------------------------------

    def _known(self, position: int) -> bytes | None:
        if not 0 <= position < len(self._hashes):
            raise Unavailable(f"{self.digest[:12]} has no chunk {position}")
        return self._hashes[position]

    def _check_chunk(self, position: int, expected: bytes, payload: memoryview) -> None:
        self._known(position)
        length = chunk_length(self.size, position)
        if len(payload) != length or hash_of(payload) != expected:
            raise DigestMismatch(
                self._opened.path,
                found=f"chunk {position} is not what was announced",
                advice="It was not written; send it again",
            )

    def _put(self, position: int, expected: bytes, payload: memoryview) -> None:
        self._copied.pop(position, None)
        with told_in_our_words(self._opened.path):
            self._write(position, payload)
        self._count(position, expected)

    def _write(self, position: int, payload: memoryview) -> None:
        done, start = 0, position * CHUNK_BYTES
        while done < len(payload):
            done += os.pwrite(self._descriptor, payload[done:], start + done)

    def _count(self, position: int, expected: bytes) -> None:
        with self._changing:
            self._hashes[position] = expected
            self._unsynced += 1
            if position < self._read_back:  # another list of chunks: what was read back is no longer there
                self._whole, self._read_back = hashlib.sha256(), 0

    def _count_what_is_here(self, wanted: dict[int, bytes]) -> None:
        buffer = memoryview(bytearray(CHUNK_BYTES))
        for position, expected in list(wanted.items()):
            if not self._is_hole(position) and self._hash_here(position, buffer) == expected:
                self._count(position, expected)
                del wanted[position]

    def _hash_here(self, position: int, buffer: memoryview) -> bytes:
        with told_in_our_words(self._opened.path):
            piece = buffer[: chunk_length(self.size, position)]
            return hash_of(read_chunk(self._descriptor, position, piece))

    def _is_hole(self, position: int) -> bool:
        start = position * CHUNK_BYTES
        try:
            return os.lseek(self._descriptor, start, os.SEEK_DATA) >= start + chunk_length(
                self.size, position
            )
        except OSError:  # there is no data behind this place
            return True

    def _copy_from_other_files(self, wanted: dict[int, bytes]) -> None:
        elsewhere = self._index.find(list(wanted.values()))
        by_blob: dict[str, list[tuple[int, int]]] = {}
        for position, expected in wanted.items():
            if (place := elsewhere.get(expected)) is not None:
                by_blob.setdefault(place[0], []).append((position, place[1]))
        for blob, pairs in by_blob.items():
            if not self._copy_from(blob, pairs, wanted):
                log.info("transfer.chunks_not_where_listed", blob=blob)
                self._index.forget(blob)

    def _copy_from(self, blob: str, pairs: Sequence[tuple[int, int]], wanted: dict[int, bytes]) -> bool:
        """Copy (position here, position there); whether the other file was long enough."""
        try:
            source = self._folder.place(blob).open("rb", buffering=0)
        except FileNotFoundError:
            return False
        with source, told_in_our_words(self._opened.path):
            for here, there in pairs:
                length = chunk_length(self.size, here)
                start, target = there * CHUNK_BYTES, here * CHUNK_BYTES
                if not copy_bytes(source.fileno(), start, self._descriptor, target, length):
                    return False
                self._copied[here] = blob
                self._count(here, wanted.pop(here))
        return True

    def _wrong_copies(self) -> set[str]:
        """The blobs from which wrong chunks were copied."""
        buffer = memoryview(bytearray(CHUNK_BYTES))
        wrong = [p for p in self._copied if self._hash_here(p, buffer) != self._hashes[p]]
        return {self._copied[position] for position in wrong}

    # --- reading back ---------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Read back some chunks unless another thread does; see to the disk when there is much to write."""
        with self._writing() as is_open:
            if not is_open:
                return
            if self._reading_back.acquire(blocking=False):
                try:
                    self._read_back_up_to(self._read_back + _READ_BACK_AT_ONCE)
                finally:
                    self._reading_back.release()
            self._see_to_the_disk()

    def _see_to_the_disk(self) -> None:
        """Have it write what came, unless there is little or another thread waits for it already."""
        if self._unsynced < _SYNCED_AT_ONCE or not self._syncing.acquire(blocking=False):
            return
        try:
            self._unsynced = 0
            with told_in_our_words(self._opened.path):
                os.fdatasync(self._descriptor)
        finally:
            self._syncing.release()

    def _read_back_up_to(self, end: int) -> None:
        while True:
            with self._changing:
                position, whole = self._read_back, self._whole
                if position >= min(end, len(self._hashes)) or self._hashes[position] is None:
                    return
            with told_in_our_words(self._opened.path):
                piece = self._buffer[: chunk_length(self.size, position)]
                whole.update(read_chunk(self._descriptor, position, piece))
            with self._changing:
                if self._whole is whole:
                    self._read_back = position + 1

    # --- who may write --------------------------------------------------------------------------------

    @contextmanager
    def _writing(self) -> Iterator[bool]:
        """Keep the file open while the block runs; yields whether it is open."""
        with self._changing:
            may_write = self._state is _State.OPEN
            self._writers += 1
            self._touched = True
        try:
            yield may_write
        finally:
            with self._changing:
                self._writers -= 1
                self._changing.notify_all()

    def _stop_writers(self, state: _State) -> None:
        """After this nobody touches the file but the caller."""
        with self._changing:
            self._state = state
            if not self._changing.wait_for(lambda: self._writers == 0, timeout=_WRITERS_END_S):
                raise Unavailable(f"{self.digest[:12]} is still being written")
