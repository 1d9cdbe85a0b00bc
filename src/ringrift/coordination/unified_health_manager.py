"""Hears what goes wrong anywhere, keeps the ledger of it, and runs the recoveries that are known.

The ledger decides; this subscribes, publishes and owns the tasks. Restarting daemons is not done here: the
daemon manager is the only one that does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import structlog

from ringrift.coordination.handler_base import HearingCoordinator, says_that_we_are_gone
from ringrift.coordination.utils import BoundedHistory
from ringrift.daemons.running import attempt, attempt_async
from ringrift.engine.run_reports import answers_here, reported
from ringrift.errors import ConfigError
from ringrift.events.event import EventSource, RouterEvent, current_delivery
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.health.breakers import BreakerConfig, BreakerState, CircuitBreaker
from ringrift.process import getter_of
from ringrift.runtime import Runtime, system_runtime
from ringrift.task_owner import TaskOwner

# What each event means for the health of the system: the one table behind the ledger.
#
# A rule raises an issue (with its weight, its expiry and what it concerns) or settles issues. Weights add up
# per kind to a limit, so that a flood of one kind cannot hide the others.


MINUTE_S = 60.0
HOUR_S = 3600.0
DAY_S = 24 * HOUR_S

PARITY_RATE_MAX = 0.05


@dataclass(frozen=True, slots=True)
class Kind:
    """A sort of trouble: what one case costs, what all of them cost at most, how long one counts."""

    weight: float
    weight_max: float
    expires_s: float
    pauses_pipeline: bool = False


KINDS: Mapping[str, Kind] = {
    "error": Kind(0.05, 0.3, 15 * MINUTE_S),
    "handler": Kind(0.02, 0.2, 15 * MINUTE_S),
    "task": Kind(0.01, 0.1, 15 * MINUTE_S),
    "training": Kind(0.1, 0.3, HOUR_S),
    "regression": Kind(0.1, 0.2, 6 * HOUR_S),
    "critical_regression": Kind(0.2, 0.4, 6 * HOUR_S, pauses_pipeline=True),
    "parity": Kind(0.2, 0.2, 6 * HOUR_S, pauses_pipeline=True),
    "node": Kind(0.1, 0.4, DAY_S),
    "isolation": Kind(0.2, 0.2, HOUR_S),
    "stall": Kind(0.2, 0.2, HOUR_S),
    # No reason to pause: that somebody saw two leaders does not prove that this process is the wrong one.
    "split_brain": Kind(0.4, 0.4, HOUR_S),
    "deadlock": Kind(0.2, 0.4, HOUR_S),
    "lock": Kind(0.02, 0.1, 15 * MINUTE_S),
    "recovery": Kind(0.1, 0.3, 6 * HOUR_S),
    "coordinator": Kind(0.15, 0.6, 6 * HOUR_S),
    "daemon": Kind(0.2, 0.6, DAY_S),
    "dead_letters": Kind(0.1, 0.1, HOUR_S),
    "replication": Kind(0.1, 0.2, 6 * HOUR_S),
    "capacity": Kind(0.05, 0.05, DAY_S),
    "budget": Kind(0.1, 0.1, DAY_S),
}


@dataclass(frozen=True, slots=True)
class Rule:
    """What to do with one event. *subject* names the payload field that says whom it concerns."""

    subject: tuple[str, ...] = ()
    raises: str = ""
    settles: tuple[str, ...] = ()
    message: tuple[str, ...] = ("reason", "error", "message")
    weight_share: float = 1.0  # of the kind's weight
    counts_as_failure: bool = False  # for the subject's circuit breaker
    counts_as_success: bool = False


_COMPONENT, _NODE, _DAEMON = ("component", "node_id"), ("node_id",), ("daemon_name",)
_CONFIG, _COORDINATOR = ("config_key",), ("coordinator_name",)

RULES: Mapping[str, Rule] = {
    "ERROR": Rule(_COMPONENT, "error", counts_as_failure=True),
    "HANDLER_FAILED": Rule(("coordinator", "handler_name"), "handler", weight_share=0.5),
    "HANDLER_TIMEOUT": Rule(("coordinator", "handler_name"), "handler"),
    "TASK_FAILED": Rule(("task_type",), "task", counts_as_failure=True),
    "TASK_COMPLETED": Rule(("task_type",), settles=("task",), counts_as_success=True),
    "TRAINING_FAILED": Rule(_CONFIG, "training", counts_as_failure=True),
    "TRAINING_COMPLETED": Rule(_CONFIG, settles=("training",), counts_as_success=True),
    "REGRESSION_DETECTED": Rule(_CONFIG, "regression", message=("severity",)),
    "REGRESSION_CRITICAL": Rule(_CONFIG, "critical_regression"),
    "REGRESSION_CLEARED": Rule(_CONFIG, settles=("regression", "critical_regression")),
    "PARITY_FAILURE_RATE_CHANGED": Rule(_CONFIG, "parity", message=("new_rate",)),
    "HOST_OFFLINE": Rule(_NODE, "node"),
    "HOST_ONLINE": Rule(_NODE, settles=("node",)),
    "NODE_RECOVERED": Rule(_NODE, settles=("node", "recovery"), counts_as_success=True),
    "NETWORK_ISOLATION_DETECTED": Rule(_NODE, "isolation", message=("peer_ratio",)),
    "P2P_RESTART_TRIGGERED": Rule(_NODE, "isolation", weight_share=0.25),
    "P2P_HEALTH_RECOVERED": Rule(_NODE, settles=("isolation",)),
    "CLUSTER_STALL_DETECTED": Rule((), "stall", message=("stalled_nodes",)),
    "SPLIT_BRAIN_DETECTED": Rule((), "split_brain", message=("leaders_seen",)),
    "SPLIT_BRAIN_RESOLVED": Rule((), settles=("split_brain",)),
    "DEADLOCK_DETECTED": Rule((), "deadlock", message=("resources",)),
    "LOCK_TIMEOUT": Rule(("lock_name",), "lock", message=("operation",)),
    "RECOVERY_INITIATED": Rule(_COMPONENT),
    "RECOVERY_FAILED": Rule(_COMPONENT, "recovery", counts_as_failure=True),
    "RECOVERY_COMPLETED": Rule(
        _COMPONENT, settles=("error", "recovery", "node", "daemon", "coordinator"), counts_as_success=True
    ),
    "COORDINATOR_HEARTBEAT": Rule(_COORDINATOR),
    "COORDINATOR_HEALTHY": Rule(_COORDINATOR, settles=("coordinator",), counts_as_success=True),
    "COORDINATOR_HEALTH_DEGRADED": Rule(_COORDINATOR, "coordinator", weight_share=0.4),
    "COORDINATOR_UNHEALTHY": Rule(_COORDINATOR, "coordinator"),
    "COORDINATOR_INIT_FAILED": Rule(_COORDINATOR, "coordinator"),
    "COORDINATOR_SHUTDOWN": Rule(_COORDINATOR, settles=("coordinator",)),
    "DAEMON_STARTED": Rule(_DAEMON, settles=("daemon",)),
    "DAEMON_STOPPED": Rule(_DAEMON, settles=("daemon",)),
    "DAEMON_STATUS_CHANGED": Rule(_DAEMON, "daemon", weight_share=0.5),
    "DAEMON_CRASH_LOOP_DETECTED": Rule(_DAEMON, "daemon", message=("restart_count",), weight_share=0.5),
    "DAEMON_PERMANENTLY_FAILED": Rule(_DAEMON, "daemon", message=("reason", "restart_count")),
    "DLQ_STALE_EVENTS": Rule((), "dead_letters", message=("stale_count",)),
    "DLQ_EVENTS_REPLAYED": Rule((), settles=("dead_letters",)),
    "DLQ_EVENTS_PURGED": Rule((), settles=("dead_letters",)),
    "REPLICATION_ALERT": Rule(_NODE, "replication"),
    "CAPACITY_LOW": Rule((), "capacity", message=("current_gpus",)),
    "CAPACITY_RESTORED": Rule((), settles=("capacity",)),
    "BUDGET_ALERT": Rule(("budget_type",), "budget", message=("threshold_percent",), weight_share=0.2),
    "BUDGET_EXCEEDED": Rule(("budget_type",), "budget", message=("current_usd",)),
}

# A status change of a daemon is trouble only when it leads here.
_FAILED_STATES = frozenset({"failed", "import_failed", "degraded"})


def says_trouble(event_type: str, payload: Mapping[str, Any]) -> bool:
    """Whether a raising event reports trouble this time, or that the trouble is over."""
    if event_type == "DAEMON_STATUS_CHANGED":
        return payload.get("new_status") in _FAILED_STATES
    if event_type == "PARITY_FAILURE_RATE_CHANGED":
        # A rate that is not told is not a good one.
        rate = payload.get("new_rate")
        return rate is None or float(rate) > PARITY_RATE_MAX
    return True


# Keeps what is wrong, by kind and subject, and says what that means. No clock, no I/O.
#
# Every issue has an expiry. A kind's issues cost their weights up to the kind's limit; the score is what is
# left of 1. A subject whose failures in a row open its circuit breaker is due for a recovery.


SYSTEM = "system"  # the subject of an event that names none
# By then a champion was judged again: it is taken back, or not as bad as it looks and new games help more.
HELD_S_MAX = HOUR_S
SUBJECTS_MAX = 10_000  # beyond this the oldest issue of all makes room


class RecoveryAction(StrEnum):
    """What to do about a subject."""

    NONE = "none"  # watch
    RECOVER = "recover"  # its breaker opened: run its recovery
    ESCALATE = "escalate"  # recovery failed or there is none: a person must look


class HealthLevel(StrEnum):
    """The score in a word."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNHEALTHY = "unhealthy"
    CRITICAL = "critical"
    UNKNOWN = "unknown"  # nothing watches, so nothing can be said


_LEVELS = ((0.9, HealthLevel.HEALTHY), (0.7, HealthLevel.DEGRADED), (0.4, HealthLevel.UNHEALTHY))


def level_of(score: float) -> HealthLevel:
    return next((level for least, level in _LEVELS if score >= least), HealthLevel.CRITICAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemHealthScore:
    """How the whole was at one moment. *score* is None while nothing watches: unknown is not a number."""

    score: float | None
    level: HealthLevel
    at_s: float
    issues: tuple[str, ...] = ()  # the heaviest first
    pause_reasons: tuple[str, ...] = ()  # why the pipeline should not go on

    @property
    def should_pause(self) -> bool:
        return bool(self.pause_reasons)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "level": self.level.value, "should_pause": self.should_pause}


@dataclass(frozen=True, slots=True)
class Issue:
    """One thing that is wrong."""

    kind: str
    subject: str
    message: str
    weight: float
    since_s: float
    until_s: float
    count: int = 1

    def __str__(self) -> str:
        return f"{self.subject}: {self.kind}" + (f" ({self.message})" if self.message else "")


class PipelineHold(NamedTuple):
    """Why new work should wait."""

    config: str  # empty: all work
    reason: str
    until_s: float


Evidence = Callable[[], Collection[str]]  # the subjects of which an issue is true now, as measured
Confirmed = Callable[[Issue], bool]


class Decision(NamedTuple):
    """What to do, and about whom."""

    action: RecoveryAction
    subject: str


def _score(issues: Iterable[Issue]) -> float:
    """What is left of 1; a flood of one kind costs no more than its limit."""
    by_kind: dict[str, float] = {}
    for issue in issues:
        by_kind[issue.kind] = by_kind.get(issue.kind, 0.0) + issue.weight
    lost = sum(min(weight, KINDS[kind].weight_max) for kind, weight in by_kind.items())
    return max(0.0, 1.0 - lost)


_OF_RECOVERIES = frozenset({"ERROR", "RECOVERY_INITIATED", "RECOVERY_COMPLETED", "RECOVERY_FAILED"})


def subject_of(event_type: str, payload: Mapping[str, Any]) -> str:
    """What an event is about: the first field that names something, else the whole system."""
    return next((str(payload[name]) for name in RULES[event_type].subject if payload.get(name)), SYSTEM)


class HealthLedger:
    """What is known to be wrong. Feed it events in the order in which they came."""

    def __init__(self, *, breaker: BreakerConfig | None = None) -> None:
        self._breaker_config = breaker or BreakerConfig(failures_max=5, cooldown_s=300.0)
        self._issues: dict[tuple[str, str], Issue] = {}
        self._breakers: dict[str, CircuitBreaker] = {}
        self.heartbeats_s: dict[str, float] = {}

    def observe(self, event_type: str, payload: Mapping[str, Any], now_s: float) -> Decision:
        """Take in one event; return what to do about its subject."""
        rule, subject = RULES[event_type], subject_of(event_type, payload)
        if rule.counts_as_success and payload.get("success") is False:
            return Decision(RecoveryAction.NONE, subject)  # it ended, and not well: a failure says so
        self._note_heartbeat(event_type, subject, now_s)
        if rule.raises and says_trouble(event_type, payload):
            self._raise(rule, subject, payload, now_s)
        else:
            # A raising event that reports no trouble settles its own kind: the rate is good again.
            for kind in (rule.raises, *rule.settles):
                self._settle(kind, subject)
        if rule.counts_as_success:
            self._breakers.pop(subject, None)
        if event_type == "RECOVERY_FAILED":
            self._count_failure(subject, now_s)
            return Decision(RecoveryAction.ESCALATE, subject)
        opened = rule.counts_as_failure and self._count_failure(subject, now_s)
        return Decision(RecoveryAction.RECOVER if opened else RecoveryAction.NONE, subject)

    def issues(self, now_s: float) -> list[Issue]:
        """Return what is wrong now, the heaviest first."""
        self._issues = {key: issue for key, issue in self._issues.items() if issue.until_s > now_s}
        return sorted(self._issues.values(), key=lambda issue: (-issue.weight, issue.since_s))

    def score(self, now_s: float) -> float:
        """1.0 is well, 0.0 is down."""
        return _score(self.issues(now_s))

    def holds(self, now_s: float, confirmed: Confirmed = lambda _: True) -> list[PipelineHold]:
        """Return what the pipeline should rest for, of the issues that are *confirmed*."""
        issues = [issue for issue in self.issues(now_s) if confirmed(issue)]
        holds = [
            PipelineHold("" if issue.subject == SYSTEM else issue.subject, str(issue), until_s)
            for issue in issues
            if KINDS[issue.kind].pauses_pipeline
            and (until_s := min(issue.until_s, issue.since_s + HELD_S_MAX)) > now_s
        ]
        if level_of(score := _score(issues)) is HealthLevel.CRITICAL:
            until_s = max(issue.until_s for issue in issues)
            holds.append(PipelineHold("", f"system health is critical ({score:.2f})", until_s))
        return holds

    def pause_reasons(self, now_s: float, confirmed: Confirmed = lambda _: True) -> list[str]:
        """Return why the pipeline should not go on; empty when it may."""
        return [hold.reason for hold in self.holds(now_s, confirmed)]

    def open_breakers(self, now_s: float) -> dict[str, BreakerState]:
        return {
            subject: breaker.state(now_s)
            for subject, breaker in self._breakers.items()
            if breaker.state(now_s) is not BreakerState.CLOSED
        }

    def get_state(self) -> dict[str, Any]:
        """Return all of it as JSON values; empty when there is nothing to remember."""
        if not self._issues and not self._breakers:
            return {}
        return {
            "issues": [asdict(issue) for issue in self._issues.values()],
            "breakers": {
                subject: {"failures": b.failures, "opened_s": b.opened_s, "cooldown_s": b.cooldown_s}
                for subject, b in self._breakers.items()
            },
        }

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` returned in an earlier life; what was seen since then stays."""
        issues = (Issue(**values) for values in state.get("issues", ()))
        # A kind that this version does not have has no weight.
        restored = {(issue.kind, issue.subject): issue for issue in issues if issue.kind in KINDS}
        self._issues = {**restored, **self._issues}
        breakers = {
            subject: CircuitBreaker(self._breaker_config, **values)
            for subject, values in state.get("breakers", {}).items()
        }
        self._breakers = {**breakers, **self._breakers}

    def _note_heartbeat(self, event_type: str, subject: str, now_s: float) -> None:
        if event_type == "COORDINATOR_SHUTDOWN":
            self.heartbeats_s.pop(subject, None)
        elif event_type in {"COORDINATOR_HEARTBEAT", "COORDINATOR_HEALTHY"}:
            self.heartbeats_s[subject] = now_s

    def _raise(self, rule: Rule, subject: str, payload: Mapping[str, Any], now_s: float) -> None:
        kind, key = KINDS[rule.raises], (rule.raises, subject)
        message = next((str(payload[name]) for name in rule.message if payload.get(name)), "")
        # Out and in again: the first of the dictionary is the one that was reported longest ago.
        known = self._issues.pop(key, None)
        if len(self._issues) >= SUBJECTS_MAX:
            self._issues.pop(next(iter(self._issues)))
        self._issues[key] = Issue(
            kind=rule.raises,
            subject=subject,
            message=message[:500],
            # A lighter report does not make known trouble lighter; only an event that settles it does.
            weight=max(kind.weight * rule.weight_share, known.weight if known else 0.0),
            since_s=known.since_s if known else now_s,
            until_s=now_s + kind.expires_s,
            count=known.count + 1 if known else 1,
        )

    def _settle(self, kind: str, subject: str) -> None:
        # An event that names nobody speaks for all of its kind.
        if subject != SYSTEM:
            self._issues.pop((kind, subject), None)
            return
        for key in [key for key in self._issues if key[0] == kind]:
            del self._issues[key]

    def _count_failure(self, subject: str, now_s: float) -> bool:
        """Return whether this failure opened the breaker of *subject*."""
        before = self._breakers.get(subject) or CircuitBreaker(self._breaker_config)
        after = before.failed(now_s)
        if subject not in self._breakers and len(self._breakers) >= SUBJECTS_MAX:
            self._breakers.pop(next(iter(self._breakers)))
        self._breakers[subject] = after
        # Only the failure that opens it: further ones must not start a second recovery.
        return after.opened_s is not None and after.opened_s != before.opened_s


log = structlog.get_logger()

NAME = "health_manager"
RECOVERY_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 5.0
ISSUES_SHOWN = 20
EVIDENCE_S = 1.0
SCORES_KEPT = 500
UNKNOWN_HEALTH = "system health is unknown"

Recovery = Callable[[], Awaitable[Any]]


class UnifiedHealthManager(HearingCoordinator):
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
        self._own: set[str] = set()  # subjects of which every process has one of its own
        self._tasks = TaskOwner(NAME)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._events_seen = 0
        self._evidence: Mapping[str, Evidence] | None = None
        self._measured: dict[str, Collection[str]] = {}  # by kind, at the last look
        self._looked_s = float("-inf")

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
            answer = self.get_status()["system_health_score"]
            return None if answer is None else float(answer)
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
            answer = self.get_status()["pause_reasons"]
            return [UNKNOWN_HEALTH] if answer is None else list(answer)
        return self._heard_reasons()

    def _heard_reasons(self) -> list[str]:
        if not self._subscriptions:
            # To go on while nobody watches is the greater risk.
            return [UNKNOWN_HEALTH]
        return self.ledger.pause_reasons(self._runtime.now_s(), self._confirmed())

    def go_by(self, evidence: Mapping[str, Evidence]) -> None:
        """From now on the pipeline rests only for what *evidence* of its kind confirms.

        Anybody may have said what is heard. It still lowers the score that is shown, and calls for a person.
        """
        self._evidence, self._looked_s = evidence, float("-inf")

    def pipeline_holds(self) -> list[PipelineHold]:
        """What new work waits for now. Nothing where nobody measures: what is not known stops nothing."""
        if not self._subscriptions or self._evidence is None:
            return []
        return self.ledger.holds(self._runtime.now_s(), self._confirmed())

    def _confirmed(self) -> Confirmed:
        """Each kind is measured once a second at most, and only if there is an issue of it."""
        evidence = self._evidence
        if evidence is None:
            return lambda _: True
        if not 0 <= self._runtime.monotonic_s() - self._looked_s < EVIDENCE_S:
            self._measured, self._looked_s = {}, self._runtime.monotonic_s()
        found = self._measured

        def is_true(issue: Issue) -> bool:
            if issue.kind not in found:
                measured = attempt(f"evidence of {issue.kind}", evidence.get(issue.kind, tuple))
                found[issue.kind] = measured.value or ()  # what cannot be measured holds nothing
            return issue.subject in found[issue.kind]

        return is_true

    def issues(self) -> list[Issue]:
        return self.ledger.issues(self._runtime.now_s())

    def heartbeat_ages(self) -> dict[str, float]:
        """Return the seconds since each coordinator was last heard of."""
        now_s = self._runtime.now_s()
        return {name: now_s - heard_s for name, heard_s in self.ledger.heartbeats_s.items()}

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
            **self._life(),
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

    def register_recovery(self, subject: str, recover: Recovery, *, of_this_process: bool = False) -> None:
        """Say how *subject* is brought back when its failures in a row reach the limit.

        Of what every process has one, *of_this_process* leaves those of others to them.
        """
        if not callable(recover):
            raise ConfigError(f"the recovery of {subject} is {recover!r}; it must be an async function")
        self._recoveries[subject] = recover
        (self._own.add if of_this_process else self._own.discard)(subject)

    async def _on_event(self, event: RouterEvent) -> None:
        self._events_seen += 1
        if says_that_we_are_gone(event, self._runtime):
            return
        is_from_elsewhere = event.origin is EventSource.CROSS_PROCESS and event.event_type in _OF_RECOVERIES
        # One that failed, or was brought back, in another process is not that of this one.
        if is_from_elsewhere and subject_of(event.event_type, event.payload) in self._own:
            return
        action, subject = self.ledger.observe(event.event_type, event.payload, self._runtime.now_s())
        self._track_score()
        # What it tells of recoveries comes back here; acting on that would never end.
        if action is RecoveryAction.NONE or event.source == NAME:
            return
        recover = self._recoveries.get(subject)
        if action is RecoveryAction.ESCALATE or recover is None:
            self._escalate(subject, event)
        elif subject not in self._running:
            task = self._tasks.create_task(self._recover(subject, recover), name=f"recovery of {subject}")
            self._running[subject] = task
            task.add_done_callback(lambda _: self._running.pop(subject, None))

    def _escalate(self, subject: str, event: RouterEvent) -> None:
        self.escalations.append(f"{subject}: {event.event_type}")
        log.error("health.needs_a_person", subject=subject, event_type=event.event_type)

    async def _recover(self, subject: str, recover: Recovery) -> None:
        current_delivery.set(None)  # in this task only: a recovery outlives the event that asked for it
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


get_health_manager = getter_of("get_health_manager", UnifiedHealthManager)
reset_health_manager = UnifiedHealthManager.reset_instance
wire_health_events = UnifiedHealthManager.wired


def get_system_health_score() -> float:
    return get_health_manager().get_system_health_score()


def get_health_score() -> SystemHealthScore:
    """Return how the whole is, with its reasons."""
    return get_health_manager().get_health_score()


def get_system_health_level() -> HealthLevel:
    return get_health_manager().get_system_health_level()


def should_pause_pipeline() -> bool:
    return get_health_manager().should_pause_pipeline()
