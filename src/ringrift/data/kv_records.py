"""Records in the key-value port: read with their type, changed by compare-and-swap.

Every store of the data plane that several processes change goes through `change`: it reads, asks what the
record should become, and writes only if nobody was faster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypeVar

import msgspec

from ringrift.decoding import decode_as
from ringrift.engine.ports import Entry, KeyValue
from ringrift.errors import AlreadyExists, ConfigError, Corrupt, RevisionMismatch, Unavailable

T = TypeVar("T")
A = TypeVar("A")

TRIES_MAX = 50
AT_ONCE_MAX = 500


class KvRecords(Generic[T]):
    """Records of one type under one prefix."""

    def __init__(self, kv: KeyValue, prefix: str, kind: type[T]) -> None:
        self._kv, self.prefix, self._kind = kv, prefix, kind

    def key(self, name: str) -> str:
        return self.prefix + name

    async def get(self, name: str) -> T | None:
        entry = await self._kv.get(self.key(name))
        return None if entry is None else self.read(entry)

    async def all(self, under: str = "") -> list[T]:
        return [self.read(entry) for entry in await self._kv.entries(self.key(under))]

    async def put(self, name: str, record: T, *, ttl_s: float | None = None) -> None:
        await self._kv.put(self.key(name), msgspec.json.encode(record), ttl_s=ttl_s)

    async def create(self, name: str, record: T, *, ttl_s: float | None = None) -> bool:
        """Store a new record; False if there is one."""
        try:
            await self._kv.create(self.key(name), msgspec.json.encode(record), ttl_s=ttl_s)
        except AlreadyExists:
            return False
        return True

    async def delete(self, name: str) -> bool:
        return await self._kv.delete(self.key(name))

    async def change(
        self,
        name: str,
        step: Callable[[T | None], T | None],
        *,
        ttl_s: float | Callable[[T], float | None] | None = None,
    ) -> T | None:
        """Replace the record by what *step* makes of it; None from *step* leaves it as it is.

        How long it stays may follow from what it became. Returns what *step* returned. `Unavailable` if
        others change it all the time.
        """
        for _ in range(TRIES_MAX):
            entry = await self._kv.get(self.key(name))
            after = step(None if entry is None else self.read(entry))
            if after is None:
                return None
            value = msgspec.json.encode(after)
            stays_s = ttl_s(after) if callable(ttl_s) else ttl_s
            try:
                if entry is None:
                    await self._kv.create(self.key(name), value, ttl_s=stays_s)
                else:
                    await self._kv.update(entry.key, value, revision=entry.revision, ttl_s=stays_s)
            except (AlreadyExists, RevisionMismatch):
                continue
            return after
        raise Unavailable(f"{self.key(name)!r} changes faster than it can be written")

    def read(self, entry: Entry) -> T:
        try:
            return decode_as(entry.value, self._kind)
        except (msgspec.MsgspecError, ValueError, ConfigError, RecursionError) as error:
            raise Corrupt(
                entry.key,
                found=f"this is no {self._kind.__name__} ({error})",
                advice="Delete the key if it is not needed",
            ) from None


async def each(items: Iterable[A], call: Callable[[A], Awaitable[object]]) -> None:
    """Do a small write for each item, several at a time: the engine commits together what comes together."""
    turns = asyncio.Semaphore(AT_ONCE_MAX)

    async def one(item: A) -> None:
        async with turns:
            await call(item)

    try:
        async with asyncio.TaskGroup() as group:
            for item in items:
                group.create_task(one(item))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
