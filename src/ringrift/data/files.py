"""Files and databases as a whole: checksums, atomic writes, soundness, and copies of databases in use.

All calls block; inside a loop they belong in a thread. A file that changes while it is read, and a database
that is locked or too slow to be checked in time, is busy, which says nothing about whether it is sound.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import secrets
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

import structlog

from ringrift.data.artifacts import Artifact, ArtifactKind
from ringrift.engine.ports import Blobs
from ringrift.engine.sqlite.faults import translated_errors
from ringrift.engine.sqlite.files import SIDECARS
from ringrift.errors import ConfigError, Corrupt, Unavailable
from ringrift.files import (
    change_mode,
    create_file,
    make_folders,
    publish_file,
    remove_file,
    rename_file,
    replacing,
    sync_folder,
)
from ringrift.foreign_files.paths import open_regular
from ringrift.runtime import Runtime, system_runtime

__all__ = [
    "DatabaseCheck",
    "DatabaseState",
    "IntegrityReport",
    "atomic_file_write",
    "check_database",
    "check_sqlite_integrity",
    "compute_file_checksum",
    "prepare_database_for_transfer",
    "quarantine_corrupted_db",
    "seal_database",
    "snapshot_database",
    "verified_database_copy",
    "verify_sync_integrity",
]


# Files: their checksum, writing them all or not at all, and setting bad ones aside.


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
        with open_regular(path) as file:
            before = os.fstat(file.fileno())
            digest = hashlib.file_digest(file, algorithm).hexdigest()
            after = path.stat()
    except FileNotFoundError as error:
        raise FileMissing(path, error) from error
    except OSError as error:
        raise FileUnreadable(path, error) from error
    except Corrupt as error:  # a folder, or a pipe, which would never end
        number = errno.EISDIR if path.is_dir() else errno.EINVAL
        why = os.strerror(number) if path.is_dir() else error.found
        raise FileUnreadable(path, OSError(number, why)) from error
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
    with translated_errors(path):
        make_folders(path.parent)
        with replacing(path, private=False) as file:
            yield file


def set_aside(path: Path | str, folder: Path, *, now_s: float) -> Path:
    """Move a file, and what SQLite keeps beside it, into *folder*; return its new place.

    Nothing is lost on the way: a move to another disk is a copy that is on that disk before the file goes.
    """
    path = Path(path)
    moment = datetime.fromtimestamp(now_s, UTC).strftime("%Y%m%d_%H%M%S")
    place = folder / f"{moment}_{secrets.token_hex(3)}_{path.name}"
    with translated_errors(path):
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


# Whether a SQLite database is sound, and whether a copy is the same as its source. Only SQLite's own word
# makes it corrupt, and only a corrupt one is ever set aside. The time given bounds every call.


log = structlog.get_logger()


CHECK_TIMEOUT_S = 30.0
ERRORS_MAX = 100
NO_TABLE = "it has no table"
_MAGIC = b"SQLite format 3\x00"
_STEPS = 5_000  # of SQLite's machine, between looks at the clock
_PRIMARY_CODE = 0xFF
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_INTERRUPT}
_BAD = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


class DatabaseState(StrEnum):
    """What a check found."""

    SOUND = "sound"
    BUSY = "busy"  # locked, or not checked in time: nothing is known
    CORRUPT = "corrupt"
    EMPTY = "empty"  # nothing was ever written to it, which is a database without tables to SQLite
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class DatabaseCheck:
    """What a check found, with what SQLite said."""

    state: DatabaseState
    errors: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.state is DatabaseState.SOUND


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegrityReport:
    """How a copy compares with its source."""

    source_path: str
    target_path: str
    source_size: int = 0
    target_size: int = 0
    source_checksum: str = ""
    target_checksum: str = ""
    size_match: bool = False
    checksum_match: bool = False
    db_integrity_valid: bool | None = None  # None: not a database, or not asked
    errors: tuple[str, ...] = field(default=())

    @property
    def is_valid(self) -> bool:
        return self.size_match and self.checksum_match and self.db_integrity_valid is not False


# --- databases ----------------------------------------------------------------------------------------


def check_database(
    path: Path | str,
    timeout: float = CHECK_TIMEOUT_S,
    *,
    quick: bool = False,
    fast: bool = False,
    runtime: Runtime | None = None,
) -> DatabaseCheck:
    """Check a database. *quick* leaves out the comparison of indexes, *fast* looks at its header only.

    Takes at most *timeout* seconds (and one look at the clock); what is not known by then is busy.
    """
    if timeout <= 0:
        raise ConfigError(f"timeout is {timeout:g}; it must be above 0")
    path, clock = Path(path), (runtime or system_runtime()).monotonic_s
    deadline_s = clock() + timeout
    with translated_errors(path):
        try:
            with open_regular(path) as file:
                head = file.read(len(_MAGIC))
        except FileNotFoundError:
            return DatabaseCheck(DatabaseState.MISSING, (f"{path} does not exist",))
        except Corrupt as error:
            return DatabaseCheck(DatabaseState.CORRUPT, (error.found,))
    if not head:
        return DatabaseCheck(DatabaseState.EMPTY, (f"{path} is empty",))
    if head != _MAGIC:
        return DatabaseCheck(DatabaseState.CORRUPT, ("this is not a SQLite database",))
    try:
        with closing(_connect(path, deadline_s, clock)) as db:
            errors = _look(db) if fast else _ask(db, "quick_check" if quick else "integrity_check")
    except sqlite3.Error as error:
        return _said(error, path)
    except UnicodeDecodeError:  # SQLite's message quotes the file, which holds no text there
        return DatabaseCheck(DatabaseState.CORRUPT, ("its tables have names that are no text",))
    return DatabaseCheck(DatabaseState.CORRUPT if errors else DatabaseState.SOUND, tuple(errors))


def check_sqlite_integrity(
    path: Path | str,
    timeout: float = CHECK_TIMEOUT_S,
    use_quick_check: bool = False,  # noqa: FBT001, FBT002 - the documented call
    use_fast_check: bool = False,  # noqa: FBT001, FBT002 - the documented call
) -> tuple[bool, list[str]]:
    """Return whether a database is sound, and what is wrong with it.

    An empty file is a sound database without tables, which the fast check misses as it does in any other.
    `FileBusy` if that cannot be told now: it is locked, or larger than the time allows.
    """
    found = check_database(path, timeout, quick=use_quick_check, fast=use_fast_check)
    if found.state is DatabaseState.BUSY:
        raise FileBusy(f"{path} cannot be checked now ({'; '.join(found.errors)})", retry_after_s=30.0)
    if found.state is DatabaseState.EMPTY:
        return not use_fast_check, [NO_TABLE] if use_fast_check else []
    return found.ok, list(found.errors)


def quarantine_corrupted_db(path: Path | str, *, timeout: float = CHECK_TIMEOUT_S) -> Path:
    """Set a corrupt database aside, in the folder `quarantine` beside it; return its new place.

    It is checked once more: `FileBusy` if that cannot be told now, `ConfigError` if it is not corrupt.
    """
    path, found = Path(path), check_database(path, timeout)
    if found.state is DatabaseState.BUSY:
        raise FileBusy(f"{path} is in use, which is no reason to move it", retry_after_s=30.0)
    if found.state is not DatabaseState.CORRUPT:
        raise ConfigError(f"{path} is {found.state.value}, not corrupt; it stays where it is")
    place = set_aside(path, path.parent / "quarantine", now_s=system_runtime().now_s())
    log.error("database.quarantined", path=str(path), place=str(place), errors=found.errors[:3])
    return place


def _connect(path: Path, deadline_s: float, clock: Callable[[], float]) -> sqlite3.Connection:
    left_s = max(0.0, deadline_s - clock())
    db = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=left_s
    )
    db.set_progress_handler(lambda: clock() >= deadline_s, _STEPS)
    db.execute("PRAGMA trusted_schema = OFF")
    db.execute("PRAGMA cell_size_check = ON")
    # The wait for a lock counts from the first statement; all later ones find the lock taken.
    db.execute("BEGIN")
    db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    db.execute("PRAGMA busy_timeout = 0")
    return db


def _ask(db: sqlite3.Connection, pragma: str) -> list[str]:
    rows = [str(row[0]) for row in db.execute(f"PRAGMA {pragma}({ERRORS_MAX})")]
    return [] if rows == ["ok"] else rows


def _look(db: sqlite3.Connection) -> list[str]:
    def number(question: str) -> int:
        return int(db.execute(question).fetchone()[0])

    errors = []
    if number("PRAGMA page_count") <= 0:
        errors.append("it has no pages")
    if number("PRAGMA freelist_count") < 0:
        errors.append("its list of free pages is broken")
    if number("SELECT count(*) FROM sqlite_master WHERE type = 'table'") < 1:
        errors.append(NO_TABLE)
    return errors


def _said(error: sqlite3.Error, path: Path) -> DatabaseCheck:
    code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE
    if code in _BAD:
        return DatabaseCheck(DatabaseState.CORRUPT, (str(error),))
    if code not in _BUSY:
        log.warning("database.unreadable", path=str(path), error=str(error))
    # An owner that must first recover it, a missing right, a failing disk: all say nothing of the content.
    return DatabaseCheck(DatabaseState.BUSY, (str(error),))


# --- copies -------------------------------------------------------------------------------------------


def verify_sync_integrity(
    source: Path | str, target: Path | str, *, check_db: bool = True, timeout: float = CHECK_TIMEOUT_S
) -> IntegrityReport:
    """Compare a copy with its source, both read whole; `FileBusy` if either changes meanwhile."""
    source, target = Path(source), Path(target)
    missing = [f"{path} does not exist" for path in (source, target) if not path.exists()]
    if missing:
        return IntegrityReport(source_path=str(source), target_path=str(target), errors=tuple(missing))
    sums, sizes = [], []
    for path in (source, target):
        sums.append(compute_file_checksum(path))
        sizes.append(path.stat().st_size)
    errors = [] if sums[0] == sums[1] else [f"{target} differs from {source}"]
    sound = None
    if check_db and _is_database(target):
        sound, found = check_sqlite_integrity(target, timeout)
        errors += found
    return IntegrityReport(
        source_path=str(source),
        target_path=str(target),
        source_size=sizes[0],
        target_size=sizes[1],
        source_checksum=sums[0],
        target_checksum=sums[1],
        size_match=sizes[0] == sizes[1],
        checksum_match=sums[0] == sums[1],
        db_integrity_valid=sound,
        errors=tuple(errors),
    )


def _is_database(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror or error}") from error


# Copies of databases that may be in use: taken by SQLite's backup API, checked, and sealed.
#
# A database never leaves its node in any other way. The original, and what SQLite keeps beside it, is only
# read; the copy is one file without sidecars that nobody writes to again.


COPY_TIMEOUT_S = 300.0
_PAGES = 4_096  # copied between looks at the clock
_SEALED = 0o444


def snapshot_database(
    source: Path | str, target: Path | str, *, timeout: float = COPY_TIMEOUT_S, runtime: Runtime | None = None
) -> Path:
    """Write the state of *source* at one moment to *target*, checked and read-only; return *target*.

    Writers of a database in WAL mode go on meanwhile. `FileBusy` if it cannot be read within *timeout*
    seconds; `Corrupt` if the source is.
    """
    source, target = Path(source), Path(target)
    clock = (runtime or system_runtime()).monotonic_s
    deadline_s = clock() + timeout
    if not source.exists():
        raise Unavailable(f"{source} does not exist")
    draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}")

    def in_time(_status: int, _remaining: int, _total: int) -> None:
        if clock() >= deadline_s:
            raise FileBusy(f"{source} could not be read in {timeout:g} s", retry_after_s=30.0)

    try:
        with translated_errors(source):
            make_folders(target.parent)
            create_file(draft).close()  # never by SQLite, which goes by path
            place = f"{draft.absolute().as_uri()}?mode=rw"
            uri = f"{source.absolute().as_uri()}?mode=ro"
            with (
                closing(sqlite3.connect(uri, uri=True, isolation_level=None, timeout=timeout)) as live,
                closing(sqlite3.connect(place, uri=True, isolation_level=None)) as copy,
            ):
                # One transaction for the whole copy: every page is of the same moment.
                live.execute("BEGIN")
                live.execute("SELECT count(*) FROM sqlite_master").fetchone()
                live.backup(copy, pages=_PAGES, progress=in_time)
                copy.execute("PRAGMA journal_mode = DELETE")
        _check(draft, source, max(1.0, deadline_s - clock()))
        _publish(draft, target)
    finally:
        for suffix in ("", *SIDECARS):
            remove_file(draft.with_name(draft.name + suffix))
    return target


def verified_database_copy(
    source: Path | str, target: Path | str, *, timeout: float = COPY_TIMEOUT_S
) -> bool:
    """Copy a database that may be in use; False, and no copy, if it is damaged. `FileBusy` as above."""
    try:
        snapshot_database(source, target, timeout=timeout)
    except Corrupt as error:
        log.error("database.not_copied", path=str(source), error=str(error))
        return False
    return True


def prepare_database_for_transfer(path: Path | str, folder: Path | str) -> Path:
    """Return a sealed snapshot, in *folder*, that may be sent in place of the database."""
    path = Path(path)
    return snapshot_database(path, Path(folder) / f"{path.name}.{secrets.token_hex(6)}.snapshot")


async def seal_database(
    blobs: Blobs, database: Path, *, scratch: Path, name: str = "", node: str = "", now_s: float = 0.0
) -> Artifact:
    """Take a snapshot into the blobs; return its card. The scratch copy is removed."""
    draft = await asyncio.to_thread(prepare_database_for_transfer, database, scratch)
    try:
        digest, size = await blobs.put(draft), draft.stat().st_size
    finally:
        await asyncio.to_thread(draft.unlink, missing_ok=True)
    return Artifact(
        digest=digest,
        size=size,
        kind=ArtifactKind.SNAPSHOT,
        name=name or database.name,
        node=node,
        created_s=now_s,
    )


def _check(draft: Path, source: Path, timeout: float) -> None:
    found = check_database(draft, timeout, quick=True)
    if found.state is DatabaseState.CORRUPT:
        raise Corrupt(
            source,
            found=f"its copy is damaged ({'; '.join(found.errors[:3])})",
            advice="The original was not touched; check it with `ringrift data verify`",
        )
    if found.state is DatabaseState.BUSY:
        raise FileBusy(f"the copy of {source} could not be checked in time", retry_after_s=30.0)


def _publish(draft: Path, target: Path) -> None:
    with translated_errors(target):
        change_mode(draft, _SEALED)
        publish_file(draft, target)
