"""Records in the key-value port: read with their type, and changed by compare-and-swap.

Whatever several processes change goes through `change`: it reads, asks what the record should become, and
writes only if nobody was faster. What cannot be read is `Corrupt`, with its key and what to do about it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from ringrift.engine.encoding import NOT_NEEDED, decode_entry
from ringrift.engine.ports import Entry, KeyValue
from ringrift.errors import AlreadyExists, RevisionMismatch, Unavailable

T = TypeVar("T")

TRIES_MAX = 50


class KvRecords(Generic[T]):
    """Records of one type under one prefix.

    *advice* is what to do about one that cannot be read, *what* how it is named where its type says it badly.
    """

    def __init__(
        self, kv: KeyValue, prefix: str, kind: type[T], *, advice: str = NOT_NEEDED, what: str = ""
    ) -> None:
        self._kv, self.prefix, self._kind, self._advice, self._what = kv, prefix, kind, advice, what

    def key(self, name: str) -> str:
        return self.prefix + name

    async def get(self, name: str) -> T | None:
        entry = await self._kv.get(self.key(name))
        return None if entry is None else self.read(entry)

    async def has(self, name: str) -> bool:
        """Whether there is one, also one that cannot be read."""
        return await self._kv.get(self.key(name)) is not None

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

    async def delete_if(self, name: str, record: T) -> bool:
        """Delete the record if it still is *record*; one that took its place stays."""
        entry = await self._kv.get(self.key(name))
        if entry is None or entry.value != msgspec.json.encode(record):
            return False
        return await delete_at(self._kv, entry.key, entry.revision)

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
        return decode_entry(entry, self._kind, advice=self._advice, what=self._what)


# The same for one key.


async def read_record(kv: KeyValue, key: str, kind: type[T]) -> T | None:
    """Return what stands under *key*; None if nothing does."""
    return await KvRecords(kv, key, kind).get("")


async def read_records(kv: KeyValue, prefix: str, kind: type[T]) -> list[T]:
    """Return what stands under the keys that begin with *prefix*, in their order."""
    return await KvRecords(kv, prefix, kind).all()


async def delete_at(kv: KeyValue, key: str, revision: int) -> bool:
    """Delete what stands under *key* since *revision*; False if another was faster, and his stays."""
    try:
        return await kv.delete(key, revision=revision)
    except RevisionMismatch:
        return False


async def write_record(kv: KeyValue, key: str, record: object, *, ttl_s: float | None = None) -> None:
    """Put *record* in the place of whatever stands there, for *ttl_s* seconds or for good."""
    await KvRecords(kv, key, object).put("", record, ttl_s=ttl_s)


async def change_record(
    kv: KeyValue, key: str, kind: type[T], step: Callable[[T | None], T | None]
) -> T | None:
    """`KvRecords.change` of what stands under *key*."""
    return await KvRecords(kv, key, kind).change("", step)
