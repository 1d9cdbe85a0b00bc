"""Files that jobs write: sealed ones, and scratch tables that are gone when the job ends."""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ringrift.decoding import decode_as
from ringrift.errors import ConfigError, Conflict, Corrupt, StorageFull, StorageReadOnly
from ringrift.files import file_sha256, publish_file

# Sealed files: under their final name they are whole, on disk and never change.
#
# A file is written under a temporary name in the same folder, checked, synced and then renamed. A crash at
# any moment leaves either no file of that name or the whole one, and perhaps a `.part` that the next run of
# the same job removes.


PART = ".part"
_PRIMARY_CODE = 0xFF  # of SQLite's codes; the bits above it say more


@dataclass(frozen=True, slots=True)
class SealedFile:
    """A sealed file and what is in it."""

    path: Path
    kind: str  # shard, samples, model, report, …
    sha256: str
    size_bytes: int
    counts: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "artifact": self.kind,
            "sha256": self.sha256,
            "size_bytes": self.size_bytes,
            "counts": dict(self.counts),
        }


def describe(path: Path, kind: str, **counts: Any) -> SealedFile:
    """The artifact that a sealed file is."""
    return SealedFile(path, kind, file_sha256(path), path.stat().st_size, counts)


@contextmanager
def sealing(path: Path) -> Iterator[Path]:
    """Give the temporary name; on leaving without an error, sync it and rename it to *path*."""
    part = path.with_name(path.name + PART)
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)
        try:
            yield part
            publish_file(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def seal_json(path: Path, value: Any) -> None:
    """Write *value* as JSON, replacing what was there at once."""
    with sealing(path) as part:
        part.write_bytes(msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=1) + b"\n")


def read_json(path: Path) -> Any:
    """Read a JSON file; raises `ConfigError` if it is not there and `Corrupt` if it is no JSON."""
    try:
        return decode_as(path.read_bytes(), Any)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(path, found=f"no JSON: {error}", advice="Check that it was copied whole") from None


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold the lock file *path*; raises `Conflict` if another process has it. The dead hold nothing."""
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                raise Conflict(f"another process works on {path.with_suffix('')}") from None
            if os.fstat(descriptor).st_nlink:
                break
            os.close(descriptor)  # its holder removed it between our opening and locking it
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def scratch_folder(folder: Path, prefix: str) -> tempfile.TemporaryDirectory[str]:
    """A folder for the time of one run; removes those that killed runs left, so hold the run's lock."""
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f"{glob.escape(prefix)}*/"):
            shutil.rmtree(left)
        return tempfile.TemporaryDirectory(prefix=prefix, dir=folder)


@contextmanager
def storage_errors(path: Path | str) -> Iterator[None]:
    """Turn a full disk and a path that cannot be written into errors that say so."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(f"no space for {path}", retry_after_s=60.0) from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise StorageReadOnly(
                f"{path} cannot be written: {error.strerror}", retry_after_s=60.0
            ) from error
        if error.errno in (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG):
            raise ConfigError(f"{error.filename or path} cannot be written: {error.strerror}") from error
        raise
    except sqlite3.OperationalError as error:
        primary = error.sqlite_errorcode & _PRIMARY_CODE
        if primary == sqlite3.SQLITE_FULL:
            raise StorageFull(f"no space for {path}", retry_after_s=60.0) from error
        if primary in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
            raise StorageReadOnly(f"{path} cannot be written: {error}", retry_after_s=60.0) from error
        raise


# Scratch tables of one run: on disk, so that memory stays the same however many games there are.


CACHE_KIB = 1024


def scratch_database(tables: str) -> sqlite3.Connection:
    """An empty database with *tables* that nobody else sees; it is gone when it is closed."""
    db = sqlite3.connect("", isolation_level=None)  # no name: SQLite keeps it in a file of its own
    db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    db.execute("PRAGMA temp_store = FILE")
    db.execute("PRAGMA journal_mode = OFF")
    db.execute("PRAGMA synchronous = OFF")
    db.executescript(tables)
    return db
