"""Transactions over files: all of them change, or none, whatever breaks off.

New content is staged beside its place. One record in the key-value port holds the decision: until it says
COMMITTING, nothing is touched; from then on, whoever finds the transaction finishes it. A transaction has an
owner, by a lease: only one whose owner stopped renewing is ended by another process. A file belongs to one
transaction at a time.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO, Unpack

import msgspec
import structlog
from msgspec.structs import replace

from ringrift.data.files import compute_file_checksum
from ringrift.data.kv_records import StoreHandle, StoreParts
from ringrift.data.protection.promises import PINS
from ringrift.data.table_merge import Merged, RecordTable, merge_database
from ringrift.engine.encoding import check_digest
from ringrift.engine.leases import LeaseConfig, NamedLease
from ringrift.engine.records import KvRecords
from ringrift.engine.sqlite.faults import translated_errors
from ringrift.errors import ConfigError, Conflict, Corrupt, LeaseLost
from ringrift.files import make_folders, sync_folder
from ringrift.task_owner import TaskOwner

# What is written down of a transaction, and which steps it may take.


OPERATIONS_MAX = 1_000


class TransactionState(StrEnum):
    """The life of a transaction. From COMMITTING on it will be done, whoever finishes it."""

    PENDING = "pending"
    PREPARING = "preparing"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ROLLING_BACK = "rolling_back"
    ROLLED_BACK = "rolled_back"
    FAILED = "failed"

    @property
    def is_final(self) -> bool:
        return self in _FINAL


_FINAL = frozenset({TransactionState.COMMITTED, TransactionState.ROLLED_BACK, TransactionState.FAILED})
NEXT = {
    TransactionState.PENDING: {TransactionState.PREPARING, TransactionState.ROLLING_BACK},
    TransactionState.PREPARING: {TransactionState.COMMITTING, TransactionState.ROLLING_BACK},
    TransactionState.COMMITTING: {TransactionState.COMMITTED, TransactionState.FAILED},
    TransactionState.ROLLING_BACK: {TransactionState.ROLLED_BACK, TransactionState.FAILED},
}


class OperationType(StrEnum):
    """What becomes of a file."""

    ADD = "add"  # it must not exist
    UPDATE = "update"  # it must exist
    DELETE = "delete"
    APPEND = "append"  # the new content goes behind what is there
    MERGE = "merge"  # the records of the staged database go into it, whoever writes to it meanwhile
    KEEP = "keep"  # an artifact ("blob:DIGEST"): no node of this store deletes it before the end


class MergeOperation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file's part of a transaction."""

    operation_id: str
    kind: OperationType
    dest_path: str
    staged_path: str = ""  # where the new content waits; nothing reads it before the commit
    base_checksum: str = ""  # of the file as it was when the operation was added; empty: absent
    new_checksum: str = ""  # of the staged content
    complete: bool = False
    tables: tuple[RecordTable, ...] = ()  # of a merge


class TransactionRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One transaction, as it is kept. Times are wall clock."""

    transaction_id: str
    source_host: str
    dest_host: str
    merge_type: str
    state: TransactionState = TransactionState.PENDING
    operations: tuple[MergeOperation, ...] = ()
    metadata: dict[str, str] = {}
    created_at: float = 0.0
    updated_at: float = 0.0
    error: str = ""

    def operation(self, operation_id: str) -> MergeOperation:
        for item in self.operations:
            if item.operation_id == operation_id:
                return item
        raise ConfigError(f"transaction {self.transaction_id} has no operation {operation_id!r}")

    def moved_to(self, state: TransactionState, *, now_s: float, error: str = "") -> TransactionRecord:
        """The record in its next state; ValueError for a step that it may not take."""
        if state not in NEXT.get(self.state, ()):
            raise ValueError(
                f"transaction {self.transaction_id} is {self.state.value}; it cannot become {state.value}"
            )
        return replace(self, state=state, updated_at=now_s, error=error or self.error)

    def with_operation(self, operation: MergeOperation, *, now_s: float) -> TransactionRecord:
        """The record with an operation added or replaced; only before it is prepared."""
        if self.state is not TransactionState.PENDING:
            raise ValueError(f"transaction {self.transaction_id} is {self.state.value}: it takes no more")
        if len(self.operations) >= OPERATIONS_MAX:
            raise ConfigError(f"a transaction has at most {OPERATIONS_MAX} operations")
        others = tuple(item for item in self.operations if item.operation_id != operation.operation_id)
        return replace(self, operations=(*others, operation), updated_at=now_s)


# The files of a transaction: new content is staged beside its place, and put there by renaming.
#
# Every step may be repeated after a crash at any point, by the same process or by another. All calls block.


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
    with translated_errors(dest):
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
    with translated_errors(staged):
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
        with translated_errors(dest):
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
    with translated_errors(staged):
        staged.unlink()
    return merged


def throw_away(record: TransactionRecord) -> None:
    """Remove what was staged; the files themselves were never touched."""
    for operation in record.operations:
        if operation.staged_path:
            staged = Path(operation.staged_path)
            with translated_errors(staged):
                staged.unlink(missing_ok=True)


def _copy(source: Path, target: BinaryIO) -> None:
    with source.open("rb") as file:
        shutil.copyfileobj(file, target, 1 << 20)


# Transactions as they are kept and carried out.


log = structlog.get_logger()

PREFIX, PATHS = "data/transactions/", "data/transaction_paths/"
BLOB = "blob:"
KEPT_S = 7 * 86_400.0
LEASE = LeaseConfig(lease_s=60.0, renew_s=5.0)
STOP_S = 10.0


class _PathClaim(msgspec.Struct, frozen=True):
    transaction_id: str


@dataclass(slots=True)
class _Owned:
    lease: NamedLease
    renewals: TaskOwner
    renewal: asyncio.Task[None]

    async def end_keeping(self) -> None:
        loop = self.renewal.get_loop()
        if loop is asyncio.get_running_loop():
            await self.renewals.stop(STOP_S)
        else:  # begun on another loop, as a blocking call does
            loop.call_soon_threadsafe(self.renewal.cancel)


class TransactionLog(StoreHandle):
    """The transactions that one process owns, and those of others that lost their owner."""

    def __init__(self, db_path: Path | str | None = None, **parts: Unpack[StoreParts]) -> None:
        super().__init__(db_path, **parts)
        self._records = KvRecords(self._kv, PREFIX, TransactionRecord)
        self._claims = KvRecords(self._kv, PATHS, _PathClaim)
        self._owned: dict[str, _Owned] = {}

    async def begin_async(
        self,
        source_host: str,
        dest_host: str = "",
        merge_type: str = "merge",
        metadata: Mapping[str, str] | None = None,
    ) -> str:
        """Begin a transaction; return its id. It is this process's for as long as it lives."""
        now_s, name = self._runtime.now_s(), self._runtime.new_id()
        holder = f"{self._runtime.hostname}:{self._runtime.pid}:{name}"
        lease = NamedLease(self._kv, self._runtime, _lease(name), holder=holder, config=LEASE)
        await lease.acquire(wait_s=0.0)
        record = TransactionRecord(
            transaction_id=name,
            source_host=source_host,
            dest_host=dest_host or self._runtime.hostname,
            merge_type=merge_type,
            metadata=dict(metadata or {}),
            created_at=now_s,
            updated_at=now_s,
        )
        await self._records.create(name, record)
        renewals = TaskOwner(f"transaction {name}")
        self._owned[name] = _Owned(lease, renewals, renewals.create_task(_kept(lease)))
        return name

    async def add_operation_async(
        self,
        name: str,
        kind: OperationType | str,
        dest_path: Path | str,
        source_path: Path | str | None = None,
        tables: Sequence[RecordTable] = (),
    ) -> MergeOperation:
        """Add what is to become of a file; return the operation.

        The new content is taken from *source_path*, or written by the caller to the operation's
        `staged_path`. A merge names its *tables*. `Conflict` if another transaction has the file.
        """
        self._check_owned(name)
        wanted = _operation_type(kind)
        if (wanted is OperationType.MERGE) != bool(tables):
            raise ConfigError(
                f"a merge names the tables that it takes over, and no other operation; not {kind}"
            )
        if wanted is OperationType.KEEP:
            return await self._keep(name, str(dest_path))
        dest = await asyncio.to_thread(lambda: Path(dest_path).absolute())
        if any(item.dest_path == str(dest) for item in (await self._get(name)).operations):
            raise ConfigError(f"{dest} is in this transaction already")
        await self._claim(dest, name)
        operation_id = self._runtime.new_id()
        staged = dest.with_name(f".{dest.name}{STAGED}{operation_id}")
        operation = MergeOperation(
            operation_id=operation_id,
            kind=wanted,
            dest_path=str(dest),
            staged_path="" if wanted is OperationType.DELETE else str(staged),
            base_checksum=await asyncio.to_thread(base_checksum, wanted, dest),
            tables=tuple(tables),
        )
        # Written down before it is on the disk, so that what a crash leaves behind is found.
        await self._change(name, lambda record: record.with_operation(operation, now_s=self._runtime.now_s()))
        source = None if source_path is None else Path(source_path)
        await asyncio.to_thread(stage, operation, source)
        return operation

    async def _keep(self, name: str, artifact: str) -> MergeOperation:
        digest = artifact.removeprefix(BLOB)
        check_digest(digest)
        operation = MergeOperation(
            operation_id=self._runtime.new_id(),
            kind=OperationType.KEEP,
            dest_path=f"{BLOB}{digest}",
            complete=True,
        )
        await self._change(name, lambda record: record.with_operation(operation, now_s=self._runtime.now_s()))
        await self._kv.put(_pin(digest, name), f"kept by transaction {name}".encode())
        return operation

    async def complete_operation_async(self, name: str, operation_id: str) -> MergeOperation:
        """The staged content is as it should be."""
        self._check_owned(name)
        record = await self._get(name)
        operation = record.operation(operation_id)
        checksum = await asyncio.to_thread(seal, operation)
        done = replace(operation, complete=True, new_checksum=checksum)
        await self._change(name, lambda found: found.with_operation(done, now_s=self._runtime.now_s()))
        return done

    async def prepare_async(self, name: str) -> bool:
        """Whether all operations are complete and nothing changed since; from then on none can be added."""
        self._check_owned(name)
        record = await self._get(name)
        complete = bool(record.operations) and all(item.complete for item in record.operations)
        if not complete:
            return False
        for item in record.operations:
            if not await asyncio.to_thread(is_unchanged, item):
                log.warning("transaction.file_changed", transaction=name, path=item.dest_path)
                return False
        await self._step(name, TransactionState.PREPARING)
        return True

    async def commit_async(self, name: str, merge: Merge | None = None) -> Merged:
        """Put everything in place; return what merges changed, which *merge* may carry out in its own way.

        ValueError unless it was prepared; `LeaseLost` if another ended it.
        """
        self._check_owned(name)
        record = await self._step(name, TransactionState.COMMITTING)
        return await self._finish(record, merge)

    @asynccontextmanager
    async def transaction(
        self, source_host: str, dest_host: str, merge_type: str, metadata: Mapping[str, str] | None = None
    ) -> AsyncIterator[str]:
        """A transaction for a block, prepared at its end; undone if either fails. The caller commits it."""
        name = await self.begin_async(source_host, dest_host, merge_type, metadata)
        try:
            yield name
            prepared = await self.prepare_async(name)
        except BaseException as error:
            await self.rollback_async(name, f"{type(error).__name__}: {error}")
            raise
        if not prepared:
            await self.rollback_async(name, "it could not be prepared")
            raise Conflict(f"transaction {name} could not be prepared; nothing was changed")

    async def rollback_async(self, name: str, reason: str = "") -> None:
        """Leave everything as it was. ValueError once it is decided that it will be done."""
        record = await self._get(name)
        if record.state is not TransactionState.ROLLING_BACK:
            record = await self._step(name, TransactionState.ROLLING_BACK, error=reason)
        await self._finish(record)

    async def recover_async(self) -> list[TransactionRecord]:
        """End the transactions that lost their owner: finish what was decided, undo the rest."""
        ended = []
        for record in await self._records.all():
            name = record.transaction_id
            if record.state.is_final:
                continue
            if name in self._owned:
                if record.state in (TransactionState.COMMITTING, TransactionState.ROLLING_BACK):
                    ended.append(await self._recover(name))  # decided on, and something was in the way then
                continue
            holder = f"{self._runtime.hostname}:{self._runtime.pid}:recovery"
            lease = NamedLease(self._kv, self._runtime, _lease(name), holder=holder, config=LEASE)
            if await lease.try_acquire():  # one that lives has its lease
                ended.append(await self._recover(name))
                await lease.release()
        return ended

    async def record_async(self, name: str) -> TransactionRecord | None:
        return await self._records.get(name)

    async def records_async(self) -> list[TransactionRecord]:
        return await self._records.all()

    async def _recover(self, name: str) -> TransactionRecord:
        record = await self._get(name)
        if record.state in (TransactionState.PENDING, TransactionState.PREPARING):
            record = await self._step(name, TransactionState.ROLLING_BACK, error="its owner is gone")
        if not record.state.is_final:
            await self._finish(record)
        after = await self._get(name)
        log.warning("transaction.recovered", transaction=name, state=after.state.value)
        return after

    async def _finish(self, record: TransactionRecord, merge: Merge | None = None) -> Merged:
        """Carry a decision out. May be done again, by anybody, until it is noted as done."""
        name, committing = record.transaction_id, record.state is TransactionState.COMMITTING
        last = TransactionState.COMMITTED if committing else TransactionState.ROLLED_BACK
        merged = Merged()
        try:
            if committing:
                merged = await asyncio.to_thread(put_in_place, record, merge)
            else:
                await asyncio.to_thread(throw_away, record)
        except Corrupt as error:
            if (await self._get(name)).state is not last:
                await self._step(name, TransactionState.FAILED, error=str(error))
                raise
        if (await self._get(name)).state is not last:  # another may have done it while this one was held up
            await self._step(name, last)
        for operation in record.operations:
            if operation.kind is OperationType.KEEP:
                await self._kv.delete(_pin(operation.dest_path.removeprefix(BLOB), name))
            else:
                await self._unclaim(Path(operation.dest_path), name)
        await self._disown(name)
        return merged

    async def _step(self, name: str, state: TransactionState, error: str = "") -> TransactionRecord:
        now_s = self._runtime.now_s()
        ttl_s = KEPT_S if state.is_final else None
        return await self._change(
            name, lambda record: record.moved_to(state, now_s=now_s, error=error), ttl_s=ttl_s
        )

    async def _change(
        self,
        name: str,
        step: Callable[[TransactionRecord], TransactionRecord],
        *,
        ttl_s: float | None = None,
    ) -> TransactionRecord:
        def checked(found: TransactionRecord | None) -> TransactionRecord:
            if found is None:
                raise ConfigError(f"no transaction is called {name!r}")
            return step(found)

        after = await self._records.change(name, checked, ttl_s=ttl_s)
        assert after is not None
        return after

    async def _get(self, name: str) -> TransactionRecord:
        record = await self._records.get(name)
        if record is None:
            raise ConfigError(f"no transaction is called {name!r}")
        return record

    def _check_owned(self, name: str) -> None:
        owned = self._owned.get(name)
        if owned is None or not owned.lease.held:
            raise LeaseLost(_lease(name), token=0, reason="the transaction is not this process's (any more)")

    async def _claim(self, dest: Path, name: str) -> None:
        """Take a file for a transaction, unless one that still goes on has it."""
        found = await self._claims.get(_path_key(dest))
        ended = None
        if found is not None and found.transaction_id != name:
            owner = await self._records.get(found.transaction_id)
            if owner is not None and not owner.state.is_final:
                raise Conflict(f"{dest} belongs to transaction {found.transaction_id}")
            ended = found.transaction_id  # it died before it could let go

        def step(now: _PathClaim | None) -> _PathClaim:
            if now is not None and now.transaction_id not in (name, ended):
                raise Conflict(f"{dest} belongs to transaction {now.transaction_id}")
            return _PathClaim(name)

        await self._claims.change(_path_key(dest), step)

    async def _unclaim(self, dest: Path, name: str) -> None:
        found = await self._claims.get(_path_key(dest))
        if found is not None and found.transaction_id == name:
            await self._claims.delete(_path_key(dest))

    async def _disown(self, name: str) -> None:
        owned = self._owned.pop(name, None)
        if owned is not None:
            await owned.end_keeping()
            await owned.lease.release()


def _pin(digest: str, name: str) -> str:
    """A pin beside that of a person; it ends with the transaction."""
    return f"{PINS}{digest}/{name}"


def _lease(name: str) -> str:
    return f"transaction/{name}"


def _path_key(dest: Path) -> str:
    return hashlib.sha256(str(dest).encode()).hexdigest()


def _operation_type(kind: OperationType | str) -> OperationType:
    try:
        return OperationType(kind)
    except ValueError:
        allowed = ", ".join(item.value for item in OperationType)
        raise ConfigError(f"an operation is one of {allowed}, not {kind!r}") from None


async def _kept(lease: NamedLease) -> None:
    try:
        await lease.keep()
    except LeaseLost as error:
        log.warning("transaction.lease_lost", lease=lease.name, reason=error.reason)
