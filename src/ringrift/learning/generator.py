"""Which network plays the games: the newest that is not shown to be worse, whoever is published.

Games by the newest network are worth most to the training that goes on from it, and most trainings improve
it; so it plays as soon as it is there, and gives its place back when a match, a recall or the training itself
shows that it is no good. A setting asks for a quick match first, or lets the champion play.
"""

from __future__ import annotations

from collections.abc import Iterator

from ringrift.learning import promotion
from ringrift.learning.facts import GeneratorMoved
from ringrift.learning.promotion import PromotionJudgement, PromotionVerdict
from ringrift.learning.recall import distrusted_models
from ringrift.learning.records import Model, ModelState
from ringrift.learning.snapshot import Snapshot
from ringrift.learning.state import ConfigState


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
