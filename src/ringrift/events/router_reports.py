"""What the router reports: deliveries that failed, and its statistics, flow, wiring and health."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Any, Protocol

import structlog

from ringrift.errors import ConfigError, RingRiftError, described
from ringrift.events.event import Delivery, EventSource, RouterEvent
from ringrift.events.subscriptions import EventRoutes, SeenEvents, Subscription, SubscriptionTable
from ringrift.status import CoordinatorStatus, HealthCheckResult

log = structlog.get_logger()

# How a delivery can fail.


# Trying again hardly helps against these: they are logged as critical and marked in the letter.
_PROGRAMMING_ERRORS = (NameError, AttributeError, TypeError)


class FailureKind(StrEnum):
    """How a delivery failed; the value is the source label of its dead letter."""

    RAISED = "EventRouter.async"
    RAISED_AT_ONCE = "EventRouter.sync"
    BUG = "EventRouter.programming_error"
    TIMEOUT = "EventRouter.async.timeout"
    CANCELLED = "EventRouter.cancelled"
    OVERFLOW = "EventRouter.overflow"
    UNACKNOWLEDGED = "CrossProcessEventQueue.unacknowledged"


@dataclass(frozen=True, slots=True)
class Failure:
    """One event that one subscription did not handle."""

    delivery: Delivery
    subscription: Subscription
    kind: FailureKind
    error: str
    cause: BaseException | None = None

    @property
    def event(self) -> RouterEvent:
        return self.delivery.event


def failure_of(
    delivery: Delivery, subscription: Subscription, error: BaseException, kind: FailureKind
) -> Failure:
    text = described(error)
    if isinstance(error, _PROGRAMMING_ERRORS):
        return Failure(delivery, subscription, FailureKind.BUG, f"BUG: {text}", error)
    return Failure(delivery, subscription, kind, text, error)


def overflow_of(delivery: Delivery, subscription: Subscription) -> Failure:
    waiting = len(subscription.mailbox)
    return Failure(delivery, subscription, FailureKind.OVERFLOW, f"mailbox full: {waiting} events wait")


# What happens to a failed delivery: counted, logged, kept as a dead letter, and announced.


REPORTS_OF_FAILURE = frozenset({"HANDLER_FAILED", "HANDLER_TIMEOUT"})
# Whoever retries a dead letter keeps its books; a second capture would lose the count of attempts.
_RETRY_SOURCES = ("dlq_retry:", "dlq_replay:")


@dataclass(slots=True)
class RouterCounters:
    """What happened so far."""

    by_origin: Counter[EventSource] = field(default_factory=Counter)  # all but the router's own
    failures: Counter[FailureKind] = field(default_factory=Counter)
    dead_lettered: int = 0
    dead_letters_lost: int = 0

    def count(self, kind: FailureKind) -> None:
        self.failures[kind] += 1

    def clear(self) -> None:
        self.by_origin.clear()
        self.failures.clear()
        self.dead_lettered = self.dead_letters_lost = 0


class DeadLetterSink(Protocol):
    """Where failed deliveries go."""

    def capture_failure(self, failure: Failure, *, instance: str) -> str:
        """Store one failed delivery durably and return its id; called off the event loop."""
        ...


class CrossingState(Protocol):
    """What the connection to other processes tells about itself."""

    @property
    def is_reading(self) -> bool: ...

    def stats(self) -> dict[str, Any]: ...

    @property
    def instance(self) -> str:
        """The name under which this process reads the log, "" before it was asked for."""
        ...

    async def identify(self) -> str: ...


class Outcomes:
    """How deliveries end. A failure of its own never reaches a publisher.

    *handled* hears which event of the log a subscription is through with.
    """

    def __init__(
        self,
        counters: RouterCounters,
        dead_letters: DeadLetterSink | None,
        *,
        handled: Callable[[Delivery, Subscription], None],
        publish: Callable[[str, dict[str, Any], str], Awaitable[Any]],
        timeout_s: float,
    ) -> None:
        self._counters, self.dead_letters, self.handled = counters, dead_letters, handled
        self._publish, self._timeout_s = publish, timeout_s
        self._crossing: CrossingState | None = None

    def attach(self, crossing: CrossingState | None) -> None:
        """Dead letters bear the identity of the process; only its connection knows that."""
        self._crossing = crossing

    async def report_all(self, failures: Sequence[Failure]) -> None:
        """Count, log, keep and announce failed deliveries."""
        for failure in failures:
            self._count_failure(failure)
            letter = ""
            if self._is_to_keep(failure):
                try:
                    instance = "" if self._crossing is None else await self._crossing.identify()
                    # In a thread: the database may wait for another process that writes to it.
                    letter = await asyncio.to_thread(self._capture, failure, instance)
                except RingRiftError as error:
                    self._count_lost(failure, error)
                else:
                    self._kept(failure)
            else:
                self._kept(failure)
            if failure.event.event_type not in REPORTS_OF_FAILURE:
                await self._announce(failure, letter)

    def record_now(self, failures: Sequence[Failure]) -> None:
        """As above without waiting and without announcement, for a task that is being cancelled."""
        for failure in failures:
            self._count_failure(failure)
            if self._is_to_keep(failure):
                try:
                    self._capture(failure, "" if self._crossing is None else self._crossing.instance)
                except RingRiftError as error:
                    self._count_lost(failure, error)
                    continue
            self._kept(failure)

    def record_cancelled(self, delivery: Delivery, subscription: Subscription) -> None:
        """The router or its loop is ending. An event of the log comes again; any other would be lost."""
        if not delivery.log_seq:
            text = "cancelled with the router"
            self.record_now([Failure(delivery, subscription, FailureKind.CANCELLED, text)])

    def _kept(self, failure: Failure) -> None:
        """The failure is kept: from now on its retry, and not the log, brings the event again.

        At once, and not after the announcement: a crash in between would bring the event twice, by the
        log and by its letter.
        """
        if failure.delivery.log_seq:
            self.handled(failure.delivery, failure.subscription)

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

    def _count_lost(self, failure: Failure, error: RingRiftError) -> None:
        self._counters.dead_letters_lost += 1
        log.critical("events.dead_letter_lost", event_id=failure.event.event_id, error=str(error))

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
        # HANDLER_TIMEOUT has no field for the letter.
        if letter and not timed_out:
            payload["dlq_id"] = letter
        try:
            await self._publish("HANDLER_TIMEOUT" if timed_out else "HANDLER_FAILED", payload, "event_router")
        except RingRiftError as error:
            log.error("events.announcement_lost", handler=failure.subscription.name, error=str(error))


# What the router says about itself: statistics, flow, wiring and health.


CRITICAL_EVENTS = ("TRAINING_COMPLETED", "EVALUATION_COMPLETED", "MODEL_PROMOTED", "DATA_SYNC_COMPLETED")
RECOMMENDED_EVENTS = (
    "NEW_GAMES_AVAILABLE",
    "CURRICULUM_REBALANCED",
    "ELO_VELOCITY_CHANGED",
    "TRAINING_STARTED",
    "SELFPLAY_COMPLETE",
)
_DUPLICATE_SHARE_MAX = 0.3
# A share of fewer events says nothing.
_EVENTS_BEFORE_JUDGING = 100
_ORPHAN_SEEN_MIN = 5
_RECENT = 100


# The statistics have the same keys with and without a log.
_NO_CROSSING = {
    "cross_process_failures": 0,
    "cross_process_degraded": False,
    "last_cp_failure_time": None,
    "retention_gaps": 0,
    "events_missed": 0,
}


class RouterReports:
    """Reads the router's parts; changes nothing."""

    def __init__(
        self,
        *,
        table: SubscriptionTable,
        routes: EventRoutes,
        seen: SeenEvents,
        history: deque[RouterEvent],
        counters: RouterCounters,
        crossing: CrossingState | None,
    ) -> None:
        self._table, self._routes, self._seen = table, routes, seen
        self._history, self._counters, self._crossing = history, counters, crossing

    def stats(self) -> dict[str, Any]:
        routed = self._routes.counts()
        origins = Counter(self._counters.by_origin)
        # By subtraction: most events are the router's own, and counting each would cost every publish.
        origins[EventSource.ROUTER] = sum(routed.values()) - origins.total()
        failures = self._counters.failures
        crossing = _NO_CROSSING if self._crossing is None else self._crossing.stats()
        return {
            "events_routed": routed,
            "events_routed_by_type": dict(routed),
            "events_by_source": {origin.value: count for origin, count in origins.items() if count},
            "total_events_routed": sum(routed.values()),
            "subscriber_count": len(self._table),
            "global_subscriber_count": self._table.global_count,
            "history_size": len(self._history),
            "has_data_events": True,
            "has_stage_events": True,
            "has_cross_process": self._crossing is not None,
            "cross_process_polling": self._crossing is not None and self._crossing.is_reading,
            **self._seen.stats(),
            "handler_timeouts": failures[FailureKind.TIMEOUT],
            "handler_failures": failures.total() - failures[FailureKind.TIMEOUT],
            "dead_lettered": self._counters.dead_lettered,
            "dead_letters_lost": self._counters.dead_letters_lost,
            "unknown_events": self._routes.unknown_count,
            "payload_problems": self._routes.payload_problem_count,
            **crossing,
        }

    def history(
        self,
        names: Sequence[str] | None,
        origin: EventSource | None,
        since_s: float | None,
        limit: int,
    ) -> list[RouterEvent]:
        # From the newest, so that *limit* leaves out the oldest; turned round at the end.
        newest_first = (
            event
            for event in reversed(tuple(self._history))  # it may be asked for by any thread
            if (names is None or event.event_type in names)
            and (origin is None or event.origin == origin)
            and (since_s is None or event.timestamp >= since_s)
        )
        return list(islice(newest_first, max(0, limit)))[::-1]

    def orphans(self) -> dict[str, Any]:
        subscribed = set(self._table.by_type())
        emitted = set(self._routes.counts())
        return {
            "emitted_no_subscribers": sorted(emitted - subscribed),
            "subscribed_event_types": sorted(subscribed),
            "emitted_event_types": sorted(emitted),
        }

    def flow(self) -> dict[str, Any]:
        stats, routed = self.stats(), self._routes.counts()
        subscribed = self._table.by_type()
        total, duplicates = stats["total_events_routed"], stats["total_duplicates_prevented"]
        orphaned = {name: n for name, n in routed.items() if name not in subscribed}
        issues, recommendations = [], []
        share = duplicates / (total + duplicates) if total + duplicates else 0.0
        if total >= _EVENTS_BEFORE_JUDGING and share > _DUPLICATE_SHARE_MAX:
            issues.append(f"{share:.0%} of the events were duplicates")
            recommendations.append("look for a publisher that sends the same event twice")
        # Whoever subscribes to everything may well handle these.
        if self._table.global_count == 0:
            for name in sorted(name for name, n in orphaned.items() if n >= _ORPHAN_SEEN_MIN):
                issues.append(f"{name} was published {orphaned[name]} times and nobody subscribes to it")
                recommendations.append(f"subscribe to {name}, or stop publishing it")
        recent = tuple(self._history)[-_RECENT:]
        return {
            "healthy": not issues,
            "issues": issues,
            "recommendations": recommendations,
            "total_events_routed": total,
            "subscriber_count": stats["subscriber_count"],
            "recent_event_types": sorted({event.event_type for event in recent}),
            "buses_available": {
                "data_bus": True,
                "stage_bus": True,
                "cross_process": stats["has_cross_process"],
            },
            "duplicates_prevented": duplicates,
            "orphaned_events": sorted(orphaned),
        }

    def wiring(self, *, raise_on_error: bool, log_warnings: bool) -> dict[str, Any]:
        subscribed = set(self._table.by_type())
        missing_critical = [name for name in CRITICAL_EVENTS if name not in subscribed]
        missing_optional = [name for name in RECOMMENDED_EVENTS if name not in subscribed]
        if missing_critical and log_warnings:
            log.warning("events.critical_unsubscribed", events=missing_critical)
        if missing_critical and raise_on_error:
            raise ConfigError(f"nobody subscribes to {', '.join(missing_critical)}")
        return {
            "valid": not missing_critical,
            "missing_critical": missing_critical,
            "missing_optional": missing_optional,
            "all_subscribed": sorted(subscribed),
            "critical_events_checked": list(CRITICAL_EVENTS),
            "recommended_events_checked": list(RECOMMENDED_EVENTS),
        }

    def health(self) -> HealthCheckResult:
        stats, flow = self.stats(), self.flow()
        problems = list(flow["issues"])
        if stats["cross_process_degraded"]:
            problems.append("the event log cannot be reached")
        if stats["dead_letters_lost"]:
            problems.append(f"{stats['dead_letters_lost']} dead letters could not be stored")
        problems += [f"{item.name} is stuck: {item.stuck}" for item in self._table if item.stuck]
        if problems:
            return HealthCheckResult(False, CoordinatorStatus.DEGRADED, "; ".join(problems), details=stats)
        return HealthCheckResult.ok("events flow", **stats)

    def status(self) -> dict[str, Any]:
        stats, health = self.stats(), self.health()
        return {
            "name": "UnifiedEventRouter",
            "running": True,
            "healthy": health.healthy,
            "stats": stats,
            "capabilities": {
                "data_bus": True,
                "stage_bus": True,
                "cross_process": stats["has_cross_process"],
            },
            "cross_process_status": {
                "reading": stats["cross_process_polling"],
                "degraded": stats["cross_process_degraded"],
                "failures": stats["cross_process_failures"],
                "last_failure_time": stats["last_cp_failure_time"],
            },
            "health": health.to_dict(),
            "orphan_events": self.orphans()["emitted_no_subscribers"],
        }
