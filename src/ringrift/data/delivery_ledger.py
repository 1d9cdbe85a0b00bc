"""The delivery ledger: what was to go where, and how far it came. One record per file and target.

A record changes as its delivery goes on, over all attempts; a second attempt does not begin a second one.
Failed deliveries carry the time of their next attempt: the retry queue is a view of this ledger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import msgspec

from ringrift.data.artifacts import Artifact
from ringrift.data.kv_records import KvRecords
from ringrift.engine.ports import KeyValue
from ringrift.errors import ConfigError
from ringrift.runtime import Runtime, system_runtime
from ringrift.status import HealthCheckResult
from ringrift.work.queue_depths import DELIVERIES

DAY_S = 86_400.0
KEPT_S = 30 * DAY_S
RETRIES_MAX = 4
RETRY_S, RETRY_S_MAX = 30.0, 240.0
IN_FLIGHT_MAX = 50
SUCCESS_SHARE_MIN = 0.8


class DeliveryStatus(StrEnum):
    """How far a delivery came. Only VERIFIED means that the target has the file."""

    PENDING = "pending"
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

    @property
    def is_given_up(self) -> bool:
        return self.status is DeliveryStatus.FAILED and self.next_retry_at is None


def delivery_id(data_path: str, target_node: str) -> str:
    return f"{target_node}/{data_path}"


def retry_delay_s(retry_count: int) -> float:
    """How long to wait after that many retries."""
    return float(min(RETRY_S_MAX, RETRY_S * 2**retry_count))


# --- decisions ----------------------------------------------------------------------------------------


def failed(delivery: DeliveryRecord, error: str, *, now_s: float, final: bool = False) -> DeliveryRecord:
    """The delivery after a failed attempt: due again later, or given up."""
    again = not final and delivery.retry_count < delivery.max_retries
    return msgspec.structs.replace(
        delivery,
        status=DeliveryStatus.FAILED,
        error=error,
        updated_at=now_s,
        next_retry_at=now_s + retry_delay_s(delivery.retry_count) if again else None,
    )


def verified(delivery: DeliveryRecord, checksum: str, *, method: str, now_s: float) -> DeliveryRecord:
    """The delivery after the target said what it has. Another checksum than ours is no success."""
    if delivery.checksum and checksum != delivery.checksum:
        return failed(delivery, f"the target has {checksum[:12]}, not {delivery.checksum[:12]}", now_s=now_s)
    return msgspec.structs.replace(
        delivery,
        status=DeliveryStatus.VERIFIED,
        verified_checksum=checksum,
        method=method or delivery.method,
        updated_at=now_s,
        verified_at=now_s,
        next_retry_at=None,
        error="",
    )


def begun(found: DeliveryRecord | None, fresh: DeliveryRecord) -> DeliveryRecord | None:
    """The delivery as an attempt begins that is not one of the retry queue; None if it goes on already."""
    if found is None or found.status is DeliveryStatus.VERIFIED or found.checksum != fresh.checksum:
        return fresh
    if found.status is DeliveryStatus.TRANSFERRING:
        return None
    if found.is_given_up:
        return fresh  # somebody asks anew: the count begins anew
    return retried(found, now_s=fresh.updated_at)


def retried(delivery: DeliveryRecord, *, now_s: float) -> DeliveryRecord:
    """The delivery as its next attempt begins."""
    return msgspec.structs.replace(
        delivery,
        status=DeliveryStatus.TRANSFERRING,
        retry_count=delivery.retry_count + 1,
        updated_at=now_s,
        next_retry_at=None,
    )


# --- the ledger ---------------------------------------------------------------------------------------


class DeliveryLedger:
    """Deliveries in the key-value port."""

    def __init__(self, kv: KeyValue, runtime: Runtime | None = None) -> None:
        self._records = KvRecords(kv, DELIVERIES, DeliveryRecord)
        self._runtime = runtime or system_runtime()

    async def record_delivery_started(
        self, data_type: str, data_path: str, target_node: str, *, checksum: str = "", size: int = 0
    ) -> str:
        """Note that an attempt begins; return the id of the delivery, which is the same for every attempt."""
        fresh = self._fresh(data_type, data_path, target_node, checksum=checksum, size=size)
        name = fresh.delivery_id
        if not await self._records.create(name, fresh, ttl_s=KEPT_S):
            await self._records.change(name, lambda found: begun(found, fresh), ttl_s=KEPT_S)
        return name

    def _fresh(
        self, data_type: str, data_path: str, target_node: str, *, checksum: str, size: int
    ) -> DeliveryRecord:
        now_s = self._runtime.now_s()
        return DeliveryRecord(
            delivery_id=delivery_id(data_path, target_node),
            data_type=data_type,
            data_path=data_path,
            target_node=target_node,
            status=DeliveryStatus.TRANSFERRING,
            checksum=checksum,
            size=size,
            created_at=now_s,
            updated_at=now_s,
        )

    async def record_transferred(self, name: str, *, method: str = "") -> DeliveryRecord:
        """Note that the bytes went; the target has not yet said that they are right."""
        now_s = self._runtime.now_s()
        return await self._change(
            name,
            lambda found: msgspec.structs.replace(
                found, status=DeliveryStatus.TRANSFERRED, method=method, updated_at=now_s
            ),
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

    async def end(self, artifact: Artifact, target_node: str, *, error: str = "", method: str = "") -> None:
        """Note how an attempt ended, begun or not: without an error, the target has verified the file."""
        now_s, digest = self._runtime.now_s(), artifact.digest
        fresh = self._fresh(artifact.kind.value, digest, target_node, checksum=digest, size=artifact.size)

        def step(found: DeliveryRecord | None) -> DeliveryRecord | None:
            now = begun(found, fresh) or found or fresh
            if not error:
                return verified(now, digest, method=method, now_s=now_s)
            return failed(now, error, now_s=now_s)

        await self._records.change(fresh.delivery_id, step, ttl_s=KEPT_S)

    async def begin_retry(self, name: str) -> DeliveryRecord | None:
        """Take a delivery that is due; None if it is not, or another took it."""
        now_s = self._runtime.now_s()

        def step(found: DeliveryRecord | None) -> DeliveryRecord | None:
            due = found is not None and found.next_retry_at is not None and found.next_retry_at <= now_s
            return retried(found, now_s=now_s) if found is not None and due else None

        return await self._records.change(name, step, ttl_s=KEPT_S)

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
        return {
            "total": len(found),
            "by_status": {status.value: counts[status.value] for status in DeliveryStatus},
            "in_flight": counts["transferring"] + counts["transferred"] + counts["pending"],
            "waiting_for_retry": counts["failed"] - lost,
            "given_up": lost,
            "success_rate": arrived / (arrived + lost) if arrived + lost else 1.0,
        }

    async def check(self) -> HealthCheckResult:
        """Say how deliveries go."""
        stats = await self.stats()
        if stats["success_rate"] < SUCCESS_SHARE_MIN:
            return HealthCheckResult.unhealthy(f"{1 - stats['success_rate']:.0%} never arrived", **stats)
        if stats["in_flight"] > IN_FLIGHT_MAX:
            return HealthCheckResult.degraded(f"{stats['in_flight']} are on their way at once", **stats)
        return HealthCheckResult.ok("", **stats)

    async def _change(self, name: str, step: Callable[[DeliveryRecord], DeliveryRecord]) -> DeliveryRecord:
        def checked(found: DeliveryRecord | None) -> DeliveryRecord:
            if found is None:
                raise ConfigError(f"no delivery is called {name!r}")
            return step(found)

        after = await self._records.change(name, checked, ttl_s=KEPT_S)
        assert after is not None
        return after
