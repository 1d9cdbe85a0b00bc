"""What is written down of verified transfers, checked batches and files that were set aside."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ringrift.data.kv_records import KvRecords
from ringrift.engine.ports import KeyValue
from ringrift.errors import ConfigError
from ringrift.runtime import Runtime

TRANSFERS, QUARANTINE, BATCHES = "data/transfers/", "data/quarantine/", "data/batches/"
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
    """The three kinds of records in the key-value port."""

    def __init__(self, kv: KeyValue, runtime: Runtime) -> None:
        self.kv, self._runtime = kv, runtime
        self.transfers = KvRecords(kv, TRANSFERS, TransferRecord)
        self.quarantined = KvRecords(kv, QUARANTINE, QuarantineRecord)
        self.batches = KvRecords(kv, BATCHES, BatchChecksum)

    async def transfer(self, transfer_id: str) -> TransferRecord:
        found = await self.transfers.get(transfer_id)
        if found is None:
            raise ConfigError(f"no transfer is called {transfer_id!r}")
        return found

    async def stats(self) -> dict[str, Any]:
        """Return the counts of the last 24 hours. What nobody has looked at yet is neither good nor bad."""
        since_s = self._runtime.now_s() - DAY_S
        lately = [item for item in await self.transfers.all() if item.transfer_time >= since_s]
        good = [item for item in lately if item.verified is True]
        bad = sum(item.verified is False for item in lately)
        return {
            "transfers_24h": len(lately),
            "verified_24h": len(good),
            "failed_24h": bad,
            "unverified_24h": len(lately) - len(good) - bad,
            "bytes_transferred_24h": sum(item.file_size for item in good),
            "quarantine_count": len(await self.quarantined.all()),
            "verification_rate": len(good) / (len(good) + bad) if good or bad else 1.0,
        }


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
