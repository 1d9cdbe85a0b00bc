"""What is trusted, and how it is looked at again: what a recall takes out of a run, which games are searched
again by another worker, and when the champion is examined.

Pure, but for the place where the findings of an examination are kept: the same state gives the same orders
and decisions, so both can be replayed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from math import inf, nextafter
from typing import Any

import msgspec

from ringrift.decoding import convert_to
from ringrift.engine.ports import KeyValue
from ringrift.learning.doctor.findings import Diagnosis, keep_diagnosis
from ringrift.learning.facts.facts import AnyFact, Promoted, Recalled, RolledBack, WorkerSetAside
from ringrift.learning.facts.records import (
    SUSPICION_MAX,
    Match,
    Model,
    ModelState,
    Shard,
    ShardState,
    Unfinished,
    WorkerStanding,
    are_games_recalled,
    is_recalled,
)
from ringrift.learning.facts.results import WEIGHTS_SUFFIX
from ringrift.learning.facts.state import ConfigState, has_recalled
from ringrift.learning.plan.orders import (
    ConfigPlan,
    Snapshot,
    is_running,
    model_files,
    shard_name,
    unfinished_name,
)
from ringrift.learning.plan.rules import LearningRules
from ringrift.learning.plan.training_data import (
    active_recalls,
    is_recalled_model,
    learned_shards,
    lineage,
    tainted_models,
    takes_back,
    takes_back_tainted,
)
from ringrift.work.job.protocol import INPUTS, OUT, JobOrder, JobReport
from ringrift.work.worker.records import WorkerRecord

# What a recall takes out of a run: games, rows, matches, and the models that learned from them.
#
# The answer is the same before a recall, as a preview, and after it. A champion that is recalled, or learned
# from recalled games, gives its place to the last one that did not, if a setting does not spare the second.


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
        tainted = tainted_models(state) if takes_back_tainted(rules) else ()
        if state.champion in tainted:
            clean = previous_champion(state, without=tainted)
            return None if clean is None else _taken_back(state, now_s, clean, TAINTED_REASON)
    returning = _rolled_back_by_recall(state)
    if returning is None or any(takes_back(recall, returning) for recall in active):
        return None
    if takes_back_tainted(rules) and returning in tainted_models(state):
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


# Which games are searched again by another worker, and who is set aside for what that finds.
#
# Which worker of those that live takes an order is chosen when it is put into the queue (`worker_for`).


RECOMPUTE = "recompute"
RECALL_ID = "set-aside-"
BY_PLAN, BY_PERSON = "plan", "person"
ACTIVE_S = 6 * 3600.0  # who brought games within that still plays
CLEAN_SHARDS_MIN = 2  # of others, before broken games are the fault of who brought them
SEED_DIGITS = 8


def plan_recomputation(snapshot: Snapshot, made: ConfigPlan) -> None:
    """Give games of each worker to another: a share of them, and some every so often."""
    state, rules = snapshot.state, snapshot.rules
    if not rules.recompute_share:
        made.say(RECOMPUTE, "switched off")
        return
    if is_running(snapshot, made, RECOMPUTE):
        return
    for comparison in state.comparisons.values():
        order = msgspec.structs.replace(comparison.order, not_by=comparison.not_by())
        who = " and ".join(dict.fromkeys((comparison.player, *(each.worker for each in comparison.votes))))
        made.want(
            RECOMPUTE, order, f"{who} disagree about games of {comparison.player}; another search decides"
        )
        return
    due = [(standing, why) for standing in state.workers.values() if (why := _why_due(snapshot, standing))]
    due.sort(key=lambda each: (each[0].asked_s or 0.0, each[0].name))
    for standing, why in due:
        chosen = _chosen_games(state, standing)
        if chosen is not None:
            made.want(RECOMPUTE, recompute_order(state, *chosen), f"games of {standing.name}: {why}")
            return
    made.say(RECOMPUTE, "the games of every worker were compared lately")


def _why_due(snapshot: Snapshot, standing: WorkerStanding) -> str:
    """Why some games of a worker are to be compared now; empty if they are not."""
    rules, now_s = snapshot.rules, snapshot.now_s
    if standing.is_set_aside(now_s) or not standing.shards_since or not standing.recent:
        return ""
    if standing.asked_s is None:
        return "none of them was compared yet"
    if standing.suspicion > 0:
        return "some differed lately"
    if standing.shards_since >= 1 / rules.recompute_share:
        return f"{standing.shards_since} files of games came since the last comparison"
    if not 0 <= now_s - standing.asked_s < rules.recompute_every_s:
        return "the last comparison is long ago"
    return ""


def _chosen_games(state: ConfigState, standing: WorkerStanding) -> tuple[Shard | Unfinished, JobOrder] | None:
    """One of the newest files, by a draw that nobody could know when the games were played."""
    newest = list(standing.recent)[-max(1, standing.shards_since) :]
    known = ((state.shards.get(digest) or state.unfinished.get(digest), order) for digest, order in newest)
    fit = [(made, order) for made, order in known if made is not None and _is_trusted(state, made)]
    return min(fit, key=lambda each: _draw(state, each[0].digest), default=None)


def _is_trusted(state: ConfigState, made: Shard | Unfinished) -> bool:
    if isinstance(made, Shard):
        return made.state in (ShardState.CHECKED, ShardState.UNCHECKED)
    return not are_games_recalled(active_recalls(state), made, state.unfinished)


def _draw(state: ConfigState, digest: str) -> str:
    """The time of the last fact is not known to whoever plays."""
    return hashlib.sha256(f"{digest} {state.last_s!r}".encode()).hexdigest()


def recompute_order(state: ConfigState, shard: Shard | Unfinished, played: JobOrder) -> JobOrder:
    """Search some moves of *shard* again, with all that *played* says."""
    name = shard_name(shard) if isinstance(shard, Shard) else unfinished_name(shard)
    params = {
        **played.params,
        "out": OUT,
        "shard": f"{INPUTS}/{name}",
        "sample_seed": int(_draw(state, shard.digest)[:SEED_DIGITS], 16),
        "played_on": shard.machine,
    }
    inputs = {**played.inputs, name: shard.digest}
    return JobOrder(config=state.config, params=params, inputs=inputs, not_by=(shard.worker,))


def worker_for(job_id: str, not_by: Sequence[str], workers: Iterable[WorkerRecord]) -> str | None:
    """Who computes next: somebody else if there is anybody, one with a free slot if possible, by lot."""
    able = [
        each
        for each in workers
        if not each.stopping and not each.set_aside and (each.kinds is None or RECOMPUTE in each.kinds)
    ]
    ranks = {name: rank for rank, name in enumerate(not_by, start=1)}

    def order(worker: WorkerRecord) -> tuple[int, bool, bytes]:
        lot = hashlib.sha256(f"{job_id} {worker.name}".encode()).digest()
        return ranks.get(worker.name, 0), not worker.free, lot

    best = min(able, key=order, default=None)
    return None if best is None else best.name


def decided_by_standing(snapshot: Snapshot) -> AnyFact | None:
    """Set a worker aside whose games fail, then recall what it brought since its games last agreed."""
    state, rules, now_s = snapshot.state, snapshot.rules, snapshot.now_s
    for standing in sorted(state.workers.values(), key=lambda each: each.name):
        aside = standing.set_aside
        if aside is not None and aside.holds(now_s):
            is_wanted = rules.set_aside_games == "recall" and aside.by != BY_PERSON  # who recalls by himself
            recall = _recall(state, standing) if is_wanted else None
            if recall is not None:
                return msgspec.structs.replace(recall, at_s=now_s)
            continue
        why = why_distrusted(state, standing)
        if why and others_play(state, standing, now_s):
            return WorkerSetAside(
                at_s=now_s,
                worker=standing.name,
                reason=why,
                until_s=now_s + rules.set_aside_s,
                by=BY_PLAN,
                evidence={
                    "faults": standing.faults,
                    "compared": standing.compared,
                    "last": list(standing.words),
                },
            )
    return None


def why_distrusted(state: ConfigState, standing: WorkerStanding) -> str:
    """Why a worker should get no work; empty if nothing speaks against it."""
    if standing.suspicion >= SUSPICION_MAX:
        return f"its games differ when they are searched again: {standing.words[-1]}"
    others = (each for each in state.workers.values() if each is not standing)
    if standing.refusals >= SUSPICION_MAX and any(each.clean_shards >= CLEAN_SHARDS_MIN for each in others):
        return f"its games break the rules and those of others do not: {standing.words[-1]}"
    return ""


def others_play(state: ConfigState, standing: WorkerStanding, now_s: float) -> bool:
    """Whether somebody is left: the only worker goes on, and the doctor says what is wrong with it."""
    return any(
        each is not standing and not each.is_set_aside(now_s) and now_s - each.last_games_s <= ACTIVE_S
        for each in state.workers.values()
    )


def _recall(state: ConfigState, standing: WorkerStanding) -> Recalled | None:
    """The games since the last good comparison; None if there are none, or they are recalled."""
    aside = standing.set_aside
    assert aside is not None
    recall_id = f"{RECALL_ID}{standing.name}-{aside.since_s:.3f}"
    from_s = suspect_since(state, standing)
    if recall_id in state.recalls or from_s is None or from_s > aside.since_s:
        return None
    return Recalled(
        at_s=0.0,
        recall_id=recall_id,
        reason=f"{standing.name} is set aside: {aside.reason}",
        worker=standing.name,
        from_s=from_s,
        until_s=nextafter(aside.since_s, inf),  # what came at that very moment too
    )


def suspect_since(state: ConfigState, standing: WorkerStanding) -> float | None:
    """When the first of the games came that no good comparison vouches for; None if there are none."""
    good_s = standing.good_until_s
    files: list[Shard | Unfinished] = [*state.shards.values(), *state.unfinished.values()]
    return min(
        (
            made.made_s
            for made in files
            if made.worker == standing.name
            and made.can_be_recomputed
            and (good_s is None or made.made_s > good_s)
        ),
        default=None,
    )


# When games and networks of a config are examined, and what becomes of the findings.
#
# A new champion is examined by the job `diagnose`, at most every so often. What it finds is kept where the
# doctor looks, so that `ringrift doctor`, the status and the live page show it.


DIAGNOSE = "diagnose"
SHARDS_EXAMINED = 5


def plan_diagnosis(snapshot: Snapshot, made: ConfigPlan) -> None:
    """Examine the champion if it is another than last time, and the last time is long enough ago."""
    state, rules = snapshot.state, snapshot.rules
    if not rules.diagnose_every_s or state.champion is None or is_running(snapshot, made, DIAGNOSE):
        return
    last = state.last_done.get(DIAGNOSE)
    if last is not None and last.order.inputs.get(f"model{WEIGHTS_SUFFIX}") == state.champion:
        made.say(DIAGNOSE, "the champion is examined")
        return
    due_s = rules.diagnose_every_s + (state.first_s if last is None else last.at_s)
    if snapshot.now_s < due_s:
        made.say(DIAGNOSE, "the champion is examined later", until_s=due_s)
        return
    made.want(
        DIAGNOSE, diagnose_order(snapshot), "examine the new champion, its samples and its newest games"
    )


def diagnose_order(snapshot: Snapshot) -> JobOrder:
    state, rules = snapshot.state, snapshot.rules
    assert state.champion is not None
    inputs = model_files("model", state.models[state.champion])
    params: dict[str, Any] = {
        "config": state.config,
        "out": f"{OUT}/diagnosis.json",
        "model": f"{INPUTS}/model{WEIGHTS_SUFFIX}",
        "preset": rules.preset,
        "hold_out": rules.hold_out,
    }
    samples = state.newest_samples
    if samples is not None:
        inputs["samples.npz"] = samples.digest
        params["samples"] = [f"{INPUTS}/samples.npz"]
    checked = (each for each in reversed(state.shards.values()) if each.state is ShardState.CHECKED)
    shards = {shard_name(each): each.digest for each in islice(checked, SHARDS_EXAMINED)}
    params["shards"] = [f"{INPUTS}/{name}" for name in shards]
    return JobOrder(config=state.config, params=params, inputs={**inputs, **shards})


async def keep_reported(kv: KeyValue, state: ConfigState, report: JobReport) -> str:
    """Keep what a job found; returns why its report is none, or nothing. Safe to repeat."""
    try:
        found = convert_to(report.fields, Diagnosis, strict=False)
    except msgspec.ValidationError as error:
        return f"the diagnosis cannot be read: {error}"
    if found.config != state.config:
        return f"the diagnosis is of {found.config}"
    await keep_diagnosis(kv, found)
    return ""
