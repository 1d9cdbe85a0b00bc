"""Dead letters: failed deliveries that wait for another attempt. This is the public face."""

from __future__ import annotations

from typing import Any

from ringrift.events.dead_letter_daemon import DLQRetryDaemon
from ringrift.events.dead_letter_daemon import create_dlq_retry_daemon as _create
from ringrift.events.dead_letter_queue import DeadLetterQueue
from ringrift.events.dead_letter_store import FailedEvent
from ringrift.events.process_dead_letters import get_dead_letter_queue, reset_dead_letter_queue

__all__ = [
    "DLQRetryDaemon",
    "DeadLetterQueue",
    "FailedEvent",
    "create_dlq_retry_daemon",
    "enable_dead_letter_queue",
    "get_dead_letter_queue",
    "reset_dead_letter_queue",
    "run_retry_daemon",
]


def create_dlq_retry_daemon(
    dlq: DeadLetterQueue | None = None,
    interval_seconds: float = 60.0,
    max_events_per_cycle: int = 10,
    max_attempts: int = 5,
    max_stale_hours: float = 168.0,
) -> DLQRetryDaemon:
    """Make the daemon that retries *dlq* (None: the queue of this process)."""
    queue = dlq or get_dead_letter_queue()
    return _create(queue, interval_seconds, max_events_per_cycle, max_attempts, max_stale_hours)


def enable_dead_letter_queue(dlq: DeadLetterQueue, bus: Any) -> None:
    """Send the failed deliveries of *bus* (the router or one of its views) to *dlq*."""
    router = getattr(bus, "router", bus)
    router.send_dead_letters_to(dlq)
    dlq.serve(router)


async def run_retry_daemon(
    dlq: DeadLetterQueue | None = None, interval_seconds: float = 60.0, max_events_per_cycle: int = 10
) -> None:
    """Retry dead letters until cancelled."""
    await create_dlq_retry_daemon(dlq, interval_seconds, max_events_per_cycle).run()
