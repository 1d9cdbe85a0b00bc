"""The delivery ledger: what was to go where, and how far it came. One record per file and target.

A record changes as its delivery goes on, over all attempts; a second attempt does not begin a second one.
Deliveries that are to be tried carry the time of their next attempt: the retry queue is a view of the ledger.
So are the write-ahead log of the sync, its dead letters, and what the transfer verifier knows of transfers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Unpack

import msgspec
import structlog
from msgspec.structs import replace

from ringrift.daemons.running import call_async
from ringrift.data.artifacts import Artifact
from ringrift.data.kv_records import StoreHandle, StoreParts, for_each
from ringrift.data.transfer.contract import FileResult
from ringrift.engine.blocking import blocking
from ringrift.engine.records import KvRecords
from ringrift.errors import ConfigError
from ringrift.runtime import Runtime, back_off_s, system_runtime
from ringrift.status import HealthCheckResult, reported_by_store
from ringrift.work.backpressure import DELIVERIES

DAY_S = 86_400.0
KEPT_S = 30 * DAY_S
RETRIES_MAX = 4
RETRY_S, RETRY_S_MAX = 30.0, 240.0
IN_FLIGHT_MAX = 50
SUCCESS_SHARE_MIN = 0.8


class DeliveryStatus(StrEnum):
    """How far a delivery came. Only VERIFIED means that the target has the file."""

    PENDING = "pending"  # asked for, and not begun
    TRANSFERRING = "transferring"
    TRANSFERRED = "transferred"  # sent, but the target has not said that it is right
    VERIFIED = "verified"
    FAILED = "failed"


class DeliveryRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file on its way to one node. Times are wall clock."""

    delivery_id: str
    data_type: str
    data_path: str
    target_node: str
    status: DeliveryStatus = DeliveryStatus.PENDING
    retry_count: int = 0
    max_retries: int = RETRIES_MAX
    checksum: str = ""
    verified_checksum: str = ""
    size: int = 0
    method: str = ""
    created_at: float = 0.0
    updated_at: float = 0.0
    verified_at: float = 0.0
    next_retry_at: float | None = None
    error: str = ""
    error_type: str = ""
    source_node: str = ""  # who is to send it; empty: whoever asks
    dest_path: str = ""  # of a file that is no artifact: where it went
    checksum_failed: bool = False  # other bytes than ours were found there, at least once
    promised: bool = False  # somebody was told that it is kept until it is done, however long that takes
    by_hand: bool = False  # whoever noted it brings it there; nobody else could
    data: dict[str, Any] = {}  # of what is in no file
    resolved_at: float | None = None  # somebody said that it is safe although it was given up

    @property
    def is_failed(self) -> bool:
        return self.status is DeliveryStatus.FAILED

    @property
    def is_given_up(self) -> bool:
        return self.is_failed and self.next_retry_at is None and not self.by_hand

    @property
    def is_open(self) -> bool:
        """Whether the target still has to get it."""
        return self.status is not DeliveryStatus.VERIFIED and not self.is_given_up


def _kept_s(delivery: DeliveryRecord) -> float | None:
    """For how long a record stays; None: until it changes."""
    return None if delivery.promised else KEPT_S


def delivery_id(data_path: str, target_node: str) -> str:
    return f"{target_node}/{data_path}"


def retry_delay_s(retry_count: int) -> float:
    """How long to wait after that many retries."""
    return back_off_s(retry_count + 1, first_s=RETRY_S, longest_s=RETRY_S_MAX)


# --- decisions ----------------------------------------------------------------------------------------


def failed(delivery: DeliveryRecord, error: str, *, now_s: float, final: bool = False) -> DeliveryRecord:
    """The delivery after a failed attempt: due again later, or given up."""
    again = not final and not delivery.by_hand and delivery.retry_count < delivery.max_retries
    return replace(
        delivery,
        status=DeliveryStatus.FAILED,
        error=error,
        updated_at=now_s,
        next_retry_at=now_s + retry_delay_s(delivery.retry_count) if again else None,
    )


def verified(delivery: DeliveryRecord, checksum: str, *, method: str, now_s: float) -> DeliveryRecord:
    """The delivery after the target said what it has. Another checksum than ours is no success."""
    if delivery.checksum and checksum != delivery.checksum:
        why = f"the target has {checksum[:12]}, not {delivery.checksum[:12]}"
        wrong = replace(delivery, verified_checksum=checksum, checksum_failed=True)
        return failed(wrong, why, now_s=now_s)
    return replace(
        delivery,
        status=DeliveryStatus.VERIFIED,
        verified_checksum=checksum,
        promised=False,
        by_hand=False,
        data={},
        method=method or delivery.method,
        updated_at=now_s,
        verified_at=now_s,
        next_retry_at=None,
        error="",
    )


def begun(found: DeliveryRecord | None, fresh: DeliveryRecord) -> DeliveryRecord | None:
    """The delivery as an attempt begins that is not one of the retry queue; None if it goes on already."""
    if found is None or found.status is DeliveryStatus.VERIFIED or found.checksum not in ("", fresh.checksum):
        return fresh
    if found.status is DeliveryStatus.TRANSFERRING:
        return None
    if found.is_given_up:
        return fresh  # somebody asks anew: the count begins anew
    if found.status is DeliveryStatus.PENDING:
        known = {"status": fresh.status, "checksum": fresh.checksum, "size": fresh.size}
        return replace(
            found, **known, data_type=fresh.data_type, updated_at=fresh.updated_at, next_retry_at=None
        )
    return retried(found, now_s=fresh.updated_at)


def retried(delivery: DeliveryRecord, *, now_s: float) -> DeliveryRecord:
    """The delivery as its next attempt begins. The first attempt of one that waited is no repetition."""
    waited = delivery.status is DeliveryStatus.PENDING
    return replace(
        delivery,
        status=DeliveryStatus.TRANSFERRING,
        retry_count=delivery.retry_count + (not waited),
        updated_at=now_s,
        next_retry_at=None,
    )


# --- the ledger ---------------------------------------------------------------------------------------


class DeliveryLedger(StoreHandle):
    """Deliveries in the key-value port."""

    def __init__(self, db_path: Path | str | None = None, **parts: Unpack[StoreParts]) -> None:
        super().__init__(db_path, **parts)
        self._records = KvRecords(self._kv, DELIVERIES, DeliveryRecord)

    async def record_delivery_started(
        self,
        data_type: str,
        data_path: str,
        target_node: str,
        *,
        checksum: str = "",
        size: int = 0,
        source_node: str = "",
    ) -> str:
        """Note that an attempt begins; return the id of the delivery, which is the same for every attempt."""
        fresh = self._fresh(
            data_type, data_path, target_node, checksum=checksum, size=size, source_node=source_node
        )
        name = fresh.delivery_id
        if not await self._records.create(name, fresh, ttl_s=KEPT_S):
            await self.change(name, lambda found: begun(found, fresh))
        return name

    async def add(self, delivery: DeliveryRecord) -> bool:
        """Note a delivery as it is; False if there is one of its id."""
        return await self._records.create(delivery.delivery_id, delivery, ttl_s=_kept_s(delivery))

    async def change(
        self, name: str, step: Callable[[DeliveryRecord | None], DeliveryRecord | None]
    ) -> DeliveryRecord | None:
        """Replace a delivery by what *step* makes of it; None from *step* leaves it as it is."""
        return await self._records.change(name, step, ttl_s=_kept_s)

    def _fresh(self, data_type: str, data_path: str, target_node: str, **known: Any) -> DeliveryRecord:
        """A delivery whose first attempt begins now."""
        now_s = self._runtime.now_s()
        return DeliveryRecord(
            delivery_id=delivery_id(data_path, target_node),
            data_type=data_type,
            data_path=data_path,
            target_node=target_node,
            status=DeliveryStatus.TRANSFERRING,
            created_at=now_s,
            updated_at=now_s,
            **known,
        )

    async def record_transferred(self, name: str, *, method: str = "") -> DeliveryRecord:
        """Note that the bytes went; the target has not yet said that they are right."""
        now_s = self._runtime.now_s()
        return await self._change(
            name,
            lambda found: replace(found, status=DeliveryStatus.TRANSFERRED, method=method, updated_at=now_s),
        )

    async def record_verified(self, name: str, checksum: str, *, method: str = "") -> DeliveryRecord:
        now_s = self._runtime.now_s()
        return await self._change(name, lambda found: verified(found, checksum, method=method, now_s=now_s))

    async def record_failed(self, name: str, error: str, *, final: bool = False) -> DeliveryRecord:
        now_s = self._runtime.now_s()

        def step(found: DeliveryRecord) -> DeliveryRecord:
            if found.status is DeliveryStatus.VERIFIED:
                return found  # another attempt got through meanwhile
            return failed(found, error, now_s=now_s, final=final)

        return await self._change(name, step)

    async def end(
        self, artifact: Artifact, result: FileResult, *, source_node: str, target_node: str
    ) -> None:
        """Note what an attempt came to, noted as begun or not."""
        now_s, digest = self._runtime.now_s(), artifact.digest
        fresh = self._fresh(
            artifact.kind.value,
            digest,
            target_node,
            checksum=digest,
            size=artifact.size,
            source_node=source_node,
        )

        def step(found: DeliveryRecord | None) -> DeliveryRecord | None:
            now = begun(found, fresh) or found or fresh
            now = replace(now, checksum_failed=now.checksum_failed or bool(result.wrong))
            if result.receipt is not None:
                return verified(now, digest, method=result.method, now_s=now_s)
            return failed(now, result.why, now_s=now_s)

        await self.change(fresh.delivery_id, step)

    async def begin_retry(self, name: str) -> DeliveryRecord | None:
        """Take a delivery that is due; None if it is not, or another took it."""
        now_s = self._runtime.now_s()

        def step(found: DeliveryRecord | None) -> DeliveryRecord | None:
            due = found is not None and found.next_retry_at is not None and found.next_retry_at <= now_s
            return retried(found, now_s=now_s) if found is not None and due else None

        return await self.change(name, step)

    async def get(self, name: str) -> DeliveryRecord | None:
        return await self._records.get(name)

    async def deliveries(
        self, *, target_node: str = "", status: DeliveryStatus | None = None
    ) -> list[DeliveryRecord]:
        under = f"{target_node}/" if target_node else ""
        return [item for item in await self._records.all(under) if status in (None, item.status)]

    async def forget(self, name: str) -> bool:
        return await self._records.delete(name)

    async def stats(self) -> dict[str, Any]:
        """Return counts by status, and the share of ended deliveries that arrived."""
        found = await self._records.all()
        counts = Counter(item.status.value for item in found)
        arrived, lost = counts["verified"], sum(item.is_given_up for item in found)
        settled = sum(item.is_given_up and item.resolved_at is not None for item in found)
        ended = arrived + lost - settled
        return {
            "total": len(found),
            "by_status": {status.value: counts[status.value] for status in DeliveryStatus},
            "in_flight": sum(item.is_open and not item.is_failed and not item.by_hand for item in found),
            "waiting_for_retry": sum(item.is_failed and item.next_retry_at is not None for item in found),
            "given_up": lost,
            "success_rate": arrived / ended if ended else None,
        }

    async def check(self) -> HealthCheckResult:
        """Say how deliveries go."""
        stats = await self.stats()
        if (arrived := stats["success_rate"]) is not None and arrived < SUCCESS_SHARE_MIN:
            return HealthCheckResult.unhealthy(f"{1 - arrived:.0%} never arrived", **stats)
        if stats["in_flight"] > IN_FLIGHT_MAX:
            return HealthCheckResult.degraded(f"{stats['in_flight']} are on their way at once", **stats)
        return HealthCheckResult.ok("", **stats)

    health_check = reported_by_store(blocking(check))

    async def _change(self, name: str, step: Callable[[DeliveryRecord], DeliveryRecord]) -> DeliveryRecord:
        def checked(found: DeliveryRecord | None) -> DeliveryRecord:
            if found is None:
                raise ConfigError(f"no delivery is called {name!r}")
            return step(found)

        after = await self.change(name, checked)
        assert after is not None
        return after


# The retry queue: failed deliveries of the ledger, tried again when they are due.
#
# It has no store of its own. A delivery is taken by changing its record, so that two processes never try the
# same one at once; one that nobody knows how to retry stays until somebody does.


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
        outcomes: list[str] = []

        async def one(item: DeliveryRecord) -> None:
            outcomes.append(await self._retry(item))

        await for_each(await self.due(), one, at_once=self._at_once)
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
