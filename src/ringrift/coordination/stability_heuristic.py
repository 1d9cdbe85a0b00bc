"""How steady a rating is, and whether it is safe to act on it; and thresholds that adapt."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from statistics import pstdev
from typing import Any

from ringrift.engine.run_reports import reported, reported_health
from ringrift.errors import ConfigError
from ringrift.learning.judging.ratings import fit_line
from ringrift.process import process_scope, reset_of
from ringrift.runtime import Runtime, system_runtime
from ringrift.status import HealthCheckResult

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


# Limits that move by themselves so that what they guard succeeds at a wanted rate.


DEAD_BAND = 0.05
COOLDOWN_S = 60.0
HISTORY_MAX = 100


class AdjustmentStrategy(StrEnum):
    """How a step is sized."""

    LINEAR = "linear"  # a fixed share of the range
    EXPONENTIAL = "exponential"  # a fixed share of the value
    ADAPTIVE = "adaptive"  # in proportion to how far off the rate is


@dataclass(frozen=True, slots=True)
class ThresholdChange:
    """One move of a limit."""

    at_s: float
    before: float
    after: float
    success_rate: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdRules:
    """When and how far a limit moves."""

    target_success_rate: float = 0.9
    window_size: int = 50
    strategy: AdjustmentStrategy = AdjustmentStrategy.ADAPTIVE
    factor: float = 0.1
    higher_is_more_permissive: bool = True
    cooldown_s: float = COOLDOWN_S

    def __post_init__(self) -> None:
        if not 0.0 < self.target_success_rate <= 1.0 or self.window_size < 2 or self.factor <= 0:
            raise ConfigError(
                "a threshold needs a rate in (0, 1], a window of 2 or more and a positive factor"
            )


class DynamicThreshold:
    """A value between two bounds, moved by outcomes.

    Nothing moves before half a window of outcomes is there, within 5 points of the wanted rate, or within a
    minute of the last move.
    """

    def __init__(
        self,
        name: str,
        initial_value: float,
        min_value: float,
        max_value: float,
        *,
        rules: ThresholdRules | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        if not min_value <= initial_value <= max_value or min_value == max_value:
            raise ConfigError(f"{name}: {initial_value} must lie between {min_value} and {max_value}")
        self.name, self.min_value, self.max_value = name, min_value, max_value
        self.initial_value, self.rules = initial_value, rules or ThresholdRules()
        self._runtime = runtime or system_runtime()
        self._value = initial_value
        self._outcomes: deque[bool] = deque(maxlen=self.rules.window_size)
        self._changed_s: float | None = None
        self.changes: deque[ThresholdChange] = deque(maxlen=HISTORY_MAX)

    @property
    def value(self) -> float:
        return self._value

    @property
    def success_rate(self) -> float | None:
        """None before the first outcome."""
        return sum(self._outcomes) / len(self._outcomes) if self._outcomes else None

    def record_outcome(self, *, success: bool) -> float:
        """Take in an outcome, move if it is time to, and return the value."""
        self._outcomes.append(success)
        self._adjust()
        return self._value

    def reset(self) -> None:
        self._value, self._changed_s = self.initial_value, None
        self._outcomes.clear()

    def _adjust(self) -> None:
        rate, rules = self.success_rate, self.rules
        wanted = rules.target_success_rate
        now_s = self._runtime.monotonic_s()
        if rate is None or len(self._outcomes) < rules.window_size / 2 or abs(rate - wanted) <= DEAD_BAND:
            return
        # The outcomes in the window belong to the old value; a second step on them would go too far.
        if self._changed_s is not None and now_s - self._changed_s < rules.cooldown_s:
            return
        # Too many failures: let more through.
        sign = 1.0 if (rate < wanted) == rules.higher_is_more_permissive else -1.0
        moved = min(self.max_value, max(self.min_value, self._value + sign * self._step(abs(rate - wanted))))
        if moved != self._value:
            reason = f"{rate:.0%} succeeded, {wanted:.0%} are wanted"
            self.changes.append(ThresholdChange(self._runtime.now_s(), self._value, moved, rate, reason))
            self._value, self._changed_s = moved, now_s

    def _step(self, off: float) -> float:
        if self.rules.strategy is AdjustmentStrategy.LINEAR:
            return self.rules.factor * (self.max_value - self.min_value)
        if self.rules.strategy is AdjustmentStrategy.EXPONENTIAL:
            return self.rules.factor * abs(self._value)
        return min(1.0, 2 * off) * self.rules.factor * (self.max_value - self.min_value)

    @property
    def is_in_use(self) -> bool:
        return bool(self._outcomes or self.changes)

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "value": self._value,
            "min": self.min_value,
            "max": self.max_value,
            "success_rate": self.success_rate,
            "target_success_rate": self.rules.target_success_rate,
            "outcomes": len(self._outcomes),
            "changes": len(self.changes),
        }


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


def get_threshold_manager() -> ThresholdManager:
    return process_scope().get(ThresholdManager, ThresholdManager)


reset_threshold_manager = reset_of(ThresholdManager)


# How steady a rating is.


SPAN_S = 48 * 3600.0
SAMPLES_MIN = 5
DECLINE_PER_HOUR = -2.0
STABLE_BELOW, DEVELOPING_BELOW = 0.3, 0.6


class StabilityLevel(StrEnum):
    """What a rating does."""

    STABLE = "stable"
    DEVELOPING = "developing"
    VOLATILE = "volatile"
    DECLINING = "declining"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class RatingSample:
    """A rating at a wall-clock time."""

    at_s: float
    rating: float


@dataclass(frozen=True, slots=True)
class StabilityAssessment:
    """The answer, with what it is made of."""

    level: StabilityLevel
    volatility: float  # 0 is steady, 1 is not
    slope_per_hour: float
    slope_error: float
    deviation: float
    swing: float
    samples: int
    is_safe: bool  # unknown is safe: the test of promotions decides, this only warns
    reason: str
    advice: list[str] = field(default_factory=list)


def assess_stability(samples: Sequence[RatingSample], *, now_s: float) -> StabilityAssessment:
    """Judge the ratings of the last 48 hours."""
    recent = sorted((each for each in samples if each.at_s >= now_s - SPAN_S), key=lambda each: each.at_s)
    ratings = [each.rating for each in recent]
    if len(recent) < SAMPLES_MIN:
        text = f"{len(recent)} ratings in 48 hours, {SAMPLES_MIN} are needed"
        return StabilityAssessment(StabilityLevel.UNKNOWN, 0.0, 0.0, 0.0, 0.0, 0.0, len(recent), True, text)
    line = fit_line([each.at_s / 3600.0 for each in recent], ratings)
    slope, error = (line.slope, line.error) if line is not None else (0.0, 0.0)
    score = volatility(ratings, slope)
    level = _level(score, slope)
    safe = level not in (StabilityLevel.VOLATILE, StabilityLevel.DECLINING)
    reason = f"volatility {score:.2f}, {slope:+.1f} ± {error:.1f} rating points per hour"
    advice = [] if safe else ["play more rating games before the next change of champion"]
    deviation, swing = pstdev(ratings), max(ratings) - min(ratings)
    return StabilityAssessment(
        level, score, slope, error, deviation, swing, len(recent), safe, reason, advice
    )


def is_promotion_safe(samples: Sequence[RatingSample], *, now_s: float) -> bool:
    return assess_stability(samples, now_s=now_s).is_safe


def volatility(ratings: Sequence[float], slope_per_hour: float) -> float:
    """0.4 spread, 0.3 swing, 0.2 changes of direction, 0.1 decline; between 0 and 1."""
    spread = pstdev(ratings)
    swing = max(ratings) - min(ratings)
    turns = _turns(ratings) / max(1, len(ratings) - 2)
    decline = min(0.5, -slope_per_hour / 5.0) if slope_per_hour < 0 else 0.0
    score = (
        # A spread of 50 points counts in full; one below 20 is taken as 20, so that noise is no swing.
        0.4 * spread / 50.0 + 0.3 * min(1.0, swing / (3 * max(spread, 20.0))) + 0.2 * turns + 0.1 * decline
    )
    return min(1.0, score)


def _turns(ratings: Sequence[float]) -> int:
    steps = [after - before for before, after in pairwise(ratings) if after != before]
    return sum(first * second < 0 for first, second in pairwise(steps))


def _level(score: float, slope_per_hour: float) -> StabilityLevel:
    # First: a steady fall has little volatility and would pass for stable.
    if slope_per_hour < DECLINE_PER_HOUR:
        return StabilityLevel.DECLINING
    if score < STABLE_BELOW:
        return StabilityLevel.STABLE
    return StabilityLevel.DEVELOPING if score < DEVELOPING_BELOW else StabilityLevel.VOLATILE
