"""Foreign errors of SQLite and of the file system, told in our words once."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ringrift.errors import (
    Corrupt,
    ForeignFile,
    RingRiftError,
    StorageFull,
    StorageReadOnly,
    Unavailable,
)
from ringrift.files import full_disk
from ringrift.process_identity import who_locks

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST}  # a file for a folder
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_PRIMARY_CODE = 0xFF  # SQLite puts details above the lowest byte

LOST_ADVICE = (
    "Nothing was changed. Restore a backup (`ringrift data restore`), make the run again from its files as "
    "far as they go (`ringrift rebuild`), or set what is there aside and begin anew "
    "(`ringrift run --begin-anew`)"
)
RESTORE_ADVICE = (
    "Nothing was changed. Stop all processes, keep a copy, and restore a backup or recover the rows "
    "with `sqlite3 FILE .recover`"
)


def from_sqlite(error: sqlite3.Error, path: Path) -> RingRiftError | None:
    """Return our error for one of SQLite's; None for a misuse of SQLite, which is a bug of ours."""
    if _is_undecodable(error):
        return _damaged(error, path)
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return None
    primary = code & _PRIMARY_CODE
    if primary == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_SHMSIZE:
        return no_space_for(path)
    if primary in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return StorageReadOnly(f"{path} cannot be written ({error})", retry_after_s=30.0)
    if primary == sqlite3.SQLITE_CORRUPT:
        return _damaged(error, path)
    if primary == sqlite3.SQLITE_NOTADB:
        return ForeignFile(path, found="this is not a SQLite database", advice=RESTORE_ADVICE)
    if primary in _BUSY:
        # In the log of the database, the index of that log, or the database itself.
        places = [path.with_name(f"{path.name}{suffix}") for suffix in ("-shm", "-wal", "")]
        return Unavailable(f"{who_locks(*places)} holds {path}")
    if primary in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM):
        return Unavailable(f"{path}: {error} ({error.sqlite_errorname})", retry_after_s=5.0)
    return None


def is_damage(error: sqlite3.Error | UnicodeDecodeError) -> bool:
    """Whether it means that the file is not, or no longer, a database that SQLite wrote."""
    if isinstance(error, UnicodeDecodeError) or _is_undecodable(error):
        return True
    code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _is_undecodable(error: sqlite3.Error) -> bool:
    """Whether a text in the database is no text; Python's sqlite3 gives that no code."""
    return str(error).startswith("Could not decode to UTF-8")


def _damaged(error: sqlite3.Error | UnicodeDecodeError, path: Path) -> Corrupt:
    return Corrupt(path, found=f"the database is damaged ({error})", advice=RESTORE_ADVICE)


def no_space_for(path: Path) -> StorageFull:
    """Also lets the process know: it says once that the disk is full, and a run ends with that exit code."""
    error = StorageFull(f"no space left for {path}", retry_after_s=30.0)
    full_disk().met(str(error))
    return error


def from_os(error: OSError, path: Path) -> RingRiftError:
    """Return our error for one of the file system's."""
    if error.errno in _FULL:
        return no_space_for(path)
    if error.errno in _READ_ONLY:
        return StorageReadOnly(f"{path} cannot be written ({error.strerror})", retry_after_s=30.0)
    return Unavailable(f"{path}: {error.strerror or error}", retry_after_s=5.0)


@contextmanager
def translated_errors(path: Path) -> Iterator[None]:
    """Raise the errors of the file system and of SQLite as ours."""
    try:
        yield
    except OSError as error:
        raise from_os(error, path) from error
    except UnicodeDecodeError as error:  # SQLite's message quotes what is damaged
        raise _damaged(error, path) from error
    except sqlite3.Error as error:
        if (ours := from_sqlite(error, path)) is None:
            raise
        raise ours from error
