"""What a recall takes out of a run: games, rows, matches, and the models that learned from them.

Pure: the same state and recall give the same answer, before the recall as a preview and after it as an
account. A champion that is recalled, or that learned from recalled games, gives its place to the last one
that did not, if there is one: the plan decides that, and a setting leaves the second kind alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import msgspec

from ringrift.learning.facts.facts import AnyFact, Promoted, Recalled, RolledBack
from ringrift.learning.facts.records import Match, Model, ModelState, Shard, ShardState
from ringrift.learning.facts.state import ConfigState
from ringrift.learning.facts.trust import are_games_recalled, is_recalled
from ringrift.learning.plan.rules import LearningRules
from ringrift.work.job.orders import JobOrder

RECALLED_REASON = "the model was recalled"
TAINTED_REASON = "it learned from games that were recalled"


class ShardLeaving(msgspec.Struct, frozen=True, kw_only=True):
    """A file of games that a recall covers."""

    shard: str
    worker: str
    model: str | None
    made_s: float
    state: str
    games: int
    rows: int


class MatchLeaving(msgspec.Struct, frozen=True, kw_only=True):
    """Games for ratings and promotions that a recall covers."""

    job: str
    first: str
    second: str
    games: int
    purpose: str
    worker: str
    at_s: float


class TouchedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that learned from games that a recall covers."""

    model: str
    number: int
    state: str
    how: str  # recalled, trained, descends
    rows: int  # of the covered games among those it was trained on
    is_champion: bool


class RecallEffect(msgspec.Struct, frozen=True, kw_only=True):
    """All that a recall does to one config."""

    config: str
    shards: tuple[ShardLeaving, ...]
    matches: tuple[MatchLeaving, ...]
    models: tuple[TouchedModel, ...]
    promotions: tuple[str, ...]  # models whose promotion stands on games that leave
    champion: str | None
    champion_is: str  # how the champion is touched; empty if it is not
    successor: str | None  # who takes its place then; None: nobody is there who is not touched
    rows_trusted: int  # of the config, at this moment

    @property
    def games(self) -> int:
        return sum(shard.games for shard in self.shards)

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)

    @property
    def is_empty(self) -> bool:
        return not (self.shards or self.matches or self.models)


def recall_effect(state: ConfigState, recall: Recalled) -> RecallEffect:
    """What *recall* covers, whether or not it is in force."""
    shards = [shard for shard in state.shards.values() if _covers_shard(state, recall, shard)]
    matches = [match for match in state.matches if _covers_match(recall, match)]
    models = touched_models(state, recall, {shard.digest: shard.rows for shard in shards})
    champion_is = next((model.how for model in models if model.is_champion), "")
    return RecallEffect(
        config=state.config,
        shards=tuple(_leaving_shard(shard) for shard in shards),
        matches=tuple(_leaving_match(match) for match in matches),
        models=tuple(models),
        promotions=tuple(_shaken_promotions(state, matches)),
        champion=state.champion,
        champion_is=champion_is,
        successor=_successor(state, champion_is, models),
        rows_trusted=state.rows,
    )


def _successor(state: ConfigState, champion_is: str, touched: Iterable[TouchedModel]) -> str | None:
    if not champion_is:
        return None
    without = () if champion_is == "recalled" else {each.model for each in touched} | tainted_models(state)
    return previous_champion(state, without=without)


def touched_models(state: ConfigState, recall: Recalled, covered: dict[str, int]) -> list[TouchedModel]:
    """Models that are recalled, trained on the *covered* shards (with their rows), or descend from those."""
    how: dict[str, str] = {}
    found = []
    for model in state.models.values():  # parents come before their children
        learned = learned_shards(state, model)
        rows = sum(covered.get(shard, 0) for shard in learned)
        if takes_back(recall, model.digest):
            how[model.digest] = "recalled"
        elif not covered.keys().isdisjoint(learned):
            how[model.digest] = "trained"
        elif model.parent in how:
            how[model.digest] = "descends"
        else:
            continue
        found.append(_touched(state, model, how[model.digest], rows))
    return found


def learned_shards(state: ConfigState, model: Model) -> list[str]:
    """The games that one training saw, as files; what its parents saw is theirs."""
    files = (state.samples[digest] for digest in model.sample_files if digest in state.samples)
    return list(dict.fromkeys(shard for samples in files for shard in samples.shards))


def has_recalled(state: ConfigState, shards: Iterable[str]) -> bool:
    """Whether any of *shards* is recalled now."""
    return not state.trust_before_recall.keys().isdisjoint(shards)


def shards_behind(state: ConfigState, order: JobOrder) -> tuple[str, ...]:
    """The shards that a job learns from: its own inputs, and those of its samples."""
    samples = [state.samples[digest] for digest in order.inputs.values() if digest in state.samples]
    return (*order.inputs.values(), *(shard for each in samples for shard in each.shards))


def decided_by_recall(state: ConfigState, rules: LearningRules, now_s: float) -> AnyFact | None:
    """Take a recalled champion back, and give its place back to one whose recall was withdrawn.

    A champion that learned from recalled games goes too, if the rules say so and there is one that did not.
    """
    active = active_recalls(state)
    if not state.recalls:
        return None
    if state.champion is not None:
        if is_recalled_model(state, state.champion):
            return _taken_back(state, now_s, previous_champion(state), RECALLED_REASON)
        tainted = tainted_models(state) if _takes_back_tainted(rules) else ()
        if state.champion in tainted:
            clean = previous_champion(state, without=tainted)
            return None if clean is None else _taken_back(state, now_s, clean, TAINTED_REASON)
    returning = _rolled_back_by_recall(state)
    if returning is None or any(takes_back(recall, returning) for recall in active):
        return None
    if _takes_back_tainted(rules) and returning in tainted_models(state):
        return None
    return Promoted(
        at_s=now_s,
        model=returning,
        previous=state.champion,
        reason="its recall was withdrawn",
        evidence={"promotion": _promotion_evidence(state, returning)},
    )


def _taken_back(state: ConfigState, now_s: float, restored: str | None, reason: str) -> RolledBack:
    assert state.champion is not None
    active = active_recalls(state)
    why = [each for each in active if takes_back(each, state.champion)] or active
    evidence: dict[str, object] = {
        "recalls": [{"id": each.recall_id, "reason": each.reason} for each in why],
        "promotion": _promotion_evidence(state, state.champion),
    }
    if reason == TAINTED_REASON:
        learned = {each.digest: learned_shards(state, each) for each in lineage(state, state.champion)}
        evidence["models"] = [digest for digest, shards in learned.items() if has_recalled(state, shards)]
        evidence["shards"] = sorted(
            {s for shards in learned.values() for s in shards if s in state.trust_before_recall}
        )
    return RolledBack(at_s=now_s, model=state.champion, restored=restored, reason=reason, evidence=evidence)


def tainted_models(state: ConfigState) -> frozenset[str]:
    """Models that are recalled, learned from recalled games, or go on from such a model."""
    if not state.trust_before_recall and not active_recalls(state):
        return frozenset()
    found: set[str] = set()
    recalled = {each.digest for each in state.samples.values() if has_recalled(state, each.shards)}
    for model in state.models.values():  # parents come before their children
        if (
            model.parent in found
            or not recalled.isdisjoint(model.sample_files)
            or is_recalled_model(state, model.digest)
        ):
            found.add(model.digest)
    return frozenset(found)


def distrusted_models(state: ConfigState, rules: LearningRules) -> frozenset[str]:
    """Models that nothing may build on.

    Tainted ones count as long as the champion is none of them: if it is, there is nobody better.
    """
    tainted = tainted_models(state)
    if _takes_back_tainted(rules) and state.champion not in tainted:
        return tainted
    return frozenset(digest for digest in tainted if is_recalled_model(state, digest))


def _takes_back_tainted(rules: LearningRules) -> bool:
    """Whether models that learned from recalled games are given up; if not, they are only listed."""
    return rules.recalled_models == "take_back"


def lineage(state: ConfigState, digest: str) -> list[Model]:
    """A model and those that it goes on from, newest first."""
    return list(ancestors(state, digest))


def ancestors(state: ConfigState, digest: str) -> Iterator[Model]:
    """A model, its parent, the parent of that, and so on."""
    seen: set[str] = set()
    found = state.models.get(digest)
    while found is not None and found.digest not in seen:
        yield found
        seen.add(found.digest)
        found = state.models.get(found.parent or "")


def takes_back(recall: Recalled, model: str) -> bool:
    """Whether *recall* is about *model* itself, not only about its games of a worker or a time."""
    return (
        recall.model == model and recall.worker is None and recall.from_s is None and recall.until_s is None
    )


def is_recalled_model(state: ConfigState, digest: str) -> bool:
    return any(takes_back(recall, digest) for recall in active_recalls(state))


def shaken_since(state: ConfigState, model: str) -> float:
    """Since when games that won *model* its promotion are recalled; 0 if none are."""
    lost = [
        match
        for match in state.matches
        if match.recalled and match.first == model and match.purpose == "promotion"
    ]
    return max(
        (r.at_s for r in active_recalls(state) if any(_covers_match(r, match) for match in lost)), default=0.0
    )


def previous_champion(state: ConfigState, *, without: Collection[str] = ()) -> str | None:
    """Whom a roll-back would restore: the last champion that is neither taken back nor recalled."""
    assert state.champion is not None
    before = [state.champion]
    for change in reversed(state.promotions):
        if change.model == before[-1] and change.previous is not None:
            before.append(change.previous)
            usable = state.models[change.previous].state is not ModelState.ROLLED_BACK
            if usable and change.previous not in without and not is_recalled_model(state, change.previous):
                return change.previous
    return None


def active_recalls(state: ConfigState) -> list[Recalled]:
    return [recall for recall in state.recalls.values() if not recall.withdrawn]


def known_workers(states: Iterable[ConfigState]) -> list[str]:
    """Everybody who ever brought games."""
    found = {shard.worker for state in states for shard in state.shards.values()}
    return sorted(found | {match.worker for state in states for match in state.matches if match.worker})


def _rolled_back_by_recall(state: ConfigState) -> str | None:
    """Whom the last change of the champion took back because of a recall; nobody if it was another change."""
    if not state.recalls:
        return None
    turned_out = [model for model in state.models.values() if model.state is ModelState.ROLLED_BACK]
    last = max(turned_out, key=lambda model: model.history[-1][0], default=None)
    if last is None or last.history[-1][2] not in (RECALLED_REASON, TAINTED_REASON):
        return None
    promoted_s = state.promotions[-1].at_s if state.promotions else 0.0
    return last.digest if promoted_s <= last.history[-1][0] else None


def _promotion_evidence(state: ConfigState, model: str) -> dict[str, object]:
    """What made *model* the champion; kept with what takes that back."""
    found = next((change for change in reversed(state.promotions) if change.model == model), None)
    return {} if found is None else {"at_s": found.at_s, "reason": found.reason, "evidence": found.evidence}


def _covers_shard(state: ConfigState, recall: Recalled, shard: Shard) -> bool:
    asked = msgspec.structs.replace(recall, withdrawn=False)
    return are_games_recalled([asked], shard, state.unfinished)


def _covers_match(recall: Recalled, match: Match) -> bool:
    asked = msgspec.structs.replace(recall, withdrawn=False)
    models = (match.first, match.second)
    return is_recalled([asked], worker=match.worker, models=models, at_s=match.at_s)


def _shaken_promotions(state: ConfigState, leaving: Collection[Match]) -> list[str]:
    """Promotions won with games among those that leave."""
    won_by = {match.first for match in leaving if match.purpose == "promotion"}
    return [change.model for change in state.promotions if change.model in won_by]


def _touched(state: ConfigState, model: Model, how: str, rows: int) -> TouchedModel:
    return TouchedModel(
        model=model.digest,
        number=model.number,
        state=str(model.state),
        how=how,
        rows=rows,
        is_champion=model.digest == state.champion,
    )


def _leaving_shard(shard: Shard) -> ShardLeaving:
    return ShardLeaving(
        shard=shard.digest,
        worker=shard.worker,
        model=shard.model,
        made_s=shard.made_s,
        state=str(shard.state),
        games=0 if shard.state is ShardState.REFUSED else shard.games,
        rows=0 if shard.state is ShardState.REFUSED else shard.rows,
    )


def _leaving_match(match: Match) -> MatchLeaving:
    return MatchLeaving(
        job=match.job_id,
        first=match.first,
        second=match.second,
        games=match.games,
        purpose=match.purpose,
        worker=match.worker,
        at_s=match.at_s,
    )
