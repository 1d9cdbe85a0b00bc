"""Keys and values in memory."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from itertools import islice

from ringrift.engine import arguments as check
from ringrift.engine.memory.handle import Handle
from ringrift.engine.ports import Change, ChangePage, Entry, WriteGuard
from ringrift.engine.waiting import KV, QUEUE
from ringrift.engine.work_rules import changes_holds
from ringrift.errors import AlreadyExists, RevisionMismatch


@dataclass(slots=True)
class KvState:
    """Live entries, the last change of every key, and the engine's revision."""

    revision: int = 0
    live: dict[str, Entry] = field(default_factory=dict)
    folders: dict[str, dict[str, None]] = field(default_factory=dict)  # up to the last "/": live keys
    changes: dict[str, Change] = field(default_factory=dict)  # in order of revision
    expiring: dict[str, float] = field(default_factory=dict)  # live key: when

    def under(self, folder: str) -> list[Entry]:
        """The entries whose key has no further "/" after *folder*; some may have run out."""
        return [self.live[key] for key in self.folders.get(folder, ())]


class MemoryKeyValue:
    """See `KeyValue`."""

    def __init__(self, handle: Handle, state: KvState) -> None:
        self._handle, self._state = handle, state

    async def get(self, key: str) -> Entry | None:
        check.check_key(key)
        await self._enter()
        return self._state.live.get(key)

    async def entries(self, prefix: str = "") -> list[Entry]:
        check.check_prefix(prefix)
        await self._enter()
        folders = (
            keys
            for folder, keys in self._state.folders.items()
            if folder.startswith(prefix) or prefix.startswith(folder)
        )
        found = sorted(key for keys in folders for key in keys if key.startswith(prefix))
        return [self._state.live[key] for key in found]

    async def create(
        self, key: str, value: bytes, *, ttl_s: float | None = None, guard: WriteGuard | None = None
    ) -> int:
        check.check_entry(key, value, ttl_s)
        now_s = await self._enter()
        self._handle.check_guard(guard, now_s)
        if (present := self._state.live.get(key)) is not None:
            raise AlreadyExists(key, revision=present.revision)
        return self._store(key, value, ttl_s, now_s)

    async def put(
        self, key: str, value: bytes, *, ttl_s: float | None = None, guard: WriteGuard | None = None
    ) -> int:
        check.check_entry(key, value, ttl_s)
        now_s = await self._enter()
        self._handle.check_guard(guard, now_s)
        return self._store(key, value, ttl_s, now_s)

    async def update(
        self,
        key: str,
        value: bytes,
        *,
        revision: int,
        ttl_s: float | None = None,
        guard: WriteGuard | None = None,
    ) -> int:
        check.check_entry(key, value, ttl_s)
        check.check_integer("revision", revision)
        now_s = await self._enter()
        self._handle.check_guard(guard, now_s)
        self._check_revision(key, revision)
        return self._store(key, value, ttl_s, now_s)

    async def delete(self, key: str, *, revision: int | None = None, guard: WriteGuard | None = None) -> bool:
        check.check_key(key)
        if revision is not None:
            check.check_integer("revision", revision)
        self._handle.check_guard(guard, await self._enter())
        if revision is not None:
            self._check_revision(key, revision)
        if key not in self._state.live:
            return False
        self._drop(key)
        return True

    def watch(self, prefix: str = "", *, after: int | None = None) -> AsyncGenerator[Change, None]:
        check.check_watch(prefix, after)
        return self._watch(prefix, self._state.revision if after is None else after)

    async def _watch(self, prefix: str, after: int) -> AsyncGenerator[Change, None]:
        async def look() -> tuple[list[Change] | None, float | None]:
            await self._enter()
            found = [
                change
                for change in self._state.changes.values()
                if change.revision > after and change.key.startswith(prefix)
            ]
            return found or None, min(self._state.expiring.values(), default=None)

        while True:
            changes = await self._handle.wait(look, topic=KV, timeout_s=math.inf)
            for change in changes or ():
                after = change.revision
                yield change

    async def changes(self, prefix: str = "", *, after: int, limit: int = 1_000) -> ChangePage:
        check.check_prefix(prefix)
        check.check_page(after, limit)
        await self._enter()
        newer = (
            change
            for change in self._state.changes.values()
            if change.revision > after and change.key.startswith(prefix)
        )
        found = tuple(islice(newer, limit))
        if len(found) == limit:
            return ChangePage(found, found[-1].revision, complete=False)
        return ChangePage(found, self._state.revision, complete=True)

    async def _enter(self) -> float:
        now_s = await self._handle.enter()
        self._expire(now_s)
        return now_s

    def _expire(self, now_s: float) -> None:
        due = sorted((at_s, key) for key, at_s in self._state.expiring.items() if at_s <= now_s)
        for _, key in due:
            self._drop(key)

    def _drop(self, key: str) -> None:
        del self._state.live[key]
        self._state.expiring.pop(key, None)
        keys = self._state.folders[_folder(key)]
        del keys[key]
        if not keys:
            del self._state.folders[_folder(key)]
        self._record(key, None)

    def _check_revision(self, key: str, revision: int) -> None:
        present = self._state.live.get(key)
        current = None if present is None else present.revision
        if current != revision:
            raise RevisionMismatch(key, expected=revision, current=current)

    def _store(self, key: str, value: bytes, ttl_s: float | None, now_s: float) -> int:
        revision = self._record(key, value)
        expires_s = None if ttl_s is None else now_s + ttl_s
        self._state.live[key] = Entry(key=key, value=value, revision=revision, expires_s=expires_s)
        self._state.folders.setdefault(_folder(key), {})[key] = None
        self._state.expiring.pop(key, None)
        if expires_s is not None:
            self._state.expiring[key] = expires_s
        return revision

    def _record(self, key: str, value: bytes | None) -> int:
        state = self._state
        state.revision += 1
        state.changes.pop(key, None)  # a key's last change stands at the end
        state.changes[key] = Change(key=key, value=value, revision=state.revision)
        self._handle.changed(KV)
        if changes_holds(key):
            self._handle.changed(QUEUE)  # a hold that ends lets work be claimed
        return state.revision


def _folder(key: str) -> str:
    return key[: key.rfind("/") + 1]
