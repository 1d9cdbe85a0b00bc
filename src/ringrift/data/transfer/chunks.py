"""Files as lists of hashed chunks.

A list is the SHA-256 of each 2 MB of a file. Lists are kept beside the blobs, with the places where each
chunk lies, so that a file that shares chunks with an older one need not send them again. All of it is a
hint that can be computed anew: nothing here is trusted without hashing, a damaged index is thrown away, and
one that is busy or has no room costs time, not the transfer.
"""

from __future__ import annotations

import errno
import hashlib
import os
import queue
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import NoReturn, TypeVar

import msgspec
import structlog

from ringrift.data.transfer.contract import CHUNK_BYTES
from ringrift.decoding import decode_as
from ringrift.engine.encoding import mismatch
from ringrift.engine.sqlite.blobs import BlobFolder
from ringrift.engine.sqlite.faults import translated_errors
from ringrift.errors import DigestMismatch, Unavailable
from ringrift.files import make_folders, open_file, remove_file, write_file

log = structlog.get_logger()

T = TypeVar("T")

HASH_BYTES = 32
_NOT_INSIDE_THE_KERNEL = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}
_BUSY_S = 5.0
_WAIT_S = 30.0  # for a buffer
_LISTS_MAX = 64  # in memory
_ASKED_AT_ONCE = 500  # SQLite takes a bounded number of parameters
_SCHEMA = """
CREATE TABLE IF NOT EXISTS lists (blob TEXT PRIMARY KEY, hashes BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS places (chunk BLOB PRIMARY KEY, blob TEXT NOT NULL, position INTEGER NOT NULL)
    WITHOUT ROWID;
"""


def chunk_count(size: int) -> int:
    """Chunks of a file of this size; the empty file has none."""
    return -(-size // CHUNK_BYTES)


def chunk_length(size: int, position: int) -> int:
    return min(CHUNK_BYTES, size - position * CHUNK_BYTES)


def read_chunk(descriptor: int, position: int, into: memoryview) -> memoryview:
    """Fill *into* from the chunk at *position*; return what was read, which is less at the file's end."""
    done = 0
    while done < len(into):
        count = os.preadv(descriptor, [into[done:]], position * CHUNK_BYTES + done)
        if not count:
            break
        done += count
    return into[:done]


def copy_bytes(source: int, start: int, target: int, place: int, count: int) -> bool:
    """Copy between two open files, inside the kernel where it can; False if the source ends before."""
    done = 0
    while done < count:
        try:
            copied = os.copy_file_range(source, target, count - done, start + done, place + done)
        except OSError as error:
            if error.errno not in _NOT_INSIDE_THE_KERNEL:
                raise
            copied = os.pwrite(target, os.pread(source, count - done, start + done), place + done)
        if not copied:
            return False
        done += copied
    return True


def hash_of(content: bytes | bytearray | memoryview) -> bytes:
    return hashlib.sha256(content).digest()


class Buffers:
    """Buffers of one chunk: as many as are used at the same time, or *count* of which each has its turn."""

    def __init__(self, count: int | None = None, *, wait_s: float = _WAIT_S) -> None:
        self._free: queue.LifoQueue[memoryview | None] = queue.LifoQueue()
        self._is_bounded, self._wait_s = count is not None, wait_s
        for _ in range(count or 0):
            self._free.put(None)  # made on first use

    @contextmanager
    def borrow(self) -> Iterator[memoryview]:
        """Use a buffer; `Unavailable` if there are no more than so many, and none gets free in time."""
        try:
            buffer = self._free.get(block=self._is_bounded, timeout=self._wait_s)
        except queue.Empty:
            if self._is_bounded:
                raise Unavailable("all buffers are in use", retry_after_s=5.0) from None
            buffer = None
        buffer = buffer or memoryview(bytearray(CHUNK_BYTES))
        try:
            yield buffer
        finally:
            self._free.put(buffer)


class ChunkIndex:
    """The lists of this node's blobs, shared by its processes. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None
        self._lists: OrderedDict[str, list[bytes | None]] = OrderedDict()

    def list_of(self, digest: str, count: int) -> list[bytes | None]:
        """Return the list of a blob of *count* chunks, shared by all who read it; None is not known yet."""
        with self._lock:
            shared = self._lists.get(digest)
        if shared is None or len(shared) != count:
            kept = self.hashes(digest) or b""
            shared = [kept[at : at + HASH_BYTES] for at in range(0, len(kept), HASH_BYTES)]
            if len(shared) != count:
                shared = [None] * count
        with self._lock:
            shared = self._lists.setdefault(digest, shared)
            self._lists.move_to_end(digest)
            while len(self._lists) > _LISTS_MAX:
                self._lists.popitem(last=False)
        return shared

    def hashes(self, digest: str) -> bytes | None:
        """Return the list of a blob, 32 bytes a chunk, if it is known."""
        question = "SELECT hashes FROM lists WHERE blob = ?"
        found: list[tuple[bytes]] = self._do(lambda db: db.execute(question, (digest,)).fetchall(), [])
        return bytes(found[0][0]) if found else None

    def keep(self, digest: str, hashes: bytes) -> None:
        """Remember the list of a blob that is here."""
        chunks = [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]
        places = [(chunk, digest, position) for position, chunk in enumerate(chunks)]

        def work(db: sqlite3.Connection) -> None:
            with db:
                db.execute("INSERT OR REPLACE INTO lists VALUES (?, ?)", (digest, hashes))
                db.executemany("INSERT OR REPLACE INTO places VALUES (?, ?, ?)", places)

        self._do(work, None)

    def find(self, chunks: Sequence[bytes]) -> dict[bytes, tuple[str, int]]:
        """Return, for those of *chunks* that a blob is known to have, the blob and the position there."""

        def work(db: sqlite3.Connection) -> dict[bytes, tuple[str, int]]:
            found: dict[bytes, tuple[str, int]] = {}
            for start in range(0, len(chunks), _ASKED_AT_ONCE):
                asked = chunks[start : start + _ASKED_AT_ONCE]
                marks = ",".join("?" * len(asked))
                rows = db.execute(f"SELECT chunk, blob, position FROM places WHERE chunk IN ({marks})", asked)
                found |= {bytes(chunk): (blob, position) for chunk, blob, position in rows}
            return found

        return self._do(work, {})

    def forget(self, digest: str) -> None:
        """The blob is gone, or not what its list says."""
        with self._lock:
            self._lists.pop(digest, None)

        def work(db: sqlite3.Connection) -> None:
            with db:
                db.execute("DELETE FROM places WHERE blob = ?", (digest,))
                db.execute("DELETE FROM lists WHERE blob = ?", (digest,))

        self._do(work, None)

    def known(self) -> list[str]:
        """The blobs whose lists are kept."""
        rows: list[tuple[str]] = self._do(lambda db: db.execute("SELECT blob FROM lists").fetchall(), [])
        return [blob for (blob,) in rows]

    def close(self) -> None:
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    def _do(self, work: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        with self._lock:
            try:
                return work(self._opened())
            except (sqlite3.OperationalError, OSError) as error:
                log.warning("chunks.index_unavailable", path=str(self._path), why=str(error))
                return otherwise
            except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # its message may quote the damage
                log.warning("chunks.index_thrown_away", path=str(self._path), why=str(error))
                self._discard()
                return otherwise

    def _opened(self) -> sqlite3.Connection:
        if self._db is None:
            make_folders(self._path.parent)
            # Never made by SQLite, which goes by path. One that is there is not opened: to close a descriptor
            # of it would end the locks that this process has on it.
            with suppress(FileExistsError):
                os.close(open_file(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
            place = f"{self._path.absolute().as_uri()}?mode=rw"
            self._db = sqlite3.connect(place, uri=True, timeout=_BUSY_S, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = OFF")  # what a power cut takes is computed anew
            self._db.executescript(_SCHEMA)
        return self._db

    def _discard(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
        for suffix in ("", "-wal", "-shm"):
            remove_file(Path(f"{self._path}{suffix}"))


class ChunkedFile:
    """A sealed file to read from, with its chunks hashed as they are asked for."""

    def __init__(self, path: Path, digest: str, index: ChunkIndex) -> None:
        self.digest, self._index = digest, index
        self.file = path.open("rb", buffering=0)
        self.size = os.fstat(self.file.fileno()).st_size
        self._hashes = index.list_of(digest, chunk_count(self.size))
        self._kept = None not in self._hashes
        self._lock = threading.Lock()

    def hashes(self, positions: Sequence[int], buffer: memoryview) -> list[bytes]:
        """Return the hashes of these chunks; *buffer* has room for one."""
        answer = []
        for position in positions:
            known = self._hashes[position]
            if known is None:
                known = hash_of(read_chunk(self.file.fileno(), position, buffer[: self.length(position)]))
                self._hashes[position] = known
            answer.append(known)
        self._keep_if_complete()
        return answer

    def length(self, position: int) -> int:
        return chunk_length(self.size, position)

    def _keep_if_complete(self) -> None:
        with self._lock:
            if self._kept or None in self._hashes:
                return
            self._kept = True
        self._index.keep(self.digest, b"".join(known for known in self._hashes if known is not None))

    def close(self) -> None:
        self.file.close()


# One large file on its way in: chunks in any order, from several threads.
#
# A chunk that came is written only after its hash was right. The file is read back from its start as it
# grows, so that its digest is known soon after the last chunk. There is no record of progress that could be
# wrong: what an earlier attempt left is hashed again before it counts. Chunks that another file here has are
# copied inside the kernel and count on the digest of the whole; if that is wrong, they are looked at one by
# one.


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
        with translated_errors(path):
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
        with self._writing() as is_open, translated_errors(self._opened.path):
            if is_open:
                read_chunk(self._descriptor, position, into)

    def keep_begun(self, position: int, beginning: memoryview) -> None:
        """Keep the first bytes of a chunk whose line broke; its hash decides when the rest is here."""
        with self._writing() as is_open:
            if not is_open or self._known(position) is not None or not beginning:
                return
            with translated_errors(self._opened.path):
                self._write(position, beginning)
                with self._changing:
                    self._begun[position] = len(beginning)
                    encoded = msgspec.json.encode(self._begun)
                write_file(self._begun_path, encoded)

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
            with translated_errors(self._opened.path), self._opened.file:
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
        with translated_errors(self._opened.path):
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
        with translated_errors(self._opened.path):
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
        with source, translated_errors(self._opened.path):
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
            with translated_errors(self._opened.path):
                os.fdatasync(self._descriptor)
        finally:
            self._syncing.release()

    def _read_back_up_to(self, end: int) -> None:
        while True:
            with self._changing:
                position, whole = self._read_back, self._whole
                if position >= min(end, len(self._hashes)) or self._hashes[position] is None:
                    return
            with translated_errors(self._opened.path):
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
