"""Where a training begins: the earlier checkpoint, when training went astray; and the students that learn
beside the champions.
"""

from __future__ import annotations

from itertools import islice
from math import isfinite
from statistics import median

from ringrift.learning.facts.facts import TrainingReset
from ringrift.learning.facts.records import Model, ModelState
from ringrift.learning.facts.state import DIVERGED, ConfigState, has_recalled
from ringrift.learning.judging import promotion
from ringrift.learning.plan.orders import ConfigPlan, Snapshot, is_running, student_order
from ringrift.learning.plan.training_data import window_files
from ringrift.learning.plan.trust import ancestors, distrusted_models, learned_shards

# When training goes back to an earlier checkpoint: after a recall, a loss that jumped, or lost matches.
#
# Training never waits for a verdict, so it can go on for a while from weights that turn out to be bad. What
# shows that is looked at before anything is ordered; going back is a fact with its reason, and what was
# trained in between is given up.


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


# Networks beside the line of champions: a student of every champion, a small network after so many games.
#
# They learn from the same samples, whose targets are what the champions' searches came to, but never take a
# champion's place: they are kept, rated, and published for whoever needs a small and fast network.


DISTILLATION, SMALL_NET = "distillation", "small_net"


def plan_distillation(snapshot: Snapshot, made: ConfigPlan) -> None:
    """Teach a student again whenever the champion is another."""
    state, size = snapshot.state, snapshot.rules.students.distillation
    if size is None or is_running(snapshot, made, DISTILLATION):
        return
    if state.champion is None:
        made.say(DISTILLATION, "there is no champion to learn from yet")
        return
    done, changed_s = state.last_done.get(DISTILLATION), _changed_s(state)
    if done is not None and done.at_s >= changed_s:
        made.say(DISTILLATION, "the student has learned from this champion")
        return
    _teach(snapshot, made, DISTILLATION, size, f"a {size} student of the champion {state.champion[:12]}")


def plan_small_net(snapshot: Snapshot, made: ConfigPlan) -> None:
    """Train a small network after every so many accepted games."""
    state, rules = snapshot.state, snapshot.rules.students
    if not rules.small_net_games or is_running(snapshot, made, SMALL_NET):
        return
    taught = [each for each in state.students.values() if each.purpose == SMALL_NET]
    wanted = rules.small_net_games * (len(taught) + 1)
    if state.games < wanted:
        made.say(SMALL_NET, f"{state.games:,} of {wanted:,} games for the next small network are there")
        return
    _teach(snapshot, made, SMALL_NET, rules.small_net, f"a {rules.small_net} network after {wanted:,} games")


def newest_student(state: ConfigState, purpose: str) -> Model | None:
    """The one in use."""
    return next(
        (
            each
            for each in reversed(state.students.values())
            if each.purpose == purpose and each.state is ModelState.PRODUCTION
        ),
        None,
    )


def _teach(snapshot: Snapshot, made: ConfigPlan, purpose: str, size: str, what: str) -> None:
    state, rules = snapshot.state, snapshot.rules
    files = window_files(state, rules)
    if not files:
        made.say(purpose, "waits for samples")
        return
    before = newest_student(state, purpose)
    is_fit = (
        before is not None
        and before.preset == size
        and not has_recalled(state, learned_shards(state, before))
    )
    parent = before if is_fit else None
    order = student_order(state, rules, files, parent, preset=size, purpose=purpose)
    made.want("train", order, f"{what}, on {sum(each.rows for each in files):,} rows")


def _changed_s(state: ConfigState) -> float:
    """When the champion got its place."""
    assert state.champion is not None
    return next(
        at_s
        for at_s, name, _ in reversed(state.models[state.champion].history)
        if name == ModelState.PRODUCTION
    )
