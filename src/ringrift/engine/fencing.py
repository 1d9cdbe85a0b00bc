"""Writes in the name of a role: each carries the role's token, and is refused once there is a newer one.

`fenced` returns the same engine with a guard on every write to keys and on every order, so that no part of a
process that holds a role can forget it. Reading, claims of work (which have tokens of their own) and events
(which only wake) go through as they are.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from ringrift.engine.ports import (
    Change,
    ChangePage,
    Claim,
    Claimant,
    Completion,
    EndedWork,
    Engine,
    EngineLifecycle,
    Entry,
    Json,
    KeyValue,
    NewWork,
    WorkItem,
    WorkQueue,
    WorkState,
    WriteGuard,
)
from ringrift.errors import LeaseLost

T = TypeVar("T")


def check_guard(guard: WriteGuard, current: int | None) -> None:
    """Raise `LeaseLost` unless *current*, the revision of the guard's key or None, is the one it names."""
    if current != guard.revision:
        found = "nobody has it" if current is None else f"the newest token is {current}"
        raise LeaseLost(guard.key, token=guard.revision, reason=found)


def fenced(
    engine: Engine,
    guard: WriteGuard,
    *,
    on_lost: Callable[[LeaseLost], None],
    exchanged: Callable[[], str] = lambda: "",
) -> Engine:
    """Return *engine* with *guard* on its writes; *on_lost* hears of each that was refused for it.

    *exchanged* is asked before each write. If it says what became of the place of the role, the write is
    refused as well, and the engine is as good as failed.
    """
    fence = _Fence(guard, on_lost, exchanged)
    return replace(
        engine,
        kv=FencedKeyValue(engine.kv, fence),
        queue=FencedWorkQueue(engine.queue, fence),
        lifecycle=FencedLifecycle(engine.lifecycle, exchanged),
    )


def is_fenced(engine: Engine) -> bool:
    """Whether writes through *engine* carry a token: this process holds the role that it stands for."""
    return isinstance(engine.kv, FencedKeyValue)


class _Fence:
    def __init__(
        self, guard: WriteGuard, on_lost: Callable[[LeaseLost], None], exchanged: Callable[[], str]
    ) -> None:
        self.guard, self._on_lost, self._exchanged = guard, on_lost, exchanged

    async def passed(self, write: Coroutine[Any, Any, T]) -> T:
        if problem := self._exchanged():
            write.close()
            refusal = LeaseLost(self.guard.key, token=self.guard.revision, reason=problem)
            self._on_lost(refusal)
            raise refusal
        try:
            return await write
        except LeaseLost as lost:
            if lost.name == self.guard.key:
                self._on_lost(lost)
            raise


class FencedLifecycle:
    """See `EngineLifecycle`."""

    def __init__(self, inner: EngineLifecycle, exchanged: Callable[[], str]) -> None:
        self._inner, self._exchanged = inner, exchanged

    @property
    def failure(self) -> str:
        return self._inner.failure or self._exchanged()

    @property
    def exchanged(self) -> str:
        return self._inner.exchanged

    async def close(self) -> None:
        await self._inner.close()


class FencedKeyValue:
    """See `KeyValue`. A guard that a caller gives is its own affair, and is used instead."""

    def __init__(self, inner: KeyValue, fence: _Fence) -> None:
        self._inner, self._fence = inner, fence

    async def get(self, key: str) -> Entry | None:
        return await self._inner.get(key)

    async def entries(self, *prefixes: str) -> list[Entry]:
        return await self._inner.entries(*prefixes)

    async def create(
        self, key: str, value: bytes, *, ttl_s: float | None = None, guard: WriteGuard | None = None
    ) -> int:
        guard = guard or self._fence.guard
        return await self._fence.passed(self._inner.create(key, value, ttl_s=ttl_s, guard=guard))

    async def put(
        self, key: str, value: bytes, *, ttl_s: float | None = None, guard: WriteGuard | None = None
    ) -> int:
        guard = guard or self._fence.guard
        return await self._fence.passed(self._inner.put(key, value, ttl_s=ttl_s, guard=guard))

    async def update(
        self,
        key: str,
        value: bytes,
        *,
        revision: int,
        ttl_s: float | None = None,
        guard: WriteGuard | None = None,
    ) -> int:
        guard = guard or self._fence.guard
        write = self._inner.update(key, value, revision=revision, ttl_s=ttl_s, guard=guard)
        return await self._fence.passed(write)

    async def delete(self, key: str, *, revision: int | None = None, guard: WriteGuard | None = None) -> bool:
        guard = guard or self._fence.guard
        return await self._fence.passed(self._inner.delete(key, revision=revision, guard=guard))

    def watch(self, prefix: str = "", *, after: int | None = None) -> AsyncGenerator[Change, None]:
        return self._inner.watch(prefix, after=after)

    async def changes(self, prefix: str = "", *, after: int, limit: int = 1_000) -> ChangePage:
        return await self._inner.changes(prefix, after=after, limit=limit)


class FencedWorkQueue:
    """See `WorkQueue`."""

    def __init__(self, inner: WorkQueue, fence: _Fence) -> None:
        self._inner, self._fence = inner, fence

    async def add(self, items: Sequence[NewWork], *, guard: WriteGuard | None = None) -> list[str]:
        return await self._fence.passed(self._inner.add(items, guard=guard or self._fence.guard))

    async def cancel(self, item_id: str, *, reason: str, guard: WriteGuard | None = None) -> bool:
        guard = guard or self._fence.guard
        return await self._fence.passed(self._inner.cancel(item_id, reason=reason, guard=guard))

    async def replace(
        self, item_id: str, new: NewWork, *, reason: str, guard: WriteGuard | None = None
    ) -> str | None:
        guard = guard or self._fence.guard
        return await self._fence.passed(self._inner.replace(item_id, new, reason=reason, guard=guard))

    async def revive(self, item_id: str, *, guard: WriteGuard | None = None) -> None:
        await self._fence.passed(self._inner.revive(item_id, guard=guard or self._fence.guard))

    # --- under the token of a claim, or reading

    async def claim(
        self, claimant: Claimant, *, lease_s: float, limit: int = 1, wait_s: float = 0.0
    ) -> list[Claim]:
        return await self._inner.claim(claimant, lease_s=lease_s, limit=limit, wait_s=wait_s)

    async def renew(self, item_id: str, *, token: int, lease_s: float) -> float:
        return await self._inner.renew(item_id, token=token, lease_s=lease_s)

    async def complete(self, item_id: str, *, token: int, result: Json | None = None) -> None:
        await self._inner.complete(item_id, token=token, result=result)

    async def complete_many(self, done: Sequence[Completion]) -> list[str]:
        return await self._inner.complete_many(done)

    async def fail(
        self, item_id: str, *, token: int, error: str, retry_after_s: float = 0.0, final: bool = False
    ) -> WorkState:
        return await self._inner.fail(
            item_id, token=token, error=error, retry_after_s=retry_after_s, final=final
        )

    async def release(self, item_id: str, *, token: int) -> None:
        await self._inner.release(item_id, token=token)

    async def get(self, item_id: str) -> WorkItem | None:
        return await self._inner.get(item_id)

    async def counts(self) -> dict[str, dict[WorkState, int]]:
        return await self._inner.counts()

    async def dead(self, *, limit: int = 100) -> list[WorkItem]:
        return await self._inner.dead(limit=limit)

    async def ready(self, *, limit: int = 100) -> list[WorkItem]:
        return await self._inner.ready(limit=limit)

    async def delayed(self, *, limit: int = 1000) -> list[WorkItem]:
        return await self._inner.delayed(limit=limit)

    async def blocked(self, *, limit: int = 1000) -> list[WorkItem]:
        return await self._inner.blocked(limit=limit)

    async def claimed(self, *, limit: int = 1000) -> list[WorkItem]:
        return await self._inner.claimed(limit=limit)

    async def unended(self, *, after: int, limit: int) -> list[tuple[int, WorkItem]]:
        return await self._inner.unended(after=after, limit=limit)

    async def ended(self, *, after: int, limit: int, wait_s: float = 0.0) -> list[EndedWork]:
        return await self._inner.ended(after=after, limit=limit, wait_s=wait_s)

    async def expire(self) -> int:
        return await self._inner.expire()
