"""The record of promises: what a node promised to keep and what it began to delete, written beside its files.

The records lie beside the files, not in the engine: they are lost together with the files or not at all, a
restored engine forgets none, and the data server needs no engine to answer. A record that was damaged, lost
or replaced beside files may have had promises that are not over: for the longest one nothing is deleted.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

import structlog

from ringrift.engine.encoding import row_hash
from ringrift.engine.lock_files import LockFile
from ringrift.engine.sqlite.faults import is_damage, translated_errors
from ringrift.errors import ConfigError, RingRiftError, Unavailable
from ringrift.files import check_leads_there, close_to_others, make_private_folder, open_private, rename_file
from ringrift.runtime import Runtime

log = structlog.get_logger()

T = TypeVar("T")

DATABASE = "promises.db"  # in the blob folder
LOCK = "promises.lock"  # the same; it also says what was written to the database last
KEEP_S_MAX = 3_600.0
PROMISES_MAX = 100_000
_WRITES_MAX = 2**62  # nobody writes so often: a mark that says more is damaged
DELETER_WAIT_S = 60.0
BEING_DELETED = "it is being deleted there"
_BUSY_S = 20.0
_RETRY_S = 0.02

_SCHEMA = """
CREATE TABLE IF NOT EXISTS store (id TEXT NOT NULL, quiet_boot TEXT, quiet_until_s REAL);
CREATE TABLE IF NOT EXISTS written (count INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS promises (
    digest TEXT NOT NULL, promise TEXT NOT NULL, asker TEXT NOT NULL, keep_s REAL NOT NULL,
    boot TEXT NOT NULL, since_s REAL NOT NULL, hash TEXT, PRIMARY KEY (digest, promise)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS promises_by_name ON promises (promise);
CREATE TABLE IF NOT EXISTS begun (digest TEXT PRIMARY KEY, reason TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS reads (
    digest TEXT PRIMARY KEY, size INTEGER NOT NULL, stamp INTEGER NOT NULL, read_s REAL NOT NULL,
    sound INTEGER NOT NULL, hash TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sightings (
    digest TEXT NOT NULL, promise TEXT NOT NULL, boot TEXT NOT NULL, since_s REAL NOT NULL,
    hash TEXT NOT NULL, PRIMARY KEY (digest, promise, boot)) WITHOUT ROWID;
"""
_PROMISE = "digest, promise, asker, keep_s, boot, since_s"  # and then their hash; none: of an earlier version
_READ = "digest, size, stamp, read_s, sound"
# When this start of a machine first saw a promise that another start, or another machine, wrote down. Without
# a digest: that nothing is deleted for a while.
_SIGHTING = "digest, promise, boot, since_s"


class FileLook(NamedTuple):
    """A file as the disk shows it without reading it. Another *stamp*: somebody wrote to it."""

    size: int
    stamp: int


class FileRead(NamedTuple):
    """The last time that all of a file was read."""

    look: FileLook
    read_s: float
    sound: bool


class NotedRead(NamedTuple):
    """All of a file was read while it looked like that."""

    digest: str
    look: FileLook
    sound: bool


class PromiseStore:
    """The promises and begun deletions of one folder of files. All calls block; safe from several threads.

    Times are counted from the start of the machine, so that a clock that is set ends no promise. How much of
    a promise was over before a restart, or on another machine that shares the folder, nobody knows: each
    start of a machine counts all of it from when it first saw it. It is over when it is for one of them.
    """

    def __init__(self, folder: Path | None, runtime: Runtime) -> None:
        """*folder* None: in memory, for simulations."""
        self._folder, self._runtime = folder, runtime
        self._boot = runtime.boot_id
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None
        self._inode: tuple[int, int] | None = None
        self._deleting = False  # in memory only
        self._checked = folder is None  # the promises of this connection
        if folder is not None and not (folder / DATABASE).exists() and not _has_files(folder):
            # From before the first file: a record that is made beside files is not the first one.
            with suppress(RingRiftError):  # whoever asks is told
                self._do(lambda _: None)

    @property
    def id(self) -> str:
        """Names the folder, wherever it is mounted."""
        return str(self._do(lambda db: db.execute("SELECT id FROM store").fetchone()[0]))

    # --- keeping --------------------------------------------------------------------------------------

    def promise(self, digest: str, *, asker: str, promise: str, keep_s: float) -> str:
        """Write a promise down; return why not, if a deletion has begun here."""

        def work(db: sqlite3.Connection) -> str:
            self._age(db)
            if db.execute("SELECT 1 FROM begun WHERE digest = ?", (digest,)).fetchone():
                return BEING_DELETED
            if db.execute("SELECT count(*) FROM promises").fetchone()[0] >= PROMISES_MAX:
                return f"it has given {PROMISES_MAX} promises already"
            row = (digest, promise, asker, float(keep_s), self._boot, self._runtime.boot_s())
            columns = f"INSERT OR REPLACE INTO promises ({_PROMISE}, hash)"
            db.execute(f"{columns} VALUES (?, ?, ?, ?, ?, ?, ?)", (*row, row_hash(row)))
            # Another machine may have seen it when it was given before, and would count from then.
            db.execute("DELETE FROM sightings WHERE digest = ? AND promise = ?", (digest, promise))
            db.execute("UPDATE written SET count = count + 1")
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
            self._check_promises(db)
            self._age(db)
            if promised := self._promised(db, digest):
                return f"this node {promised}"
            if quiet := self._quiet(db):
                return quiet
            db.execute("INSERT OR REPLACE INTO begun (digest, reason) VALUES (?, ?)", (digest, reason))
            db.execute("UPDATE written SET count = count + 1")
            return ""

        return self._do(work)

    def end(self, digest: str) -> None:
        """The file is deleted, or stays."""
        self._do(lambda db: db.execute("DELETE FROM begun WHERE digest = ?", (digest,)))

    def begun(self) -> dict[str, str]:
        """Deletions that have begun, with their reasons."""
        return self._do(lambda db: dict(db.execute("SELECT digest, reason FROM begun").fetchall()))

    def has_begun(self, digest: str) -> bool:
        """Whether the deletion is still noted: a record that was lost meanwhile does not have it."""
        question = "SELECT 1 FROM begun WHERE digest = ?"
        return self._do(lambda db: db.execute(question, (digest,)).fetchone() is not None)

    # --- reading --------------------------------------------------------------------------------------

    def note_read(self, digest: str, look: FileLook, *, sound: bool) -> None:
        """All of the file was read while it looked like that."""
        self.note_reads([NotedRead(digest, look, sound)])

    def note_reads(self, noted: Sequence[NotedRead]) -> None:
        """The same for files that were read one after the other: each transaction waits for the disk."""
        now_s = self._runtime.wall_s()
        rows = [(each.digest, each.look.size, each.look.stamp, now_s, int(each.sound)) for each in noted]
        query = f"INSERT OR REPLACE INTO reads ({_READ}, hash) VALUES (?, ?, ?, ?, ?, ?)"
        self._do(lambda db: db.executemany(query, [(*row, row_hash(row)) for row in rows]))

    def last_reads(self, digests: Sequence[str]) -> dict[str, FileRead]:
        """When these were last read, as far as it is known; what is not as it was noted is not known."""

        def work(db: sqlite3.Connection) -> dict[str, FileRead]:
            found = {}
            for digest in digests:
                question = (
                    f"SELECT size, stamp, read_s, sound FROM reads WHERE digest = ? AND {_sound(_READ)}"
                )
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
        """Forget promises whose time is over."""
        values = {"boot": self._boot, "now_s": self._runtime.boot_s(), "max_s": KEEP_S_MAX}
        # Of a clock that this start of the machine cannot compare with its own.
        foreign = "(boot <> :boot OR since_s > :now_s)"
        foreign_wait = "(quiet_boot <> :boot OR NOT coalesce(quiet_until_s <= :now_s + :max_s, 0))"
        seen = (
            "SELECT 1 FROM sightings AS seen "
            "WHERE seen.digest = {0} AND seen.promise = {1} AND seen.boot = :boot "
            "AND seen.since_s {2} AND seen.hash = hash_of(seen.digest, seen.promise, seen.boot, seen.since_s)"
        )
        db.execute(
            f"INSERT OR REPLACE INTO sightings ({_SIGHTING}, hash) "
            "SELECT digest, promise, :boot, :now_s, hash_of(digest, promise, :boot, :now_s) "
            f"FROM (SELECT digest, promise FROM promises WHERE {foreign} "
            f"UNION ALL SELECT '', '' FROM store WHERE {foreign_wait}) AS found "
            f"WHERE NOT EXISTS ({seen.format('found.digest', 'found.promise', '<= :now_s')})",
            values,
        )
        seen_all = seen.format("promises.digest", "promises.promise", "+ promises.keep_s <= :now_s")
        db.execute(
            f"DELETE FROM promises WHERE CASE WHEN {foreign} "
            f"THEN EXISTS ({seen_all}) ELSE since_s + keep_s <= :now_s END AND {_sound(_PROMISE)}",
            values,
        )
        waited = seen.format("''", "''", "+ :max_s <= :now_s")
        db.execute(
            "UPDATE store SET quiet_boot = NULL, quiet_until_s = NULL WHERE quiet_boot IS NOT NULL AND "
            f"CASE WHEN {foreign_wait} THEN EXISTS ({waited}) ELSE quiet_until_s <= :now_s END",
            values,
        )
        db.execute(
            "DELETE FROM sightings WHERE NOT EXISTS (SELECT 1 FROM promises AS given "
            "WHERE given.digest = sightings.digest AND given.promise = sightings.promise) "
            "AND (digest <> '' OR NOT EXISTS (SELECT 1 FROM store WHERE quiet_boot IS NOT NULL))"
        )

    def _check_promises(self, db: sqlite3.Connection) -> None:
        """Once for each time that the record is opened: a promise that is not what was written may be any."""
        if self._checked:
            return
        damaged = db.execute(f"DELETE FROM promises WHERE NOT {_sound(_PROMISE)}").rowcount
        if damaged:
            path = str((self._folder or Path()) / DATABASE)
            log.error("promises.damaged", path=path, error=f"{damaged} promises are not what was written")
            self._be_quiet(db)
        self._checked = True

    def _be_quiet(self, db: sqlite3.Connection) -> None:
        until_s = self._runtime.boot_s() + KEEP_S_MAX
        db.execute("UPDATE store SET quiet_boot = ?, quiet_until_s = ?", (self._boot, until_s))
        db.execute("DELETE FROM sightings WHERE digest = ''")  # of the wait before

    def _promised(self, db: sqlite3.Connection, digest: str) -> str:
        question = (
            "SELECT asker, coalesce(seen.since_s, given.since_s) + keep_s FROM promises AS given "
            "LEFT JOIN sightings AS seen ON seen.digest = given.digest AND seen.promise = given.promise "
            "AND seen.boot = ? WHERE given.digest = ? ORDER BY 2 DESC LIMIT 1"
        )
        row = db.execute(question, (self._boot, digest)).fetchone()
        if row is None:
            return ""
        return f"promised {row[0]} to keep it for {row[1] - self._runtime.boot_s():.0f} s more"

    def _quiet(self, db: sqlite3.Connection) -> str:
        """Whether promises may have been lost with another record that were not over yet; after `_age`."""
        if db.execute("SELECT 1 FROM store WHERE quiet_boot IS NOT NULL").fetchone() is None:
            return ""
        return (
            "its record of promises was damaged, lost or replaced: "
            f"nothing is deleted here for {KEEP_S_MAX / 60:.0f} minutes"
        )

    def _do(self, work: Callable[..., T], *args: object) -> T:
        """Do *work* in one transaction."""
        path = (self._folder or Path()) / DATABASE
        try:
            with self._lock, translated_errors(path):
                try:
                    return self._work(work, *args)
                except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
                    if not is_damage(error) or self._folder is None:
                        raise
                    self._set_aside(error)
                    return self._work(work, *args)
        except sqlite3.Error as error:  # such as for tables that another version made in another way
            raise Unavailable(f"{path}: {error}", retry_after_s=5.0) from error

    def _work(self, work: Callable[..., T], *args: object) -> T:
        def checked(db: sqlite3.Connection) -> tuple[_Mark | None, T, _Mark]:
            before = self._check_record(db)
            return before, work(db, *args), _mark_of(db)

        before, found, after = _in_transaction(self._opened(), checked)
        if after != before and self._folder is not None:
            # After the record, so that a crash in between leaves a record that is newer than its mark.
            _write_mark(self._folder / LOCK, after)
        return found

    def _check_record(self, db: sqlite3.Connection) -> _Mark | None:
        """Delete nothing for as long as promises may live on that this record does not have.

        Called with the record locked: what the mark says was written to this record before, if it is the
        same. Returns the mark.
        """
        mark = None if self._folder is None else _read_mark(self._folder / LOCK)
        if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'written'").fetchone() is None:
            _make_tables(db)  # it was emptied while it was open
        if db.execute("SELECT 1 FROM written").fetchone() is None:
            db.execute("INSERT INTO written VALUES (0)")
        known = db.execute("SELECT 1 FROM store").fetchone() is not None
        if not known:
            db.execute("INSERT INTO store (id) VALUES (?)", (self._runtime.new_id(),))
        here = _mark_of(db)
        same = mark is None or (mark.record == here.record and mark.writes <= here.writes)
        if (known and same) or self._folder is None or not _has_files(self._folder):
            return mark
        log.error("promises.record_replaced", path=str(self._folder / DATABASE), was=mark, found=here)
        self._be_quiet(db)
        if mark is not None:
            db.execute("UPDATE written SET count = max(count, ?)", (mark.writes,))
        return mark

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
            make_private_folder(self._folder)
            _make_private(path)
            self._db = _connect(f"{path.absolute().as_uri()}?mode=rw", place=path)  # never made by SQLite
            self._inode, self._checked = _inode(path), False
        return self._db

    def _set_aside(self, error: Exception) -> None:
        """Set a damaged record aside. What was promised in it is over after the longest promise."""
        assert self._folder is not None
        log.error("promises.damaged", path=str(self._folder / DATABASE), error=str(error))
        if self._db is not None:
            self._db.close()
            self._db = None
        aside = self._runtime.new_id()
        for suffix in ("", "-journal"):
            path = self._folder / (DATABASE + suffix)
            if path.exists():
                rename_file(path, self._folder / f"{DATABASE}.damaged-{aside}{suffix}")

    def _try_lock(self) -> Callable[[], None] | None:
        if self._folder is None:
            if self._deleting:
                return None
            self._deleting = True
            return self._unlock_memory
        with translated_errors(self._folder):
            make_private_folder(self._folder)
            lock = LockFile(self._folder / LOCK)
        if lock.try_lock():
            return lock.close
        lock.close()
        return None

    def _unlock_memory(self) -> None:
        self._deleting = False


def _connect(path: str, *, place: Path | None = None) -> sqlite3.Connection:
    db = sqlite3.connect(path, uri=True, timeout=_BUSY_S, check_same_thread=False, isolation_level=None)
    try:
        if place is not None:
            check_leads_there(place)
        db.execute("PRAGMA journal_mode = TRUNCATE")  # a write-ahead log cannot be shared over NFS
        db.execute("PRAGMA synchronous = FULL")  # a promise is on the disk before it is given
        db.create_function("hash_of", -1, lambda *values: row_hash(values), deterministic=True)
        _in_transaction(db, _make_tables)  # other processes may open it, and look for columns, at this moment
    except (sqlite3.Error, UnicodeDecodeError, OSError):
        db.close()
        raise
    return db


def _make_tables(db: sqlite3.Connection) -> None:
    for statement in _SCHEMA.split(";"):
        db.execute(statement)
    for table in ("promises", "reads"):
        if "hash" not in {row[1] for row in db.execute(f"PRAGMA table_info({table})")}:
            db.execute(f"ALTER TABLE {table} ADD COLUMN hash TEXT")


def _sound(columns: str) -> str:
    """In SQL: whether a row is what was written."""
    return f"(hash IS NULL OR hash = hash_of({columns}))"


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


def _has_files(folder: Path) -> bool:
    """Whether there is a file that could be deleted."""
    return any(True for _ in folder.glob("[0-9a-f][0-9a-f]/*"))


class _Mark(NamedTuple):
    """Which record it was, and how often a promise or a beginning was written to it."""

    record: str
    writes: int


def _mark_of(db: sqlite3.Connection) -> _Mark:
    record, count = db.execute("SELECT store.id, written.count FROM store, written").fetchone()
    return _Mark(str(record), int(count))


def _read_mark(path: Path) -> _Mark | None:
    """None: there is none, as in a folder of an older version, or it cannot be read."""
    try:
        record, count = path.read_text(encoding="ascii").split()
        mark = _Mark(record, int(count))
    except (FileNotFoundError, ValueError):
        return None
    return mark if 0 <= mark.writes <= _WRITES_MAX else None


def _write_mark(path: Path, mark: _Mark) -> None:
    """In place: others hold a lock on the file. It guards against replacement, not power cuts: no sync."""
    descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
    try:
        text = f"{mark.record} {mark.writes:020d}\n".encode("ascii")
        os.pwrite(descriptor, text, 0)
        os.ftruncate(descriptor, len(text))
    finally:
        os.close(descriptor)


def _make_private(path: Path) -> None:
    """Make the database for its owner alone; SQLite gives its journal the same rights."""
    try:
        os.close(open_private(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
    except FileExistsError:  # by its name: to close a descriptor of it would end SQLite's locks
        with suppress(ConfigError):  # another user's, in a folder that several share
            close_to_others((path, path.with_name(f"{path.name}-journal")))
