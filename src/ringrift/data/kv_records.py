"""Records of the data plane in the key-value port: histories, mirrors, and what was decided."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, Generic, Protocol, TypedDict, TypeVar

import msgspec

from ringrift.engine.arguments import check_database
from ringrift.engine.encoding import decode_value
from ringrift.engine.opening import engine_at, engine_on_demand
from ringrift.engine.ports import Change, ChangePage, Entry, KeyValue, WriteGuard
from ringrift.engine.records import KvRecords
from ringrift.errors import ConfigError
from ringrift.process import process_scope
from ringrift.runtime import Runtime, system_runtime

T = TypeVar("T")
A = TypeVar("A")
R = TypeVar("R")

AT_ONCE_MAX = 500


class KvHistory(KvRecords[T]):
    """Records in the order of their time; they leave after *kept_s*, or sooner when there are very many."""

    def __init__(
        self,
        kv: KeyValue,
        runtime: Runtime,
        prefix: str,
        kind: type[T],
        *,
        kept_s: float,
        records_max: int,
        trim_every: int,
    ) -> None:
        super().__init__(kv, prefix, kind)
        self._runtime, self._kept_s = runtime, kept_s
        self._records_max, self._trim_every, self._written = records_max, trim_every, 0

    async def add(self, record: T, *, at_s: float) -> None:
        key = self.key(f"{round(at_s * 1e6):017d}-{self._runtime.new_id()}")
        await self._kv.put(key, msgspec.json.encode(record, enc_hook=str), ttl_s=self._kept_s)
        # Also after the first of each writer: many of them write a few and are gone.
        if self._written % self._trim_every == 0:
            entries = await self._kv.entries(self.prefix)
            for entry in entries[: max(0, len(entries) - self._records_max)]:
                await self._kv.delete(entry.key)
        self._written += 1


# What the data plane decided and why, newest last, for a person who asks later. A bounded history: entries
# leave after a month, or sooner when there are very many. Deletions have a record of their own that never
# leaves.


DECISIONS = "data/decisions/"
KEPT_S = 30 * 86_400.0
DECISIONS_MAX = 10_000
_TRIM_EVERY = 500


class DataDecision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One decision."""

    at_s: float
    node: str
    part: str  # deletion, replication, integrity, …
    action: str
    reason: str
    digest: str = ""
    facts: dict[str, Any] = {}


class DecisionLog:
    """Writes decisions of one node and reads those of all."""

    def __init__(self, kv: KeyValue, runtime: Runtime, *, node: str) -> None:
        self._runtime, self._node = runtime, node
        self._records = KvHistory(
            kv,
            runtime,
            DECISIONS,
            DataDecision,
            kept_s=KEPT_S,
            records_max=DECISIONS_MAX,
            trim_every=_TRIM_EVERY,
        )

    async def record(
        self, part: str, action: str, reason: str, *, digest: str = "", **facts: Any
    ) -> DataDecision:
        decision = DataDecision(
            at_s=self._runtime.now_s(),
            node=self._node,
            part=part,
            action=action,
            reason=reason,
            digest=digest,
            facts=facts,
        )
        await self._records.add(decision, at_s=decision.at_s)
        return decision

    async def recent(self, *, part: str = "", digest: str = "", limit: int = 100) -> list[DataDecision]:
        """The newest decisions, newest last."""
        known = await self._records.all()
        fitting = [each for each in known if part in ("", each.part) and digest in ("", each.digest)]
        return fitting[-limit:]


async def for_each(
    items: Iterable[A], call: Callable[[A], Awaitable[R]], *, at_once: int = AT_ONCE_MAX
) -> list[R]:
    """Do something for each item, several at a time, and return what each came to; the first error ends all.

    The default is for small writes: the engine commits together what comes together.
    """
    turns = asyncio.Semaphore(at_once)

    async def one(item: A) -> R:
        async with turns:
            return await call(item)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(item)) for item in items]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


# A mirror of what stands under some keys, kept between looks: each look reads only what changed since.


V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)

PAGE = 500  # changes that are taken in at a time: a few milliseconds of the event loop
REREAD_S = 6 * 3_600.0  # deletions that lie longer back may be forgotten by the store


class Mirror(Protocol[V_co]):
    """Takes changes in, in order. What `view` returns must not change when more come."""

    def apply(self, change: Change) -> None: ...

    def view(self) -> V_co: ...


class KvMirror(Generic[V]):
    """Keeps a view of the keys under *prefixes*. May be shared by tasks and event loops."""

    def __init__(
        self, kv: KeyValue, runtime: Runtime, prefixes: tuple[str, ...], make: Callable[[], Mirror[V]]
    ) -> None:
        self._kv, self._runtime, self._prefixes, self._make = kv, runtime, prefixes, make
        self._lock = threading.Lock()
        self._read_s = runtime.now_s()
        self._mirror, self._revisions = make(), dict.fromkeys(prefixes, 0)

    async def refresh(self) -> V:
        """Return everything as it is now."""
        now_s = self._runtime.now_s()
        with self._lock:
            if abs(now_s - self._read_s) > REREAD_S:
                self._mirror, self._revisions = self._make(), dict.fromkeys(self._prefixes, 0)
            self._read_s, mirror, revisions = now_s, self._mirror, self._revisions
        for prefix in self._prefixes:
            await self._catch_up(prefix, mirror, revisions)
        with self._lock:
            return mirror.view()

    async def _catch_up(self, prefix: str, mirror: Mirror[V], revisions: dict[str, int]) -> None:
        complete = False
        while not complete:
            page = await self._kv.changes(prefix, after=revisions[prefix], limit=PAGE)
            complete = page.complete
            with self._lock:
                done = revisions[prefix]  # others may have been faster
                for change in page.changes:
                    if change.revision > done:
                        mirror.apply(change)
                revisions[prefix] = max(done, page.revision)


class RecordsMirror(Generic[T]):
    """Records by the rest of their key."""

    def __init__(self, prefix: str, kind: type[T], *, advice: str) -> None:
        self._prefix, self._kind, self._advice = prefix, kind, advice
        self._records: dict[str, T] = {}
        self._view: Mapping[str, T] | None = None

    def apply(self, change: Change) -> None:
        self._view = None
        name = change.key.removeprefix(self._prefix)
        if change.value is None:
            self._records.pop(name, None)
        else:
            self._records[name] = decode_value(change.key, change.value, self._kind, advice=self._advice)

    def view(self) -> Mapping[str, T]:
        if self._view is None:
            self._view = dict(self._records)
        return self._view


# What the classes of the public API are made of: the engine they stand on, and one of each per process.
#
# Each of them is made without arguments, on the engine of this process, or with the path of a database. The
# engine is opened by the first call that needs it, and looked up anew by every call: one that was closed
# meanwhile is opened again. Reading makes none: where no run was ever, there is nothing.


class OpenedKeyValue:
    """The key-value port of the engine at a path, or of this process's."""

    def __init__(self, db_path: Path | str | None = None) -> None:
        self.db_path = check_database("db_path", db_path)

    async def _kv(self) -> KeyValue:
        if self.db_path is None:
            return (await engine_on_demand()).kv
        return (await asyncio.to_thread(engine_at, self.db_path)).kv

    async def get(self, key: str) -> Entry | None:
        return await (await self._kv()).get(key)

    async def entries(self, *prefixes: str) -> list[Entry]:
        return await (await self._kv()).entries(*prefixes)

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


class StoreParts(TypedDict, total=False):
    """What parts of the machine hand to a handle instead of a path."""

    kv: KeyValue | None
    runtime: Runtime | None


class StoreHandle:
    """A class of the public API: on the store of this process, on the one of a path, or on a given one."""

    def __init__(
        self,
        db_path: Path | str | None = None,
        *,
        kv: KeyValue | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self._kv, self._runtime = kv_of(db_path, kv), runtime or system_runtime()


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
        option = f"{name}={before[name]!r}" if name in before else f"its own {name}"
        raise ConfigError(
            f"this process has a {kind.__name__} already, made with {option}; make another one with "
            f"{kind.__name__}({name}=...), or drop it first with the reset_*() beside its getter"
        )
    return found
