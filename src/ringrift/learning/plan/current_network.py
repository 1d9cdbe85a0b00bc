"""Which network plays the games, and which one training goes on from."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from math import isfinite
from statistics import median

from ringrift.learning.facts.facts import GeneratorMoved, TrainingReset
from ringrift.learning.facts.records import Model, ModelState
from ringrift.learning.facts.state import DIVERGED, ConfigState
from ringrift.learning.judging import promotion
from ringrift.learning.judging.promotion import PromotionJudgement, PromotionVerdict
from ringrift.learning.plan.snapshot import Snapshot
from ringrift.learning.plan.trust import ancestors, distrusted_models

# The newest that is not shown to be worse plays, whoever is published.
#
# Games by the newest network are worth most to the training that goes on from it, and most trainings improve
# it; so it plays as soon as it is there, and gives its place back when a match, a recall or the training
# itself shows that it is no good. A setting asks for a quick match first, or lets the champion play.


def decided_generator(snapshot: Snapshot) -> GeneratorMoved | None:
    """Let another network play, if another should."""
    state = snapshot.state
    model, reason = wanted_generator(snapshot)
    digest = None if model is None else model.digest
    if digest == state.generator:
        return None
    return GeneratorMoved(at_s=snapshot.now_s, model=digest, previous=state.generator, reason=reason)


def wanted_generator(snapshot: Snapshot) -> tuple[Model | None, str]:
    """Who should play, and why."""
    state, rules = snapshot.state, snapshot.rules
    champion = None if state.champion is None else state.models[state.champion]
    if rules.generator == "champion":
        return champion, "the champion plays, by setting" if champion is not None else "there is no champion"
    for model in fit_models(snapshot):
        if model is champion:
            break
        if rules.generator == "newest" or model.digest == state.generator:
            return model, f"model {model.number} is the newest that is not shown to be worse"
        found = not_worse(snapshot, model)
        if found.verdict is PromotionVerdict.KEEP:
            return model, f"model {model.number}: {found.reason}"
    if champion is not None:
        return champion, f"model {champion.number} is the champion, and nothing newer is as good"
    return None, "no network is fit to play"


def unchecked_generator(snapshot: Snapshot) -> tuple[Model, PromotionJudgement] | None:
    """The newest network and what it has yet to show, if a setting asks for a quick match before it plays."""
    model = next(fit_models(snapshot), None)
    if snapshot.rules.generator != "checked" or model is None or model.digest == snapshot.state.generator:
        return None
    found = not_worse(snapshot, model)
    return (model, found) if found.verdict is PromotionVerdict.MORE_GAMES else None


def not_worse(snapshot: Snapshot, model: Model) -> PromotionJudgement:
    state = snapshot.state
    rules = snapshot.rules.promotion
    return promotion.judge_not_worse(model.digest, state.generator, state.trusted_matches(), rules=rules)


def fit_models(snapshot: Snapshot) -> Iterator[Model]:
    """The networks that nothing speaks against, newest first."""
    state = snapshot.state
    distrusted = distrusted_models(state, snapshot.rules)
    return (
        model
        for model in reversed(state.models.values())
        if model.digest not in distrusted and may_play(state, model)
    )


def who_plays(state: ConfigState) -> str:
    """What plays and what is published, in words: two different things that may be one network."""
    champion, generator = (state.models.get(each or "") for each in (state.champion, state.generator))
    published = "nothing is published" if champion is None else f"model {champion.number} is published"
    if generator is None:
        return f"{published}, games are played without a network"
    if generator is champion:
        return f"{published} and plays"
    if champion is None or generator.number < champion.number:
        return f"{published}, model {generator.number} plays"
    newer = generator.number - champion.number
    return f"{published}, model {generator.number} plays: {newer} training{'s' * (newer > 1)} newer"


def may_play(state: ConfigState, model: Model) -> bool:
    """Whether nothing speaks against *model*: it is of the line that plays, and lost to nobody clearly."""
    reset, champion = state.reset, state.models.get(state.champion or "")
    if reset is not None and model.made_s <= reset.at_s and model.number > state.models[reset.model].number:
        return False  # it was given up
    if model.state is ModelState.ROLLED_BACK:
        return False
    # A line of another size begins from nothing, and plays when it has beaten the champion.
    if champion is not None and model.preset != champion.preset and "" not in (model.preset, champion.preset):
        return False
    is_open = model.state in (ModelState.EVALUATING, ModelState.PRODUCTION)
    return is_open or not promotion.lost_clearly(model.digest, state.trusted_matches())


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
