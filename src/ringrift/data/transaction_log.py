"""Transactions over files, as they are kept and carried out.

New content is staged beside its place. One record in the key-value port holds the decision: until it says
COMMITTING, nothing is touched; from then on, whoever finds the transaction finishes it. A transaction has an
owner, by a lease: only one whose owner stopped renewing is ended by another process. A file belongs to one
transaction at a time.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from ringrift.data import transaction_files as files
from ringrift.data.handles import kv_of
from ringrift.data.kv_records import KvRecords
from ringrift.data.promises import PINS
from ringrift.data.records_merge import Merged, RecordTable
from ringrift.data.transaction_records import (
    MergeOperation,
    OperationType,
    TransactionRecord,
    TransactionState,
)
from ringrift.engine.digests import check_digest
from ringrift.engine.leases import LeaseConfig, NamedLease
from ringrift.engine.ports import KeyValue
from ringrift.errors import ConfigError, Conflict, Corrupt, LeaseLost
from ringrift.runtime import Runtime, system_runtime

log = structlog.get_logger()

PREFIX, PATHS = "data/transactions/", "data/transaction_paths/"
BLOB = "blob:"
KEPT_S = 7 * 86_400.0
LEASE = LeaseConfig(lease_s=60.0, renew_s=5.0)


class _PathClaim(msgspec.Struct, frozen=True):
    transaction_id: str


@dataclass(slots=True)
class _Owned:
    lease: NamedLease
    keeper: asyncio.Task[None]


class TransactionLog:
    """The transactions that one process owns, and those of others that lost their owner."""

    def __init__(
        self,
        db_path: Path | str | None = None,
        *,
        kv: KeyValue | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self._kv, self._runtime = kv_of(db_path, kv), runtime or system_runtime()
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
        self._owned[name] = _Owned(lease, asyncio.create_task(_kept(lease), name=f"transaction:{name}"))
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
        staged = dest.with_name(f".{dest.name}{files.STAGED}{operation_id}")
        operation = MergeOperation(
            operation_id=operation_id,
            kind=wanted,
            dest_path=str(dest),
            staged_path="" if wanted is OperationType.DELETE else str(staged),
            base_checksum=await asyncio.to_thread(files.base_checksum, wanted, dest),
            tables=tuple(tables),
        )
        # Written down before it is on the disk, so that what a crash leaves behind is found.
        await self._change(name, lambda record: record.with_operation(operation, now_s=self._runtime.now_s()))
        source = None if source_path is None else Path(source_path)
        await asyncio.to_thread(files.stage, operation, source)
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
        checksum = await asyncio.to_thread(files.seal, operation)
        done = msgspec.structs.replace(operation, complete=True, new_checksum=checksum)
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
            if not await asyncio.to_thread(files.is_unchanged, item):
                log.warning("transaction.file_changed", transaction=name, path=item.dest_path)
                return False
        await self._step(name, TransactionState.PREPARING)
        return True

    async def commit_async(self, name: str, merge: files.Merge | None = None) -> Merged:
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

    async def _finish(self, record: TransactionRecord, merge: files.Merge | None = None) -> Merged:
        """Carry a decision out. May be done again, by anybody, until it is noted as done."""
        name, committing = record.transaction_id, record.state is TransactionState.COMMITTING
        last = TransactionState.COMMITTED if committing else TransactionState.ROLLED_BACK
        merged = Merged()
        try:
            if committing:
                merged = await asyncio.to_thread(files.put_in_place, record, merge)
            else:
                await asyncio.to_thread(files.throw_away, record)
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
            owned.keeper.get_loop().call_soon_threadsafe(owned.keeper.cancel)
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
