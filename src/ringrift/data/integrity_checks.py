"""Whether a SQLite database is sound, and whether a copy is the same as its source.

A database that is locked, or too slow to be checked in time, is busy. Only SQLite's own word makes it
corrupt, and only a corrupt one is ever set aside. All calls block; the time given bounds them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import structlog

from ringrift.data.file_checks import (
    FileBusy,
    atomic_file_write,
    compute_file_checksum,
    set_aside,
)
from ringrift.engine.sqlite.faults import told_in_our_words
from ringrift.errors import ConfigError, Corrupt, Unavailable
from ringrift.foreign_files.paths import open_regular
from ringrift.runtime import Runtime, system_runtime

log = structlog.get_logger()

__all__ = [
    "DatabaseCheck",
    "DatabaseState",
    "IntegrityReport",
    "atomic_file_write",
    "check_database",
    "check_sqlite_integrity",
    "compute_file_checksum",
    "quarantine_corrupted_db",
    "verify_sync_integrity",
]

TIMEOUT_S = 30.0
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
    timeout: float = TIMEOUT_S,
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
    with told_in_our_words(path):
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
    timeout: float = TIMEOUT_S,
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


def quarantine_corrupted_db(path: Path | str, *, timeout: float = TIMEOUT_S) -> Path:
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
    source: Path | str, target: Path | str, *, check_db: bool = True, timeout: float = TIMEOUT_S
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
