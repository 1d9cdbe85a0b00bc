"""Making, checking and connecting to the database file.

A file under the database's name is always complete: a new one is made under another name and linked into
place. Before SQLite may touch a file, its header must say that it is ours.
"""

from __future__ import annotations

import os
import sqlite3
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ringrift.engine.digests import is_digest
from ringrift.engine.lock_files import LockFile
from ringrift.engine.sqlite.config import SqliteConfig
from ringrift.engine.sqlite.faults import LOST_ADVICE, RESTORE_ADVICE
from ringrift.engine.sqlite.schema import APPLICATION_ID, Migration, migrate
from ringrift.errors import Corrupt, ForeignFile, StorageReadOnly
from ringrift.held_folder import check_leads_there, link_file, remove_file, rename_file, sync_folder
from ringrift.private_files import close_to_others, make_private_folder, open_private

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
        close_to_others(path.parent.glob(f"{path.name}*"))
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
    with making.open("rb") as file:
        os.fsync(file.fileno())


def _remove_leftovers(path: Path) -> None:
    """Remove the half-made files of processes that are gone."""
    for leftover in path.parent.glob(f"{path.name}{_LEFTOVER}*"):
        maker = leftover.name.removeprefix(f"{path.name}{_LEFTOVER}").partition("-")[0]
        if maker.isdigit() and not _is_running(int(maker)):
            remove_file(leftover)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def check_ours(path: Path) -> None:
    """Raise unless the header says that this database is ours; reads only, without SQLite."""
    with path.open("rb") as file:
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
