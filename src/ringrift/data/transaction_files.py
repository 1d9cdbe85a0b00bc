"""The files of a transaction: new content is staged beside its place, and put there by renaming.

Every step may be repeated after a crash at any point, by the same process or by another. All calls block.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from ringrift.data.file_checks import compute_file_checksum
from ringrift.data.records_merge import Merged, merge_database
from ringrift.data.transaction_records import MergeOperation, OperationType, TransactionRecord
from ringrift.engine.sqlite.faults import told_in_our_words
from ringrift.errors import ConfigError, Corrupt
from ringrift.held_folder import make_folders, sync_folder

STAGED = ".staged-"

Merge = Callable[[Path], Merged]
"""Takes the records of the staged database over; by default by the tables of the operation."""


def checksum_or_absent(path: Path) -> str:
    """The checksum of a file; empty if it is not there."""
    return compute_file_checksum(path) if path.exists() else ""


def base_checksum(kind: OperationType, dest: Path) -> str:
    """The checksum of a file before the transaction; `ConfigError` if *kind* cannot be done to it."""
    if kind is OperationType.ADD and dest.exists():
        raise ConfigError(f"{dest} is there already; to replace it is an update")
    if kind in (OperationType.UPDATE, OperationType.DELETE) and not dest.exists():
        raise ConfigError(f"{dest} is not there; nothing can be done to it")
    if kind is OperationType.MERGE:
        return ""  # others go on writing to a live database; the merge takes its turn among them
    return checksum_or_absent(dest)


def stage(operation: MergeOperation, source: Path | None) -> None:
    """Lay the new content out beside its place, as far as it is known yet."""
    dest, staged = Path(operation.dest_path), Path(operation.staged_path or operation.dest_path)
    with told_in_our_words(dest):
        if operation.kind is OperationType.DELETE:
            return
        dest.parent.mkdir(parents=True, exist_ok=True)
        with staged.open("wb") as draft:
            if operation.kind is OperationType.APPEND and dest.exists():
                _copy(dest, draft)
            if source is not None:
                _copy(source, draft)
            draft.flush()
            os.fsync(draft.fileno())


def seal(operation: MergeOperation) -> str:
    """Bring the staged content to the disk and return its checksum; empty for a deletion."""
    if operation.kind in (OperationType.DELETE, OperationType.KEEP):
        return ""
    staged = Path(operation.staged_path)
    with told_in_our_words(staged):
        if not staged.exists():
            raise ConfigError(f"nothing was written to {staged}")
        with staged.open("rb") as file:
            os.fsync(file.fileno())
        sync_folder(staged.parent)
    return compute_file_checksum(staged)


def is_unchanged(operation: MergeOperation) -> bool:
    """Whether file and staged content are as they were noted."""
    if operation.kind is OperationType.KEEP:
        return True
    if operation.kind is OperationType.MERGE:
        return checksum_or_absent(Path(operation.staged_path)) == operation.new_checksum
    if checksum_or_absent(Path(operation.dest_path)) != operation.base_checksum:
        return False
    if operation.kind is OperationType.DELETE:
        return True
    return checksum_or_absent(Path(operation.staged_path)) == operation.new_checksum


def put_in_place(record: TransactionRecord, merge: Merge | None = None) -> Merged:
    """Do what a transaction decided; return what merges changed. What an earlier attempt did stays."""
    total = Merged()
    for operation in record.operations:
        dest = Path(operation.dest_path)
        if operation.kind is OperationType.KEEP:
            continue
        if operation.kind is OperationType.MERGE:
            total += _merge(operation, merge)
            continue
        with told_in_our_words(dest):
            if operation.kind is OperationType.DELETE:
                # Only the file that was meant; a new one under its name belongs to somebody else.
                if checksum_or_absent(dest) == operation.base_checksum:
                    dest.unlink(missing_ok=True)
            elif (staged := Path(operation.staged_path)).exists():
                staged.replace(dest)
            elif checksum_or_absent(dest) != operation.new_checksum:
                raise Corrupt(
                    dest,
                    found=f"transaction {record.transaction_id} decided on content that is nowhere",
                    advice="Restore the file from a copy of another node",
                )
            if dest.parent.is_dir():
                sync_folder(dest.parent)
    return total


def _merge(operation: MergeOperation, merge: Merge | None) -> Merged:
    """Take the records over; doing it again changes nothing, so the staged ones go last."""
    dest, staged = Path(operation.dest_path), Path(operation.staged_path)
    if not staged.exists():
        return Merged()  # an earlier attempt came this far
    make_folders(dest.parent)
    merged = merge_database(dest, staged, operation.tables) if merge is None else merge(staged)
    with told_in_our_words(staged):
        staged.unlink()
    return merged


def throw_away(record: TransactionRecord) -> None:
    """Remove what was staged; the files themselves were never touched."""
    for operation in record.operations:
        if operation.staged_path:
            staged = Path(operation.staged_path)
            with told_in_our_words(staged):
                staged.unlink(missing_ok=True)


def _copy(source: Path, target: BinaryIO) -> None:
    with source.open("rb") as file:
        shutil.copyfileobj(file, target, 1 << 20)
