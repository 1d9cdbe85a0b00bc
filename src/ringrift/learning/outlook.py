"""How a config is looked at before it is planned for: the rules in force, the rating, and the feedback.

The loop and the replay look in the same way, or a decision could not be made again.
"""

from __future__ import annotations

import msgspec

from ringrift.learning.rules import LearningRules
from ringrift.learning.snapshot import Snapshot
from ringrift.learning.state import ConfigState
from ringrift.learning.trends_curves import RatingCurves
from ringrift.learning.tuning_runs import tuned_rules


def outlook(
    state: ConfigState,
    rules: LearningRules,
    curves: RatingCurves,
    *,
    now_s: float,
    paused: str | None = None,
) -> Snapshot:
    """All that the plan of *state* depends on now."""
    curve = curves.of(state)
    rating = next((point.rating for point in reversed(curve) if point.model == state.champion), None)
    return Snapshot(state, rules_in_force(state, rules), now_s, paused, curves.feedback(state), rating)


def rules_in_force(state: ConfigState, rules: LearningRules) -> LearningRules:
    """The rules with what searches found, and with the price that a row has now."""
    tuned = tuned_rules(state, rules)
    if state.price == 1.0:
        return tuned
    priced = msgspec.structs.replace(tuned.bucket, steps_per_row=tuned.bucket.steps_per_row * state.price)
    return msgspec.structs.replace(tuned, bucket=priced)
