"""Failed deliveries, one per event and subscription, kept until they succeed or are given up.

A retry runs only the subscription that failed. A letter whose subscription does not live in this process
stays pending: the process that has it retries it. One that was captured by hand belongs to none, and goes to
whoever handles its type.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import structlog

from ringrift.engine.arguments import check_database
from ringrift.errors import RingRiftError, described
from ringrift.events.dead_letter_store import (
    ABANDONED,
    PENDING,
    RECOVERED,
    DeadLetterStore,
    FailedEvent,
    iso_of,
    seconds_of,
)
from ringrift.events.delivery import await_ending
from ringrift.events.event import EventSource, RouterEvent
from ringrift.events.router_reports import Failure
from ringrift.events.subscriptions import Subscription
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.process import SingletonMixin, process_scope
from ringrift.runtime import Runtime, back_off_s, first_error, system_runtime
from ringrift.settings import Settings, read_settings
from ringrift.status import HealthCheckResult

log = structlog.get_logger()

LetterHandler = Callable[[dict[str, Any]], Awaitable[Any]]

# Past this number retries no longer keep up with failures, and a person has to look.
_PENDING_HEALTHY_MAX = 1000
_ABANDON_SHARE_MAX = 0.5
_LIVE_MAX = 1000  # events kept as objects, for payloads that JSON cannot carry
_ALL = 10**9


class RetryOutcome(StrEnum):
    """How one attempt ended."""

    RECOVERED = "recovered"
    FAILED = "failed"
    SKIPPED = "skipped"  # not due, not ours, or taken by another process


class DeadLetterQueue(SingletonMixin):
    """Keeps and retries dead letters. Calls that are not async block for the length of one SQL statement."""

    def __init__(
        self,
        db_path: Path | str | None = None,
        max_retries: int = 5,
        base_backoff_seconds: float = 60.0,
        max_backoff_seconds: float = 3600.0,
        *,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        named = process_scope().get(Settings, read_settings).dlq_path if db_path is None else db_path
        self.db_path = Path(check_database("db_path", named) or named)
        self.max_retries = max_retries
        self.base_backoff, self.max_backoff = base_backoff_seconds, max_backoff_seconds
        self._router, self._runtime = router, runtime or system_runtime()
        self._store = DeadLetterStore(self.db_path)
        self._handlers: dict[str, list[LetterHandler]] = {}
        self._session: Counter[str] = Counter()
        self._recovered_types: set[str] = set()
        self._live: dict[str, RouterEvent] = {}

    def close(self) -> None:
        self._store.close()

    def serve(self, router: UnifiedEventRouter) -> None:
        """Retry at *router* from now on (otherwise: at the router of this process)."""
        self._router = router

    # --- capture --------------------------------------------------------------------------------------

    def capture(
        self,
        event_type: str,
        payload: Mapping[str, Any],
        handler_name: str,
        error: str | BaseException,
        source: str = "unknown",
    ) -> str:
        """Store a failed event by hand; return the id of the letter."""
        letter = FailedEvent(
            event_id=self._runtime.new_id(),
            event_type=event_type,
            payload=dict(payload),
            handler_name=handler_name,
            error=str(error),
            created_at=iso_of(self._runtime.now_s()),
            source=source,
        )
        self._put(letter)
        return letter.event_id

    def capture_failure(self, failure: Failure, *, instance: str) -> str:
        """Store a delivery that failed at the router, once; return the id of its letter."""
        event, name = failure.event, failure.subscription.name
        # The same delivery has the same id: failing again, it changes its letter and makes no second one.
        key = f"{event.event_id}\0{name}\0{instance}"
        letter = FailedEvent(
            event_id=hashlib.sha256(key.encode()).hexdigest()[:32],
            event_type=event.event_type,
            payload=event.payload,
            handler_name=name,
            error=failure.error,
            created_at=iso_of(self._runtime.now_s()),
            source=failure.kind.value,
            subscription=name,
            instance=instance,
            # Type and payload have columns of their own, in which other programs may change them.
            routed_event={k: v for k, v in event.to_dict().items() if k not in ("event_type", "payload")},
        )
        self._put(letter)
        self._live[letter.event_id] = event
        while len(self._live) > _LIVE_MAX:
            del self._live[next(iter(self._live))]
        return letter.event_id

    def _put(self, letter: FailedEvent) -> None:
        self._store.put(letter)
        self._session["captured"] += 1

    # --- reading --------------------------------------------------------------------------------------

    def get_event(self, event_id: str) -> FailedEvent | None:
        return self._store.get(event_id)

    def get_pending_events(self, limit: int = 100, event_type: str | None = None) -> list[FailedEvent]:
        """Return pending letters, oldest first."""
        return self._store.find(status=PENDING, event_type=event_type, limit=limit)

    def get_failed_events(
        self,
        limit: int = 100,
        include_abandoned: bool = False,  # noqa: FBT001, FBT002 - in the published order
    ) -> list[dict[str, Any]]:
        """Return pending letters (or those of every status), newest first."""
        status = None if include_abandoned else PENDING
        return [
            letter.to_dict() for letter in self._store.find(status=status, limit=limit, newest_first=True)
        ]

    def get_pending_count(self, event_type: str | None = None) -> int:
        counts = self._store.count_by("event_type", pending_only=True)
        return sum(counts.values()) if event_type is None else counts.get(event_type, 0)

    def get_error_summary(self) -> dict[str, Any]:
        """Return what pending letters have in common: errors, handlers and event types, with counts."""
        return {
            "by_error": self._store.count_by("error", pending_only=True),
            "by_handler": self._store.count_by("handler_name", pending_only=True),
            "by_event_type": self._store.count_by("event_type", pending_only=True),
        }

    def get_stats(self) -> dict[str, Any]:
        by_status = self._store.count_by("status", pending_only=False)
        return {
            "pending": by_status.get(PENDING, 0),
            "recovered": by_status.get(RECOVERED, 0),
            "abandoned": by_status.get(ABANDONED, 0),
            "total": sum(by_status.values()),
            "by_event_type": self._store.count_by("event_type", pending_only=True),
            "session_captured": self._session["captured"],
            "session_retried": self._session["retried"],
            "session_recovered": self._session["recovered"],
            "session_abandoned": self._session["abandoned"],
        }

    def health_check(self) -> HealthCheckResult:
        stats = self.get_stats()
        if stats["pending"] > _PENDING_HEALTHY_MAX:
            return HealthCheckResult.unhealthy(f"{stats['pending']} dead letters wait", **stats)
        retried = stats["session_retried"]
        if retried and stats["session_abandoned"] / retried > _ABANDON_SHARE_MAX:
            return HealthCheckResult.unhealthy("most retried dead letters were given up", **stats)
        return HealthCheckResult.ok(f"{stats['pending']} dead letters wait", **stats)

    # --- retrying -------------------------------------------------------------------------------------

    def register_handler(self, event_type: str, handler: LetterHandler) -> None:
        """Let *handler*, given the payload, deal with dead letters of this type; the first success wins."""
        self._handlers.setdefault(event_type, []).append(handler)

    async def retry_event(self, event_id: str) -> bool:
        """Retry one letter now, due or not; True if it succeeded."""
        return await self._attempt(event_id) is RetryOutcome.RECOVERED

    async def retry_failed_events(
        self, max_events: int = 10, event_type: str | None = None
    ) -> dict[str, int]:
        """Retry up to *max_events* letters that are due; those that are not do not use up the batch."""
        return await self._retry(max_events, event_type, only_due=True)

    async def retry_all(self, event_type: str | None = None) -> dict[str, int]:
        """Retry every pending letter now, due or not."""
        return await self._retry(_ALL, event_type, only_due=False)

    async def _retry(self, attempts_max: int, event_type: str | None, *, only_due: bool) -> dict[str, int]:
        outcomes = dict.fromkeys((RetryOutcome.RECOVERED, RetryOutcome.FAILED, RetryOutcome.SKIPPED), 0)
        attempts = 0
        for letter_id, retries, last in await asyncio.to_thread(self._store.waiting, event_type):
            if attempts >= attempts_max:
                break
            if only_due and not self._is_due(retries, last):
                outcomes[RetryOutcome.SKIPPED] += 1
                continue
            outcome = await self._attempt(letter_id)
            outcomes[outcome] += 1
            attempts += outcome is not RetryOutcome.SKIPPED
        return {outcome.value: count for outcome, count in outcomes.items()}

    def _is_due(self, retries: int, last_retry_at: str | None) -> bool:
        if last_retry_at is None:
            return True
        backoff_s = back_off_s(retries + 1, first_s=self.base_backoff, longest_s=self.max_backoff)
        waited_s = self._runtime.now_s() - seconds_of(last_retry_at)
        return waited_s >= backoff_s or waited_s < 0  # the clock was set back

    async def _attempt(self, letter_id: str) -> RetryOutcome:
        letter = await asyncio.to_thread(self._store.get, letter_id)
        if letter is None or letter.status != PENDING:
            return RetryOutcome.SKIPPED
        # Before the claim: a letter that only another process can retry is left free for that one.
        deliver = await self._way_to_deliver(letter)
        if deliver is None:
            return RetryOutcome.SKIPPED
        now_s, limit_s = (
            self._runtime.now_s(),
            process_scope().get(Settings, read_settings).event_handler_timeout,
        )
        until_s = now_s + 2.0 * limit_s
        if not await asyncio.to_thread(self._store.claim, letter_id, now_s=now_s, until_s=until_s):
            return RetryOutcome.SKIPPED
        try:
            with first_error():
                async with asyncio.TaskGroup() as group:
                    renewing = group.create_task(self._keep_claim(letter_id, limit_s))
                    try:
                        error = await deliver()
                    finally:
                        renewing.cancel()
        except asyncio.CancelledError:
            self._store.release(letter_id)
            raise
        return await asyncio.to_thread(self._settle, letter, error)

    async def _keep_claim(self, letter_id: str, limit_s: float) -> None:
        """Renew a claim: there may be several handlers, each with a limit and a turn of its own."""
        while True:
            await self._runtime.sleep(limit_s)
            try:
                until_s = self._runtime.now_s() + 2.0 * limit_s
                await asyncio.to_thread(self._store.renew, letter_id, until_s=until_s)
            except RingRiftError as error:
                log.warning("dead_letter.claim_not_renewed", letter=letter_id, error=str(error))

    def _settle(self, letter: FailedEvent, error: str | None) -> RetryOutcome:
        """Store how the attempt ended; *error* is None for success."""
        self._session["retried"] += 1
        at = iso_of(self._runtime.now_s())
        if error is None:
            # With its error, which tells what had been wrong.
            self._store.record_attempt(
                letter.event_id, status=RECOVERED, error=letter.error, retries=letter.retry_count, at=at
            )
            self._session["recovered"] += 1
            self._recovered_types.add(letter.event_type)
            self._live.pop(letter.event_id, None)
            return RetryOutcome.RECOVERED
        retries = letter.retry_count + 1
        status = ABANDONED if retries >= self.max_retries else PENDING
        self._store.record_attempt(letter.event_id, status=status, error=error, retries=retries, at=at)
        if status == ABANDONED:
            self._session["abandoned"] += 1
            self._live.pop(letter.event_id, None)
            log.error(
                "dead_letter.abandoned", letter=letter.event_id, handler=letter.handler_name, error=error
            )
        return RetryOutcome.FAILED

    async def _way_to_deliver(self, letter: FailedEvent) -> Callable[[], Awaitable[str | None]] | None:
        """Return how this process can retry the letter; None if it cannot."""
        if handlers := self._handlers.get(letter.event_type):
            return lambda: _first_success(handlers, letter.payload)
        router = self._router or process_scope().peek(UnifiedEventRouter)
        if letter.subscription:
            # Several processes may have a subscription of this name; the instance says whose letter it is.
            if router is None or (letter.instance and letter.instance != await router.identify()):
                return None
            found = router.find_subscription(letter.subscription)
            # It may not be subscribed yet, so the letter waits and no attempt is counted.
            return None if found is None else lambda: self._redeliver(router, letter, [found])
        if router is None:
            return lambda: _nobody(letter)
        named = router.find_subscription(letter.handler_name)
        targets = router.subscriptions_to(letter.event_type) if named is None else [named]
        return (lambda: self._redeliver(router, letter, targets)) if targets else lambda: _nobody(letter)

    async def _redeliver(
        self, router: UnifiedEventRouter, letter: FailedEvent, targets: Sequence[Subscription]
    ) -> str | None:
        live = self._live.get(letter.event_id)
        # The object itself where it is still there: the stored payload may only describe parts of it.
        event = _rebuild(letter) if live is None else live.again()
        errors = []
        handled = await asyncio.to_thread(self._store.handled_by, letter.event_id)
        for target in targets:
            if target.name in handled:
                continue
            failure = await router.redeliver(event, target)
            if failure is not None:
                errors.append(failure.error)
            elif len(targets) > 1:
                await asyncio.to_thread(self._store.note_handled, letter.event_id, target.name)
        return "; ".join(errors) or None

    # --- upkeep ---------------------------------------------------------------------------------------

    def take_recovered_types(self) -> list[str]:
        """Return the event types that recovered since the last call."""
        types, self._recovered_types = sorted(self._recovered_types), set()
        return types

    def make_due(self, event_id: str) -> bool:
        """Make a letter due now, in whichever process owns its subscription; False if there is none."""
        return self._store.make_due(event_id)

    def drop(self, event_id: str) -> bool:
        """Delete a letter for good."""
        self._live.pop(event_id, None)
        return self._store.delete([event_id]) == 1

    def purge_old_events(self, days: float = 7) -> int:
        """Delete recovered and abandoned letters older than *days*; return how many."""
        return self._store.delete(self._older_than(days * 86_400.0, pending=False))

    def cleanup(self, days: float = 7) -> int:
        return self.purge_old_events(days)

    def abandon_stale(self, hours: float) -> int:
        """Give up pending letters older than *hours*: replaying them now would announce what is long over."""
        stale = self._older_than(hours * 3600.0, pending=True)
        for letter_id in stale:
            self._store.abandon(letter_id)
        self._session["abandoned"] += len(stale)
        return len(stale)

    def _older_than(self, age_s: float, *, pending: bool) -> list[str]:
        limit_s = self._runtime.now_s() - age_s
        return [key for key, made in self._store.ages(pending=pending) if seconds_of(made) < limit_s]


async def _nobody(letter: FailedEvent) -> str:
    """A letter captured by hand belongs to no subscription, so there is nobody to wait for."""
    return (
        f"nobody handles {letter.event_type}; captured with: {letter.error.rpartition('captured with: ')[2]}"
    )


async def _first_success(handlers: list[LetterHandler], payload: dict[str, Any]) -> str | None:
    error, limit_s = "no handler", process_scope().get(Settings, read_settings).event_handler_timeout
    for handler in handlers:
        scope = asyncio.timeout(limit_s)
        try:
            result = handler(dict(payload))
            if inspect.isawaitable(result):
                async with scope:
                    await await_ending(result)
        except Exception as raised:  # noqa: BLE001 - somebody else's handler; its error is kept with the letter
            expired = f"timed out after {limit_s:g} s"
            error = expired if scope.expired() else described(raised)
        else:
            return None
    return error


def _rebuild(letter: FailedEvent) -> RouterEvent:
    """Return the event that failed, with all its fields."""
    stored = {**letter.routed_event, "event_type": letter.event_type, "payload": letter.payload}
    # A letter that was captured by hand has no event; its own id stands for that.
    stored.setdefault("event_id", letter.event_id)
    stored["origin"] = EventSource(stored.get("origin", EventSource.ROUTER))
    return RouterEvent(**stored, redelivered=True)


class ProcessDeadLetters:
    """Hands failures to the queue of this process, which is opened by the first of them."""

    def capture_failure(self, failure: Failure, *, instance: str) -> str:
        return DeadLetterQueue.get_instance().capture_failure(failure, instance=instance)
