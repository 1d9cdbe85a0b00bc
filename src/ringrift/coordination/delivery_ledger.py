"""Deliveries: the ledger of what went where, and the queue of those that are tried again.

`get_delivery_ledger` and `get_retry_queue` are those of this process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ringrift.data.kv_records import one_per_process
from ringrift.data.transfer.deliveries import (
    DeliveryLedger,
    DeliveryRecord,
    DeliveryStatus,
    RetryHandler,
    RetryQueue,
    RetryRound,
    delivery_id,
    retry_delay_s,
)
from ringrift.process import reset_of

__all__ = [
    "DeliveryLedger",
    "DeliveryRecord",
    "DeliveryStatus",
    "RetryHandler",
    "RetryQueue",
    "RetryRound",
    "delivery_id",
    "get_delivery_ledger",
    "get_retry_queue",
    "reset_delivery_ledger",
    "reset_retry_queue",
    "retry_delay_s",
]


def get_delivery_ledger(db_path: Path | str | None = None) -> DeliveryLedger:
    """Return the ledger of this process; it opens the engine when it is first asked something."""
    return one_per_process(DeliveryLedger, DeliveryLedger, db_path=db_path)


reset_delivery_ledger = reset_of("reset_delivery_ledger", DeliveryLedger)


def get_retry_queue(ledger: DeliveryLedger | None = None, *, at_once: int | None = None) -> RetryQueue:
    """Return the retry queue of this process. It retries what handlers were registered for."""

    def make(ledger: DeliveryLedger | None = None, **options: Any) -> RetryQueue:
        return RetryQueue(ledger or get_delivery_ledger(), **options)

    return one_per_process(RetryQueue, make, ledger=ledger, at_once=at_once)


reset_retry_queue = reset_of("reset_retry_queue", RetryQueue)
