"""What the router says about itself: statistics, flow, wiring and health."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

import structlog

from ringrift.errors import ConfigError
from ringrift.events.event_routes import EventRoutes
from ringrift.events.failures import FailureKind
from ringrift.events.routed_event import EventSource, RouterEvent
from ringrift.events.seen_events import SeenEvents
from ringrift.events.subscriptions import SubscriptionTable
from ringrift.status import CoordinatorStatus, HealthCheckResult

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
