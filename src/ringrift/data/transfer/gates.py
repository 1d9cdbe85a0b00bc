"""How many transfers run at once, in all and per node; the urgent go in first."""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from ringrift.data.transfer.priorities import TransferPriority
from ringrift.data.transfer.refusals import TransferRefused
from ringrift.errors import ConfigError

WAITING_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GateLimits:
    """At most so many at once."""

    total: int = 12
    per_node: int = 5

    def __post_init__(self) -> None:
        if not 1 <= self.per_node <= self.total:
            raise ConfigError("transfers at once: per node at least 1, and in all at least as many")


@dataclass(order=True, slots=True)
class _Waiter:
    rank: int  # lower goes first
    number: int
    node: str = field(compare=False)
    turn: asyncio.Future[None] = field(compare=False)


class TransferGates:
    """One gate per process. Of the waiting, the most urgent whose node has room is let in."""

    def __init__(self, limits: GateLimits | None = None) -> None:
        self.limits = limits or GateLimits()
        self._inside: Counter[str] = Counter()
        self._waiting: list[_Waiter] = []
        self._count = 0

    @property
    def active(self) -> int:
        return self._inside.total()

    def active_at(self, node: str) -> int:
        return self._inside[node]

    @asynccontextmanager
    async def entered(self, node: str, *, priority: TransferPriority, wait_s: float) -> AsyncIterator[None]:
        """Hold a slot for the length of the block; `TransferRefused` if none comes free in *wait_s*."""
        await self._enter(node, priority, wait_s)
        try:
            yield
        finally:
            self._leave(node)

    async def _enter(self, node: str, priority: TransferPriority, wait_s: float) -> None:
        if not self._waiting and self._has_room(node):
            self._inside[node] += 1
            return
        if len(self._waiting) >= WAITING_MAX:
            raise TransferRefused(node, reason=f"{WAITING_MAX} transfers wait already", retry_after_s=30.0)
        self._count += 1
        turn = asyncio.get_running_loop().create_future()
        waiter = _Waiter(-priority.rank, self._count, node, turn)
        heapq.heappush(self._waiting, waiter)
        self._let_in()
        try:
            async with asyncio.timeout(wait_s):
                await turn
        except BaseException as error:
            self._give_up(waiter)
            if isinstance(error, TimeoutError):
                why = f"all {self.limits.per_node} slots of the node or {self.limits.total} in all are taken"
                raise TransferRefused(node, reason=why, retry_after_s=10.0) from None
            raise

    def _give_up(self, waiter: _Waiter) -> None:
        if waiter.turn.done() and not waiter.turn.cancelled():
            self._leave(waiter.node)  # it was let in just as it left
            return
        if waiter in self._waiting:
            self._waiting.remove(waiter)
            heapq.heapify(self._waiting)

    def _leave(self, node: str) -> None:
        self._inside[node] -= 1
        if not self._inside[node]:
            del self._inside[node]
        self._let_in()

    def _let_in(self) -> None:
        kept: list[_Waiter] = []
        while self._waiting and self.active < self.limits.total:
            waiter = heapq.heappop(self._waiting)
            if waiter.turn.cancelled():
                continue
            if self._has_room(waiter.node):
                self._inside[waiter.node] += 1
                waiter.turn.set_result(None)
            else:
                kept.append(waiter)
        for waiter in kept:
            heapq.heappush(self._waiting, waiter)

    def _has_room(self, node: str) -> bool:
        return self.active < self.limits.total and self._inside[node] < self.limits.per_node
