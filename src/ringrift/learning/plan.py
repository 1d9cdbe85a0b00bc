"""What a config should do next, and why: one pure function of what is known.

`plan` looks at the state and the time and returns three things: what is decided (facts to be written), what
work is wanted (ordered when a worker is free), and for every stage a sentence that says why it does or does
not do something now. It is asked again after every change; an event is only a reason to ask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ringrift.learning import promotion
from ringrift.learning.cascade import CascadeStart, warm_start
from ringrift.learning.diagnoses import plan_diagnosis
from ringrift.learning.facts import PRICE_TOPIC, Archived, Noted
from ringrift.learning.gates import Gate, stage_gate
from ringrift.learning.judging import open_candidates, plan_judgement
from ringrift.learning.models_archive import not_needed
from ringrift.learning.orders import (
    begun_with,
    export_order,
    selfplay_games,
    selfplay_order,
    train_order,
    validate_order,
)
from ringrift.learning.quality_scores import refuse_shard
from ringrift.learning.recall import decided_by_recall, distrusted_models, has_recalled
from ringrift.learning.recomputation import decided_by_standing, plan_recomputation
from ringrift.learning.records import Model, ModelState, Shard, ShardState
from ringrift.learning.rules import LearningRules
from ringrift.learning.snapshot import ConfigPlan, Snapshot, is_running
from ringrift.learning.state import ConfigState
from ringrift.learning.students import plan_distillation, plan_small_net
from ringrift.learning.tournaments import plan_tournament
from ringrift.learning.window import base_rows, rows_missing, shards_in_window, steps_to_train, window_rows
from ringrift.work.job_orders import RINGRIFT_PROGRAM
from ringrift.work.scheduling_budget import search_budget

UNCHECKED_SHARDS_MAX = 64
PRICE_S_MIN = 600.0  # between two changes of what a row earns
WINDOW_SHARDS_MAX = 2_000  # an order is one value of the store, and names each shard and its report


def plan(snapshot: Snapshot) -> ConfigPlan:
    """Decide for one config. The same snapshot gives the same plan."""
    made = ConfigPlan()
    # A recall changes the champion before anything else is thought of.
    taken_back = snapshot.rules.recalled_models == "take_back"
    turned = decided_by_recall(snapshot.state, snapshot.now_s, with_tainted=taken_back)
    if turned is not None:
        made.decided.append(turned)
        return made
    aside = decided_by_standing(snapshot)
    if aside is not None:
        made.decided.append(aside)
        return made
    for stage, think in _THOUGHTS.items():
        gate = _gate(snapshot, stage)
        if gate.open:
            think(snapshot, made)
            continue
        made.say(stage, gate.reason, until_s=gate.until_s)
        if gate.news is not None:
            made.decided.append(gate.news)
    made.decided += [
        Archived(at_s=snapshot.now_s, model=digest, reason=reason)
        for digest, reason in not_needed(snapshot.state, snapshot.now_s)
    ]
    if (priced := _price(snapshot)) is not None:
        made.decided.append(priced)
    return made


def _gate(snapshot: Snapshot, stage: str) -> Gate:
    return stage_gate(snapshot.state, stage, snapshot.rules, now_s=snapshot.now_s, paused=snapshot.paused)


def _price(snapshot: Snapshot) -> Noted | None:
    """Note another price of training, if feedback may move it; not more often than it can be felt."""
    state, found = snapshot.state, snapshot.feedback
    wanted = found.steps_per_row if snapshot.rules.adaptive_steps else 1.0
    before = state.newest_note(PRICE_TOPIC)
    if wanted == state.price or (before is not None and 0 <= snapshot.now_s - before.at_s < PRICE_S_MIN):
        return None
    steps = state.bucket_rules.steps_per_row * wanted
    why = "; ".join(found.reasons) if wanted != 1.0 else "as the rules say"
    text = f"a row earns {steps:g} sample-steps from now on: {why}"
    return Noted(at_s=snapshot.now_s, topic=PRICE_TOPIC, text=text, details={"factor": wanted})


# --- games ------------------------------------------------------------------------------------------------


def _selfplay(snapshot: Snapshot, made: ConfigPlan) -> None:
    """Wanted as long as there is something to learn from it: new games are what everything else lives on."""
    state, rules = snapshot.state, snapshot.rules
    simulations = selfplay_simulations(snapshot)
    who = "without a network" if state.champion is None else f"by the champion {state.champion[:12]}"
    missing = rows_missing(state.bucket, rules.bucket, rows_total=state.rows, has_model=bool(state.models))
    if _first_model_is_made(snapshot):
        made.say("selfplay", "the first model is being made, and more games without a network teach little")
        return
    why = f"; the next training waits for {missing:,} more rows" if missing else ""
    is_timed = rules.selfplay_program == RINGRIFT_PROGRAM
    much = f"{rules.selfplay_job_s:g} s of games" if is_timed else f"{selfplay_games(state, rules)} games"
    made.want(
        "selfplay",
        selfplay_order(state, rules, simulations=simulations, exploration=snapshot.feedback.exploration),
        f"{much} {who}, {simulations} simulations a move{why}",
    )


def selfplay_simulations(snapshot: Snapshot) -> int:
    """Simulations of a move: the number of the rules, or by how far the config has come, times feedback."""
    state, rules, factor = snapshot.state, snapshot.rules, snapshot.feedback.simulations
    if rules.search_budget == "fixed":
        return max(1, round(rules.simulations * factor))
    return search_budget(state.config, games=state.games, rating=snapshot.rating, intensity=factor)


def _first_model_is_made(snapshot: Snapshot) -> bool:
    """Whether the first model is under way, or there are games enough for it to be.

    Games without a network are fast, so those that are not needed would soon be most of what is learned from.
    """
    state, rules = snapshot.state, snapshot.rules
    if state.champion is not None:
        return False
    if open_candidates(state) or state.open_of("export", "train"):
        return True
    rows = state.rows + state.totals[f"rows {ShardState.UNCHECKED}"]
    if state.models or rows < rules.bucket.rows_first_min:
        return False
    return _steps(snapshot) > 0 and any(_fit_shards(state))


def _validate(snapshot: Snapshot, made: ConfigPlan) -> None:
    """Check games by the rules as soon as they would pay for a training, or before they are many."""
    state, rules = snapshot.state, snapshot.rules
    if is_running(snapshot, made, "validate"):
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


def _export(snapshot: Snapshot, made: ConfigPlan) -> None:
    state, rules = snapshot.state, snapshot.rules
    if is_running(snapshot, made, "export"):
        return
    if why := _why_no_training(snapshot):
        made.say("export", why)
        return
    samples = state.newest_samples
    recalled = samples is not None and has_recalled(state, samples.shards)
    if samples is not None and samples.rows_generated == state.rows and not recalled:
        made.say("export", "the newest samples hold all checked games")
        return
    failures = state.failures.get("train")
    unused = samples is not None and not _is_used(state, samples.digest)
    if unused and not recalled and (failures is None or not failures.in_a_row):
        # Games that keep coming would have it made again and again, and training would wait for ever.
        made.say("export", "the newest samples have yet to be trained on")
        return
    base, share = rules.window_base or base_rows(state.config), rules.window_share
    shards = shards_in_window(
        _fit_shards(state), state.rows, base=base, share=share, shards_max=WINDOW_SHARDS_MAX
    )
    if not shards:
        made.say("export", "none of the checked games is fit to learn from; waits for others")
        return
    rows = window_rows(state.rows, base=base, share=share)
    cut = f", from its newest {len(shards):,} shards" if len(shards) == WINDOW_SHARDS_MAX else ""
    made.want(
        "export",
        export_order(state, rules, shards, window_rows=rows),
        f"a window of {rows:,} of {state.rows:,} rows for the next training{cut}",
    )


def _fit_shards(state: ConfigState) -> Iterator[Shard]:
    """What may be learned from, newest first."""
    return (
        shard
        for shard in reversed(state.shards.values())
        if shard.state is ShardState.CHECKED and shard.rows > 0 and refuse_shard(shard) is None
    )


def _train(snapshot: Snapshot, made: ConfigPlan) -> None:
    state, rules = snapshot.state, snapshot.rules
    if is_running(snapshot, made, "train"):
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
    steps, parent = _steps(snapshot), training_parent(state, rules)
    warm = warm_start(state) if parent is None and not state.models else None
    begin = _beginning(parent, warm, rules)
    reason = f"new rows have earned {steps:,} sample-steps; {begin} on {samples.rows:,} rows"
    if parent is None and state.models:
        # It competes with a champion that saw every row of the run, so one chunk would never do.
        steps = max(steps, round(rules.bucket.steps_per_row * samples.rows))
    order = train_order(
        state,
        rules,
        samples,
        parent,
        sample_steps=steps,
        rate_factor=snapshot.feedback.learning_rate,
    )
    made.want("train", order if warm is None else begun_with(order, warm), reason)


def _beginning(parent: Model | None, warm: CascadeStart | None, rules: LearningRules) -> str:
    if parent is not None:
        return f"from model {parent.number} ({parent.digest[:12]})"
    if warm is not None:
        return f"a new {rules.preset} network with what fits of {warm.config}'s ({warm.model[:12]})"
    return f"a new {rules.preset} network"


def _why_no_training(snapshot: Snapshot) -> str:
    """What stands before the next training; empty if nothing does."""
    state, rules = snapshot.state, snapshot.rules
    if candidates := open_candidates(state):
        return f"model {candidates[0].number} is still being judged"
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


def training_parent(state: ConfigState, rules: LearningRules) -> Model | None:
    """Train on from the newest model, unless it lost clearly or was taken back; then from the champion.

    A model of another size is no beginning: a line of its own size goes on from its newest until one of it
    is the champion.
    """
    same = [each for each in state.models.values() if each.preset in ("", rules.preset)]
    if not same:
        return None
    newest, champion = same[-1], None if state.champion is None else state.models[state.champion]
    distrusted = distrusted_models(state, with_tainted=rules.recalled_models == "take_back")
    usable = newest.state is not ModelState.ROLLED_BACK and newest.digest not in distrusted
    if usable and (champion is None or champion not in same):
        return newest
    lost = newest.state is ModelState.REJECTED and promotion.lost_clearly(
        newest.digest, state.trusted_matches()
    )
    if usable and not lost:
        return newest
    return champion if champion in same else None


_THOUGHTS: dict[str, Callable[[Snapshot, ConfigPlan], None]] = {
    "evaluate": plan_judgement,
    "train": _train,
    "export": _export,
    "validate": _validate,
    "recompute": plan_recomputation,
    "selfplay": _selfplay,
    "tournament": plan_tournament,
    "diagnose": plan_diagnosis,
    "distillation": plan_distillation,
    "small_net": plan_small_net,
}
