"""Hears what goes wrong anywhere, keeps the ledger of it, and runs the recoveries that are known.

The ledger decides; this subscribes, publishes and owns the tasks. Restarting daemons is not done here: the
daemon manager is the only one that does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog

from ringrift.engine.run_reports import answers_here, reported, reported_health
from ringrift.errors import ConfigError
from ringrift.events.routed_event import RouterEvent, current_event
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.events.wired import WiredCoordinator
from ringrift.health.history import BoundedHistory
from ringrift.health.isolation import attempt_async
from ringrift.health.ledger import (
    HealthLedger,
    HealthLevel,
    Issue,
    RecoveryAction,
    SystemHealthScore,
    level_of,
)
from ringrift.health.rules import RULES
from ringrift.runtime import Runtime, system_runtime
from ringrift.status import HealthCheckResult

log = structlog.get_logger()

NAME = "health_manager"
RECOVERY_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 5.0
ISSUES_SHOWN = 20
SCORES_KEPT = 500
UNKNOWN_HEALTH = "system health is unknown"

Recovery = Callable[[], Awaitable[Any]]


class UnifiedHealthManager(WiredCoordinator):
    """The coordinator of errors, recoveries and system health."""

    emits = ("RECOVERY_INITIATED", "RECOVERY_COMPLETED", "RECOVERY_FAILED")
    subscribes = tuple(RULES)

    def __init__(
        self,
        *,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
        ledger: HealthLedger | None = None,
    ) -> None:
        super().__init__(NAME, router=router)
        self._runtime = runtime or system_runtime()
        self.ledger = ledger or HealthLedger()
        self.escalations: BoundedHistory[str] = BoundedHistory(100)
        self._scores: BoundedHistory[SystemHealthScore] = BoundedHistory(SCORES_KEPT)
        self._recoveries: dict[str, Recovery] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._events_seen = 0

    # --- the life of a coordinator --------------------------------------------------------------------

    def _hears(self) -> Mapping[str, Callback]:
        return dict.fromkeys(self.subscribes, self._on_event)

    def unwire(self) -> None:
        """Unsubscribe and cancel the recoveries under way."""
        super().unwire()
        for task in self._running.values():
            task.cancel()

    async def stop(self) -> None:
        """Unsubscribe, and wait for the recoveries under way to end."""
        tasks = tuple(self._running.values())
        self.unwire()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_TIMEOUT_S)

    # --- what it knows --------------------------------------------------------------------------------

    def get_system_health_score(self) -> float:
        """1.0 is well, 0.0 is down; 0.0 too where it is unknown, which is not healthy: the level says so."""
        return self._score() or 0.0

    def _score(self) -> float | None:
        """Heard here, or told by the run; None is what nobody knows."""
        if not answers_here(self):
            told = self.get_status()["system_health_score"]
            return None if told is None else float(told)
        return self._heard_score()

    def _heard_score(self) -> float | None:
        return self.ledger.score(self._runtime.now_s()) if self._subscriptions else None

    def get_health_score(self) -> SystemHealthScore:
        """Return score, level and reasons of this moment in one value."""
        if answers_here(self):
            issues = [str(issue) for issue in self.issues()[:ISSUES_SHOWN]]
        else:
            issues = self.get_status()["issues"] or []
        return SystemHealthScore(
            score=self._score(),
            level=self.get_system_health_level(),
            at_s=self._runtime.now_s(),
            issues=tuple(issues),
            pause_reasons=tuple(self.pause_reasons()),
        )

    def get_score_history(self, limit: int = 50) -> list[SystemHealthScore]:
        """Return the scores at which the health changed, oldest first."""
        return self._scores.recent(limit)

    def _track_score(self) -> None:
        now = self.get_health_score()
        last = self._scores.recent(1)
        if not last or (last[0].score, last[0].level) != (now.score, now.level):
            self._scores.append(now)

    def get_system_health_level(self) -> HealthLevel:
        return _level(self._score())

    def should_pause_pipeline(self) -> bool:
        return bool(self.pause_reasons())

    def pause_reasons(self) -> list[str]:
        """Return why the pipeline should not go on; empty when it may."""
        if not answers_here(self):
            told = self.get_status()["pause_reasons"]
            return [UNKNOWN_HEALTH] if told is None else list(told)
        return self._heard_reasons()

    def _heard_reasons(self) -> list[str]:
        if not self._subscriptions:
            return [UNKNOWN_HEALTH]
        return self.ledger.pause_reasons(self._runtime.now_s())

    def issues(self) -> list[Issue]:
        return self.ledger.issues(self._runtime.now_s())

    def heartbeat_ages(self) -> dict[str, float]:
        """Return the seconds since each coordinator was last heard of."""
        now_s = self._runtime.now_s()
        return {name: now_s - heard_s for name, heard_s in self.ledger.heartbeats_s.items()}

    @reported_health
    def health_check(self) -> HealthCheckResult:
        if not self._subscriptions:
            return HealthCheckResult(False, self.status, "not subscribed", self.get_metrics())
        return HealthCheckResult.ok("", **self.get_metrics())

    @reported
    def get_metrics(self) -> dict[str, Any]:
        return {
            "events_seen": self._events_seen,
            "issues_count": len(self.issues()),
            "recoveries_running": len(self._running),
            "escalations_total": self.escalations.total,
        }

    @reported
    def get_status(self) -> dict[str, Any]:
        """Return what a dashboard shows."""
        score = self._heard_score()
        breakers = self.ledger.open_breakers(self._runtime.now_s())
        return {
            "name": self.name,
            "status": self.status.value,
            "subscribed": self.is_subscribed,
            "system_health_score": None if score is None else round(score, 3),
            "system_health_level": _level(score).value,
            "pause_reasons": self._heard_reasons(),
            "issues": [str(issue) for issue in self.issues()[:ISSUES_SHOWN]],
            "open_breakers": {subject: state.value for subject, state in breakers.items()},
            "heartbeat_ages": self.heartbeat_ages(),
            **self.get_metrics(),
        }

    def get_state(self) -> Mapping[str, Any]:
        return self.ledger.get_state()

    def restore_state(self, state: Mapping[str, Any]) -> None:
        self.ledger.restore_state(state)

    # --- recoveries -----------------------------------------------------------------------------------

    def register_recovery(self, subject: str, recover: Recovery) -> None:
        """Say how *subject* is brought back when its failures in a row reach the limit."""
        if not callable(recover):
            raise ConfigError(f"the recovery of {subject} is {recover!r}; it must be an async function")
        self._recoveries[subject] = recover

    async def _on_event(self, event: RouterEvent) -> None:
        self._events_seen += 1
        action, subject = self.ledger.observe(event.event_type, event.payload, self._runtime.now_s())
        self._track_score()
        if action is RecoveryAction.NONE or event.source == NAME:
            return
        recover = self._recoveries.get(subject)
        if action is RecoveryAction.ESCALATE or recover is None:
            self._escalate(subject, event)
        elif subject not in self._running:
            task = asyncio.create_task(self._recover(subject, recover), name=f"recovery of {subject}")
            self._running[subject] = task
            task.add_done_callback(lambda _: self._running.pop(subject, None))

    def _escalate(self, subject: str, event: RouterEvent) -> None:
        self.escalations.append(f"{subject}: {event.event_type}")
        log.error("health.needs_a_person", subject=subject, event_type=event.event_type)

    async def _recover(self, subject: str, recover: Recovery) -> None:
        current_event.set(None)  # in this task only: a recovery outlives the event that asked for it
        strategy, began_s = getattr(recover, "__name__", "registered"), self._runtime.monotonic_s()
        about = {"component": subject, "strategy": strategy, "reason": "failures in a row"}
        await self.router.publish("RECOVERY_INITIATED", about, NAME)
        ended = await attempt_async(f"recovery of {subject}", lambda: _within(recover, RECOVERY_TIMEOUT_S))
        if ended.error is not None:
            self.escalations.append(f"{subject}: recovery failed")
            failed = {"component": subject, "action": strategy, "error": ended.problem}
            await self.router.publish("RECOVERY_FAILED", failed, NAME)
            return
        took_s = self._runtime.monotonic_s() - began_s
        done = {"component": subject, "action": strategy, "duration_seconds": took_s}
        await self.router.publish("RECOVERY_COMPLETED", done, NAME)


async def _within(recover: Recovery, timeout_s: float) -> None:
    async with asyncio.timeout(timeout_s):
        await recover()


def _level(score: float | None) -> HealthLevel:
    return HealthLevel.UNKNOWN if score is None else level_of(score)


def get_health_manager() -> UnifiedHealthManager:
    """Return the health manager of this process."""
    return UnifiedHealthManager.get_instance()


reset_health_manager = UnifiedHealthManager.reset_instance


def wire_health_events(router: UnifiedEventRouter | None = None) -> UnifiedHealthManager:
    """Return the health manager of this process, subscribed; for another *router*, one of its own."""
    manager = get_health_manager() if router is None else UnifiedHealthManager(router=router)
    manager.wire()
    return manager


def get_system_health_score() -> float:
    return get_health_manager().get_system_health_score()


def get_health_score() -> SystemHealthScore:
    """Return how the whole is, with its reasons."""
    return get_health_manager().get_health_score()


def get_system_health_level() -> HealthLevel:
    return get_health_manager().get_system_health_level()


def should_pause_pipeline() -> bool:
    return get_health_manager().should_pause_pipeline()
