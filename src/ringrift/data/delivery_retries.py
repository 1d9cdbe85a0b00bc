"""The retry queue: failed deliveries of the ledger, tried again when they are due.

It has no store of its own. A delivery is taken by changing its record, so that two processes never try the
same one at once; one that nobody knows how to retry stays until somebody does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import structlog

from ringrift.daemons.foreign import call_async
from ringrift.data.delivery_ledger import DAY_S, DeliveryLedger, DeliveryRecord, DeliveryStatus
from ringrift.errors import ConfigError
from ringrift.runtime import Runtime, system_runtime

log = structlog.get_logger()

AT_ONCE = 5
AGE_S_MAX = DAY_S
ATTEMPT_S_MAX = 3_600.0
ROUND_S = 10.0
ANY = ""

RetryHandler = Callable[[DeliveryRecord], Awaitable[bool]]
"""Tries one delivery again; True when the target has verified the file."""


@dataclass(frozen=True, slots=True)
class RetryRound:
    """What one round of retries brought."""

    delivered: int = 0
    failed: int = 0
    given_up: int = 0
    without_handler: int = 0


class RetryQueue:
    """Tries what is due, a few at once."""

    def __init__(
        self,
        ledger: DeliveryLedger | None = None,
        runtime: Runtime | None = None,
        *,
        at_once: int = AT_ONCE,
        source_node: str = "",
    ) -> None:
        """Of *ledger*, by default this process's; with *source_node*, without what others are to send."""
        if at_once < 1:
            raise ConfigError("at least one delivery must be retried at once")
        self._runtime, self._at_once = runtime or system_runtime(), at_once
        self._ledger = ledger or DeliveryLedger(runtime=self._runtime)
        self._source_node = source_node
        self._handlers: dict[str, RetryHandler] = {}
        self._rounds = 0
        self._delivered = 0

    def register_handler(self, handler: RetryHandler, data_type: str = ANY) -> None:
        """Have deliveries of *data_type* (any other, by default) retried by *handler*."""
        self._handlers[data_type] = handler

    async def due(self) -> list[DeliveryRecord]:
        """Return what may be tried now, longest due first."""
        now_s, mine = self._runtime.now_s(), ("", self._source_node)
        ready = [
            (item.next_retry_at, item)
            for item in await self._ledger.deliveries()
            if item.status in (DeliveryStatus.FAILED, DeliveryStatus.PENDING)
            and item.next_retry_at is not None
            and (not self._source_node or item.source_node in mine)
        ]
        return [item for at_s, item in sorted(ready, key=lambda pair: pair[0]) if at_s <= now_s]

    async def run_due(self) -> RetryRound:
        """Try everything that is due, once."""
        await self._end_interrupted()
        turns, outcomes = asyncio.Semaphore(self._at_once), list[str]()

        async def one(item: DeliveryRecord) -> None:
            async with turns:
                outcomes.append(await self._retry(item))

        async with asyncio.TaskGroup() as group:
            for item in await self.due():
                group.create_task(one(item))
        self._rounds += 1
        self._delivered += outcomes.count("delivered")
        return RetryRound(
            delivered=outcomes.count("delivered"),
            failed=outcomes.count("failed"),
            given_up=outcomes.count("given_up"),
            without_handler=outcomes.count("without_handler"),
        )

    async def stats(self) -> dict[str, Any]:
        ledger = await self._ledger.stats()
        return {
            "pending": ledger["waiting_for_retry"],
            "given_up": ledger["given_up"],
            "rounds": self._rounds,
            "delivered": self._delivered,
        }

    async def _retry(self, item: DeliveryRecord) -> str:
        if not item.promised and self._runtime.now_s() - item.created_at > AGE_S_MAX:
            await self._ledger.record_failed(item.delivery_id, item.error or "too old", final=True)
            log.warning("delivery.given_up", delivery=item.delivery_id, error=item.error)
            return "given_up"
        handler = self._handlers.get(item.data_type) or self._handlers.get(ANY)
        if handler is None:
            return "without_handler"
        taken = await self._ledger.begin_retry(item.delivery_id)
        if taken is None:
            return "taken"  # another process was first, or it arrived meanwhile
        called = await call_async(lambda: handler(taken), timeout_s=ATTEMPT_S_MAX)
        if called.error is None and called.value is True:
            await self._ledger.record_verified(item.delivery_id, taken.checksum)
            return "delivered"
        why = called.problem or "the target did not verify it"
        after = await self._ledger.record_failed(item.delivery_id, why)
        if after.status is DeliveryStatus.VERIFIED:
            return "delivered"
        log.warning("delivery.retry_failed", delivery=item.delivery_id, tries=after.retry_count, error=why)
        return "given_up" if after.is_given_up else "failed"

    async def _end_interrupted(self) -> None:
        """What has been on its way for longer than an attempt may take, was left by a process that died."""
        now_s = self._runtime.now_s()
        for item in await self._ledger.deliveries(status=DeliveryStatus.TRANSFERRING):
            if now_s - item.updated_at > ATTEMPT_S_MAX:
                await self._ledger.record_failed(item.delivery_id, "the attempt was interrupted")
