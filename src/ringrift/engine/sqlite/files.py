"""The database file: where it is, making it, connecting to it, and finding out whether it is sound."""

from __future__ import annotations

import os
import sqlite3
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from typing import BinaryIO

from ringrift.engine.encoding import is_digest
from ringrift.engine.limits import EngineLimits
from ringrift.engine.lock_files import LockFile
from ringrift.engine.sqlite.faults import LOST_ADVICE, RESTORE_ADVICE, translated_errors
from ringrift.engine.sqlite.queries import Code
from ringrift.engine.sqlite.schema import (
    APPLICATION_ID,
    WITHOUT_CHECKSUMS,
    Migration,
    migrate,
    of_entry,
    of_event,
    of_result,
    of_work,
    schema_version,
)
from ringrift.errors import ConfigError, Corrupt, ForeignFile, StorageReadOnly
from ringrift.files import (
    check_leads_there,
    close_to_others,
    link_file,
    make_private_folder,
    open_private,
    remove_file,
    rename_file,
    sync_file,
    sync_folder,
)
from ringrift.foreign_files.paths import open_regular
from ringrift.process_identity import is_alive
from ringrift.settings import Settings

# Settings of the embedded engine, checked when built.


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteConfig:
    """Where the files are, and the bounds on waiting."""

    database: Path
    blob_dir: Path
    limits: EngineLimits = field(default_factory=EngineLimits)
    database_bytes_max: int = 64 * 2**30
    call_wait_s: float = 10.0  # a caller waits this long for its answer, then gets `Unavailable`
    poll_s: float = 1.5  # longest time between two looks of a waiter that no other process can wake
    lost_wakeup_s: float = 5.0  # the same where they can: one of them may be killed before it does
    upkeep_s: float = 10.0  # mean time between two rounds of upkeep
    pending_max: int = 10_000  # calls waiting for the writer; more are refused
    batch_max: int = 1_000  # calls that share one commit
    may_begin_among_files: bool = False  # make a database where sealed files lie, which speaks for a lost one
    may_begin_in_empty_file: bool = (
        False  # take an empty file for a new database, and not for one that was cut off
    )

    def __post_init__(self) -> None:
        for name in ("call_wait_s", "poll_s", "lost_wakeup_s", "upkeep_s", "pending_max", "batch_max"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be above 0")
        if self.database_bytes_max < 2**20:
            raise ConfigError(f"database_bytes_max is {self.database_bytes_max}; it must be at least 1 MiB")

    @classmethod
    def from_settings(cls, settings: Settings) -> SqliteConfig:
        return cls(
            database=settings.coordinator_db,
            blob_dir=settings.blob_dir,
            limits=EngineLimits(
                event_retention_s=settings.event_retention_hours * 3600.0,
                event_retention_rows=settings.event_retention_rows,
            ),
        )


# Making, checking and connecting to the database file.
#
# A file under the database's name is always complete: a new one is made under another name and linked into
# place. Before SQLite may touch a file, its header must say that it is ours.


_HEADER_BYTES = 100
_MAGIC = b"SQLite format 3\x00"
PAGE_BYTES = 4096
SIDECARS = ("-wal", "-shm", "-journal")  # what SQLite keeps beside a database, under its name
_CHECKED_BYTES_MAX = 8 * 2**20  # larger files are checked page by page as they are read
ARRIVALS = ".cards"  # in the blob folder: what senders said of files that wait for this node's engine
_LEFTOVER = ".making-"


def connect(config: SqliteConfig, *, read_only: bool = False) -> sqlite3.Connection:
    """Open an existing database; never creates one."""
    db = sqlite3.connect(
        f"{config.database.absolute().as_uri()}?mode={'ro' if read_only else 'rw'}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
        timeout=config.call_wait_s / 2,
    )
    try:
        if not read_only:
            check_leads_there(config.database)
    except OSError:
        db.close()
        raise
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA cache_size = -16000")
    db.execute("PRAGMA temp_store = MEMORY")
    if not read_only:
        db.execute("PRAGMA journal_size_limit = 67108864")
        db.execute(f"PRAGMA max_page_count = {config.database_bytes_max // PAGE_BYTES}")
    return db


def create_if_absent(config: SqliteConfig, migrations: Sequence[Migration]) -> bool:
    """Make the database unless it is there; return whether it was made here."""
    path = config.database
    make_private_folder(path.parent)
    if path.exists():
        # The file and what we keep beside it, not `games.txt` for a database that is called `games`.
        close_to_others((path, *path.parent.glob(f"{path.name}[-.]*")))
        return False
    if not config.may_begin_among_files:
        check_not_lost(path, config.blob_dir)
    _remove_leftovers(path)
    with _made(path, migrations) as making:
        try:
            link_file(making, path)
        except FileExistsError:
            return False  # another process was first, and its file is as good
    sync_folder(path.parent)
    return True


def fill_if_empty(path: Path, migrations: Sequence[Migration]) -> bool:
    """Put a new database in the place of an empty file; return whether it was done here.

    For those alone who know otherwise whether anything was lost with a file's content. What SQLite left
    beside the file speaks for a database that was cut off: it stays as it is.
    """
    if not _is_empty(path) or any(path.with_name(path.name + suffix).exists() for suffix in SIDECARS):
        return False
    lock = LockFile(
        path
    )  # of two processes that find the file empty, the second finds the first one's database
    try:
        lock.lock()
        if not _is_empty(path):
            return False
        with _made(path, migrations) as making:
            rename_file(making, path)
        sync_folder(path.parent)
        return True
    finally:
        lock.close()


def _is_empty(path: Path) -> bool:
    return path.is_file() and not path.stat().st_size


@contextmanager
def _made(path: Path, migrations: Sequence[Migration]) -> Iterator[Path]:
    """A new database under another name than *path*; that name is gone at the end."""
    making = path.with_name(f"{path.name}{_LEFTOVER}{os.getpid()}-{os.urandom(4).hex()}")
    try:
        _make(making, migrations)
        yield making
    finally:
        remove_file(making)


def check_not_lost(path: Path, blob_dir: Path) -> None:
    """Raise `Corrupt` where there are sealed files and no database: a new one would be taken for the run.

    What other nodes brought, and no engine has taken over yet, is of no run here: a data server, or a command
    over ssh, receives files before there is an engine.
    """
    if path.exists():
        return
    brought = b"".join(each.read_bytes() for each in (blob_dir / ARRIVALS).glob("*"))
    names = [each.name for each in blob_dir.glob("[0-9a-f][0-9a-f]/*") if is_digest(each.name)]
    files = sum(name.encode() not in brought for name in names)
    if files:
        raise Corrupt(
            path,
            found=f"the database is missing, and {files} files of a run are in {blob_dir}",
            advice=LOST_ADVICE,
        )


def _make(making: Path, migrations: Sequence[Migration]) -> None:
    os.close(open_private(making, os.O_RDWR | os.O_CREAT | os.O_EXCL))  # its log takes the rights from it
    # Never made by SQLite, which goes by path.
    db = sqlite3.connect(f"{making.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None)
    try:
        db.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        migrate(db, making, migrations)
        db.execute("PRAGMA journal_mode = WAL")
    finally:
        db.close()
    sync_file(making)


def _remove_leftovers(path: Path) -> None:
    """Remove the half-made files of processes that are gone."""
    for leftover in path.parent.glob(f"{path.name}{_LEFTOVER}*"):
        maker = leftover.name.removeprefix(f"{path.name}{_LEFTOVER}").partition("-")[0]
        if maker.isdigit() and not is_alive(int(maker), None):
            remove_file(leftover)


def check_ours(path: Path) -> None:
    """Raise unless the header says that this database is ours; reads only, without SQLite."""
    with open_regular(path) as file:  # opening a pipe would wait for somebody who writes to it
        header = file.read(_HEADER_BYTES)
        size = os.fstat(file.fileno()).st_size
    if not header:
        raise Corrupt(
            path,
            found="the file is empty",
            advice="Nothing was changed. If nothing of value was there, remove it to start anew",
        )
    if not header.startswith(_MAGIC):
        raise ForeignFile(path, found="this is not a SQLite database", advice=_elsewhere())
    if len(header) < _HEADER_BYTES or size < PAGE_BYTES:
        raise Corrupt(path, found=f"the file ends after {size} bytes", advice=RESTORE_ADVICE)
    (application_id,) = struct.unpack(">I", header[68:72])
    if application_id != APPLICATION_ID:
        raise ForeignFile(path, found="this is another program's SQLite database", advice=_elsewhere())


def check_writable(path: Path) -> None:
    """Raise before SQLite tries, which would tell a read-only folder as a file that cannot be opened."""
    for place in (path, path.parent):
        if not os.access(place, os.W_OK, effective_ids=True):
            raise StorageReadOnly(f"{place} cannot be written", retry_after_s=30.0)


def check_sound(db: sqlite3.Connection, path: Path) -> None:
    """Raise `Corrupt` if a small database is damaged anywhere, or a large one in its schema."""
    db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if path.stat().st_size > _CHECKED_BYTES_MAX:
        return
    found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise Corrupt(path, found=f"the database is damaged ({found})", advice=RESTORE_ADVICE)


def _elsewhere() -> str:
    return "Nothing was changed. Name another file: RINGRIFT_COORDINATOR_DB, or RINGRIFT_DLQ_PATH"


# Whether the write-ahead log holds commits that SQLite will not read.
#
# SQLite takes the first frame that fails its checksum for the end of the log: right for a write that a power
# cut tore, but a damaged frame in the middle silently takes every later commit with it, and the next write
# destroys them.
#
# A process that is killed in the middle of a commit leaves frames behind, too, that SQLite does not read. The
# next writer begins at the same place and may leave the end of them standing; so leftovers of several killed
# processes can lie behind each other. But each of them holds one commit, and the checksums, which run on from
# frame to frame, break where it begins. Two commits in one unbroken run were both acknowledged: the log is
# damaged before them.


_WAL_HEADER_BYTES = 32
_FRAME_HEADER_BYTES = 24
_INDEX_BYTES = 40
_LEFT_BY_ONE_MAX = 1
_LOOKS = 2
_WORD_MASK = 0xFFFFFFFF


def check_wal(database: Path) -> None:
    """Raise `Corrupt` if commits lie behind a damaged frame. To be called while a connection has read."""
    log, index = (database.with_name(database.name + suffix) for suffix in ("-wal", "-shm"))
    try:
        with log.open("rb") as file, index.open("rb") as shared:
            # Others write meanwhile; damage is there at every look.
            unread = min(_unread_commits(file, shared) for _ in range(_LOOKS))
    except FileNotFoundError:
        return  # everything is in the database itself
    if unread > _LEFT_BY_ONE_MAX:
        found = f"a frame of the write-ahead log is damaged, and {unread} commits follow it"
        raise Corrupt(log, found=found, advice=RESTORE_ADVICE)


def _unread_commits(log: BinaryIO, index: BinaryIO) -> int:
    """Count the commits of the longest run behind what SQLite reads; others may write meanwhile."""
    header = _pread(log, _WAL_HEADER_BYTES, 0)
    known = _pread(index, _INDEX_BYTES, 0)
    if len(header) < _WAL_HEADER_BYTES or len(known) < _INDEX_BYTES:
        return 0
    salt = header[16:24]
    if known[32:40] == bytes(8):  # SQLite could not even read the header; the frames tell whose they are
        salt = _pread(log, _FRAME_HEADER_BYTES, _WAL_HEADER_BYTES)[8:16]
    elif known[32:40] != salt:
        return 0  # another process is just beginning the log anew
    commits = _commits_after(log, _last_read(known), salt)
    # Looked at again: what another process has committed since is not damaged.
    again = _pread(index, _INDEX_BYTES, 0)
    if again[32:40] != known[32:40] or _pread(log, _WAL_HEADER_BYTES, 0) != header:
        return 0  # the log began anew: what we saw of the old one was in the index before that
    return _longest_run(log, [number for number in commits if number > _last_read(again)])


def _last_read(index: bytes) -> int:
    """Return the number of the last frame that SQLite reads, from the index it keeps of the log."""
    return int.from_bytes(index[16:20], sys.byteorder)


def _commits_after(log: BinaryIO, last: int, salt: bytes) -> list[int]:
    """Return the numbers of the frames after *last* that end a commit of this log."""
    found: list[int] = []
    number = last + 1
    while True:
        place = _WAL_HEADER_BYTES + (number - 1) * (_FRAME_HEADER_BYTES + PAGE_BYTES)
        frame = _pread(log, _FRAME_HEADER_BYTES, place)
        if len(frame) < _FRAME_HEADER_BYTES:
            return found
        if frame[8:16] == salt and frame[4:8] != bytes(4):
            found.append(number)
        number += 1


def _longest_run(log: BinaryIO, commits: list[int]) -> int:
    """Return how many of *commits* lie at most in one unbroken run of checksums."""
    longest = run = min(1, len(commits))
    for before, after in pairwise(commits):
        unbroken = all(_follows(log, number) for number in range(before + 1, after + 1))
        run = run + 1 if unbroken else 1
        longest = max(longest, run)
    return longest


def _follows(log: BinaryIO, number: int) -> bool:
    """Whether the checksum of a frame goes on from that of the frame before it."""
    size = _FRAME_HEADER_BYTES + PAGE_BYTES
    place = _WAL_HEADER_BYTES + (number - 2) * size
    before, frame = _pread(log, _FRAME_HEADER_BYTES, place), _pread(log, size, place + size)
    if len(frame) < size:
        return False
    covered = frame[:8] + frame[_FRAME_HEADER_BYTES:]
    words = struct.unpack(f"={len(covered) // 4}I", covered)  # SQLite sums in the order of the machine
    first, second = struct.unpack(">II", before[16:24])
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & _WORD_MASK
        second = (second + odd + first) & _WORD_MASK
    return (first, second) == struct.unpack(">II", frame[16:24])


def _pread(file: BinaryIO, size: int, place: int) -> bytes:
    return os.pread(file.fileno(), size, place)


# Whether all of a database is as it was stored: form, checksums, and what its tables say of each other.
#
# For whoever wants to know before he relies on it: a start, the doctor. It reads all of it and changes
# nothing.


PROBLEMS_MAX = 20
_ENTRIES = "SELECT key, value, revision, expires_s, checksum FROM kv"
_EVENTS = "SELECT seq, id, type, appended_s, body, checksum FROM event"
_WORK = "SELECT id, payload, trace, checksum, result, result_checksum, state FROM work"
_MISCOUNTED = (
    "SELECT count(*) FROM (SELECT lane, state, count(*) AS items FROM work GROUP BY lane, state"
    " EXCEPT SELECT lane, state, items FROM work_count)"
)
_WITHOUT_LANE = "SELECT count(*) FROM work WHERE lane NOT IN (SELECT id FROM lane)"
_AHEAD = (
    "SELECT (SELECT max(revision) FROM kv) > (SELECT value FROM counter WHERE name = 'revision'),"
    " (SELECT max(token) FROM work) > (SELECT value FROM counter WHERE name = 'token')"
)


def check_form(config: SqliteConfig) -> list[str]:
    """What SQLite finds wrong with the form of the database; blocks while it reads all of it."""
    return _ask(config, _damage)


def check_whole(config: SqliteConfig) -> list[str]:
    """What is wrong with the form or the content, in sentences, at most so many; blocks as `check_form`."""
    return _ask(config, _problems)


def _ask(config: SqliteConfig, question: Callable[[sqlite3.Connection], Iterator[str]]) -> list[str]:
    path = config.database
    with translated_errors(path):
        check_ours(path)
        with closing(connect(config, read_only=True)) as db:
            db.execute("BEGIN")  # one moment of a database that others may write
            return list(islice(question(db), PROBLEMS_MAX))


def _problems(db: sqlite3.Connection) -> Iterator[str]:
    yield from _damage(db)
    if schema_version(db) > WITHOUT_CHECKSUMS:
        yield from _changed(db)
        yield from _changed_work(db)
        yield from _disagreements(db)


def _damage(db: sqlite3.Connection) -> Iterator[str]:
    for (found,) in db.execute(f"PRAGMA integrity_check({PROBLEMS_MAX})"):
        if found != "ok":
            yield f"the database is damaged: {found}"


def _changed(db: sqlite3.Connection) -> Iterator[str]:
    for key, value, revision, expires_s, checksum in db.execute(_ENTRIES):
        if checksum != of_entry(key, revision, expires_s, value):
            yield f"the value of {key!r} is not what was stored"
    for seq, event_id, kind, appended_s, body, checksum in db.execute(_EVENTS):
        if checksum != of_event(event_id, kind, appended_s, body):
            yield f"event {seq} ({kind}) is not what was appended"


def _changed_work(db: sqlite3.Connection) -> Iterator[str]:
    codes = set(Code)
    for item_id, payload, trace, checksum, result, result_checksum, state in db.execute(_WORK):
        if checksum != of_work(item_id, payload, trace) or state not in codes:
            yield f"work item {item_id} is not what was added"
        if result is not None and result_checksum != of_result(result):
            yield f"the result of work item {item_id} is not what it was completed with"


def _disagreements(db: sqlite3.Connection) -> Iterator[str]:
    """What one table says against another."""
    (miscounted,), (without_lane,) = db.execute(_MISCOUNTED).fetchone(), db.execute(_WITHOUT_LANE).fetchone()
    if miscounted or without_lane:
        yield "the states of work items are not those that were counted"
    if any(db.execute(_AHEAD).fetchone()):
        yield "a revision or token is larger than the last that was given"
