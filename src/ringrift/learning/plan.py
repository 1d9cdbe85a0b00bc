"""What a config should do next, and why: one pure function of what is known.

`plan` looks at the state and the time and returns three things: what is decided (facts to be written), what
work is wanted (ordered when a worker is free), and for every stage a sentence that says why it does or does
not do something now. It is asked again after every change; an event is only a reason to ask.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from ringrift.learning import promotion
from ringrift.learning.facts import AnyFact, Promoted, Rejected, RolledBack
from ringrift.learning.feedback_rules import NEUTRAL, Feedback
from ringrift.learning.gates import Gate, stage_gate
from ringrift.learning.orders import (
    evaluate_order,
    export_order,
    selfplay_games,
    selfplay_order,
    train_order,
    validate_order,
)
from ringrift.learning.quality_scores import refuse_shard
from ringrift.learning.recall import (
    decided_by_recall,
    has_recalled,
    is_recalled_model,
    previous_champion,
)
from ringrift.learning.records import Model, ModelState, ShardState
from ringrift.learning.rules import LearningRules
from ringrift.learning.state import ConfigState
from ringrift.learning.wanted import rechecked_since, wanted_games
from ringrift.learning.window import base_rows, rows_missing, shards_in_window, steps_to_train, window_rows
from ringrift.work.job_orders import JobOrder

STAGES = ("selfplay", "validate", "export", "train", "evaluate")
PRIORITIES = {"train": 100, "validate": 95, "export": 90, "evaluate": 85, "selfplay": 75}
UNCHECKED_SHARDS_MAX = 64


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a plan may depend on."""

    state: ConfigState
    rules: LearningRules
    now_s: float
    paused: str | None = None  # the reason
    feedback: Feedback = NEUTRAL


@dataclass(frozen=True, slots=True)
class Wanted:
    """Work to order as soon as somebody can do it."""

    kind: str
    order: JobOrder
    reason: str

    @property
    def priority(self) -> int:
        return PRIORITIES[self.kind]


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a stage does or does not do something now."""

    stage: str
    will: bool
    reason: str
    until_s: float | None = None


@dataclass(slots=True)
class Plan:
    """What follows from a snapshot."""

    decided: list[AnyFact] = field(default_factory=list)
    wanted: list[Wanted] = field(default_factory=list)
    explanations: list[Explanation] = field(default_factory=list)

    def say(self, stage: str, reason: str, *, will: bool = False, until_s: float | None = None) -> None:
        self.explanations.append(Explanation(stage=stage, will=will, reason=reason, until_s=until_s))

    def want(self, kind: str, order: JobOrder, reason: str) -> None:
        self.wanted.append(Wanted(kind, order, reason))
        self.say(kind, reason, will=True)


def plan(snapshot: Snapshot) -> Plan:
    """Decide for one config. The same snapshot gives the same plan."""
    made = Plan()
    # A recall changes the champion before anything else is thought of.
    if (turned := decided_by_recall(snapshot.state, snapshot.now_s)) is not None:
        made.decided.append(turned)
        return made
    for stage, think in (
        ("evaluate", _evaluate),
        ("train", _train),
        ("export", _export),
        ("validate", _validate),
        ("selfplay", _selfplay),
    ):
        gate = _gate(snapshot, stage)
        if not gate.open:
            made.say(stage, gate.reason, until_s=gate.until_s)
            continue
        think(snapshot, made)
    return made


def _gate(snapshot: Snapshot, stage: str) -> Gate:
    return stage_gate(snapshot.state, stage, snapshot.rules, now_s=snapshot.now_s, paused=snapshot.paused)


def _running(snapshot: Snapshot, made: Plan, stage: str) -> bool:
    jobs = snapshot.state.open_of(stage)
    if jobs:
        made.say(stage, f"{jobs[0].job_id} is under way: {jobs[0].reason}")
    return bool(jobs)


# --- games ------------------------------------------------------------------------------------------------


def _selfplay(snapshot: Snapshot, made: Plan) -> None:
    """Always wanted: new games are what everything else lives on."""
    state, rules = snapshot.state, snapshot.rules
    simulations = max(1, round(rules.simulations * snapshot.feedback.simulations))
    who = "without a network" if state.champion is None else f"by the champion {state.champion[:12]}"
    missing = rows_missing(state.bucket, rules.bucket, rows_total=state.rows, has_model=bool(state.models))
    why = f"; the next training waits for {missing:,} more rows" if missing else ""
    games = selfplay_games(state, rules)
    made.want(
        "selfplay",
        selfplay_order(state, rules, simulations=simulations, exploration=snapshot.feedback.exploration),
        f"{games} games {who}, {simulations} simulations a move{why}",
    )


def _validate(snapshot: Snapshot, made: Plan) -> None:
    """Check games by the rules as soon as they would pay for a training, or before they are many."""
    state, rules = snapshot.state, snapshot.rules
    if _running(snapshot, made, "validate"):
        return
    shards = state.unchecked()
    rows = state.totals[f"rows {ShardState.UNCHECKED}"]
    missing = rows_missing(state.bucket, rules.bucket, rows_total=state.rows, has_model=bool(state.models))
    if not shards:
        made.say("validate", "all games are checked")
    elif rows >= (missing or _chunk_rows(rules)) or len(shards) >= UNCHECKED_SHARDS_MAX:
        made.want(
            "validate",
            validate_order(state, shards[:UNCHECKED_SHARDS_MAX]),
            f"{rows:,} rows of {len(shards)} shards are to be replayed by the rules",
        )
    else:
        needed = (
            f"{missing:,} are needed for the next training" if missing else "the next training has enough"
        )
        made.say("validate", f"{rows:,} unchecked rows; {needed}")


def _chunk_rows(rules: LearningRules) -> int:
    """The rows that earn one training."""
    return round(rules.bucket.chunk_steps / rules.bucket.steps_per_row)


# --- samples and training ---------------------------------------------------------------------------------


def _export(snapshot: Snapshot, made: Plan) -> None:
    state, rules = snapshot.state, snapshot.rules
    if _running(snapshot, made, "export"):
        return
    if why := _why_no_training(snapshot):
        made.say("export", why)
        return
    samples = state.newest_samples
    recalled = samples is not None and has_recalled(state, samples.shards)
    if samples is not None and samples.rows_generated == state.rows and not recalled:
        made.say("export", "the newest samples hold all checked games")
        return
    base = rules.window_base or base_rows(state.config)
    fit = (shard for shard in reversed(state.shards.values()) if refuse_shard(shard) is None)
    shards = shards_in_window(fit, state.rows, base=base)
    rows = window_rows(state.rows, base=base)
    made.want(
        "export",
        export_order(state, rules, shards, window_rows=rows),
        f"a window of {rows:,} of {state.rows:,} rows for the next training",
    )


def _train(snapshot: Snapshot, made: Plan) -> None:
    state, rules = snapshot.state, snapshot.rules
    if _running(snapshot, made, "train"):
        return
    if why := _why_no_training(snapshot):
        made.say("train", why)
        return
    samples = state.newest_samples
    if samples is None or _is_used(state, samples.digest) or state.open_of("export"):
        made.say("train", "waits for the export of the newest games")
        return
    if has_recalled(state, samples.shards):
        made.say("train", "the newest samples hold recalled games; waits for an export without them")
        return
    steps = _steps(snapshot)
    parent = training_parent(state)
    begin = "from nothing" if parent is None else f"from model {parent.number} ({parent.digest[:12]})"
    made.want(
        "train",
        train_order(
            state, rules, samples, parent, sample_steps=steps, rate_factor=snapshot.feedback.learning_rate
        ),
        f"new rows have earned {steps:,} sample-steps; {begin} on {samples.rows:,} rows",
    )


def _why_no_training(snapshot: Snapshot) -> str:
    """What stands before the next training; empty if nothing does."""
    state, rules = snapshot.state, snapshot.rules
    candidate = open_candidate(state)
    if candidate is not None:
        return f"model {candidate.number} is still being judged"
    if state.open_of("train"):
        return "a training is under way"
    if not _steps(snapshot):
        missing = rows_missing(
            state.bucket, rules.bucket, rows_total=state.rows, has_model=bool(state.models)
        )
        return f"{missing:,} more checked rows have to earn it"
    return ""


def _steps(snapshot: Snapshot) -> int:
    state, rules = snapshot.state, snapshot.rules
    return steps_to_train(state.bucket, rules.bucket, rows_total=state.rows, has_model=bool(state.models))


def _is_used(state: ConfigState, samples: str) -> bool:
    return any(model.samples == samples for model in state.models.values())


def training_parent(state: ConfigState) -> Model | None:
    """Train on from the newest model, unless it lost clearly or was taken back; then from the champion."""
    newest = state.newest_model
    champion = None if state.champion is None else state.models[state.champion]
    if newest is None or newest.state is ModelState.ROLLED_BACK or is_recalled_model(state, newest.digest):
        return champion
    if newest.state is ModelState.REJECTED and promotion.lost_clearly(newest.digest, state.trusted_matches()):
        return champion
    return newest


# --- judgement --------------------------------------------------------------------------------------------


def open_candidate(state: ConfigState) -> Model | None:
    """The newest model that is neither accepted nor refused."""
    newest = state.newest_model
    return newest if newest is not None and newest.state is ModelState.EVALUATING else None


def _evaluate(snapshot: Snapshot, made: Plan) -> None:
    """Judge the candidate, then watch the champion, then rate it."""
    candidate = open_candidate(snapshot.state)
    running = _running(snapshot, made, "evaluate")
    if candidate is not None:
        _judge(snapshot, made, candidate, running=running)
    elif snapshot.state.champion is not None:
        _watch(snapshot, made, running=running)
    elif not running:
        made.say("evaluate", "there is no model yet")


def _judge(snapshot: Snapshot, made: Plan, candidate: Model, *, running: bool) -> None:
    state, rules = snapshot.state, snapshot.rules
    if is_recalled_model(state, candidate.digest):
        fact = Rejected(at_s=snapshot.now_s, model=candidate.digest, gate="recall", reason="recalled")
        made.decided.append(fact)
        return
    found = promotion.judge(
        candidate.digest,
        state.champion,
        state.trusted_matches(),
        rules=rules.promotion,
        untrained=f"untrained:{rules.preset}@{rules.evaluation_simulations}",
    )
    if found.verdict is promotion.PromotionVerdict.PROMOTE:
        made.decided.append(
            Promoted(
                at_s=snapshot.now_s,
                model=candidate.digest,
                previous=state.champion,
                reason=found.reason,
                evidence=found.evidence,
            )
        )
    elif found.verdict is promotion.PromotionVerdict.REJECT:
        made.decided.append(
            Rejected(
                at_s=snapshot.now_s,
                model=candidate.digest,
                gate=found.gate,
                reason=found.reason,
                evidence=found.evidence,
            )
        )
    elif not running:
        order = evaluate_order(
            state, rules, candidate, [found.opponent], games=found.games, purpose=promotion.PROMOTION
        )
        made.want("evaluate", order, f"model {candidate.number}: {found.reason}")


def _watch(snapshot: Snapshot, made: Plan, *, running: bool) -> None:
    """Play the champion against its predecessor again; what later evidence turns is taken back."""
    state, rules = snapshot.state, snapshot.rules
    assert state.champion is not None
    champion, previous = state.models[state.champion], previous_champion(state)
    if previous is not None:
        found = promotion.judge_rollback(
            champion.digest,
            previous,
            state.trusted_matches(),
            rules=rules.promotion,
            since_s=rechecked_since(state, champion.digest),
        )
        if found.verdict is promotion.PromotionVerdict.ROLL_BACK:
            made.decided.append(
                RolledBack(
                    at_s=snapshot.now_s,
                    model=champion.digest,
                    restored=previous,
                    reason=found.reason,
                    evidence=found.evidence,
                )
            )
            return
        if found.verdict is promotion.PromotionVerdict.MORE_GAMES and not running and _doubtful(state, found):
            order = evaluate_order(
                state,
                rules,
                champion,
                [previous],
                games=found.games,
                purpose=promotion.ROLLBACK,
            )
            made.want("evaluate", order, found.reason)
            return
    if running:
        return
    for wish in wanted_games(state, snapshot.now_s):
        games = min(wish.games, rules.evaluation_games)
        order = evaluate_order(
            state, rules, state.models[wish.model], [wish.opponent], games=games, purpose=wish.purpose
        )
        made.want("evaluate", order, f"asked for: {wish.reason}")
        return
    _rate(snapshot, made, champion)


def _doubtful(state: ConfigState, found: promotion.PromotionJudgement) -> bool:
    """Look once after a promotion; look on only where the games so far speak against the champion."""
    assert state.champion is not None
    seen = found.evidence[promotion.ROLLBACK]
    asked_s = rechecked_since(state, state.champion)
    newest_s = max((m.at_s for m in state.matches if m.purpose == promotion.ROLLBACK), default=0.0)
    return not seen["games"] or seen["llr"] < 0 or asked_s > newest_s


def _rate(snapshot: Snapshot, made: Plan, champion: Model) -> None:
    state, rules = snapshot.state, snapshot.rules
    played = {match.second for match in state.trusted_matches() if match.first == champion.digest}
    missing = [name for name in rules.rating_opponents if name not in played]
    if not missing:
        made.say("evaluate", "the champion is rated and no candidate waits")
        return
    order = evaluate_order(state, rules, champion, missing, games=rules.rating_games, purpose="rating")
    made.want("evaluate", order, f"rate the champion against {', '.join(missing)}")
