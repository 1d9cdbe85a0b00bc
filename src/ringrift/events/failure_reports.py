"""What happens to a failed delivery: counted, logged, kept as a dead letter, and announced."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import structlog

from ringrift.errors import RingRiftError
from ringrift.events.cross_process import CrossProcess
from ringrift.events.failures import Failure, FailureKind
from ringrift.events.router_reports import RouterCounters

log = structlog.get_logger()

REPORTS_OF_FAILURE = frozenset({"HANDLER_FAILED", "HANDLER_TIMEOUT"})
# Whoever retries a dead letter keeps its books; a second capture would lose the count of attempts.
_RETRY_SOURCES = ("dlq_retry:", "dlq_replay:")


class DeadLetterSink(Protocol):
    """Where failed deliveries go."""

    def capture_failure(self, failure: Failure, *, instance: str) -> str:
        """Store one failed delivery durably and return its id; called off the event loop."""
        ...


class FailureReports:
    """The router's way with failures; a failure of its own never reaches a publisher."""

    def __init__(
        self,
        counters: RouterCounters,
        dead_letters: DeadLetterSink | None,
        *,
        publish: Callable[[str, dict[str, Any], str], Awaitable[Any]],
        timeout_s: float,
    ) -> None:
        self._counters, self.dead_letters = counters, dead_letters
        self._publish, self._timeout_s = publish, timeout_s
        self._crossing: CrossProcess | None = None

    def attach(self, crossing: CrossProcess | None) -> None:
        """Dead letters bear the identity of the process; only its connection knows that."""
        self._crossing = crossing

    async def report(self, failure: Failure, kept: Callable[[Failure], None]) -> None:
        """Count, log, keep and announce a failed delivery; *kept* is called unless it could not be kept.

        At once, and not after the announcement: a crash in between would bring the event twice, by the
        log and by its letter.
        """
        self._count_failure(failure)
        letter = ""
        if self._is_to_keep(failure):
            try:
                instance = "" if self._crossing is None else await self._crossing.identify()
                letter = await asyncio.to_thread(self._capture, failure, instance)
            except RingRiftError as error:
                self._count_lost(failure, error)
            else:
                kept(failure)
        else:
            kept(failure)
        if failure.event.event_type not in REPORTS_OF_FAILURE:
            await self._announce(failure, letter)

    def report_now(self, failure: Failure) -> bool:
        """As above without waiting and without announcement, for a task that is being cancelled."""
        self._count_failure(failure)
        if not self._is_to_keep(failure):
            return True
        try:
            self._capture(failure, "" if self._crossing is None else self._crossing.instance)
        except RingRiftError as error:
            return self._count_lost(failure, error)
        return True

    def _count_failure(self, failure: Failure) -> None:
        event, name = failure.event, failure.subscription.name
        self._counters.count(failure.kind)
        fields = {"event_type": event.event_type, "event_id": event.event_id, "subscription": name}
        if failure.kind is FailureKind.BUG:
            log.critical("events.handler_bug", error=failure.error, exc_info=failure.cause, **fields)
        else:
            log.error("events.handler_failed", kind=failure.kind.name.lower(), error=failure.error, **fields)

    def _is_to_keep(self, failure: Failure) -> bool:
        return self.dead_letters is not None and not failure.event.source.startswith(_RETRY_SOURCES)

    def _capture(self, failure: Failure, instance: str) -> str:
        assert self.dead_letters is not None
        letter = self.dead_letters.capture_failure(failure, instance=instance)
        self._counters.dead_lettered += 1
        return letter

    def _count_lost(self, failure: Failure, error: RingRiftError) -> bool:
        self._counters.dead_letters_lost += 1
        log.critical("events.dead_letter_lost", event_id=failure.event.event_id, error=str(error))
        return False

    async def _announce(self, failure: Failure, letter: str) -> None:
        timed_out = failure.kind is FailureKind.TIMEOUT
        payload: dict[str, Any] = {
            "handler_name": failure.subscription.name,
            "event_type": failure.event.event_type,
            "event_id": failure.event.event_id,
        }
        if timed_out:
            payload["timeout_seconds"] = failure.subscription.timeout_s or self._timeout_s
        else:
            payload["error"] = failure.error
        if letter and not timed_out:
            payload["dlq_id"] = letter
        try:
            await self._publish("HANDLER_TIMEOUT" if timed_out else "HANDLER_FAILED", payload, "event_router")
        except RingRiftError as error:
            log.error("events.announcement_lost", handler=failure.subscription.name, error=str(error))
