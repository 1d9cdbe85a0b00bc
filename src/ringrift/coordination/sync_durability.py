"""What must not be lost on its way: the write-ahead log of the sync, and what failed for good.

Both are views of the delivery ledger, which every transfer writes. A file of this node that is appended is
sent by the machine, as a delivery that failed is sent again; anything else is kept until whoever appended it
says that it is handed over. An entry is acknowledged when it is in the store. It leaves only when its own
hand-over is confirmed: completing some entries never touches those that were added meanwhile, and a failed
entry is recovered like one that was never tried.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Unpack

import msgspec

from ringrift.data.kv_records import StoreHandle, StoreParts, for_each, one_per_process
from ringrift.data.transfer.deliveries import (
    DeliveryLedger,
    DeliveryRecord,
    DeliveryStatus,
    delivery_id,
    verified,
)
from ringrift.engine.encoding import is_digest
from ringrift.engine.records import KvRecords
from ringrift.errors import ConfigError, Unavailable
from ringrift.process import reset_of

__all__ = [
    "SyncDeadLetterQueue",
    "SyncWAL",
    "SyncWALEntry",
    "WalFull",
    "get_sync_dlq",
    "get_sync_wal",
    "reset_sync_dlq",
    "reset_sync_wal",
]

DATA_TYPE = "game"
DAY_S = 86_400.0
PENDING_MAX = 10_000
# Other processes add and complete entries, too, so the count kept here is an estimate in between.
RECOUNT_EVERY = 500
# Where earlier versions kept entries and letters; they are moved into the ledger.
_OLD_OPEN, _OLD_DEAD = "data/wal/open/", "data/wal/dead/"


class WalStatus(StrEnum):
    """How far an entry came."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETE = "complete"
    FAILED = "failed"


_STATUS = {
    DeliveryStatus.PENDING: WalStatus.PENDING,
    DeliveryStatus.TRANSFERRING: WalStatus.IN_PROGRESS,
    DeliveryStatus.TRANSFERRED: WalStatus.IN_PROGRESS,
    DeliveryStatus.VERIFIED: WalStatus.COMPLETE,
    DeliveryStatus.FAILED: WalStatus.FAILED,
}


class WalFull(Unavailable):
    """Too much waits already; whoever makes more must wait until some of it is handed over."""


class SyncWALEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One game or file to hand over."""

    entry_id: str
    game_id: str
    source_host: str
    target_host: str
    data: dict[str, Any] = {}
    data_hash: str = ""
    status: WalStatus = WalStatus.PENDING
    created_at: float = 0.0
    completed_at: float = 0.0
    retry_count: int = 0
    error_message: str = ""


class DeadLetterEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One game or file that could not be handed over."""

    entry_id: str
    game_id: str
    source_host: str
    target_host: str
    error_message: str
    error_type: str = ""
    retry_count: int = 0
    added_at: float = 0.0
    last_retry_at: float = 0.0
    resolved_at: float | None = None


class SyncWAL(StoreHandle):
    """The log. Appending the same game with the same data again changes nothing."""

    def __init__(
        self,
        db_path: Path | str | None = None,
        *,
        pending_max: int = PENDING_MAX,
        **parts: Unpack[StoreParts],
    ) -> None:
        if pending_max < 1:
            raise ConfigError("the log must hold at least one entry")
        super().__init__(db_path, **parts)
        self._pending_max = pending_max
        self._ledger = DeliveryLedger(kv=self._kv, runtime=self._runtime)
        self._old = KvRecords(self._kv, _OLD_OPEN, SyncWALEntry)
        self._counted: int | None = None
        self._appends = 0

    async def append(
        self, game_id: str, source_host: str, target_host: str, data: Mapping[str, Any] | None = None
    ) -> str:
        """Keep a game until it is handed over; return the entry's id. `WalFull` when too many wait.

        The digest of a file of this node is sent by the machine.
        """
        content, now_s = dict(data or {}), self._runtime.now_s()
        digest, is_file = _hash_of(content), is_digest(game_id) and not content
        name = _name_of(game_id, target_host, digest, is_file=is_file)
        # Before the look for room: repeating an append succeeds even where the log is full.
        if await self._ledger.get(name) is not None:
            return name
        await self._check_room()
        delivery = DeliveryRecord(
            delivery_id=name,
            data_type=DATA_TYPE,
            data_path=game_id,
            source_node=source_host,
            target_node=target_host,
            checksum=game_id if is_file else digest,
            created_at=now_s,
            updated_at=now_s,
            # Due at once: it is the retries of the machine that send it.
            next_retry_at=now_s if is_file else None,
            promised=True,
            by_hand=not is_file,
            data=content,
        )
        if await self._ledger.add(delivery) and self._counted is not None:
            self._counted += 1
        return name

    async def mark_in_progress(self, entry_ids: Iterable[str]) -> None:
        await for_each(entry_ids, lambda name: self._set(name, status=DeliveryStatus.TRANSFERRING))

    async def mark_complete(self, entry_ids: Iterable[str]) -> int:
        """These, and only these, are handed over; return how many were open."""
        done, now_s = 0, self._runtime.now_s()

        async def one(name: str) -> None:
            nonlocal done
            after = await self._ledger.change(
                name,
                lambda found: (
                    None
                    if found is None or not found.is_open
                    else verified(found, found.checksum, method="", now_s=now_s)
                ),
            )
            done += after is not None

        await for_each(entry_ids, one)
        self._counted = None
        return done

    async def mark_failed(self, entry_id: str, error: str) -> SyncWALEntry | None:
        """Count a failed hand-over. The entry stays, and `recover` returns it."""
        found = await self._set(entry_id, status=DeliveryStatus.FAILED, error=error)
        return None if found is None else _entry(found)

    async def drop(self, entry_id: str) -> bool:
        """Take an entry out, unless the dead letters keep it from now on; whether the log had it."""
        self._counted = None
        found = await self._ledger.get(entry_id)
        if found is None or found.is_given_up:
            return found is not None
        return await self._ledger.forget(entry_id)

    async def get(self, entry_id: str) -> SyncWALEntry | None:
        """An entry, handed over or not; those that are stay for a month."""
        found = await self._ledger.get(entry_id)
        return None if found is None else _entry(found)

    async def recover(self) -> list[SyncWALEntry]:
        """Return everything that is not handed over, failed or not, oldest first."""
        await self._take_over_old()
        found = [_entry(item) for item in await self._ledger.deliveries() if item.is_open]
        return sorted(found, key=lambda entry: entry.created_at)

    async def stats(self) -> dict[str, int]:
        """Return how many entries are open, by status, and how many were handed over within a day."""
        found, since_s = await self._ledger.deliveries(), self._runtime.now_s() - DAY_S
        statuses = [_STATUS[item.status] for item in found if item.is_open]
        complete = sum(item.verified_at > since_s for item in found)
        counts = {status.value: statuses.count(status) for status in WalStatus}
        return {**counts, "complete": complete, "open": len(statuses)}

    async def _set(self, name: str, *, status: DeliveryStatus, error: str = "") -> DeliveryRecord | None:
        now_s = self._runtime.now_s()

        def step(found: DeliveryRecord | None) -> DeliveryRecord | None:
            if found is None or not found.is_open:
                return None
            failed = status is DeliveryStatus.FAILED
            return msgspec.structs.replace(
                found,
                status=status,
                error=error,
                retry_count=found.retry_count + failed,
                updated_at=now_s,
                # What the machine sends is tried again by it; at once, as nothing is known of the cause.
                next_retry_at=None if found.by_hand or not failed else now_s,
            )

        return await self._ledger.change(name, step)

    async def _check_room(self) -> None:
        self._appends += 1
        if self._counted is None or self._appends % RECOUNT_EVERY == 0 or self._counted >= self._pending_max:
            self._counted = sum(item.is_open for item in await self._ledger.deliveries())
        if self._counted >= self._pending_max:
            raise WalFull(f"{self._counted} games wait to be handed over", retry_after_s=30.0)

    async def _take_over_old(self) -> None:
        for old in await self._old.all():
            name = await self.append(old.game_id, old.source_host, old.target_host, old.data)
            # Noted in its new place before it leaves the old one: a crash in between repeats it.
            if old.status is WalStatus.FAILED:
                await self._set(name, status=DeliveryStatus.FAILED, error=old.error_message)
            await self._old.delete(old.entry_id)


class SyncDeadLetterQueue(StoreHandle):
    """What could not be handed over, until somebody says that it is safe: deliveries that were given up."""

    def __init__(self, db_path: Path | str | None = None, **parts: Unpack[StoreParts]) -> None:
        super().__init__(db_path, **parts)
        self._ledger = DeliveryLedger(kv=self._kv, runtime=self._runtime)
        self._old = KvRecords(self._kv, _OLD_DEAD, DeadLetterEntry)

    async def add(self, entry: SyncWALEntry, error: str, *, error_type: str = "") -> str:
        """Keep a game that failed for good; return the id of the letter."""
        now_s = self._runtime.now_s()
        fresh = DeliveryRecord(
            delivery_id=entry.entry_id,
            data_type=DATA_TYPE,
            data_path=entry.game_id,
            source_node=entry.source_host,
            target_node=entry.target_host,
            retry_count=entry.retry_count,
            data=entry.data,
            created_at=entry.created_at or now_s,
        )

        def step(found: DeliveryRecord | None) -> DeliveryRecord:
            return msgspec.structs.replace(
                # The record of the entry becomes the letter; a fresh one is for what the log never had.
                found or fresh,
                status=DeliveryStatus.FAILED,
                error=error,
                error_type=error_type,
                updated_at=now_s,
                next_retry_at=None,
                promised=True,
                by_hand=False,
                resolved_at=None,
            )

        await self._ledger.change(entry.entry_id, step)
        return entry.entry_id

    async def unresolved(self, limit: int = 100) -> list[DeadLetterEntry]:
        """Return the letters, oldest first."""
        return sorted(await self._letters(), key=lambda letter: letter.added_at)[:limit]

    async def resolve(self, game_id: str) -> int:
        """The game is safe; return how many letters that settles. They are kept for a month more."""
        now_s = self._runtime.now_s()
        found = [letter for letter in await self._letters() if letter.game_id == game_id]
        for letter in found:
            await self._ledger.change(
                letter.entry_id,
                lambda item: (
                    None
                    if item is None
                    # Its content is safe elsewhere and may be large; what happened to it is kept.
                    else msgspec.structs.replace(item, resolved_at=now_s, promised=False, data={})
                ),
            )
        return len(found)

    async def stats(self) -> dict[str, int]:
        unresolved = len(await self._letters())
        resolved = sum(item.resolved_at is not None for item in await self._ledger.deliveries())
        return {"unresolved": unresolved, "resolved": resolved}

    async def _letters(self) -> list[DeadLetterEntry]:
        for old in await self._old.all():
            entry = SyncWALEntry(
                entry_id=old.entry_id,
                game_id=old.game_id,
                source_host=old.source_host,
                target_host=old.target_host,
                retry_count=old.retry_count,
            )
            await self.add(entry, old.error_message, error_type=old.error_type)
            await self._old.delete(old.entry_id)
        found = await self._ledger.deliveries()
        return [_letter(item) for item in found if item.is_given_up and item.resolved_at is None]


def _entry(delivery: DeliveryRecord) -> SyncWALEntry:
    return SyncWALEntry(
        entry_id=delivery.delivery_id,
        game_id=delivery.data_path,
        source_host=delivery.source_node,
        target_host=delivery.target_node,
        data=delivery.data,
        data_hash=delivery.checksum,
        status=_STATUS[delivery.status],
        created_at=delivery.created_at,
        completed_at=delivery.verified_at,
        retry_count=delivery.retry_count,
        error_message=delivery.error,
    )


def _letter(delivery: DeliveryRecord) -> DeadLetterEntry:
    return DeadLetterEntry(
        entry_id=delivery.delivery_id,
        game_id=delivery.data_path,
        source_host=delivery.source_node,
        target_host=delivery.target_node,
        error_message=delivery.error,
        error_type=delivery.error_type,
        retry_count=delivery.retry_count,
        added_at=delivery.updated_at,
        last_retry_at=delivery.updated_at,
        resolved_at=delivery.resolved_at,
    )


def _name_of(game_id: str, target_host: str, digest: str, *, is_file: bool) -> str:
    """A file has the id that its transfer gives it; anything else one of its own for each content."""
    if is_file:
        return delivery_id(game_id, target_host)
    return delivery_id(f"{hashlib.sha256(game_id.encode()).hexdigest()[:32]}-{digest[:32]}", target_host)


def _hash_of(data: Mapping[str, Any]) -> str:
    try:
        text = msgspec.json.encode(data, order="deterministic")
    except (TypeError, ValueError) as error:
        raise ConfigError(f"this cannot be written as JSON: {error}") from None
    return hashlib.sha256(text).hexdigest()


def get_sync_wal(db_path: Path | str | None = None, *, pending_max: int | None = None) -> SyncWAL:
    """Return the log of this process."""
    return one_per_process(SyncWAL, SyncWAL, db_path=db_path, pending_max=pending_max)


reset_sync_wal = reset_of("reset_sync_wal", SyncWAL)


def get_sync_dlq(db_path: Path | str | None = None) -> SyncDeadLetterQueue:
    return one_per_process(SyncDeadLetterQueue, SyncDeadLetterQueue, db_path=db_path)


reset_sync_dlq = reset_of("reset_sync_dlq", SyncDeadLetterQueue)
