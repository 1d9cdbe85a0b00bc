"""The transfer verifier: whether what arrived is what left, and where bad files are set aside.

Sealed artifacts are verified by their receiver, and what it said is shown here: a view of the delivery ledger
and of the receipts that every transfer writes. Files that move in other ways are recorded and verified here.
A file that is in use is busy: nothing is said about it, and it stays where it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import structlog

from ringrift.data.delivery_ledger import DeliveryStatus, delivery_id
from ringrift.data.file_checks import compute_file_checksum, set_aside
from ringrift.data.handles import kv_of, one_per_process
from ringrift.data.transfer.service import NAME as TRANSFER
from ringrift.data.transfer.verification_records import (
    KEPT_S,
    BatchChecksum,
    QuarantineRecord,
    TransferRecord,
    VerificationRecords,
    compute_batch_checksum,
)
from ringrift.engine.blocking import run_blocking
from ringrift.engine.digests import is_digest
from ringrift.engine.ports import KeyValue
from ringrift.engine.run_reports import reported
from ringrift.errors import RingRiftError, Unavailable
from ringrift.events.audit import ComponentWiring
from ringrift.events.routed_event import RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.events.wired import WiredCoordinator
from ringrift.runtime import Runtime, system_runtime
from ringrift.settings import get_settings
from ringrift.status import HealthCheckResult

log = structlog.get_logger()

__all__ = [
    "BatchChecksum",
    "QuarantineRecord",
    "TransferRecord",
    "TransferVerifier",
    "compute_batch_checksum",
    "compute_file_checksum",
    "get_transfer_verifier",
    "quick_verify",
    "verify_transfer",
    "wire_transfer_events",
]

NAME = "transfer_verifier"
HEALTHY_SHARE, DEGRADED_SHARE = 0.95, 0.80
QUARANTINED_MAX = 100
WORK_S = 600.0


class TransferVerifier(WiredCoordinator):
    """Records transfers, verifies them and sets bad files aside. Calls without `_async` block."""

    emits: ClassVar[tuple[str, ...]] = ("SYNC_CHECKSUM_FAILED",)

    def __init__(
        self,
        db_path: Path | str | None = None,
        *,
        kv: KeyValue | None = None,
        quarantine_dir: Path | None = None,
        runtime: Runtime | None = None,
        router: UnifiedEventRouter | None = None,
    ) -> None:
        super().__init__(NAME, router=router)
        self._runtime = runtime or system_runtime()
        self.records = VerificationRecords(kv_of(db_path, kv), self._runtime)
        self._folder = quarantine_dir
        self._counts = {"syncs_seen": 0, "files_seen": 0, "bytes_seen": 0}

    def _hears(self) -> Mapping[str, Callback]:
        return {
            "DATA_SYNC_COMPLETED": self._on_sync_completed,
            "SYNC_CHECKSUM_FAILED": self._on_checksum_failed,
        }

    def wiring(self) -> ComponentWiring:
        return ComponentWiring(NAME, "transfer", self.emits, tuple(self._hears()))

    # --- in a loop ------------------------------------------------------------------------------------

    async def transfer_async(self, transfer_id: str) -> TransferRecord:
        """What is known of a transfer; of an artifact it is called "NODE/DIGEST"."""
        return await self.records.transfer(transfer_id)

    async def transfers_async(self) -> list[TransferRecord]:
        """What was sent from here within a month, oldest first."""
        return await self.records.transfers()

    async def stats_async(self) -> dict[str, Any]:
        return {**await self.records.stats(), **await asyncio.to_thread(self._heard)}

    @reported
    def _heard(self) -> dict[str, Any]:
        return {**self._counts, "status": self.status.value}

    async def record_transfer_async(
        self, source_path: Path | str, dest_path: Path | str, checksum: str = ""
    ) -> str:
        """Note a transfer; the checksum is that of the source, read now unless it is given."""
        source = Path(source_path)
        checksum = checksum or await asyncio.to_thread(compute_file_checksum, source)
        record = TransferRecord(
            transfer_id=delivery_id(self._runtime.new_id(), self._runtime.hostname),
            source_path=str(source),
            dest_path=str(dest_path),
            source_checksum=checksum,
            file_size=await asyncio.to_thread(_size_of, source),
            transfer_time=self._runtime.now_s(),
            target_node=self._runtime.hostname,
        )
        await self.records.note(record)
        return record.transfer_id

    async def verify_transfer_async(self, transfer_id: str, path: Path | str | None = None) -> bool:
        """Read what arrived and say whether it is what left; the answer is kept, and announced if it is no.

        `FileBusy` if it changes meanwhile, `Unavailable` if it cannot be read: neither is an answer.
        """
        record = await self.records.transfer(transfer_id)
        if record.source_path == record.dest_path and path is None and is_digest(record.dest_path):
            return record.verified is True  # its receiver read it
        dest = Path(path or record.dest_path)
        found = await asyncio.to_thread(compute_file_checksum, dest)
        after = await self.records.ledger.record_verified(transfer_id, found)
        if after.status is DeliveryStatus.VERIFIED:
            return True
        await self._say_failed(record.source_path, str(dest), after.error)
        return False

    async def quarantine_async(
        self, path: Path | str, reason: str, metadata: Mapping[str, Any] | None = None
    ) -> Path:
        """Set a file aside; return its new place. `FileBusy` if somebody is writing to it."""
        path = Path(path)
        checksum = await asyncio.to_thread(compute_file_checksum, path)
        size = await asyncio.to_thread(_size_of, path)
        now_s = self._runtime.now_s()
        folder = self._folder or get_settings().data_dir / "quarantine"
        place = await asyncio.to_thread(set_aside, path, folder, now_s=now_s)
        record = QuarantineRecord(
            quarantine_id=self._runtime.new_id(),
            original_path=str(path),
            quarantine_path=str(place),
            reason=reason,
            quarantined_at=now_s,
            file_size=size,
            checksum=checksum,
            metadata=dict(metadata or {}),
        )
        await self.records.quarantined.put(record.quarantine_id, record)
        log.warning("transfer.quarantined", path=str(path), place=str(place), reason=reason)
        return place

    async def record_batch_async(
        self, records: Sequence[str | bytes | Mapping[str, Any]], ids: Sequence[str] = ()
    ) -> str:
        """Note what a batch is as it leaves; return its id."""
        batch = msgspec.structs.replace(
            compute_batch_checksum(records, ids=ids),
            batch_id=self._runtime.new_id(),
            created_at=self._runtime.now_s(),
        )
        await self.records.batches.put(batch.batch_id, batch, ttl_s=KEPT_S)
        return batch.batch_id

    async def verify_batch_async(
        self, batch_id: str, records: Sequence[str | bytes | Mapping[str, Any]]
    ) -> bool:
        """Whether these are as many records as left, and the same."""
        left = await self.records.batches.get(batch_id)
        found = compute_batch_checksum(records)
        return (
            left is not None and left.record_count == found.record_count and left.checksum == found.checksum
        )

    async def forget_quarantined_async(self) -> int:
        """Drop the records of files that are no longer in quarantine; files are never deleted here."""
        records, gone = self.records, 0
        for record in await records.quarantined.all():
            if not await asyncio.to_thread(Path(record.quarantine_path).exists):
                await records.quarantined.delete(record.quarantine_id)
                gone += 1
        return gone

    async def quarantined_async(self) -> list[QuarantineRecord]:
        return await self.records.quarantined.all()

    # --- without a loop -------------------------------------------------------------------------------

    def record_transfer(self, source_path: Path | str, dest_path: Path | str, checksum: str = "") -> str:
        return run_blocking(self.record_transfer_async(source_path, dest_path, checksum), timeout_s=WORK_S)

    def verify_transfer(self, transfer_id: str, path: Path | str | None = None) -> bool:
        return run_blocking(self.verify_transfer_async(transfer_id, path), timeout_s=WORK_S)

    def get_transfer(self, transfer_id: str) -> TransferRecord:
        return run_blocking(self.transfer_async(transfer_id))

    def get_transfers(self) -> list[TransferRecord]:
        return run_blocking(self.transfers_async())

    def quarantine(self, path: Path | str, reason: str, metadata: Mapping[str, Any] | None = None) -> Path:
        return run_blocking(self.quarantine_async(path, reason, metadata), timeout_s=WORK_S)

    def record_batch(
        self, records: Sequence[str | bytes | Mapping[str, Any]], ids: Sequence[str] = ()
    ) -> str:
        return run_blocking(self.record_batch_async(records, ids))

    def verify_batch(self, batch_id: str, records: Sequence[str | bytes | Mapping[str, Any]]) -> bool:
        return run_blocking(self.verify_batch_async(batch_id, records))

    def get_quarantined(self) -> list[QuarantineRecord]:
        return run_blocking(self.quarantined_async())

    def cleanup(self) -> int:
        """Drop records that speak of nothing any more; those of transfers leave after 30 days anyway."""
        return run_blocking(self.forget_quarantined_async(), timeout_s=WORK_S)

    def get_stats(self) -> dict[str, Any]:
        return run_blocking(self.stats_async())

    def health_check(self) -> HealthCheckResult:
        stats = self.get_stats()
        if self.has_ended:
            return HealthCheckResult(False, self.status, "not wired any more", stats)
        rate, aside = stats["verification_rate"], stats["quarantine_count"]
        if rate >= HEALTHY_SHARE and aside < QUARANTINED_MAX:
            return HealthCheckResult.ok("", **stats)
        why = f"{rate:.0%} of transfers were right, {aside} files are in quarantine"
        judge = HealthCheckResult.degraded if rate >= DEGRADED_SHARE else HealthCheckResult.unhealthy
        return judge(why, **stats)

    # --- what others say ------------------------------------------------------------------------------

    async def _on_sync_completed(self, event: RouterEvent) -> None:
        said = event.payload
        self._counts["syncs_seen"] += 1
        self._counts["files_seen"] += int(said.get("files_synced") or 0)
        self._counts["bytes_seen"] += int(said.get("bytes_transferred") or 0)

    async def _on_checksum_failed(self, event: RouterEvent) -> None:
        if event.source in (NAME, TRANSFER):
            return  # the ledger says so already
        said, now_s = event.payload, self._runtime.now_s()
        node = str(said.get("target_node") or self._runtime.hostname)
        record = TransferRecord(
            transfer_id=delivery_id(event.event_id, node),
            source_path=str(said.get("source_path", "")),
            dest_path=str(said.get("dest_path", "")),
            source_checksum="",
            transfer_time=now_s,
            verified=False,
            verification_time=now_s,
            error_message=str(said.get("error") or "the checksum differs"),
            target_node=node,
        )
        await self.records.note(record)

    async def _say_failed(self, source_path: str, dest_path: str, error: str) -> None:
        payload = {
            "source_path": source_path,
            "dest_path": dest_path,
            "target_node": self._runtime.hostname,
            "error": error,
        }
        try:
            await self.router.publish("SYNC_CHECKSUM_FAILED", payload, NAME)
        except RingRiftError as lost:
            log.error("transfer.announcement_lost", path=dest_path, error=str(lost))


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror or error}") from error


# --- of this process ----------------------------------------------------------------------------------


def get_transfer_verifier(
    db_path: Path | str | None = None, *, quarantine_dir: Path | None = None
) -> TransferVerifier:
    """Return the verifier of this process."""
    return one_per_process(TransferVerifier, TransferVerifier, db_path=db_path, quarantine_dir=quarantine_dir)


def wire_transfer_events(router: UnifiedEventRouter | None = None) -> TransferVerifier:
    """Return the verifier of this process, subscribed; for another *router*, one of its own."""
    found = get_transfer_verifier() if router is None else TransferVerifier(router=router)
    found.wire()
    return found


def verify_transfer(source_path: Path | str, dest_path: Path | str) -> bool:
    """Whether the file at *dest_path* is the one at *source_path*; both are read whole, and it is recorded.

    `FileMissing` if there is no source, `FileBusy` if either changes meanwhile.
    """
    verifier = get_transfer_verifier()
    return verifier.verify_transfer(verifier.record_transfer(source_path, dest_path))


def quick_verify(path: Path | str, checksum: str) -> bool:
    """Whether a file has a checksum; `Unavailable` if that cannot be told now."""
    return compute_file_checksum(path) == checksum
