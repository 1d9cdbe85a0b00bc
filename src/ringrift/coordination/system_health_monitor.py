"""The daemons that watch the health of coordinators and of the whole system.

`CoordinatorHealthMonitor` asks the coordinators of this process how they are, tells every change, and notices
when those of other processes fall silent. `SystemHealthMonitor` keeps alerts, tells when the level of the
whole changes, and saves the health manager's ledger so that a restart does not forget cooldowns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

import structlog

from ringrift.coordination.contracts import coordinator_directory, invoke_health_check
from ringrift.coordination.coordinator_persistence import SnapshotStore
from ringrift.coordination.event_router import get_router
from ringrift.coordination.handler_base import HandlerBase
from ringrift.coordination.unified_health_manager import (
    HealthLevel,
    RecoveryAction,
    SystemHealthScore,
    UnifiedHealthManager,
    get_health_manager,
    get_health_score,
    get_system_health_level,
    get_system_health_score,
    reset_health_manager,
    says_trouble,
    should_pause_pipeline,
    wire_health_events,
)
from ringrift.coordination.utils import BoundedHistory
from ringrift.engine.opening import engine_on_demand
from ringrift.errors import RingRiftError
from ringrift.events.catalog.table import CATALOG
from ringrift.events.event import Announcement, EventSource, RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.runtime import Runtime
from ringrift.status import CoordinatorStatus, HealthCheckResult

__all__ = [
    "CoordinatorHealthMonitor",
    "HealthLevel",
    "RecoveryAction",
    "SystemHealthMonitor",
    "SystemHealthScore",
    "UnifiedHealthManager",
    "get_health_manager",
    "get_health_score",
    "get_system_health_level",
    "get_system_health_score",
    "reset_health_manager",
    "should_pause_pipeline",
    "wire_health_events",
]


# What is known of each coordinator, and what there is to tell when it changes. No clock, no I/O.


# Names come with the events of other processes, so there is a bound.
NAMES_MAX = 1000


class Condition(StrEnum):
    """How a coordinator is."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNHEALTHY = "unhealthy"
    SILENT = "silent"  # no heartbeat for too long
    STOPPED = "stopped"  # ended on purpose


HEARD_AS = {
    "COORDINATOR_HEARTBEAT": Condition.HEALTHY,
    "COORDINATOR_HEALTHY": Condition.HEALTHY,
    "COORDINATOR_HEALTH_DEGRADED": Condition.DEGRADED,
    "COORDINATOR_UNHEALTHY": Condition.UNHEALTHY,
    "COORDINATOR_INIT_FAILED": Condition.UNHEALTHY,
    "COORDINATOR_SHUTDOWN": Condition.STOPPED,
}


@dataclass(frozen=True, slots=True)
class Seen:
    """The last that was known of one coordinator."""

    condition: Condition
    score: float
    heard_s: float
    local: bool
    message: str = ""


class CoordinatorWatch:
    """Coordinators of this process are asked; those of others are heard of."""

    def __init__(self, *, silent_after_s: float) -> None:
        self._silent_after_s = silent_after_s
        self._seen: dict[str, Seen] = {}

    def checked(self, name: str, result: HealthCheckResult, now_s: float) -> list[Announcement]:
        """Take the answer of a local coordinator; return the events to publish."""
        condition = _condition_of(result)
        before = self._seen.get(name)
        self._keep(name, Seen(condition, result.health_score, now_s, local=True, message=result.message))
        events: list[Announcement] = []
        if before is None or before.condition is not condition:
            events = _change(name, condition, result)
        if condition is Condition.UNHEALTHY and is_down(result):
            # At every look, not only at the first: what fails often enough in a row is brought back.
            events.append(("ERROR", {"component": name, "error": result.message}))
        # An unhealthy one sends none: where the event about it is lost, its silence tells.
        if condition is not Condition.UNHEALTHY:
            events.append(("COORDINATOR_HEARTBEAT", _heartbeat(name, result)))
        return events

    def forget_gone(self, local: Collection[str]) -> None:
        """Forget coordinators that were of this process and are no longer: another may run them now."""
        for name in [name for name, seen in self._seen.items() if seen.local and name not in local]:
            del self._seen[name]

    def heard(self, event_type: str, payload: Mapping[str, Any], now_s: float) -> None:
        """Take what a coordinator of another process says of itself, or is said of it."""
        name = str(payload.get("coordinator_name") or "")
        known = self._seen.get(name)
        # One of this process is asked directly, which is newer than what is said about it.
        if not name or (known is not None and known.local):
            return
        condition = HEARD_AS[event_type]
        # A heartbeat says that it lives, not that it is well again.
        if event_type == "COORDINATOR_HEARTBEAT" and known and known.condition is not Condition.SILENT:
            condition = known.condition
        score = float(payload.get("health_score") or 0.0)
        message = str(payload.get("reason") or payload.get("error") or "")
        self._keep(name, Seen(condition, score, now_s, local=False, message=message))

    def silent(self, now_s: float) -> list[Announcement]:
        """Return what to tell about coordinators that stopped being heard of; each once."""
        events: list[Announcement] = []
        for name, seen in self._seen.items():
            age_s = now_s - seen.heard_s
            quiet = seen.condition in {Condition.SILENT, Condition.STOPPED}
            if seen.local or quiet or age_s <= self._silent_after_s:
                continue
            self._seen[name] = Seen(Condition.SILENT, 0.0, seen.heard_s, local=False)
            reason = f"no heartbeat for {age_s:.0f} s"
            events.append(
                ("COORDINATOR_UNHEALTHY", {"coordinator_name": name, "reason": reason, "health_score": 0.0})
            )
        return events

    def report(self, now_s: float) -> dict[str, dict[str, Any]]:
        return {
            name: {
                "state": seen.condition.value,
                "health_score": seen.score,
                "heartbeat_age_seconds": now_s - seen.heard_s,
                "message": seen.message,
            }
            for name, seen in self._seen.items()
        }

    def _keep(self, name: str, seen: Seen) -> None:
        if name not in self._seen and len(self._seen) >= NAMES_MAX:
            self._seen.pop(min(self._seen, key=lambda known: self._seen[known].heard_s))
        self._seen[name] = seen


def _condition_of(result: HealthCheckResult) -> Condition:
    if not result.healthy:
        return Condition.UNHEALTHY
    return Condition.DEGRADED if result.status is CoordinatorStatus.DEGRADED else Condition.HEALTHY


def _change(name: str, condition: Condition, result: HealthCheckResult) -> list[Announcement]:
    about: dict[str, Any] = {"coordinator_name": name, "health_score": result.health_score}
    if condition is Condition.HEALTHY:
        uptime = float(result.details.get("uptime_seconds") or 0.0)
        return [("COORDINATOR_HEALTHY", {**about, "uptime_seconds": uptime, "subscribed": True})]
    about["reason"] = result.message or condition.value
    if condition is Condition.DEGRADED:
        return [("COORDINATOR_HEALTH_DEGRADED", about)]
    return [("COORDINATOR_UNHEALTHY", about)]


def is_down(result: HealthCheckResult) -> bool:
    """Whether it hears no more, or cannot say how it is: a fault beside the health that it hides."""
    return result.status is CoordinatorStatus.STOPPED or result.message.startswith("health_check raised")


def _heartbeat(name: str, result: HealthCheckResult) -> dict[str, Any]:
    details = result.details
    return {
        "coordinator_name": name,
        "health_score": result.health_score,
        "active_handlers": int(details.get("subscription_count") or 0),
        "events_processed": int(details.get("events_processed") or details.get("events_seen") or 0),
    }


log = structlog.get_logger()

INTERVAL_S = 30.0
CHECK_TIMEOUT_S = 10.0
ALERTS_KEPT = 500
_QUIET = frozenset({"debug", "info"})


class CoordinatorHealthMonitor(HandlerBase):
    """COORDINATOR_HEALTH_MONITOR: state and heartbeat age of every coordinator."""

    capability: ClassVar[str] = "component_health"
    emits: ClassVar[tuple[str, ...]] = (
        "COORDINATOR_HEARTBEAT",
        "COORDINATOR_HEALTHY",
        "COORDINATOR_HEALTH_DEGRADED",
        "COORDINATOR_UNHEALTHY",
        "ERROR",
    )

    def __init__(
        self,
        *,
        runtime: Runtime | None = None,
        router: UnifiedEventRouter | None = None,
        interval_s: float = INTERVAL_S,
    ) -> None:
        name = "coordinator_health_monitor"
        super().__init__(name, cycle_interval=interval_s, router=router, runtime=runtime)
        self.router = router or get_router()
        # Two heartbeats may be late or lost.
        self.watch = CoordinatorWatch(silent_after_s=3 * interval_s)

    def _get_event_subscriptions(self) -> Mapping[Any, Callback]:
        return dict.fromkeys(HEARD_AS, self._on_event)

    async def _run_cycle(self) -> None:
        """Ask every coordinator of this process once, and tell what changed."""
        local = coordinator_directory().all()
        self.watch.forget_gone(local)
        for name, coordinator in local.items():
            result = await self._ask(coordinator)
            for event, payload in self.watch.checked(name, result, self._runtime.now_s()):
                await self.router.publish(event, payload, self.name)
        for event, payload in self.watch.silent(self._runtime.now_s()):
            await self.router.publish(event, payload, self.name)

    def coordinators(self) -> dict[str, dict[str, Any]]:
        """Return state, score and heartbeat age by coordinator."""
        return self.watch.report(self._runtime.now_s())

    def health_check(self) -> HealthCheckResult:
        """Its own health; what it sees of others is in the details."""
        return super().health_check().with_details(coordinators=self.coordinators())

    async def _ask(self, coordinator: Any) -> HealthCheckResult:
        try:
            # One check that hangs must not keep the others from being asked.
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                return await invoke_health_check(coordinator)
        except TimeoutError:
            return HealthCheckResult.unhealthy(f"health_check took more than {CHECK_TIMEOUT_S:g} s")

    def _on_event(self, event: RouterEvent) -> None:
        # What this monitor said itself comes back; what one in another process said is news.
        if event.source != self.name or event.origin is EventSource.CROSS_PROCESS:
            self.watch.heard(event.event_type, event.payload, self._runtime.now_s())


@dataclass(frozen=True, slots=True)
class Alert:
    """Something a person may want to know."""

    at_s: float
    event_type: str
    severity: str
    text: str


class SystemHealthMonitor(HandlerBase):
    """SYSTEM_HEALTH_MONITOR: alerts, the level of the whole, and the memory of the ledger."""

    capability: ClassVar[str] = "component_health"
    emits: ClassVar[tuple[str, ...]] = ("HEALTH_ALERT",)

    def __init__(
        self,
        *,
        runtime: Runtime | None = None,
        router: UnifiedEventRouter | None = None,
        health_manager: UnifiedHealthManager | None = None,
        store: SnapshotStore | None = None,
        interval_s: float = INTERVAL_S,
    ) -> None:
        name = "system_health_monitor"
        super().__init__(name, cycle_interval=interval_s, router=router, runtime=runtime)
        self.router = router or get_router()
        self._manager = health_manager or get_health_manager()
        self._store = store
        self.alerts: BoundedHistory[Alert] = BoundedHistory(ALERTS_KEPT)
        self._level = HealthLevel.UNKNOWN
        self._saved: Mapping[str, Any] = {}
        self._memory_problem = ""

    def _get_event_subscriptions(self) -> Mapping[Any, Callback]:
        return {name: self._on_event for name, spec in CATALOG.items() if "alerting" in spec.consumed_by}

    async def _run_cycle(self) -> None:
        """Tell a change of level, and save the ledger if it changed."""
        level = self._manager.get_system_health_level()
        if level is not self._level:
            before, self._level = self._level, level
            await self.router.publish("HEALTH_ALERT", self._level_alert(before, level), self.name)
        state = self._manager.get_state()
        if state != self._saved:
            await self._save(state)

    def health_check(self) -> HealthCheckResult:
        """Degraded while the level is unknown or the ledger cannot be saved."""
        own = super().health_check().with_details(level=self._level.value, alerts_total=self.alerts.total)
        unknown = "the health manager is not wired" if self._level is HealthLevel.UNKNOWN else ""
        return own.or_degraded(unknown or self._memory_problem)

    def _level_alert(self, before: HealthLevel, level: HealthLevel) -> dict[str, Any]:
        severity = {HealthLevel.HEALTHY: "info", HealthLevel.DEGRADED: "warning"}.get(level, "error")
        score = round(self._manager.get_system_health_score(), 3)
        issues = [str(issue) for issue in self._manager.issues()[:5]]
        return {
            "alert_type": "system_health",
            "severity": severity,
            "message": f"system health went from {before.value} to {level.value}",
            "details": {"score": score, "issues": issues},
        }

    def _on_event(self, event: RouterEvent) -> None:
        spec = CATALOG[event.event_type]
        severity = str(event.payload.get("severity") or spec.severity)
        if not says_trouble(event.event_type, event.payload):
            return
        words = (event.payload.get(key) for key in ("message", "reason", "error"))
        text = next((str(word) for word in words if word), event.event_type.lower().replace("_", " "))
        self.alerts.append(Alert(self._runtime.now_s(), event.event_type, severity, text[:500]))
        tell = log.info if severity in _QUIET else log.warning
        tell("health.alert", event_type=event.event_type, severity=severity, text=text[:500])

    async def _on_start(self) -> None:
        """Take over the ledger of the last run. One that cannot be read is told and left alone."""
        try:
            snapshot = await (await self._snapshots()).load(self._manager.name)
        except RingRiftError as error:
            self._memory_problem = f"the health ledger was not restored: {error}"
            log.error("health.ledger_not_restored", error=str(error))
            return
        if snapshot is not None:
            self._manager.restore_state(snapshot.state)
            # Read back and not the snapshot itself: restoring leaves out kinds that no longer exist.
            self._saved = self._manager.get_state()

    async def _save(self, state: Mapping[str, Any]) -> None:
        try:
            await (await self._snapshots()).save(self._manager.name, state)
        except RingRiftError as error:
            self._memory_problem = f"the health ledger was not saved: {error}"
            log.error("health.ledger_not_saved", error=str(error))
            return
        self._saved, self._memory_problem = state, ""

    async def _snapshots(self) -> SnapshotStore:
        return self._store or SnapshotStore((await engine_on_demand()).kv, runtime=self._runtime)
