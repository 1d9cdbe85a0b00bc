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
from pathlib import Path
from typing import TypeVar

import structlog

from ringrift.data.transfer.contract import CHUNK_BYTES
from ringrift.held_folder import make_folders, open_file, remove_file

log = structlog.get_logger()

T = TypeVar("T")

HASH_BYTES = 32
_NOT_INSIDE_THE_KERNEL = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}
_BUSY_S = 5.0
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


class SpareBuffers:
    """Buffers of one chunk, as many as are used at the same time."""

    def __init__(self) -> None:
        self._spare: queue.LifoQueue[memoryview] = queue.LifoQueue()

    @contextmanager
    def borrow(self) -> Iterator[memoryview]:
        try:
            buffer = self._spare.get_nowait()
        except queue.Empty:
            buffer = memoryview(bytearray(CHUNK_BYTES))
        try:
            yield buffer
        finally:
            self._spare.put(buffer)


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
