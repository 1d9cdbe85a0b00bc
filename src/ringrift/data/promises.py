"""Promises to keep a file: what a node says, and writes down, before another one may delete its copy.

Whoever wants to delete first notes that here (`begin`), then asks the other holders. A holder looks at its
own disk, writes the promise down and only then answers. A node that has promised does not begin; one that
has begun does not promise. So of two nodes that want to delete the same file at least one is refused by the
other, and whoever began last among those that deleted was promised copies of nodes that had not begun: these
stay. The order alone brings that about, however late an answer is used; the time of a promise also holds
those to it who would be content with fewer copies.

The records lie beside the files, not in the engine: they are lost together with the files or not at all, a
restored engine forgets none, and the data server needs no engine to answer.
"""

from __future__ import annotations

import math
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import msgspec
import structlog

from ringrift.data.nodes import DataNode
from ringrift.data.transfer.messages import ASKED_AT_ONCE, FILES_AT_ONCE, File
from ringrift.engine.lock_files import LockFile
from ringrift.engine.sqlite.blob_folder import BlobFolder, digest_of
from ringrift.engine.sqlite.config import SqliteConfig
from ringrift.engine.sqlite.faults import told_in_our_words
from ringrift.engine.sqlite.glance import glance
from ringrift.errors import ConfigError, Corrupt, RingRiftError, Unavailable
from ringrift.runtime import Runtime
from ringrift.settings import Settings

log = structlog.get_logger()

T = TypeVar("T")

PINS = "data/pins/"  # in the key-value store of the node
DATABASE, LOCK = "promises.db", "promises.lock"  # in the blob folder
KEEP_S = 900.0  # asked for; a deletion takes far less
KEEP_S_MAX = 3_600.0
READ_AGE_S_MAX = 86_400.0  # a file that was read longer ago is hashed before it is promised
PROMISES_MAX = 100_000
LOOK_READ_BYTES = 256 << 20  # read for one answer to a look, of files that were never read
READERS = 2  # hash at the same time
READER_WAIT_S = 60.0
DELETER_WAIT_S = 60.0
BEING_DELETED = "it is being deleted there"
_NAME_CHARS_MAX = 255
_BUSY_S = 20.0
_RETRY_S = 0.02


# --- what nodes say to each other -------------------------------------------------------------------------


class KeepRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`keep`: which of these files do you have, and will you keep them for so long? 0: only look."""

    asker: str
    promise: str = ""  # names the promise, to release it
    keep_s: float = 0.0
    files: tuple[File, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < len(self.asker) <= _NAME_CHARS_MAX or len(self.promise) > _NAME_CHARS_MAX:
            raise ConfigError("a request to keep files names who asks, in at most 255 characters")
        if not (math.isfinite(self.keep_s) and 0 <= self.keep_s <= KEEP_S_MAX):
            raise ConfigError(f"files are kept for 0 to {KEEP_S_MAX:g} s, not {self.keep_s!r}")
        if self.keep_s > 0 and not self.promise:
            raise ConfigError("a promise has a name")
        most = FILES_AT_ONCE if self.keep_s > 0 else ASKED_AT_ONCE
        if len(self.files) > most:
            raise ConfigError(f"{len(self.files)} files are too many at once; at most {most}")


class KeptFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a holder found of one file. An empty *refusal* means that it is there, and is kept if asked."""

    digest: str
    size: int = 0
    refusal: str = ""
    missing: bool = False  # it looked, and there is no such file
    damaged: bool = False  # it looked, or read, and the file is not what its name says
    read_age_s: float | None = None  # since all of it was read and had the right hash; None: not known
    pinned: str = ""  # why a person keeps it on every node


class KeepAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to `keep`."""

    node: str
    store: str  # names the folder: two nodes that give the same name have one copy between them
    keep_s: float = 0.0  # from before this was sent
    counts: bool = True  # by its own config: a node that stays
    files: tuple[KeptFile, ...] = ()


class ReleaseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`release`: the promise of that name is no longer needed."""

    promise: str


class Released(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `release`."""

    files: int


# --- what is written down ---------------------------------------------------------------------------------

_SCHEMA = """
CREATE TABLE IF NOT EXISTS store (id TEXT NOT NULL, quiet_boot TEXT, quiet_until_s REAL);
CREATE TABLE IF NOT EXISTS promises (
    digest TEXT NOT NULL, promise TEXT NOT NULL, asker TEXT NOT NULL, keep_s REAL NOT NULL,
    boot TEXT NOT NULL, since_s REAL NOT NULL, PRIMARY KEY (digest, promise)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS promises_by_name ON promises (promise);
CREATE TABLE IF NOT EXISTS begun (digest TEXT PRIMARY KEY, reason TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS reads (
    digest TEXT PRIMARY KEY, size INTEGER NOT NULL, stamp INTEGER NOT NULL, read_s REAL NOT NULL,
    sound INTEGER NOT NULL) WITHOUT ROWID;
"""


class FileLook(NamedTuple):
    """A file as the disk shows it without reading it. Another *stamp*: somebody wrote to it."""

    size: int
    stamp: int


class FileRead(NamedTuple):
    """The last time that all of a file was read."""

    look: FileLook
    read_s: float
    sound: bool


class PromiseStore:
    """The promises and begun deletions of one folder of files. All calls block; safe from several threads.

    Times are counted from the start of the machine, so that a clock that is set ends no promise; after a
    restart of the machine a promise runs anew.
    """

    def __init__(self, folder: Path | None, runtime: Runtime) -> None:
        """*folder* None: in memory, for simulations."""
        self._folder, self._runtime = folder, runtime
        self._boot = runtime.boot_id
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None
        self._inode: tuple[int, int] | None = None
        self._deleting = False  # in memory only

    @property
    def id(self) -> str:
        """Names the folder, wherever it is mounted."""
        return self._do(_store_id, self._runtime.new_id())

    # --- keeping --------------------------------------------------------------------------------------

    def promise(self, digest: str, *, asker: str, promise: str, keep_s: float) -> str:
        """Write a promise down; return why not, if a deletion has begun here."""

        def work(db: sqlite3.Connection) -> str:
            self._age(db)
            if db.execute("SELECT 1 FROM begun WHERE digest = ?", (digest,)).fetchone():
                return BEING_DELETED
            if db.execute("SELECT count(*) FROM promises").fetchone()[0] >= PROMISES_MAX:
                return f"it has given {PROMISES_MAX} promises already"
            db.execute(
                "INSERT OR REPLACE INTO promises VALUES (?, ?, ?, ?, ?, ?)",
                (digest, promise, asker, keep_s, self._boot, self._runtime.boot_s()),
            )
            return ""

        return self._do(work)

    def release(self, promise: str) -> int:
        """Forget a promise; return for how many files it was given."""
        dropped = "DELETE FROM promises WHERE promise = ?"
        return self._do(lambda db: int(db.execute(dropped, (promise,)).rowcount))

    def promised(self, digest: str) -> str:
        """To whom it is promised, and for how long still; empty if to nobody."""

        def work(db: sqlite3.Connection) -> str:
            self._age(db)
            return self._promised(db, digest)

        return self._do(work)

    # --- deleting -------------------------------------------------------------------------------------

    @asynccontextmanager
    async def deleting(self) -> AsyncIterator[None]:
        """Be the only one who deletes files of this folder, among all processes; `Unavailable` if not soon.

        Whoever has this knows that deletions which were begun are left over from one that died.
        """
        waited_until_s = self._runtime.boot_s() + DELETER_WAIT_S
        while (lock := self._try_lock()) is None:
            if self._runtime.boot_s() >= waited_until_s:
                raise Unavailable("another process of this node deletes files", retry_after_s=5.0)
            await self._runtime.sleep(_RETRY_S)
        try:
            yield
        finally:
            lock()

    def begin(self, digest: str, *, reason: str) -> str:
        """Note that this node's copy is to be deleted, before others are asked; return why not, if so."""

        def work(db: sqlite3.Connection) -> str:
            self._age(db)
            if promised := self._promised(db, digest):
                return f"this node {promised}"
            if quiet := self._quiet(db):
                return quiet
            db.execute("INSERT OR REPLACE INTO begun VALUES (?, ?)", (digest, reason))
            return ""

        return self._do(work)

    def end(self, digest: str) -> None:
        """The file is deleted, or stays."""
        self._do(lambda db: db.execute("DELETE FROM begun WHERE digest = ?", (digest,)))

    def begun(self) -> dict[str, str]:
        """Deletions that have begun, with their reasons."""
        return self._do(lambda db: dict(db.execute("SELECT digest, reason FROM begun").fetchall()))

    # --- reading --------------------------------------------------------------------------------------

    def note_read(self, digest: str, look: FileLook, *, sound: bool) -> None:
        """All of the file was read while it looked like that."""
        row = (digest, look.size, look.stamp, self._runtime.wall_s(), sound)
        self._do(lambda db: db.execute("INSERT OR REPLACE INTO reads VALUES (?, ?, ?, ?, ?)", row))

    def last_reads(self, digests: Sequence[str]) -> dict[str, FileRead]:
        """When these were last read, as far as it is known."""

        def work(db: sqlite3.Connection) -> dict[str, FileRead]:
            found = {}
            for digest in digests:
                question = "SELECT size, stamp, read_s, sound FROM reads WHERE digest = ?"
                if (row := db.execute(question, (digest,)).fetchone()) is not None:
                    found[digest] = FileRead(FileLook(row[0], row[1]), row[2], bool(row[3]))
            return found

        return self._do(work)

    def damaged(self) -> list[str]:
        """Files whose bytes were wrong when they were last read."""
        rows = self._do(lambda db: db.execute("SELECT digest FROM reads WHERE NOT sound").fetchall())
        return [digest for (digest,) in rows]

    def forget_reads(self, digest: str) -> None:
        self._do(lambda db: db.execute("DELETE FROM reads WHERE digest = ?", (digest,)))

    def close(self) -> None:
        with self._lock:
            if self._db is not None and self._folder is not None:
                self._db.close()
                self._db = None

    # --- inside ---------------------------------------------------------------------------------------

    def _age(self, db: sqlite3.Connection) -> None:
        """Forget promises whose time is over; those from before a restart of the machine run anew."""
        now_s = self._runtime.boot_s()
        another = "WHERE boot <> ? OR since_s > ?"
        db.execute(
            f"UPDATE promises SET boot = ?, since_s = ? {another}", (self._boot, now_s, self._boot, now_s)
        )
        db.execute("DELETE FROM promises WHERE since_s + keep_s <= ?", (now_s,))

    def _promised(self, db: sqlite3.Connection, digest: str) -> str:
        question = "SELECT asker, since_s + keep_s FROM promises WHERE digest = ? ORDER BY 2 DESC LIMIT 1"
        row = db.execute(question, (digest,)).fetchone()
        if row is None:
            return ""
        return f"promised {row[0]} to keep it for {row[1] - self._runtime.boot_s():.0f} s more"

    def _quiet(self, db: sqlite3.Connection) -> str:
        """Whether promises may have been lost with a damaged database that were not over yet."""
        boot, until_s = db.execute("SELECT quiet_boot, quiet_until_s FROM store").fetchone() or (None, 0.0)
        if boot is None or (boot == self._boot and self._runtime.boot_s() >= float(until_s)):
            return ""
        return (
            f"its record of promises was damaged: nothing is deleted here for {KEEP_S_MAX / 60:.0f} minutes"
        )

    def _do(self, work: Callable[..., T], *args: object) -> T:
        """Do *work* in one transaction."""
        where = self._folder or Path()
        with self._lock, told_in_our_words(where / DATABASE):
            try:
                db = self._opened()
                return _in_transaction(db, work, *args)
            except sqlite3.DatabaseError as error:
                if not _is_damage(error) or self._folder is None:
                    raise
                self._begin_anew(error)
                return _in_transaction(self._opened(), work, *args)

    def _opened(self) -> sqlite3.Connection:
        if self._folder is None:
            self._db = self._db or _connect(":memory:")
            return self._db
        path = self._folder / DATABASE
        # A folder that was emptied, or mounted anew, has another file: promises in the old one bind nobody.
        if self._db is not None and self._inode != _inode(path):
            self._db.close()
            self._db = None
        if self._db is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._db = _connect(str(path))
            self._inode = _inode(path)
        return self._db

    def _begin_anew(self, error: sqlite3.DatabaseError) -> None:
        """Set a damaged database aside. What was promised in it is over after the longest promise."""
        assert self._folder is not None
        log.error("promises.damaged", path=str(self._folder / DATABASE), error=str(error))
        if self._db is not None:
            self._db.close()
            self._db = None
        aside = self._runtime.new_id()
        for suffix in ("", "-journal"):
            path = self._folder / (DATABASE + suffix)
            if path.exists():
                path.replace(self._folder / f"{DATABASE}.damaged-{aside}{suffix}")
        until_s = self._runtime.boot_s() + KEEP_S_MAX
        row = (self._runtime.new_id(), self._boot, until_s)
        _in_transaction(self._opened(), lambda db: db.execute("INSERT INTO store VALUES (?, ?, ?)", row))

    def _try_lock(self) -> Callable[[], None] | None:
        if self._folder is None:
            if self._deleting:
                return None
            self._deleting = True
            return self._unlock_memory
        with told_in_our_words(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            lock = LockFile(self._folder / LOCK)
        if lock.try_lock():
            return lock.close
        lock.close()
        return None

    def _unlock_memory(self) -> None:
        self._deleting = False


def _connect(path: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=_BUSY_S, check_same_thread=False, isolation_level=None)
    try:
        db.execute("PRAGMA journal_mode = TRUNCATE")  # a write-ahead log cannot be shared over NFS
        db.execute("PRAGMA synchronous = FULL")  # a promise is on the disk before it is given
        db.executescript(_SCHEMA)
    except sqlite3.Error:
        db.close()
        raise
    return db


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _in_transaction(db: sqlite3.Connection, work: Callable[..., T], *args: object) -> T:
    db.execute("BEGIN IMMEDIATE")
    try:
        found = work(db, *args)
    except BaseException:
        db.rollback()
        raise
    db.commit()
    return found


def _store_id(db: sqlite3.Connection, new: str) -> str:
    if (row := db.execute("SELECT id FROM store").fetchone()) is not None:
        return str(row[0])
    db.execute("INSERT INTO store (id) VALUES (?)", (new,))
    return new


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


# --- the holder's side ------------------------------------------------------------------------------------


class StoredFiles(Protocol):
    """This node's files, without an event loop."""

    def look(self, digest: str) -> FileLook | None:
        """None: there is no such file."""
        ...

    def hash(self, digest: str) -> str:
        """Read all of it; `FileNotFoundError` if it went meanwhile."""
        ...


class FolderFiles:
    """See `StoredFiles`: the files of a blob folder."""

    def __init__(self, folder: BlobFolder) -> None:
        self._folder = folder

    def look(self, digest: str) -> FileLook | None:
        with told_in_our_words(self._folder.folder):
            try:
                found = self._folder.place(digest).lstat()
            except FileNotFoundError:
                return None
        return FileLook(found.st_size, found.st_mtime_ns)

    def hash(self, digest: str) -> str:
        return digest_of(self._folder.place(digest))


class Holder:
    """Answers for the files of this node. Blocks; safe from several threads."""

    def __init__(
        self,
        files: StoredFiles,
        promises: PromiseStore,
        *,
        node: DataNode,
        runtime: Runtime,
        pinned: Callable[[str], str],
    ) -> None:
        self._files, self.promises, self._node = files, promises, node
        self._runtime, self._pinned = runtime, pinned
        self._readers = threading.BoundedSemaphore(READERS)

    def keep(self, request: KeepRequest) -> KeepAnswer:
        """Look at each file, write down that it is kept if that is asked, then answer."""
        if request.keep_s > 0:
            files = tuple(self._keep(file, request) for file in request.files)
        else:
            files = self._look(request.files)
        node = self._node
        return KeepAnswer(
            node=node.name,
            store=self.promises.id,
            keep_s=request.keep_s,
            counts=node.active and not node.ephemeral,
            files=files,
        )

    def release(self, request: ReleaseRequest) -> Released:
        return Released(files=self.promises.release(request.promise))

    def look(self, digest: str) -> FileLook | None:
        return self._files.look(digest)

    def read(self, digest: str) -> str:
        """Read all of a file and note it; return what is wrong with it. `FileNotFoundError` if it is gone."""
        look = self._files.look(digest)
        if look is None:
            raise FileNotFoundError(digest)
        found = self._files.hash(digest)
        self.promises.note_read(digest, look, sound=found == digest)
        return "" if found == digest else f"its content has the digest {found}"

    def _look(self, files: Sequence[File]) -> tuple[KeptFile, ...]:
        """Look at files. Those that were never read are read, as many as one answer has time for."""
        reads = self.promises.last_reads([file.digest for file in files])
        left, found = LOOK_READ_BYTES, []
        for file in files:
            seen = self._found(file, reads.get(file.digest))
            if not seen.refusal and seen.read_age_s is None and file.size <= left:
                left -= file.size
                try:
                    seen = self._examined(file)
                except (RingRiftError, OSError) as error:
                    seen = KeptFile(digest=file.digest, refusal=f"it cannot look: {error}")
            found.append(seen)
        return tuple(found)

    def _found(self, file: File, read: FileRead | None) -> KeptFile:
        """What the disk shows, and what is known from reading it before."""
        look = self._files.look(file.digest)
        if look is None:
            return KeptFile(digest=file.digest, refusal="it does not have it", missing=True)
        if look.size != file.size:
            return KeptFile(
                digest=file.digest,
                size=look.size,
                refusal=f"its file has {look.size} bytes instead of {file.size}",
                damaged=True,
            )
        known = read if read is not None and read.look == look else None
        if known is not None and not known.sound:
            return KeptFile(digest=file.digest, size=look.size, refusal="its file is damaged", damaged=True)
        age_s = None if known is None else max(0.0, self._runtime.wall_s() - known.read_s)
        return KeptFile(digest=file.digest, size=look.size, read_age_s=age_s)

    def _keep(self, file: File, request: KeepRequest) -> KeptFile:
        try:
            found = self._examined(file)
            if found.refusal:
                return found
            pinned = self._pinned(file.digest)
            refusal = self.promises.promise(
                file.digest, asker=request.asker, promise=request.promise, keep_s=request.keep_s
            )
            # A deletion may have begun and ended since the first look; after the promise none begins.
            if not refusal and self._files.look(file.digest) is None:
                return KeptFile(digest=file.digest, refusal="it does not have it", missing=True)
        except FileNotFoundError:
            return KeptFile(digest=file.digest, refusal="it does not have it", missing=True)
        except (RingRiftError, OSError) as error:
            return KeptFile(digest=file.digest, refusal=f"it cannot look: {error}")
        return msgspec.structs.replace(found, refusal=refusal, pinned=pinned)

    def _examined(self, file: File) -> KeptFile:
        """Look at a file, and read it if that was long ago, or a clock says that it will be."""
        read = self.promises.last_reads([file.digest]).get(file.digest)
        found = self._found(file, read)
        if found.refusal:
            return found
        now_s = self._runtime.wall_s()
        if found.read_age_s is not None and read is not None and 0 <= now_s - read.read_s <= READ_AGE_S_MAX:
            return found
        if not self._readers.acquire(timeout=READER_WAIT_S):
            return KeptFile(digest=file.digest, refusal="it reads other files now")
        try:
            wrong = self.read(file.digest)
        finally:
            self._readers.release()
        if wrong:
            log.error("promises.file_damaged", digest=file.digest, found=wrong)
            return KeptFile(
                digest=file.digest, size=found.size, refusal=f"its file is damaged: {wrong}", damaged=True
            )
        return msgspec.structs.replace(found, read_age_s=0.0)


def open_holder(settings: Settings, runtime: Runtime, *, node: DataNode) -> Holder:
    """The holder of a data folder, for whoever answers other nodes without an engine."""
    files = FolderFiles(BlobFolder(settings.blob_dir, runtime.new_id))
    promises = PromiseStore(settings.blob_dir, runtime)
    return Holder(
        files,
        promises,
        node=node,
        runtime=runtime,
        pinned=lambda digest: pinned_in(settings, digest),
    )


def pinned_in(settings: Settings, digest: str) -> str:
    """Why a person keeps the file on every node, as the engine's database has it."""
    config = SqliteConfig.from_settings(settings)
    if not config.database.exists():
        return ""  # no engine ever ran here, so nobody pinned anything
    try:
        value = glance(config, PINS + digest).value
    except Corrupt as error:
        raise Unavailable(f"its pins cannot be read ({error.found})") from error
    return "" if value is None else value.decode(errors="replace") or "no reason given"
