"""The rating curve of a config: its champions, since when, after how many rows, and how strong."""

from __future__ import annotations

from ringrift.learning.ratings import rate
from ringrift.learning.records import ModelState
from ringrift.learning.run_status import Curve
from ringrift.learning.state import ConfigState

POINTS_MAX = 500


def rating_curve(state: ConfigState) -> tuple[Curve, ...]:
    """Oldest first, without those that were taken back.

    A champion that has no chain of games to a baseline has no rating, and no point yet.
    """
    if not state.promotions:
        return ()
    ratings = rate(state.matches)
    return tuple(
        Curve(
            model=change.model,
            at_s=change.at_s,
            rows=change.rows,
            rating=ratings[change.model].rating,
            low=ratings[change.model].low,
            high=ratings[change.model].high,
        )
        for change in state.promotions[-POINTS_MAX:]
        if change.model in ratings and state.models[change.model].state is not ModelState.ROLLED_BACK
    )
