"""What a window of measurements says: trend, plateau, regression, anomaly. Pure, and safe with real clocks.

Slopes come from a regression around the means, with the error of the slope. Raw epoch seconds have ten
digits before the point; unless they are centred first, a slope over a minute is lost in rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

WINDOW_POINTS = 100
PLATEAU_POINTS = 10
PLATEAU_GAIN = 0.001
REGRESSION_SHARE = 0.05  # off the best
ANOMALY_SD = 3.0
ANOMALY_POINTS_MIN = 10
SIGNIFICANT = 1.96  # errors that a slope must be away from 0


class TrendDirection(StrEnum):
    """Where a metric goes."""

    IMPROVING = "improving"
    DEGRADING = "degrading"
    STABLE = "stable"  # no slope that stands out from the noise
    PLATEAU = "plateau"  # the best is old
    UNKNOWN = "unknown"  # too few points


@dataclass(frozen=True, slots=True)
class Line:
    """A fitted line: value at the mean of x, slope, and the standard error of the slope."""

    slope: float
    error: float
    mean_x: float
    mean_y: float
    points: int

    @property
    def significance(self) -> float:
        """How many errors the slope is from 0."""
        if self.slope == 0.0:
            return 0.0
        return math.copysign(math.inf, self.slope) if self.error == 0.0 else self.slope / self.error


def fit_line(xs: Sequence[float], ys: Sequence[float], errors: Sequence[float] | None = None) -> Line | None:
    """Fit a line around the means; None if the points have no width in x.

    *errors* are the standard errors of *ys*. The slope's error is then at least what they alone make.
    """
    count = len(xs)
    if count < 2 or len(ys) != count:
        return None
    weights = [1.0] * count if errors is None else [1.0 / max(error, 1e-9) ** 2 for error in errors]
    total = math.fsum(weights)
    mean_x = xs[0] + math.fsum(w * (x - xs[0]) for w, x in zip(weights, xs, strict=True)) / total
    mean_y = math.fsum(w * y for w, y in zip(weights, ys, strict=True)) / total
    width = math.fsum(w * (x - mean_x) ** 2 for w, x in zip(weights, xs, strict=True))
    if width <= 0.0 or not math.isfinite(width):
        return None
    shared = math.fsum(w * (x - mean_x) * (y - mean_y) for w, x, y in zip(weights, xs, ys, strict=True))
    slope = shared / width
    left = math.fsum(
        w * (y - mean_y - slope * (x - mean_x)) ** 2 for w, x, y in zip(weights, xs, ys, strict=True)
    )
    scatter = math.sqrt(left / (count - 2) / width) if count > 2 else math.inf
    known = math.sqrt(1.0 / width) if errors is not None else 0.0
    return Line(
        slope, known if count == 2 and errors is not None else max(scatter, known), mean_x, mean_y, count
    )


@dataclass(frozen=True, slots=True)
class WindowAnalysis:
    """Everything a window says at once."""

    points: int
    current: float | None
    best: float | None
    direction: TrendDirection
    slope: float  # per unit of the given times, or per point
    slope_error: float
    points_since_best: int
    is_plateau: bool
    is_regression: bool
    regression_share: float  # how far the newest value is off the best, as a share of it
    is_anomaly: bool
    deviations: float  # of the newest value from the ones before it, in standard deviations


def analyse(
    values: Sequence[float], times: Sequence[float] | None = None, *, higher_is_better: bool = True
) -> WindowAnalysis:
    """Judge the last `WINDOW_POINTS` of *values*, oldest first."""
    window = list(values[-WINDOW_POINTS:])
    when = list(times[-WINDOW_POINTS:]) if times is not None else [float(at) for at in range(len(window))]
    if not window:
        return WindowAnalysis(
            0, None, None, TrendDirection.UNKNOWN, 0.0, 0.0, 0, False, False, 0.0, False, 0.0
        )
    best, since = _best(window, higher_is_better=higher_is_better)
    line = fit_line(when, window)
    off = regression_share(window, higher_is_better=higher_is_better)
    flat = since >= PLATEAU_POINTS
    deviations = deviation(window)
    return WindowAnalysis(
        points=len(window),
        current=window[-1],
        best=best,
        direction=_direction(line, flat=flat, higher_is_better=higher_is_better),
        slope=line.slope if line else 0.0,
        slope_error=line.error if line and math.isfinite(line.error) else 0.0,
        points_since_best=since,
        is_plateau=flat,
        is_regression=off > REGRESSION_SHARE,
        regression_share=off,
        is_anomaly=abs(deviations) > ANOMALY_SD,
        deviations=deviations,
    )


def trend(
    values: Sequence[float], times: Sequence[float] | None = None, *, higher_is_better: bool = True
) -> TrendDirection:
    return analyse(values, times, higher_is_better=higher_is_better).direction


def is_plateau(values: Sequence[float], *, higher_is_better: bool = True) -> bool:
    """Whether the last ten points brought no gain of a thousandth."""
    return _best(values[-WINDOW_POINTS:], higher_is_better=higher_is_better)[1] >= PLATEAU_POINTS


def regression_share(values: Sequence[float], *, higher_is_better: bool = True) -> float:
    """How far the newest value is off the best one, as a share of it; 0 at the best."""
    if not values:
        return 0.0
    best = max(values) if higher_is_better else min(values)
    off = best - values[-1] if higher_is_better else values[-1] - best
    return off / abs(best) if best else 0.0


def deviation(values: Sequence[float]) -> float:
    """Standard deviations between the newest value and those before it; 0 if that cannot be told."""
    before = values[-WINDOW_POINTS:-1]
    if len(before) + 1 < ANOMALY_POINTS_MIN:
        return 0.0
    mean = math.fsum(before) / len(before)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in before) / (len(before) - 1))
    if spread <= 1e-12 * max(1.0, abs(mean)):  # a constant says nothing about what is usual
        return 0.0
    return (values[-1] - mean) / spread


def _best(values: Sequence[float], *, higher_is_better: bool) -> tuple[float | None, int]:
    """The best value, and how many points ago something better by `PLATEAU_GAIN` last came."""
    if not values:
        return None, 0
    sign = 1.0 if higher_is_better else -1.0
    best = record = values[0]
    last = 0
    for at, value in enumerate(values):
        best = value if sign * (value - best) > 0 else best
        if sign * (value - record) > PLATEAU_GAIN:
            record, last = value, at
    return best, len(values) - 1 - last


def _direction(line: Line | None, *, flat: bool, higher_is_better: bool) -> TrendDirection:
    if line is None or line.points < 3:
        return TrendDirection.UNKNOWN
    if abs(line.significance) >= SIGNIFICANT:
        rising = (line.slope > 0) == higher_is_better
        # A curve that rose at first and is flat since is a plateau, whatever the line through all of it says.
        if not (rising and flat):
            return TrendDirection.IMPROVING if rising else TrendDirection.DEGRADING
    return TrendDirection.PLATEAU if flat else TrendDirection.STABLE
