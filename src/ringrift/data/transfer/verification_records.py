"""What is known of transfers, checked batches and files that were set aside.

Transfers have no records of their own: the delivery ledger says what was sent, and the receipts in the
manifest say what arrived.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ringrift.data.artifacts import Receipt
from ringrift.data.delivery_ledger import DeliveryLedger, DeliveryRecord, DeliveryStatus
from ringrift.data.kv_records import KvRecords
from ringrift.data.manifest_store import ManifestStore
from ringrift.data.transfer.durability import DATA_TYPE
from ringrift.engine.digests import is_digest
from ringrift.engine.ports import KeyValue
from ringrift.errors import ConfigError
from ringrift.runtime import Runtime

QUARANTINE, BATCHES = "data/quarantine/", "data/batches/"
FILE = "file"  # data type of a delivery that is no artifact
DAY_S = 86_400.0
KEPT_S = 30 * DAY_S


class TransferRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One transfer. *verified* is None until somebody looked."""

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

    async def note(self, transfer: TransferRecord) -> None:
        """Keep a transfer of a file that is no artifact."""
        wrong = transfer.verified is False
        await self.ledger.add(
            DeliveryRecord(
                delivery_id=transfer.transfer_id,
                data_type=FILE,
                data_path=transfer.source_path,
                dest_path=transfer.dest_path,
                target_node=transfer.target_node,
                status=DeliveryStatus.FAILED if wrong else DeliveryStatus.TRANSFERRED,
                checksum=transfer.source_checksum,
                checksum_failed=wrong,
                size=transfer.file_size,
                created_at=transfer.transfer_time,
                updated_at=transfer.transfer_time,
                error=transfer.error_message,
                by_hand=not wrong,  # whoever copies files by himself copies them again by himself
                resolved_at=transfer.transfer_time if wrong else None,
            )
        )

    async def transfer(self, transfer_id: str) -> TransferRecord:
        """A delivery by its id, or what is known of an artifact on a node ("NODE/DIGEST")."""
        found = await self.ledger.get(transfer_id)
        if found is not None:
            return _transfer(found)
        node, _, digest = transfer_id.partition("/")
        for receipt in await self._manifest.copies(digest) if is_digest(digest) else ():
            if receipt.node == node:
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
            "verification_rate": len(good) / (len(good) + bad) if good or bad else 1.0,
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
