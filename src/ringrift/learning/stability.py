"""How steady a rating is, and whether it is safe to act on it. Thresholds that adapt are named here too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from statistics import pstdev

from ringrift.learning.thresholds import (
    AdjustmentStrategy,
    DynamicThreshold,
    ThresholdManager,
    ThresholdRules,
    get_threshold_manager,
)
from ringrift.learning.trends_windows import fit_line

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
]

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
        0.4 * spread / 50.0 + 0.3 * min(1.0, swing / (3 * max(spread, 20.0))) + 0.2 * turns + 0.1 * decline
    )
    return min(1.0, score)


def _turns(ratings: Sequence[float]) -> int:
    steps = [after - before for before, after in pairwise(ratings) if after != before]
    return sum(first * second < 0 for first, second in pairwise(steps))


def _level(score: float, slope_per_hour: float) -> StabilityLevel:
    if slope_per_hour < DECLINE_PER_HOUR:
        return StabilityLevel.DECLINING
    if score < STABLE_BELOW:
        return StabilityLevel.STABLE
    return StabilityLevel.DEVELOPING if score < DEVELOPING_BELOW else StabilityLevel.VOLATILE
