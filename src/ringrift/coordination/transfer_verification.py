"""The transfer verifier: whether what arrived is what left, and where bad files are set aside.

Sealed artifacts are verified by their receiver, and what it said is shown here: a view of the delivery ledger
and of the receipts that every transfer writes. Files that move in other ways are recorded and verified here.
A file that is in use is busy: nothing is said about it, and it stays where it is.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import structlog

from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.handler_base import WiredCoordinator
from ringrift.coordination.sync_durability import DATA_TYPE
from ringrift.data.artifacts import Receipt
from ringrift.data.files import compute_file_checksum, set_aside
from ringrift.data.kv_records import kv_of, one_per_process
from ringrift.data.manifest.store import ManifestStore
from ringrift.data.transfer.deliveries import DeliveryLedger, DeliveryRecord, DeliveryStatus, delivery_id
from ringrift.data.transfer.service import NAME as TRANSFER
from ringrift.engine.blocking import blocking
from ringrift.engine.encoding import is_digest
from ringrift.engine.ports import KeyValue
from ringrift.engine.records import KvRecords
from ringrift.engine.run_reports import reported
from ringrift.errors import ConfigError, RingRiftError, Unavailable
from ringrift.events.catalog.audit import ComponentWiring
from ringrift.events.event import RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.runtime import Runtime, system_runtime
from ringrift.status import HealthCheckResult

__all__ = [
    "TransferVerifier",
    "compute_batch_checksum",
    "compute_file_checksum",
    "get_transfer_verifier",
    "quick_verify",
    "reset_transfer_verifier",
    "verify_transfer",
    "wire_transfer_events",
]


# What is known of transfers, checked batches and files that were set aside.
#
# Transfers have no records of their own: the delivery ledger says what was sent, and the receipts in the
# manifest say what arrived.


QUARANTINE, BATCHES = "data/quarantine/", "data/batches/"
FILE = "file"  # data type of a delivery that is no artifact
DAY_S = 86_400.0
KEPT_S = 30 * DAY_S


class TransferRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One transfer, as ledger or receipts tell of it. *verified* is None until somebody looked."""

    transfer_id: str
    source_path: str
    dest_path: str
    source_checksum: str
    dest_checksum: str = ""
    file_size: int = 0
    transfer_time: float = 0.0
    verified: bool | None = None
    verification_time: float = 0.0
    error_message: str = ""
    source_node: str = ""
    target_node: str = ""


class QuarantineRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file that was set aside. The record stays for as long as the file does."""

    quarantine_id: str
    original_path: str
    quarantine_path: str
    reason: str
    quarantined_at: float
    file_size: int = 0
    checksum: str = ""
    metadata: dict[str, Any] = {}


class BatchChecksum(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a batch of records was when it left."""

    batch_id: str
    checksum: str
    record_count: int
    byte_count: int
    first_record_id: str = ""
    last_record_id: str = ""
    created_at: float = 0.0


class VerificationRecords:
    """Ledger and receipts as transfers, and the records of batches and of the quarantine."""

    def __init__(self, kv: KeyValue, runtime: Runtime) -> None:
        self._runtime = runtime
        self.ledger = DeliveryLedger(kv=kv, runtime=runtime)
        self._manifest = ManifestStore(kv)
        self.quarantined = KvRecords(kv, QUARANTINE, QuarantineRecord)
        self.batches = KvRecords(kv, BATCHES, BatchChecksum)

    async def note(
        self,
        name: str,
        source_path: str,
        dest_path: str,
        *,
        target_node: str,
        checksum: str = "",
        size: int = 0,
        wrong: str = "",
    ) -> None:
        """Keep a transfer of a file that is no artifact, and what was *wrong* with what arrived."""
        now_s = self._runtime.now_s()
        await self.ledger.add(
            DeliveryRecord(
                delivery_id=name,
                data_type=FILE,
                data_path=source_path,
                dest_path=dest_path,
                target_node=target_node,
                status=DeliveryStatus.FAILED if wrong else DeliveryStatus.TRANSFERRED,
                checksum=checksum,
                checksum_failed=bool(wrong),
                size=size,
                created_at=now_s,
                updated_at=now_s,
                error=wrong,
                by_hand=not wrong,  # whoever copies files by himself copies them again by himself
                # Nobody sends it again, so it is not among what waits to be resolved.
                resolved_at=now_s if wrong else None,
            )
        )

    async def transfer(self, transfer_id: str) -> TransferRecord:
        """A delivery by its id, or what is known of an artifact on a node ("NODE/DIGEST")."""
        found = await self.ledger.get(transfer_id)
        if found is not None:
            return _transfer(found)
        node, _, digest = transfer_id.partition("/")
        receipt = await self._manifest.copy_at(digest, node) if is_digest(digest) else None
        if receipt is not None:
            return _received(transfer_id, receipt)
        raise ConfigError(f"no transfer is called {transfer_id!r}")

    async def transfers(self) -> list[TransferRecord]:
        """What was sent from here, oldest first."""
        found = [_transfer(item) for item in await self.ledger.deliveries() if item.data_type != DATA_TYPE]
        return sorted(found, key=lambda item: item.transfer_time)

    async def stats(self) -> dict[str, Any]:
        """Return the counts of the last 24 hours. What nobody has looked at yet is neither good nor bad."""
        since_s = self._runtime.now_s() - DAY_S
        lately = [
            item
            for item in await self.ledger.deliveries()
            if item.updated_at >= since_s and item.data_type != DATA_TYPE
        ]
        good = [item for item in lately if item.status is DeliveryStatus.VERIFIED]
        # One that came wrong first and right at last counts for both: the line is not to be trusted.
        bad = sum(item.checksum_failed for item in lately)
        return {
            "transfers_24h": len(lately),
            "verified_24h": len(good),
            "failed_24h": bad,
            "unverified_24h": sum(_transfer(item).verified is None for item in lately),
            "bytes_transferred_24h": sum(item.size for item in good),
            "quarantine_count": len(await self.quarantined.all()),
            "verification_rate": len(good) / (len(good) + bad) if good or bad else None,
        }


def _transfer(delivery: DeliveryRecord) -> TransferRecord:
    """What was found at the target; a node that did not answer says nothing about its bytes."""
    there = delivery.status is DeliveryStatus.VERIFIED
    return TransferRecord(
        transfer_id=delivery.delivery_id,
        source_path=delivery.data_path,
        dest_path=delivery.dest_path or delivery.data_path,
        source_checksum=delivery.checksum,
        dest_checksum=delivery.verified_checksum,
        file_size=delivery.size,
        transfer_time=delivery.created_at,
        verified=True if there else False if delivery.checksum_failed else None,
        verification_time=delivery.verified_at if there else delivery.updated_at,
        error_message=delivery.error,
        source_node=delivery.source_node,
        target_node=delivery.target_node,
    )


def _received(transfer_id: str, receipt: Receipt) -> TransferRecord:
    return TransferRecord(
        transfer_id=transfer_id,
        source_path=receipt.digest,
        dest_path=receipt.digest,
        source_checksum=receipt.digest,
        dest_checksum=receipt.digest,
        file_size=receipt.size,
        transfer_time=receipt.verified_s,
        verified=True,
        verification_time=receipt.verified_s,
        target_node=receipt.node,
    )


def compute_batch_checksum(
    records: Sequence[str | bytes | Mapping[str, Any]], *, ids: Sequence[str] = ()
) -> BatchChecksum:
    """Return the checksum of records in order. Each one's length is part of it, so borders count."""
    digest, size = hashlib.sha256(), 0
    for record in records:
        content = _bytes_of(record)
        # Else "ab", "c" and "a", "bc" would be the same batch.
        digest.update(len(content).to_bytes(8))
        digest.update(content)
        size += len(content)
    return BatchChecksum(
        batch_id="",
        checksum=digest.hexdigest(),
        record_count=len(records),
        byte_count=size,
        first_record_id=ids[0] if ids else "",
        last_record_id=ids[-1] if ids else "",
    )


def _bytes_of(record: str | bytes | Mapping[str, Any]) -> bytes:
    if isinstance(record, bytes):
        return record
    if isinstance(record, str):
        return record.encode()
    return msgspec.json.encode(record, order="deterministic")


log = structlog.get_logger()


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
        size, here = await asyncio.to_thread(_size_of, source), self._runtime.hostname
        name = delivery_id(self._runtime.new_id(), here)
        await self.records.note(
            name, str(source), str(dest_path), target_node=here, checksum=checksum, size=size
        )
        return name

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
        # After the move: a record whose file is not there would be dropped as gone.
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
        """Drop the records of files that are no longer in quarantine; files are never deleted here.

        Those of transfers leave after 30 days anyway.
        """
        records, gone = self.records, 0
        for record in await records.quarantined.all():
            if not await asyncio.to_thread(Path(record.quarantine_path).exists):
                await records.quarantined.delete(record.quarantine_id)
                gone += 1
        return gone

    async def quarantined_async(self) -> list[QuarantineRecord]:
        return await self.records.quarantined.all()

    # --- without a loop -------------------------------------------------------------------------------

    record_transfer = blocking(record_transfer_async, timeout_s=WORK_S)
    verify_transfer = blocking(verify_transfer_async, timeout_s=WORK_S)
    get_transfer = blocking(transfer_async)
    get_transfers = blocking(transfers_async)
    quarantine = blocking(quarantine_async, timeout_s=WORK_S)
    record_batch = blocking(record_batch_async)
    verify_batch = blocking(verify_batch_async)
    get_quarantined = blocking(quarantined_async)
    cleanup = blocking(forget_quarantined_async, timeout_s=WORK_S)
    get_stats = blocking(stats_async)

    def health_check(self) -> HealthCheckResult:
        stats = self.get_stats()
        if self.has_ended:
            return HealthCheckResult(False, self.status, "not wired any more", stats)
        # Where nothing was looked at, nothing was wrong.
        known, aside = stats["verification_rate"], stats["quarantine_count"]
        rate = 1.0 if known is None else known
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
        said = event.payload
        node = str(said.get("target_node") or self._runtime.hostname)
        await self.records.note(
            delivery_id(event.event_id, node),  # heard twice, it is still one transfer
            str(said.get("source_path", "")),
            str(said.get("dest_path", "")),
            target_node=node,
            wrong=str(said.get("error") or "the checksum differs"),
        )

    async def _say_failed(self, source_path: str, dest_path: str, error: str) -> None:
        payload = {
            "source_path": source_path,
            "dest_path": dest_path,
            "target_node": self._runtime.hostname,
            "error": error,
        }
        try:
            await self.router.publish("SYNC_CHECKSUM_FAILED", payload, NAME)
        # The answer is in the ledger; that it cannot be announced must not hide it from the caller.
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


reset_transfer_verifier = TransferVerifier.reset_instance
wire_transfer_events = TransferVerifier.wired


def verify_transfer(source_path: Path | str, dest_path: Path | str) -> bool:
    """Whether the file at *dest_path* is the one at *source_path*; both are read whole, and it is recorded.

    `FileMissing` if there is no source, `FileBusy` if either changes meanwhile.
    """
    verifier = get_transfer_verifier()
    return verifier.verify_transfer(verifier.record_transfer(source_path, dest_path))


def quick_verify(path: Path | str, checksum: str) -> bool:
    """Whether a file has a checksum; `Unavailable` if that cannot be told now."""
    return compute_file_checksum(path) == checksum
