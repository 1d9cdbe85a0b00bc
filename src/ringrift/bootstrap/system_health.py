"""How the whole is: the score of every coordinator, what lowers it, and how the handlers do.

A coordinator loses points for what its status tells. One that failed to come up, or cannot say how it is,
scores nothing and counts: unknown is not healthy. One that is not built, was left out, or is a daemon that
nobody started, does not count.

A process without coordinators of its own gives what the control process last said; where none did, the health
is unknown, and the number None.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ringrift.bootstrap.coordination import get_initialiser, is_idle_daemon
from ringrift.bootstrap.initialiser import Initialiser, discard
from ringrift.bootstrap.plan import InitOutcome
from ringrift.bootstrap.registry import InitPattern
from ringrift.engine.run_reports import ControlHere, read_report, unknown
from ringrift.events.resilience import get_handler_metrics
from ringrift.events.router import get_router
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.health.health_manager import UnifiedHealthManager
from ringrift.health.isolation import attempt
from ringrift.process import process_scope
from ringrift.runtime import system_runtime
from ringrift.status import as_result

ISSUES_MAX = 20
SYSTEM_HEALTH = "get_system_health"  # in the report of the run
FAILED_TASKS_TOLERATED = 10
IN_A_ROW_MAX = 3
_INSTANCES = frozenset({InitPattern.WIRE, InitPattern.GET})
_LEVELS = ((0.9, "healthy"), (0.7, "degraded"))


@dataclass(frozen=True, slots=True)
class Deduction:
    """What one fact of a status costs, times its number up to *count_max*."""

    weight: float
    text: str
    count_max: int = 1_000


DEDUCTIONS: Mapping[str, Deduction] = {
    "paused": Deduction(0.2, "paused", 1),
    "critical_constraints": Deduction(0.2, "critical resource constraints"),
    "backpressure_active": Deduction(0.1, "backpressure active", 1),
    "plateaus": Deduction(0.1, "plateaus", 3),
    "regressions": Deduction(0.2, "regressions", 2),
    "orphaned_tasks": Deduction(0.1, "orphaned tasks", 5),
}
NOT_SUBSCRIBED = Deduction(0.3, "not subscribed")
MANY_FAILED = Deduction(0.1, "failed tasks")


def score_status(status: Mapping[str, Any]) -> tuple[float, list[str]]:
    """Return the score of one coordinator by its own status, and what lowered it."""
    score, issues = 1.0, []
    if status.get("subscribed") is False:
        score -= NOT_SUBSCRIBED.weight
        issues.append(NOT_SUBSCRIBED.text)
    for name, deduction in DEDUCTIONS.items():
        value = status.get(name) or 0
        count = len(value) if isinstance(value, list | tuple | set | dict) else int(value)
        if count > 0:
            score -= deduction.weight * min(count, deduction.count_max)
            issues.append(deduction.text if deduction.count_max == 1 else f"{count} {deduction.text}")
    failed = int(status.get("failed_tasks") or 0)
    if failed > FAILED_TASKS_TOLERATED:
        score -= MANY_FAILED.weight
        issues.append(f"{failed} {MANY_FAILED.text}")
    return max(0.0, score), issues


def get_system_health() -> dict[str, Any]:
    """Return the health of the whole in the shape of the quick start."""
    initialiser = get_initialiser()
    if not initialiser.results:
        return _told_health()
    scores, issues = _coordinator_scores(initialiser)
    overall = sum(scores.values()) / len(scores) if scores else 0.0
    if not scores:
        issues.append("system: no coordinator is up")
    manager = process_scope().peek(UnifiedHealthManager)
    if manager is not None and manager.is_subscribed:
        overall = min(overall, manager.get_system_health_score())
        issues += [str(issue) for issue in manager.issues()]
    return {
        "overall_health": round(overall, 3),
        "status": next((word for least, word in _LEVELS if overall >= least), "unhealthy"),
        "coordinators": scores,
        "issues": issues[:ISSUES_MAX],
        "handler_health": handler_health(get_router()),
        "timestamp": system_runtime().now_s(),
    }


def _told_health() -> dict[str, Any]:
    """Of a process without coordinators: what the run says, or that nobody does."""
    report = None if process_scope().peek(ControlHere) else read_report()
    if report is not None and not report.ended and SYSTEM_HEALTH in report.answers:
        return dict(report.answers[SYSTEM_HEALTH])
    status, issue = ("unknown", "system: not bootstrapped, and no run tells how it is")
    if report is not None and report.ended:
        status, issue = "stopped", "system: the run has stopped"
    handlers = handler_health(get_router())  # those of this process, if it has any
    return {
        "overall_health": None,
        "status": status,
        "coordinators": {},
        "issues": [issue],
        "handler_health": handlers if handlers["total_handlers"] else unknown(handlers),
        "timestamp": system_runtime().now_s(),
    }


def handler_health(router: UnifiedEventRouter) -> dict[str, Any]:
    """Return how handlers did so far.

    The router counts what failed; handlers made resilient count their calls, and hide failures from it.
    The success rate is the share of routed events and counted calls without a failure.
    """
    stats, wrapped = router.get_stats(), list(get_handler_metrics().values())
    failures = stats["handler_failures"] + sum(metrics.failure_count for metrics in wrapped)
    timeouts = stats["handler_timeouts"] + sum(metrics.timeout_count for metrics in wrapped)
    invocations = sum(metrics.invocation_count for metrics in wrapped)
    tried = stats["total_events_routed"] + invocations
    bad = min(tried, failures + stats["handler_timeouts"])
    return {
        "total_handlers": stats["subscriber_count"],
        "total_invocations": tried,
        "total_failures": failures,
        "total_timeouts": timeouts,
        "success_rate": 1.0 - bad / tried if tried else 1.0,
        "unhealthy_handlers": [m.handler_name for m in wrapped if m.consecutive_failures >= IN_A_ROW_MAX],
    }


def _coordinator_scores(initialiser: Initialiser) -> tuple[dict[str, float], list[str]]:
    scores: dict[str, float] = {}
    issues: list[str] = []
    for name, result in initialiser.results.items():
        spec = initialiser.registry[name]
        shown = spec.short_name or name
        if result.outcome in {InitOutcome.NOT_BUILT, InitOutcome.DISABLED, InitOutcome.RETIRED}:
            continue
        if not result.initialized:
            scores[shown] = 0.0
            issues.append(f"{shown}: {result.error}")
        elif spec.pattern in _INSTANCES and not is_idle_daemon(initialiser.instances[name]):
            score, found = _score_instance(name, initialiser.instances[name])
            scores[shown] = round(score, 3)
            issues += [f"{shown}: {issue}" for issue in found]
    return scores, issues


def _score_instance(name: str, instance: Any) -> tuple[float, list[str]]:
    score = 1.0
    issues: list[str] = []
    if hasattr(instance, "get_status"):
        status = attempt(f"status of {name}", lambda: score_status(instance.get_status()))
        if status.value is None:
            return 0.0, [f"status unknown ({status.problem})"]
        score, issues = status.value
    if hasattr(instance, "health_check"):
        answer = attempt(f"health check of {name}", instance.health_check)
        if inspect.isawaitable(answer.value):
            discard(answer.value)  # an asynchronous check is asked by the coordinator health monitor
            return score, issues
        if answer.error is not None:
            return 0.0, [*issues, f"health unknown ({answer.problem})"]
        result = as_result(answer.value)
        if not result.healthy:
            return min(score, result.health_score), [*issues, result.message or "unhealthy"]
    return score, issues
