"""The rating curve of a config: its champions, since when, after how many rows, and how strong."""

from __future__ import annotations

from ringrift.learning.feedback_rules import Feedback, feedback, velocity_per_hour
from ringrift.learning.ratings import rate
from ringrift.learning.records import ModelState
from ringrift.learning.run_status import Curve
from ringrift.learning.state import ConfigState
from ringrift.work.shares import ConfigView

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


class RatingCurves:
    """The curves of several configs, and what they ask for: made again only when there is a new result."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, ...], tuple[Curve, ...]]] = {}
        self._feedback: dict[str, tuple[int, Feedback]] = {}

    def feedback(self, state: ConfigState) -> Feedback:
        """What the results so far ask for; an order is no result."""
        mark = state.facts - state.issued.total()
        known = self._feedback.get(state.config)
        if known is None or known[0] != mark:
            known = (mark, feedback(state, self.of(state)))
            self._feedback[state.config] = known
        return known[1]

    def of(self, state: ConfigState) -> tuple[Curve, ...]:
        recalls = sum(not recall.withdrawn for recall in state.recalls.values())
        mark = (len(state.matches), len(state.promotions), state.rollbacks, len(state.recalls), recalls)
        known = self._known.get(state.config)
        if known is None or known[0] != mark:
            known = (mark, rating_curve(state))
            self._known[state.config] = known
        return known[1]


def config_view(state: ConfigState, curves: RatingCurves) -> ConfigView:
    """What the share of a config is made of."""
    curve = curves.of(state)
    pace = velocity_per_hour(curve)
    return ConfigView(
        config=state.config,
        rating=curve[-1].rating if curve else None,
        rate_per_hour=None if pace is None else pace[0],
        rate_error=0.0 if pace is None else pace[1],
        hours_served=sum(state.served_s.values()) / 3600,
        weight=curves.feedback(state).weight,
    )
