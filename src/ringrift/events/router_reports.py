"""What the router says about its work: events seen lately, statistics and health, failed deliveries."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

import structlog

from ringrift.errors import ConfigError, RingRiftError
from ringrift.events.cross_process import CrossProcess
from ringrift.events.event import EventSource, RouterEvent
from ringrift.events.subscriptions import EventRoutes, Failure, FailureKind, SubscriptionTable
from ringrift.status import CoordinatorStatus, HealthCheckResult

# What was published lately, so that the same event is not handled twice.


class SeenEvents:
    """Ids (and, if wanted, contents) of the last events; the oldest go first."""

    def __init__(self, *, events_max: int, ttl_s: float, by_content: bool) -> None:
        self.events_max, self.ttl_s, self.by_content = events_max, ttl_s, by_content
        self.duplicates = 0
        self.content_duplicates = 0
        self._ids: dict[str, float] = {}
        self._contents: dict[str, float] = {}

    def note(self, event_id: str, now_s: float) -> None:
        """Remember an id that is new by construction."""
        ids = self._ids
        ids[event_id] = now_s
        if len(ids) > self.events_max:
            self._drop_oldest(ids)

    def is_duplicate(self, event: RouterEvent, now_s: float) -> bool:
        """Remember *event*; True if its id was seen, or its content when that is wanted.

        A publisher may repeat the same content on purpose, so content is never compared for events
        published directly at the router.
        """
        if self._seen(self._ids, event.event_id, now_s):
            self.duplicates += 1
            return True
        if not self.by_content or event.origin is EventSource.ROUTER:
            return False
        if self._seen(self._contents, event.content_hash, now_s):
            self.content_duplicates += 1
            return True
        return False

    def forget(self, event: RouterEvent) -> None:
        self._ids.pop(event.event_id, None)
        if self.by_content:
            self._contents.pop(event.content_hash, None)

    def clear(self) -> None:
        self._ids.clear()
        self._contents.clear()

    def stats(self) -> dict[str, Any]:
        return {
            "duplicates_prevented": self.duplicates,
            "content_duplicates_prevented": self.content_duplicates,
            "total_duplicates_prevented": self.duplicates + self.content_duplicates,
            "seen_events_count": len(self._ids),
            "seen_content_hashes_count": len(self._contents),
            "max_seen_events": self.events_max,
            "dedup_ttl_seconds": self.ttl_s,
        }

    def _seen(self, table: dict[str, float], key: str, now_s: float) -> bool:
        known_s = table.get(key)
        if known_s is not None and now_s - known_s < self.ttl_s:
            return True
        table.pop(key, None)
        table[key] = now_s
        if len(table) > self.events_max:
            self._drop_oldest(table)
        return False

    def _drop_oldest(self, table: dict[str, float]) -> None:
        # A tenth at a time: taking the first key of a dictionary again and again gets slower each time.
        for key in list(islice(table, max(1, self.events_max // 10))):
            del table[key]


# What the router says about itself: statistics, flow, wiring and health.


log = structlog.get_logger()

CRITICAL_EVENTS = ("TRAINING_COMPLETED", "EVALUATION_COMPLETED", "MODEL_PROMOTED", "DATA_SYNC_COMPLETED")
RECOMMENDED_EVENTS = (
    "NEW_GAMES_AVAILABLE",
    "CURRICULUM_REBALANCED",
    "ELO_VELOCITY_CHANGED",
    "TRAINING_STARTED",
    "SELFPLAY_COMPLETE",
)
_DUPLICATE_SHARE_MAX = 0.3
_EVENTS_BEFORE_JUDGING = 100
_ORPHAN_SEEN_MIN = 5
_RECENT = 100


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


class CrossingState(Protocol):
    """What the connection to other processes tells about itself."""

    @property
    def is_reading(self) -> bool: ...

    def stats(self) -> dict[str, Any]: ...


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
        newest_first = (
            event
            for event in reversed(self._history)
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
        if self._table.global_count == 0:
            for name in sorted(name for name, n in orphaned.items() if n >= _ORPHAN_SEEN_MIN):
                issues.append(f"{name} was published {orphaned[name]} times and nobody subscribes to it")
                recommendations.append(f"subscribe to {name}, or stop publishing it")
        recent = islice(reversed(self._history), _RECENT)
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


# What happens to a failed delivery: counted, logged, kept as a dead letter, and announced.


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
