"""Copies of databases that may be in use: taken by SQLite's backup API, checked, and sealed.

A database never leaves its node in any other way. The original, and what SQLite keeps beside it, is only
read; the copy is one file without sidecars that nobody writes to again.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sqlite3
from contextlib import closing
from pathlib import Path

import structlog

from ringrift.data.artifacts import Artifact, ArtifactKind
from ringrift.data.file_checks import FileBusy
from ringrift.data.integrity_checks import DatabaseState, check_database
from ringrift.engine.ports import Blobs
from ringrift.engine.sqlite.faults import told_in_our_words
from ringrift.engine.sqlite.files import SIDECARS
from ringrift.errors import Corrupt, Unavailable
from ringrift.held_folder import change_mode, create_file, make_folders, remove_file, rename_file, sync_folder
from ringrift.runtime import Runtime, system_runtime

__all__ = ["prepare_database_for_transfer", "seal_database", "snapshot_database", "verified_database_copy"]

log = structlog.get_logger()

TIMEOUT_S = 300.0
_PAGES = 4_096  # copied between looks at the clock
_SEALED = 0o444


def snapshot_database(
    source: Path | str, target: Path | str, *, timeout: float = TIMEOUT_S, runtime: Runtime | None = None
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
        with told_in_our_words(source):
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


def verified_database_copy(source: Path | str, target: Path | str, *, timeout: float = TIMEOUT_S) -> bool:
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
    with told_in_our_words(target):
        change_mode(draft, _SEALED)
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        rename_file(draft, target)
        sync_folder(target.parent)
