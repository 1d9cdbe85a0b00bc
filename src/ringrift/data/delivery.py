"""Deliveries: the ledger of what went where, and the queue of those that are tried again.

The home of the capability. `get_delivery_ledger` and `get_retry_queue` are those of this process.
"""

from __future__ import annotations

from ringrift.data.delivery_ledger import (
    DeliveryLedger,
    DeliveryRecord,
    DeliveryStatus,
    delivery_id,
    retry_delay_s,
)
from ringrift.data.delivery_retries import RetryHandler, RetryQueue, RetryRound
from ringrift.engine.opening import get_engine_blocking
from ringrift.process import process_scope

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
    "retry_delay_s",
]


def get_delivery_ledger() -> DeliveryLedger:
    """Return the ledger of this process; the first call opens the engine."""
    return process_scope().get(DeliveryLedger, lambda: DeliveryLedger(get_engine_blocking().kv))


def get_retry_queue() -> RetryQueue:
    """Return the retry queue of this process. It retries what handlers were registered for."""
    return process_scope().get(RetryQueue, lambda: RetryQueue(get_delivery_ledger()))
