"""How far a config has fallen behind its best, and how bad that is.

Severity goes by rating points or by win rate, whichever says more, and only with enough games behind it. Two
regressions in a row count one level higher.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import msgspec

from ringrift.learning.run_status import Curve

GAMES_MIN = 50
ESCALATE_AFTER = 2
ACT_AFTER = 3  # in a row: a rollback is advised whatever the severity
Z_95 = 1.96


class RegressionSeverity(IntEnum):
    """Ordered: more is worse."""

    NONE = 0
    MINOR = 1
    MODERATE = 2
    SEVERE = 3
    CRITICAL = 4

    @property
    def word(self) -> str:
        return self.name.lower()


RATING_DROPS = (20.0, 35.0, 50.0, 75.0)
WIN_RATE_DROPS = (0.05, 0.075, 0.10, 0.15)


class RegressionFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A drop, with what it was measured by."""

    severity: RegressionSeverity
    model: str | None
    rating: float
    best: float
    drop: float  # rating points off the best
    drop_error: float  # standard error of that
    in_a_row: int
    reason: str

    @property
    def needs_rollback(self) -> bool:
        return self.severity >= RegressionSeverity.SEVERE or self.in_a_row >= ACT_AFTER


def severity_of(drop: float, steps: Sequence[float] = RATING_DROPS) -> RegressionSeverity:
    return RegressionSeverity(sum(drop >= step for step in steps))


def win_rate_severity(before: float, now: float, *, games: int) -> RegressionSeverity:
    """Severity of a fall of a win rate; too few games say nothing."""
    return severity_of(before - now, WIN_RATE_DROPS) if games >= GAMES_MIN else RegressionSeverity.NONE


def regression(curve: Sequence[Curve], *, in_a_row_before: int = 0) -> RegressionFinding | None:
    """Judge the newest point of *curve* against the best before it.

    A drop within the error of both ratings is none, however large it looks: small pools have wide intervals.
    """
    if len(curve) < 2:
        return None
    newest = curve[-1]
    best = max(curve[:-1], key=lambda point: point.rating)
    drop = best.rating - newest.rating
    error = (_error(best) ** 2 + _error(newest) ** 2) ** 0.5
    severity = severity_of(drop)
    if severity is RegressionSeverity.NONE or drop < Z_95 * error:
        return None
    in_a_row = in_a_row_before + 1
    if in_a_row >= ESCALATE_AFTER:
        severity = RegressionSeverity(min(RegressionSeverity.CRITICAL, severity + 1))
    return RegressionFinding(
        severity=severity,
        model=newest.model,
        rating=newest.rating,
        best=best.rating,
        drop=drop,
        drop_error=error,
        in_a_row=in_a_row,
        reason=f"{drop:.0f} ± {Z_95 * error:.0f} rating points below {best.model[:12]}",
    )


def _error(point: Curve) -> float:
    return (point.high - point.low) / (2 * Z_95)
