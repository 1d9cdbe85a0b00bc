"""What the classes of the public API are made of: the engine they stand on, and one of each per process.

Each of them is made without arguments, on the engine of this process, or with the path of a database. The
engine is opened by the first call that needs it, and looked up anew by every call: one that was closed
meanwhile is opened again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar

from ringrift.engine.opening import engine_at, get_engine
from ringrift.engine.ports import Change, ChangePage, Entry, KeyValue, WriteGuard
from ringrift.errors import ConfigError
from ringrift.process import process_scope

T = TypeVar("T")


class OpenedKeyValue:
    """The key-value port of the engine at a path, or of this process's."""

    def __init__(self, db_path: Path | str | None = None) -> None:
        if db_path is not None and not isinstance(db_path, Path | str):
            raise ConfigError(f"db_path is {db_path!r}; it must be the path of a database, or None")
        self.db_path = None if db_path is None else Path(db_path)

    async def _kv(self) -> KeyValue:
        if self.db_path is None:
            return (await get_engine()).kv
        return (await asyncio.to_thread(engine_at, self.db_path)).kv

    async def get(self, key: str) -> Entry | None:
        return await (await self._kv()).get(key)

    async def entries(self, prefix: str = "") -> list[Entry]:
        return await (await self._kv()).entries(prefix)

    async def create(
        self, key: str, value: bytes, *, ttl_s: float | None = None, guard: WriteGuard | None = None
    ) -> int:
        return await (await self._kv()).create(key, value, ttl_s=ttl_s, guard=guard)

    async def put(
        self, key: str, value: bytes, *, ttl_s: float | None = None, guard: WriteGuard | None = None
    ) -> int:
        return await (await self._kv()).put(key, value, ttl_s=ttl_s, guard=guard)

    async def update(
        self,
        key: str,
        value: bytes,
        *,
        revision: int,
        ttl_s: float | None = None,
        guard: WriteGuard | None = None,
    ) -> int:
        return await (await self._kv()).update(key, value, revision=revision, ttl_s=ttl_s, guard=guard)

    async def delete(self, key: str, *, revision: int | None = None, guard: WriteGuard | None = None) -> bool:
        return await (await self._kv()).delete(key, revision=revision, guard=guard)

    async def watch(self, prefix: str = "", *, after: int | None = None) -> AsyncGenerator[Change, None]:
        async with aclosing((await self._kv()).watch(prefix, after=after)) as changes:
            async for change in changes:
                yield change

    async def changes(self, prefix: str = "", *, after: int, limit: int = 1_000) -> ChangePage:
        return await (await self._kv()).changes(prefix, after=after, limit=limit)


def kv_of(db_path: Path | str | None, kv: KeyValue | None) -> KeyValue:
    """The store of a handle: *kv* for a part of the machine that has it, or the one that a path leads to."""
    if kv is None:
        return OpenedKeyValue(db_path)
    if db_path is not None:
        raise ConfigError("a handle stands on db_path or on kv, not on both")
    return kv


class _Options:
    """With which options the one of each kind was made."""

    def __init__(self) -> None:
        self.of: dict[type[Any], dict[str, Any]] = {}


def one_per_process(kind: type[T], make: Callable[..., T], **given: Any) -> T:
    """Return the *kind* of this process, made with the options that are not None by the first who asks.

    `ConfigError` for options that differ from those it was made with: they would be ignored otherwise.
    """
    scope = process_scope()
    options = {name: value for name, value in given.items() if value is not None}
    made_with = scope.get(_Options, _Options).of
    if (found := scope.peek(kind)) is None:
        # Made outside of the scope's lock: what it does to begin with may need other objects of the scope.
        made = make(**options)
        if (found := scope.get(kind, lambda: made)) is made:
            made_with[kind] = options
            return made
    before = made_with.get(kind, {})
    if differing := sorted(name for name, value in options.items() if before.get(name) != value):
        name = differing[0]
        told = f"{name}={before[name]!r}" if name in before else f"its own {name}"
        raise ConfigError(
            f"this process has a {kind.__name__} already, made with {told}; make another one with "
            f"{kind.__name__}({name}=...), or drop it first (process_scope().drop)"
        )
    return found
