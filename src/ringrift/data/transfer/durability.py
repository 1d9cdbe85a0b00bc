"""What must not be lost on its way: a write-ahead log of games to hand over, and those that failed for good.

An entry is acknowledged when it is in the key-value port. It leaves only when its own hand-over is
confirmed: completing some entries never touches those that were added meanwhile, and a failed entry is
recovered like one that was never tried.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from ringrift.data.kv_records import KvRecords, each
from ringrift.engine.opening import get_engine_blocking
from ringrift.engine.ports import KeyValue
from ringrift.errors import ConfigError, Unavailable
from ringrift.process import process_scope
from ringrift.runtime import Runtime, system_runtime

__all__ = [
    "DeadLetterEntry",
    "SyncDeadLetterQueue",
    "SyncWAL",
    "SyncWALEntry",
    "WalFull",
    "WalStatus",
    "get_sync_dlq",
    "get_sync_wal",
]

OPEN, DONE, DEAD, RESOLVED = "data/wal/open/", "data/wal/done/", "data/wal/dead/", "data/wal/resolved/"
DAY_S = 86_400.0
PENDING_MAX = 10_000
RECOUNT_EVERY = 500


class WalStatus(StrEnum):
    """How far an entry came."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETE = "complete"
    FAILED = "failed"


class WalFull(Unavailable):
    """Too much waits already; whoever makes more must wait until some of it is handed over."""


class SyncWALEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One game to hand over."""

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
    """One game that could not be handed over."""

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


class SyncWAL:
    """The log. Appending the same game with the same data again changes nothing."""

    def __init__(
        self, kv: KeyValue, runtime: Runtime | None = None, *, pending_max: int = PENDING_MAX
    ) -> None:
        if pending_max < 1:
            raise ConfigError("the log must hold at least one entry")
        self._open = KvRecords(kv, OPEN, SyncWALEntry)
        self._done = KvRecords(kv, DONE, SyncWALEntry)
        self._runtime, self._pending_max = runtime or system_runtime(), pending_max
        self._counted: int | None = None
        self._appends = 0

    async def append(
        self, game_id: str, source_host: str, target_host: str, data: Mapping[str, Any] | None = None
    ) -> str:
        """Keep a game until it is handed over; return the entry's id. `WalFull` when too many wait."""
        content = dict(data or {})
        digest = _hash_of(content)
        name = f"{hashlib.sha256(game_id.encode()).hexdigest()[:32]}-{digest[:32]}"
        if await self._open.get(name) is not None or await self._done.get(name) is not None:
            return name
        await self._check_room()
        entry = SyncWALEntry(
            entry_id=name,
            game_id=game_id,
            source_host=source_host,
            target_host=target_host,
            data=content,
            data_hash=digest,
            created_at=self._runtime.now_s(),
        )
        if await self._open.create(name, entry) and self._counted is not None:
            self._counted += 1
        return name

    async def mark_in_progress(self, entry_ids: Iterable[str]) -> None:
        await each(entry_ids, lambda name: self._set(name, WalStatus.IN_PROGRESS))

    async def mark_complete(self, entry_ids: Iterable[str]) -> int:
        """These, and only these, are handed over; return how many were open."""
        done = 0

        async def one(name: str) -> None:
            nonlocal done
            entry = await self._open.get(name)
            if entry is None:
                return
            now_s = self._runtime.now_s()
            ended = msgspec.structs.replace(
                entry, status=WalStatus.COMPLETE, completed_at=now_s, data={}, error_message=""
            )
            # Noted as done before it is taken out: a crash between the two leaves it open, never lost.
            await self._done.put(name, ended, ttl_s=DAY_S)
            if await self._open.delete(name):
                done += 1

        await each(entry_ids, one)
        self._counted = None
        return done

    async def mark_failed(self, entry_id: str, error: str) -> SyncWALEntry | None:
        """Count a failed hand-over. The entry stays, and `recover` returns it."""
        return await self._open.change(
            entry_id,
            lambda entry: (
                None
                if entry is None
                else msgspec.structs.replace(
                    entry, status=WalStatus.FAILED, retry_count=entry.retry_count + 1, error_message=error
                )
            ),
        )

    async def drop(self, entry_id: str) -> bool:
        """Take an entry out that the dead letters keep from now on."""
        self._counted = None
        return await self._open.delete(entry_id)

    async def recover(self) -> list[SyncWALEntry]:
        """Return everything that is not handed over, failed or not, oldest first."""
        return sorted(await self._open.all(), key=lambda entry: entry.created_at)

    async def stats(self) -> dict[str, int]:
        found = [entry.status for entry in await self._open.all()]
        counts = {status.value: found.count(status) for status in WalStatus}
        return {**counts, "complete": len(await self._done.all()), "open": len(found)}

    async def _set(self, name: str, status: WalStatus) -> None:
        await self._open.change(
            name, lambda entry: None if entry is None else msgspec.structs.replace(entry, status=status)
        )

    async def _check_room(self) -> None:
        self._appends += 1
        if self._counted is None or self._appends % RECOUNT_EVERY == 0 or self._counted >= self._pending_max:
            self._counted = len(await self._open.all())
        if self._counted >= self._pending_max:
            raise WalFull(f"{self._counted} games wait to be handed over", retry_after_s=30.0)


class SyncDeadLetterQueue:
    """Games that could not be handed over, until somebody says that they are safe."""

    def __init__(self, kv: KeyValue, runtime: Runtime | None = None) -> None:
        self._dead = KvRecords(kv, DEAD, DeadLetterEntry)
        self._resolved = KvRecords(kv, RESOLVED, DeadLetterEntry)
        self._runtime = runtime or system_runtime()

    async def add(self, entry: SyncWALEntry, error: str, *, error_type: str = "") -> str:
        """Keep a game that failed for good; return the id of the letter."""
        now_s = self._runtime.now_s()
        letter = DeadLetterEntry(
            entry_id=entry.entry_id,
            game_id=entry.game_id,
            source_host=entry.source_host,
            target_host=entry.target_host,
            error_message=error,
            error_type=error_type,
            retry_count=entry.retry_count,
            added_at=now_s,
            last_retry_at=now_s,
        )
        await self._dead.put(entry.entry_id, letter)
        return entry.entry_id

    async def unresolved(self, limit: int = 100) -> list[DeadLetterEntry]:
        """Return the letters, oldest first."""
        return sorted(await self._dead.all(), key=lambda letter: letter.added_at)[:limit]

    async def resolve(self, game_id: str) -> int:
        """The game is safe; return how many letters that settles. They are kept for a week more."""
        found = [letter for letter in await self._dead.all() if letter.game_id == game_id]
        for letter in found:
            settled = msgspec.structs.replace(letter, resolved_at=self._runtime.now_s())
            await self._resolved.put(letter.entry_id, settled, ttl_s=7 * DAY_S)
            await self._dead.delete(letter.entry_id)
        return len(found)

    async def stats(self) -> dict[str, int]:
        return {"unresolved": len(await self._dead.all()), "resolved": len(await self._resolved.all())}


def _hash_of(data: Mapping[str, Any]) -> str:
    try:
        text = msgspec.json.encode(data, order="deterministic")
    except (TypeError, ValueError) as error:
        raise ConfigError(f"this cannot be written as JSON: {error}") from None
    return hashlib.sha256(text).hexdigest()


def get_sync_wal() -> SyncWAL:
    """Return the log of this process; the first call opens the engine."""
    return process_scope().get(SyncWAL, lambda: SyncWAL(get_engine_blocking().kv))


def get_sync_dlq() -> SyncDeadLetterQueue:
    return process_scope().get(SyncDeadLetterQueue, lambda: SyncDeadLetterQueue(get_engine_blocking().kv))
