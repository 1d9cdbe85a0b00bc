"""When training goes back to an earlier checkpoint: after a recall, a loss that jumped, or lost matches.

Training never waits for a verdict, so it can go on for a while from weights that turn out to be bad. What
shows that is looked at before anything is ordered; going back is a fact with its reason, and what was trained
in between is given up.
"""

from __future__ import annotations

from itertools import islice
from math import isfinite
from statistics import median

from ringrift.learning import promotion
from ringrift.learning.facts import TrainingReset
from ringrift.learning.recall import ancestors, distrusted_models
from ringrift.learning.records import Model, ModelState
from ringrift.learning.snapshot import Snapshot
from ringrift.learning.state import DIVERGED, ConfigState

LOSSES_SEEN = 8
LOSSES_NEEDED = 6
# What a network has yet to learn changes by up to a half when games by a stronger one come.
BAND_SHARE, BAND_DEVIATIONS = 0.75, 6.0


def decided_reset(snapshot: Snapshot) -> TrainingReset | None:
    """Begin again from an earlier model, if the newest shows that it is no place to go on from."""
    state, newest = snapshot.state, snapshot.state.newest_model
    if newest is None or state.restarts:
        return None
    distrusted = distrusted_models(state, snapshot.rules)
    if newest.digest in distrusted:
        reason, found = "the newest model learned from recalled games", _last_clean(state, distrusted)
    else:
        reason, found = _astray(snapshot), state.models.get(state.champion or "")
    if not reason or found is None or found is newest or found.digest in distrusted:
        return None
    evidence = {"from": newest.digest, "losses": _losses(_recent(state, newest))}
    return TrainingReset(
        at_s=snapshot.now_s,
        model=found.digest,
        reason=f"{reason}; on from model {found.number}",
        evidence=evidence,
    )


def _last_clean(state: ConfigState, distrusted: frozenset[str]) -> Model | None:
    """The newest model that none of the recalled games is in."""
    return next(
        (
            model
            for model in reversed(state.models.values())
            if model.digest not in distrusted and model.state is not ModelState.ROLLED_BACK
        ),
        None,
    )


def _astray(snapshot: Snapshot) -> str:
    """What is wrong with the newest model; empty if nothing is."""
    state = snapshot.state
    newest = state.newest_model
    assert newest is not None
    if newest.state is ModelState.ROLLED_BACK:
        return f"model {newest.number} was taken back"
    failures = state.failures.get("train")
    reset_s = 0.0 if state.reset is None else state.reset.at_s
    if (
        failures is not None
        and failures.in_a_row
        and failures.last_s > reset_s
        and DIVERGED in failures.error
    ):
        return f"training could not go on: {failures.error}"
    if said := _out_of_band(_recent(state, newest)):
        return said
    worse = _worse_in_a_row(state)
    if worse >= snapshot.rules.recover_after:
        return f"{worse} candidates in a row were shown to be worse than the champion"
    return ""


def _recent(state: ConfigState, model: Model) -> list[Model]:
    """It and those that it went on from, as many as are compared."""
    return list(islice(ancestors(state, model.digest), LOSSES_SEEN + 1))


def _out_of_band(line: list[Model]) -> str:
    """Whether the newest loss lies far above those of the trainings before it."""
    losses = _losses(line)
    if not losses or len(losses) < LOSSES_NEEDED + 1:
        return ""
    newest, before = losses[0], losses[1:]
    middle = median(before)
    deviation = median(abs(loss - middle) for loss in before)
    limit = middle + max(BAND_SHARE * middle, BAND_DEVIATIONS * deviation)
    if isfinite(newest) and newest <= limit:
        return ""
    return f"the loss of model {line[0].number} is {newest:.3f}, and trainings before it had {middle:.3f}"


def _losses(line: list[Model]) -> list[float]:
    """Policy and value together, newest first, of the models that have them.

    Without the entropy of the targets, which nobody can learn away and which changes with who plays.
    """
    found = [told for model in line if (told := model.losses.get("train"))]
    return [each["policy"] - each.get("entropy", 0.0) + each["value"] for each in found]


def _worse_in_a_row(state: ConfigState) -> int:
    """How many of the models judged last lost clearly, since training was set back."""
    since_s = 0.0 if state.reset is None else state.reset.at_s
    matches = state.trusted_matches()
    judged = {match.first for match in matches if match.purpose == promotion.PROMOTION}
    newest = (model for model in reversed(state.models.values()) if model.digest in judged)
    count = 0
    for model in newest:
        if model.made_s <= since_s or model.state is ModelState.PRODUCTION:
            break
        if not promotion.lost_clearly(model.digest, matches):
            if model.state in (ModelState.EVALUATING, ModelState.STAGING):
                continue  # it is being judged
            break
        count += 1
    return count
