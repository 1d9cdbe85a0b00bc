"""Dead letters: failed deliveries that wait for another attempt, and the daemon that makes it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, ClassVar

from ringrift.coordination.handler_base import HandlerBase
from ringrift.engine.arguments import check_part
from ringrift.events.dead_letter_queue import DeadLetterQueue
from ringrift.events.dead_letter_store import FailedEvent
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.runtime import Runtime
from ringrift.status import HealthCheckResult

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


# Retries dead letters in the background.


STALE_PENDING_MIN = 50


class DLQRetryDaemon(HandlerBase):
    """Each cycle: give up what is stale, retry what is due, purge what is settled, and say so."""

    capability: ClassVar[str] = "event_bus"
    emits: ClassVar[tuple[str, ...]] = ("DLQ_EVENTS_REPLAYED", "DLQ_EVENTS_PURGED", "DLQ_STALE_EVENTS")

    def __init__(
        self,
        dlq: DeadLetterQueue | None = None,
        interval_seconds: float = 60.0,
        max_events_per_cycle: int = 10,
        max_attempts: int = 5,
        max_stale_hours: float = 168.0,
        *,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        super().__init__("dlq_retry", cycle_interval=interval_seconds, router=router, runtime=runtime)
        self._dlq = get_dead_letter_queue() if dlq is None else dlq
        check_part("dlq", self._dlq, DeadLetterQueue)
        self._dlq.max_retries = max_attempts
        self._batch, self._stale_hours = max_events_per_cycle, max_stale_hours
        self._announced = 0
        # As the last cycle found them: who asks for health may be on the loop, where nobody reads the store.
        self._letters: HealthCheckResult | None = None
        self._totals = dict.fromkeys(("recovered", "failed", "abandoned", "stale_abandoned"), 0)

    async def _run_cycle(self) -> None:
        # First, so that they do not take places in the batch from letters that may still succeed.
        stale = await asyncio.to_thread(self._dlq.abandon_stale, self._stale_hours)
        self._totals["stale_abandoned"] += stale
        abandoned_before = (await asyncio.to_thread(self._dlq.get_stats))["session_abandoned"]
        outcome = await self._dlq.retry_failed_events(self._batch)
        self._letters = await asyncio.to_thread(self._dlq.health_check)
        stats = self._letters.details
        abandoned = stats["session_abandoned"] - abandoned_before
        self._totals["recovered"] += outcome["recovered"]
        self._totals["failed"] += outcome["failed"]
        self._totals["abandoned"] += abandoned
        await self._announce(stale, stats)

    async def _announce(self, stale: int, stats: dict[str, Any]) -> None:
        if types := self._dlq.take_recovered_types():
            # Since the last announcement and not of this cycle: others may have retried in between.
            recovered = stats["session_recovered"] - self._announced
            self._announced = stats["session_recovered"]
            payload = {"recovered_count": recovered, "event_types": types}
            await self._tell("DLQ_EVENTS_REPLAYED", payload)
        if purged := await asyncio.to_thread(self._dlq.purge_old_events):
            reason = "settled for a week"
            await self._tell("DLQ_EVENTS_PURGED", {"count": purged, "reason": reason})
        if stale or stats["pending"] >= STALE_PENDING_MIN:
            payload = {
                "stale_count": stale or stats["pending"],
                "event_types": sorted(stats["by_event_type"]),
                "max_stale_hours": self._stale_hours,
            }
            await self._tell("DLQ_STALE_EVENTS", payload)

    def get_metrics(self) -> dict[str, Any]:
        return {
            "cycles": self.stats.cycles_completed,
            **{f"total_{name}": count for name, count in self._totals.items()},
            "dlq": self._dlq.get_stats(),
            "running": self.is_running,
        }

    def health_check(self) -> HealthCheckResult:
        own, letters = super().health_check(), self._letters
        if letters is None:
            return own.with_details(dlq=None)
        if not own.healthy or letters.healthy:
            return own.with_details(dlq=letters.to_dict())
        return HealthCheckResult.degraded(f"running; {letters.message}", **own.details, dlq=letters.to_dict())


def _daemon_for(
    dlq: DeadLetterQueue,
    interval_seconds: float = 60.0,
    max_events_per_cycle: int = 10,
    max_attempts: int = 5,
    max_stale_hours: float = 168.0,
) -> DLQRetryDaemon:
    return DLQRetryDaemon(dlq, interval_seconds, max_events_per_cycle, max_attempts, max_stale_hours)


# What programs call.


def get_dead_letter_queue(db_path: Path | str | None = None) -> DeadLetterQueue:
    """Return the queue of this process; another *db_path* than it was opened with is a `ConfigError`."""
    if db_path is None:
        return DeadLetterQueue.get_instance()
    return DeadLetterQueue.get_instance(Path(db_path))


reset_dead_letter_queue = DeadLetterQueue.reset_instance


def create_dlq_retry_daemon(
    dlq: DeadLetterQueue | None = None,
    interval_seconds: float = 60.0,
    max_events_per_cycle: int = 10,
    max_attempts: int = 5,
    max_stale_hours: float = 168.0,
) -> DLQRetryDaemon:
    """Make the daemon that retries *dlq* (None: the queue of this process)."""
    queue = dlq or get_dead_letter_queue()
    return _daemon_for(queue, interval_seconds, max_events_per_cycle, max_attempts, max_stale_hours)


def enable_dead_letter_queue(dlq: DeadLetterQueue, bus: Any) -> None:
    """Send the failed deliveries of *bus* (the router or one of its views) to *dlq*."""
    router = getattr(bus, "router", bus)
    router.send_dead_letters_to(dlq)
    # Both ways: a letter is tried again at the router that it comes from.
    dlq.serve(router)


async def run_retry_daemon(
    dlq: DeadLetterQueue | None = None, interval_seconds: float = 60.0, max_events_per_cycle: int = 10
) -> None:
    """Retry dead letters until cancelled."""
    await create_dlq_retry_daemon(dlq, interval_seconds, max_events_per_cycle).run()
