"""How a component says how it is: the one health contract, from handlers up to the whole system."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeVar

from ringrift.errors import RingRiftError, described
from ringrift.runtime import system_runtime

__all__ = ["CoordinatorStatus", "HealthCheckResult", "as_result"]


class CoordinatorStatus(StrEnum):
    """The life of a component."""

    INITIALIZING = "initializing"
    STARTING = "starting"
    READY = "ready"
    RUNNING = "running"
    PAUSED = "paused"
    DRAINING = "draining"
    STOPPING = "stopping"
    STOPPED = "stopped"
    ERROR = "error"
    DEGRADED = "degraded"
    UNKNOWN = "unknown"  # nobody tells: it works in another process, if at all


_SCORES = {
    CoordinatorStatus.RUNNING: 1.0,
    CoordinatorStatus.READY: 1.0,
    CoordinatorStatus.INITIALIZING: 0.8,
    CoordinatorStatus.STARTING: 0.8,
    CoordinatorStatus.DEGRADED: 0.7,
    CoordinatorStatus.DRAINING: 0.6,
    CoordinatorStatus.PAUSED: 0.5,
    CoordinatorStatus.STOPPING: 0.3,
    CoordinatorStatus.ERROR: 0.1,
    CoordinatorStatus.STOPPED: 0.0,
    CoordinatorStatus.UNKNOWN: 0.0,
}


def _now_s() -> float:
    return system_runtime().now_s()


@dataclass(frozen=True, slots=True)
class HealthCheckResult:
    """The answer of one health check."""

    healthy: bool
    status: CoordinatorStatus = CoordinatorStatus.RUNNING
    message: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    timestamp: float = field(default_factory=_now_s)

    @classmethod
    def ok(cls, message: str = "", **details: Any) -> HealthCheckResult:
        return cls(True, CoordinatorStatus.RUNNING, message, details)

    @classmethod
    def degraded(cls, message: str, **details: Any) -> HealthCheckResult:
        """Working, but a person should look."""
        return cls(True, CoordinatorStatus.DEGRADED, message, details)

    @classmethod
    def unhealthy(cls, message: str, **details: Any) -> HealthCheckResult:
        return cls(False, CoordinatorStatus.ERROR, message, details)

    @classmethod
    def from_metrics(
        cls, *, operations: int, errors: int, idle_s: float = 0.0, idle_s_max: float = 300.0
    ) -> HealthCheckResult:
        """Judge by error share (over 10 % unhealthy, over 5 % degraded) and by inactivity."""
        # nothing done is nothing failed; idleness is judged below
        share = errors / operations if operations else 0.0
        details = {"operations": operations, "errors": errors, "error_rate": share, "idle_s": idle_s}
        if share > 0.1:
            return cls.unhealthy(f"{share:.0%} of operations failed", **details)
        if share > 0.05:
            return cls.degraded(f"{share:.0%} of operations failed", **details)
        if idle_s > idle_s_max:
            return cls.degraded(f"nothing done for {idle_s:.0f} s", **details)
        return cls.ok("", **details)

    @property
    def health_score(self) -> float:
        """1.0 is well, 0.0 is unhealthy or down."""
        return _SCORES[self.status] if self.healthy else 0.0  # also for a status that alone would sound well

    def with_details(self, **details: Any) -> HealthCheckResult:
        return replace(self, details={**self.details, **details})

    def or_degraded(self, problem: str) -> HealthCheckResult:
        """Itself, or degraded for *problem* if there is one. What is worse already stays as it is."""
        return HealthCheckResult.degraded(problem, **self.details) if self.healthy and problem else self

    def to_dict(self) -> dict[str, Any]:
        return {
            "healthy": self.healthy,
            "status": str(self.status),
            "message": self.message,
            "timestamp": self.timestamp,
            "details": dict(self.details),
        }


C = TypeVar("C")


def reported_by_store(check: Callable[[C], HealthCheckResult]) -> Callable[[C], HealthCheckResult]:
    """Mark a health check that asks the store: while that does not answer, nobody knows how it is."""

    @functools.wraps(check)
    def ask(self: C) -> HealthCheckResult:
        try:
            return check(self)
        except (RingRiftError, OSError) as error:
            return HealthCheckResult(False, CoordinatorStatus.UNKNOWN, described(error))

    return ask


def as_result(answer: Any) -> HealthCheckResult:
    """Read any answer that health checks give; what says nothing is unhealthy."""
    if isinstance(answer, HealthCheckResult):
        return answer
    # The documents' health checks answer in four shapes; here they become one.
    if isinstance(answer, bool):
        return HealthCheckResult.ok() if answer else HealthCheckResult.unhealthy("reported unhealthy")
    if isinstance(answer, Mapping) and "healthy" in answer:
        make = HealthCheckResult.ok if answer["healthy"] else HealthCheckResult.unhealthy
        return make(str(answer.get("message", "")), **dict(answer.get("details") or {}))
    if hasattr(answer, "healthy"):
        make = HealthCheckResult.ok if answer.healthy else HealthCheckResult.unhealthy
        return make(str(getattr(answer, "message", "")))
    return HealthCheckResult.unhealthy(f"health_check answered {type(answer).__name__}, which says nothing")
