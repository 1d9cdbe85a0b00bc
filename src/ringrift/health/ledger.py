"""Keeps what is wrong, by kind and subject, and says what that means. No clock, no I/O.

Every issue has an expiry. A kind's issues cost their weights up to the kind's limit; the score is what is
left of 1. A subject whose failures in a row open its circuit breaker is due for a recovery.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from ringrift.health.breakers import BreakerConfig, BreakerState, CircuitBreaker
from ringrift.health.rules import KINDS, RULES, Rule, says_trouble

SYSTEM = "system"  # the subject of an event that names none
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


class Decision(NamedTuple):
    """What to do, and about whom."""

    action: RecoveryAction
    subject: str


class HealthLedger:
    """What is known to be wrong. Feed it events in the order in which they came."""

    def __init__(self, *, breaker: BreakerConfig | None = None) -> None:
        self._breaker_config = breaker or BreakerConfig(failures_max=5, cooldown_s=300.0)
        self._issues: dict[tuple[str, str], Issue] = {}
        self._breakers: dict[str, CircuitBreaker] = {}
        self.heartbeats_s: dict[str, float] = {}

    def observe(self, event_type: str, payload: Mapping[str, Any], now_s: float) -> Decision:
        """Take in one event; return what to do about its subject."""
        rule = RULES[event_type]
        subject = next((str(payload[name]) for name in rule.subject if payload.get(name)), SYSTEM)
        self._note_heartbeat(event_type, subject, now_s)
        if rule.raises and says_trouble(event_type, payload):
            self._raise(rule, subject, payload, now_s)
        else:
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
        by_kind: dict[str, float] = {}
        for issue in self.issues(now_s):
            by_kind[issue.kind] = by_kind.get(issue.kind, 0.0) + issue.weight
        lost = sum(min(weight, KINDS[kind].weight_max) for kind, weight in by_kind.items())
        return max(0.0, 1.0 - lost)

    def pause_reasons(self, now_s: float) -> list[str]:
        """Return why the pipeline should not go on; empty when it may."""
        reasons = [str(issue) for issue in self.issues(now_s) if KINDS[issue.kind].pauses_pipeline]
        if level_of(self.score(now_s)) is HealthLevel.CRITICAL:
            reasons.append(f"system health is critical ({self.score(now_s):.2f})")
        return reasons

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
        known = self._issues.pop(key, None)
        if len(self._issues) >= SUBJECTS_MAX:
            self._issues.pop(next(iter(self._issues)))
        self._issues[key] = Issue(
            kind=rule.raises,
            subject=subject,
            message=message[:500],
            weight=max(kind.weight * rule.weight_share, known.weight if known else 0.0),
            since_s=known.since_s if known else now_s,
            until_s=now_s + kind.expires_s,
            count=known.count + 1 if known else 1,
        )

    def _settle(self, kind: str, subject: str) -> None:
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
        return after.opened_s is not None and after.opened_s != before.opened_s
