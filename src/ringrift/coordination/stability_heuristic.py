"""How steady the ratings of a config are, by the rule of the run; and thresholds that adapt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ringrift.coordination.run_coordinator import answers_of
from ringrift.engine.run_reports import reported, reported_health
from ringrift.errors import ConfigError
from ringrift.learning.judging import ratings
from ringrift.learning.judging.ratings import RatedAt, RatingSample, StabilityAssessment, StabilityLevel
from ringrift.process import getter_of, reset_of
from ringrift.runtime import Runtime, system_runtime
from ringrift.status import HealthCheckResult
from ringrift.work.limits import AdjustmentStrategy, DynamicThreshold, ThresholdRules

__all__ = [
    "AdjustmentStrategy",
    "DynamicThreshold",
    "RatingSample",
    "StabilityAssessment",
    "StabilityLevel",
    "ThresholdManager",
    "ThresholdRules",
    "assess_stability",
    "get_threshold_manager",
    "is_promotion_safe",
    "reset_threshold_manager",
]


# name: start, least, most
_DEFAULTS = {
    "handler_timeout": (30.0, 5.0, 120.0),
    "heartbeat_threshold": (60.0, 20.0, 300.0),
    "plateau_window": (10.0, 5.0, 30.0),
    "memory_warning": (0.8, 0.6, 0.95),
}


class ThresholdManager:
    """Thresholds by name; the usual ones are there from the start."""

    def __init__(self, *, runtime: Runtime | None = None) -> None:
        self._runtime = runtime or system_runtime()
        self._thresholds: dict[str, DynamicThreshold] = {}
        for name, (start, low, high) in _DEFAULTS.items():
            self.register(name, start, low, high)

    def register(
        self,
        name: str,
        initial_value: float,
        min_value: float,
        max_value: float,
        *,
        rules: ThresholdRules | None = None,
    ) -> DynamicThreshold:
        """Add a threshold; one of that name stays as it is."""
        if name not in self._thresholds:
            self._thresholds[name] = DynamicThreshold(
                name, initial_value, min_value, max_value, rules=rules, runtime=self._runtime
            )
        return self._thresholds[name]

    def adopt(self, threshold: DynamicThreshold) -> None:
        """Show a threshold that somebody else moves, in the place of one's own of that name."""
        self._thresholds[threshold.name] = threshold

    def get(self, name: str) -> DynamicThreshold | None:
        return self._thresholds.get(name)

    def get_value(self, name: str) -> float:
        return self._get(name).value

    def record_outcome(self, name: str, *, success: bool) -> float:
        return self._get(name).record_outcome(success=success)

    @property
    def works_here(self) -> bool:
        return any(threshold.is_in_use for threshold in self._thresholds.values())

    @reported
    def get_all_stats(self) -> dict[str, dict[str, Any]]:
        return {name: threshold.to_dict() for name, threshold in self._thresholds.items()}

    @reported_health
    def health_check(self) -> HealthCheckResult:
        return HealthCheckResult.ok("", **{name: each.value for name, each in self._thresholds.items()})

    def _get(self, name: str) -> DynamicThreshold:
        try:
            return self._thresholds[name]
        except KeyError:
            raise ConfigError(
                f"no threshold is called {name!r}; there are {', '.join(self._thresholds)}"
            ) from None


# The thresholds of this process. `memory_warning` is that of its admission, where it has one.
get_threshold_manager = getter_of("get_threshold_manager", ThresholdManager)
reset_threshold_manager = reset_of("reset_threshold_manager", ThresholdManager)


# Stability.


def assess_stability(samples: Sequence[RatedAt] | str, *, now_s: float | None = None) -> StabilityAssessment:
    """Judge the ratings of the last 48 hours: *samples*, or those of the champions of a config."""
    if not isinstance(samples, str):
        at_s = system_runtime().now_s() if now_s is None else now_s
        return ratings.assess_stability(samples, now_s=at_s)
    situation = answers_of().get(samples)
    curve = () if situation is None else situation.curve
    newest_s = 0.0 if situation is None else situation.state.last_s
    return ratings.assess_stability(curve, now_s=newest_s if now_s is None else now_s)


def is_promotion_safe(samples: Sequence[RatedAt] | str, *, now_s: float | None = None) -> bool:
    """Whether the ratings are steady. The sequential test alone decides about promotions."""
    return assess_stability(samples, now_s=now_s).is_safe
