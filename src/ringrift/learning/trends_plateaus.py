"""Whether a config has stopped getting stronger, and what the plan should do about it.

A plateau is found in two ways: the ratings by rows have no slope that stands out, or one candidate after
another is refused by the promotion test. The answer grows with the length of the plateau, so that a short one
costs little and a long one is not answered by the same again.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ringrift.learning.run_status import Curve
from ringrift.learning.trends_windows import fit_line

POINTS_MIN = 6  # of the rating curve
POINTS_WINDOW = 10
GAIN_MIN = 15.0  # rating points over the window below which it counts as flat
SIGNIFICANT = 1.64
REFUSED_MIN = 5  # candidates in a row
LEVEL_MAX = 3
Z_95 = 1.96


class PlateauFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A plateau, and what it changes. The multipliers are for the plan to apply."""

    level: int  # 1 to 3: how many windows it lasts
    reason: str
    rows_since: int  # rows from which on nothing was gained
    gain: float  # rating points over the window, by the fitted line
    gain_error: float
    refused: int  # candidates since the last promotion
    exploration: float  # wider search in self-play
    learning_rate: float  # smaller steps
    simulations: float  # better targets
    share: float  # of self-play
    advice: str


class _Answer(msgspec.Struct, frozen=True):
    exploration: float
    learning_rate: float
    simulations: float
    share: float
    advice: str


# Level 1 asks for other games, level 2 also for smaller steps, level 3 also for better targets and a search
# for better parameters. None takes anything away from the config: a plateau that starves a config never ends.
_ANSWERS = (
    _Answer(1.2, 1.0, 1.0, 1.1, "explore more in self-play"),
    _Answer(1.35, 0.5, 1.0, 1.1, "explore more, and train with half the learning rate"),
    _Answer(
        1.5, 0.25, 1.5, 1.1, "explore more, train with smaller steps, search deeper, and tune the parameters"
    ),
)


def plateau(curve: Sequence[Curve], *, rows: int = 0, refused: int = 0) -> PlateauFinding | None:
    """Judge *curve*, ordered by rows. *refused* candidates came since the last one; *rows* are there now."""
    points = sorted(curve, key=lambda point: point.rows)
    stalled = refused // REFUSED_MIN
    flat = _flat_windows(points)
    level = min(LEVEL_MAX, max(stalled, flat))
    if not level:
        return None
    gain, error = _gain(points[-POINTS_WINDOW:])
    since = _since(points, flat=flat, rows=rows)
    answer = _ANSWERS[level - 1]
    why = []
    if stalled:
        why.append(f"{refused} candidates in a row were refused")
    if flat:
        shown = min(len(points), POINTS_WINDOW)
        why.append(f"{gain:+.0f} ± {Z_95 * error:.0f} rating points over the last {shown} models")
    return PlateauFinding(
        level=level,
        reason=f"plateau: {' and '.join(why)}; {answer.advice}",
        rows_since=since,
        gain=round(gain, 2),
        gain_error=round(error, 2),
        refused=refused,
        exploration=answer.exploration,
        learning_rate=answer.learning_rate,
        simulations=answer.simulations,
        share=answer.share,
        advice=answer.advice,
    )


def _flat_windows(points: Sequence[Curve]) -> int:
    """For how many windows in a row, the newest first, the curve is flat."""
    flat = 0
    end = len(points)
    while flat < LEVEL_MAX and end >= POINTS_MIN:
        window = points[max(0, end - POINTS_WINDOW) : end]
        if not _is_flat(window):
            break
        flat += 1
        end -= POINTS_WINDOW
    return flat


def _is_flat(window: Sequence[Curve]) -> bool:
    """No gain that matters, and none that stands out from the intervals."""
    gain, error = _gain(window)
    return len(window) >= POINTS_MIN and gain < GAIN_MIN and gain < SIGNIFICANT * error


def _gain(window: Sequence[Curve]) -> tuple[float, float]:
    """The rise of the fitted line over the window, and its standard error."""
    errors = [max(1.0, (point.high - point.low) / (2 * Z_95)) for point in window]
    line = fit_line([float(point.rows) for point in window], [point.rating for point in window], errors)
    if line is None:
        return 0.0, 0.0
    span = window[-1].rows - window[0].rows
    return line.slope * span, line.error * span


def _since(points: Sequence[Curve], *, flat: int, rows: int) -> int:
    if not points:
        return 0
    if not flat:
        return points[-1].rows
    return min(points[max(0, len(points) - flat * POINTS_WINDOW)].rows, rows or points[-1].rows)
