"""What a plan looks at, what it says, and the jobs that a config may need next, each as an order that a
worker can carry out alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import ceil, sqrt
from typing import Any
from urllib.parse import quote

import msgspec

from ringrift.decoding import convert_to, decode_as
from ringrift.engine.encoding import UNREADABLE
from ringrift.engine.ports import KeyValue
from ringrift.errors import Corrupt
from ringrift.health.run_status import EXPLAIN_PREFIX, Curve
from ringrift.learning.facts.facts import AnyFact, Blocked, Noted
from ringrift.learning.facts.records import (
    Model,
    Samples,
    Shard,
    ShardState,
    Unfinished,
    base_rows,
    rows_missing,
)
from ringrift.learning.facts.results import CHECKPOINT_FILE, WEIGHTS_SUFFIX, ordered_games, player_text
from ringrift.learning.facts.state import ConfigState, stage_of
from ringrift.learning.judging.feedback import NEUTRAL, Feedback, RatingCurves
from ringrift.learning.judging.promotion import Pairing
from ringrift.learning.models import kept_checkpoint
from ringrift.learning.plan.rules import CascadeRules, LearningRules, TargetRules, play_rules, target_rules
from ringrift.learning.plan.stages import PER_ORCHESTRATOR, Gate, is_stopped
from ringrift.learning.tuning import tuned_rules, tuned_search
from ringrift.statistics.match_evidence import FloorTest, SequentialTest
from ringrift.work.job.protocol import INPUTS, OUT, RINGRIFT_PROGRAM, JobOrder
from ringrift.work.shares import board_and_players

STAGES = ("selfplay", "validate", "export", "train", "evaluate")
TUNING = "tuning"  # only in what is said: what searches found, and whether it is in force
# What a config can do without; it is ordered when nothing of the same share is wanted more.
EXTRA_STAGES = ("recompute", "tournament", "diagnose", "distillation", "small_net")
PRIORITIES = {"train": 100, "validate": 95, "export": 90, "evaluate": 85, "selfplay": 75}
PRIORITY_EXTRA = 80  # above games, of which one always waits


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a plan may depend on."""

    state: ConfigState
    rules: LearningRules
    now_s: float
    paused: str | None = None  # the reason
    feedback: Feedback = NEUTRAL
    rating: float | None = None  # of the champion


@dataclass(frozen=True, slots=True)
class Wanted:
    """Work to order as soon as somebody can do it."""

    kind: str
    order: JobOrder
    reason: str

    @property
    def stage(self) -> str:
        return stage_of(self.kind, self.order.purpose)

    @property
    def priority(self) -> int:
        return priority_of(self.stage)


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a stage does or does not do something now."""

    stage: str
    will: bool
    reason: str
    until_s: float | None = None
    paused: bool = False  # it waits because somebody paused it


async def read_explanations(kv: KeyValue, config: str) -> list[Explanation]:
    """Return what the plan last said of the stages of *config*; empty if it has said nothing."""
    key = EXPLAIN_PREFIX + quote(config, safe="")
    entry = await kv.get(key)
    if entry is None:
        return []
    try:
        return decode_as(entry.value, list[Explanation])
    except UNREADABLE as error:
        raise Corrupt(
            key, found=f"no explanation of this version: {error}", advice="`ringrift run` writes it anew"
        ) from None


@dataclass(slots=True)
class ConfigPlan:
    """What follows from a snapshot."""

    decided: list[AnyFact] = field(default_factory=list)
    wanted: list[Wanted] = field(default_factory=list)
    explanations: list[Explanation] = field(default_factory=list)
    rows_collected: int = 0  # that no training was offered, and that are no backlog
    games_collected: int = 0  # that are not checked, and are no backlog either

    def say(self, stage: str, reason: str, *, will: bool = False, until_s: float | None = None) -> None:
        self.explanations.append(Explanation(stage=stage, will=will, reason=reason, until_s=until_s))

    def say_closed(self, stage: str, gate: Gate) -> None:
        self.explanations.append(
            Explanation(stage=stage, will=False, reason=gate.reason, until_s=gate.until_s, paused=gate.paused)
        )

    def want(self, kind: str, order: JobOrder, reason: str) -> None:
        wanted = Wanted(kind, order, reason)
        self.wanted.append(wanted)
        self.say(wanted.stage, reason, will=True)


def priority_of(stage: str) -> int:
    return PRIORITIES.get(stage, PRIORITY_EXTRA)


def is_running(snapshot: Snapshot, made: ConfigPlan, stage: str) -> bool:
    """Whether a job of *stage* is open; the plan then says which."""
    jobs = snapshot.state.open_of(stage)
    if jobs:
        made.say(stage, f"{jobs[0].job_id} is under way: {jobs[0].reason}")
    return bool(jobs)


# How a config is looked at before it is planned for; the replay looks in the same way as the loop.


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


# Where the first network of a config may begin: with the champion of another config of the run.
#
# More players on the same board follow those with one less (square8_3p follows square8_2p), and the settings
# may name others. Whatever of the two networks has the same shape is taken over; the job says how much that
# was. Which champion it is becomes a note among the facts of the config that follows, so its decisions
# replay.


CASCADE_TOPIC = "warm_start"


class CascadeStart(msgspec.Struct, frozen=True, kw_only=True):
    """A model of another config to begin with."""

    config: str
    model: str
    card: str


class CascadeSource(msgspec.Struct, frozen=True, kw_only=True):
    """The config that is followed, as far as it has come."""

    config: str
    champion: str | None = None
    card: str = ""
    rating: float | None = None


def source_name(config: str, rules: CascadeRules) -> str | None:
    """Whom *config* follows; None if it begins from nothing."""
    if not rules.enabled:
        return None
    board, players = board_and_players(config)
    fewer = f"{board}_{players - 1}p" if players > 2 else None
    return rules.sources.get(config, fewer)


def source_of(state: ConfigState, curve: tuple[Curve, ...]) -> CascadeSource:
    if state.champion is None:
        return CascadeSource(config=state.config)
    rating = next((point.rating for point in reversed(curve) if point.model == state.champion), None)
    card = state.models[state.champion].card
    return CascadeSource(config=state.config, champion=state.champion, card=card, rating=rating)


def decided_by_cascade(
    state: ConfigState, source: CascadeSource | None, rules: CascadeRules, now_s: float
) -> list[AnyFact]:
    """What follows for a config without a network from how far its *source* has come."""
    if (
        source is None
        or state.models
        or state.newest_note(CASCADE_TOPIC) is not None
        or state.open_of("train")
    ):
        return []
    block = state.blocks.get("train")
    waits = block is not None and block.holds(now_s)
    if source.champion is not None and (source.rating or 0.0) >= rules.rating:
        text = f"the first network begins with the champion of {source.config}, rated {source.rating:.0f}"
        found = CascadeStart(config=source.config, model=source.champion, card=source.card)
        note = Noted(at_s=now_s, topic=CASCADE_TOPIC, text=text, details=msgspec.to_builtins(found))
        over = Blocked(at_s=now_s, stage="train", reason=f"{source.config} is strong enough", until_s=now_s)
        return [note, over] if waits else [note]
    until_s = state.first_s + rules.wait_s
    if waits or now_s >= until_s:
        return []
    at = "has no rating yet" if source.rating is None else f"is at {source.rating:.0f}"
    reason = (
        f"{source.config} {at}; from {rules.rating:.0f} on its champion is what the first network begins with"
    )
    return [Blocked(at_s=now_s, stage="train", reason=reason, until_s=until_s)]


def warm_start(state: ConfigState) -> CascadeStart | None:
    """What the first network begins with; None: nothing."""
    note = state.newest_note(CASCADE_TOPIC)
    return None if note is None else convert_to(note.details, CascadeStart)


# The orders, one kind of job after the other.


RATING = "rating"  # the purpose of games that only tell how strong somebody is
NAME_DIGITS = 16
RECENT_SHARDS = 8
GAMES_MIN, GAMES_MAX = 8, 5_000
RESUMED_FILES_MAX = 4
RECENT_MATCHES = 6
# Games of a match at a time, at most: those that go on when it is decided were played in vain.
GAMES_AT_A_TIME_MAX = 128
GAMES_AT_A_TIME_NEW = 40  # of a match of which nothing is known, without a GPU; a floor takes 38 at least
OPENINGS_AT_A_TIME_FIRST, OPENINGS_AT_A_TIME_FIRST_LARGE = 24, 2  # while nothing is measured
LARGE_BOARD_ROWS = 100_000
ROWS_A_GAME_FIRST = 40.0  # expected of a game while none is known
# A student's averaged weights remember about an eighth of its training: more would still hold its start.
AVERAGED_SHARE = 8
LAST_RATE_SHARE = 0.3
STUDENT_WARMUP_STEPS, WARMUP_STEPS = 20, 100
HELD_ROWS = 2_048  # that one look at the hold-out takes
SEED_STEP = 1_000_000  # between the seeds of two runs: no run orders as much of one kind


def selfplay_order(
    state: ConfigState,
    rules: LearningRules,
    *,
    simulations: int,
    exploration: float = 1.0,
    seconds: float | None = None,
) -> JobOrder:
    """Games by the generator, as many as fill the time of one job.

    RingRift's own program is given the time itself, hands over the games that are not finished by then, and
    goes on with those that others handed over. A user's own is given a number of games.
    """
    params: dict[str, Any] = {
        "config": state.config,
        "games": selfplay_games(state, rules),
        "out": OUT,
        "seed": order_seed(state, rules, "selfplay"),
        "simulations": simulations,
        "temperature": exploration,
        "slots": rules.selfplay_slots,
        "games_per_shard": GAMES_MAX,
    }
    inputs: dict[str, str] = {}
    if state.generator is not None:
        inputs = model_files("generator", state.models[state.generator])
        params["model"] = f"{INPUTS}/generator{WEIGHTS_SUFFIX}"
    if rules.selfplay_program == RINGRIFT_PROGRAM:
        resumed = {f"unfinished-{at}.json": each.digest for at, each in enumerate(_to_resume(state, rules))}
        inputs |= resumed
        params |= {
            "games": GAMES_MAX if state.generator is not None else _games_without_network(state, rules),
            "seconds": rules.selfplay_job_s if seconds is None else seconds,
            "hand_over": True,
            "prove": True,
            **msgspec.structs.asdict(play_rules(state.config)),
            **tuned_search(state),
            "resume": [f"{INPUTS}/{name}" for name in resumed],
        }
    return JobOrder(config=state.config, params=params, inputs=inputs, program=rules.selfplay_program)


def _to_resume(state: ConfigState, rules: LearningRules) -> list[Unfinished]:
    """Files of unfinished games, the furthest played first; no more games than a job plays at a time.

    Alone go a file with more games than that, and one whose job failed: if it is the reason, no other file is
    given up because of it.
    """
    chosen: list[Unfinished] = []
    room = rules.selfplay_slots
    newest = reversed(state.available_unfinished())
    for each in sorted(newest, key=lambda held: (held.failures, -held.moves / held.games)):
        if not chosen and (each.failures or each.games > room):
            return [each]
        if each.games <= room and not each.failures and len(chosen) < RESUMED_FILES_MAX:
            chosen.append(each)
            room -= each.games
    return chosen


def selfplay_games(state: ConfigState, rules: LearningRules) -> int:
    """How many games fill one job at the pace of this generator, and no more than the next training needs."""
    recent = list(islice((s for s in reversed(state.shards.values()) if s.games), RECENT_SHARDS))
    same = [shard for shard in recent if shard.model == state.generator]
    cpu_s = sum(shard.cpu_s for shard in same)
    if state.generator is None or cpu_s <= 0:  # without a network there is little to learn from more games
        return rules.selfplay_games_first
    games = sum(shard.games for shard in same)
    wanted = games / cpu_s * rules.selfplay_job_s
    lacking = rows_missing(state.bucket, rules.bucket, rows_total=state.rows, has_model=bool(state.models))
    lacking -= state.totals[f"rows {ShardState.UNCHECKED}"]
    if lacking > 0:
        rows_per_game = max(1.0, sum(shard.rows for shard in same) / games)
        wanted = min(wanted, max(lacking / rows_per_game, rules.selfplay_games_first))
    return max(GAMES_MIN, min(GAMES_MAX, round(wanted)))


def _games_without_network(state: ConfigState, rules: LearningRules) -> int:
    """A slot's part of what the first network still needs.

    Such games take a fraction of a second and teach little: with more of them than needed, the trainings of
    the first minutes would learn from hardly anything else.
    """
    lacking = rules.bucket.rows_first_min - _rows_played(state)
    return max(GAMES_MIN, min(GAMES_MAX, ceil(lacking / _rows_a_game(state) / max(1.0, state.slots))))


def rows_without_network(state: ConfigState) -> float:
    """Rows for the first network: checked, to be checked, and expected of the games under way."""
    games = sum(int(job.order.params.get("games", 0)) for job in state.open_of("selfplay"))
    return _rows_played(state) + games * _rows_a_game(state)


def _rows_played(state: ConfigState) -> int:
    return state.rows + state.totals[f"rows {ShardState.UNCHECKED}"]


def _rows_a_game(state: ConfigState) -> float:
    recent = list(islice((shard for shard in reversed(state.shards.values()) if shard.games), RECENT_SHARDS))
    if not recent:
        return ROWS_A_GAME_FIRST
    return max(1.0, sum(shard.rows for shard in recent) / sum(shard.games for shard in recent))


def validate_order(state: ConfigState, shards: Sequence[Shard]) -> JobOrder:
    names = [shard_name(shard) for shard in shards]
    params = {"shards": [f"{INPUTS}/{name}" for name in names], "out": OUT}
    inputs = {name: shard.digest for name, shard in zip(names, shards, strict=True)}
    return JobOrder(config=state.config, params=params, inputs=inputs)


def export_order(state: ConfigState, rules: LearningRules, shards: Sequence[Shard]) -> JobOrder:
    """New games as one more file of samples. They were checked before: the reports come along."""
    inputs = {shard_name(shard): shard.digest for shard in shards}
    reports = {report_name(shard): shard.report for shard in shards if shard.report is not None}
    searched = all(shard.model is not None for shard in shards)
    params = {
        "shards": [f"{INPUTS}/{name}" for name in inputs],
        "reports": [f"{INPUTS}/{name}" for name in reports],
        "out": f"{OUT}/samples.npz",
        "rows_max": max(1, sum(shard.rows for shard in shards)),
        "rows_generated": state.rows,
        # A search without a network has no opinion of its own that could be worth learning or surprising.
        "value_mix": rules.value_mix if searched else 0.0,
        **msgspec.structs.asdict(_targets(state) if searched else TargetRules()),
        "half_life_days": 0.0,
        # Our training makes them from the positions: they would be nine tenths of the work.
        "features": "train" in rules.own_programs,
    }
    return JobOrder(config=state.config, params=params, inputs={**inputs, **reports})


def _targets(state: ConfigState) -> TargetRules:
    rules = target_rules(state.config)
    return msgspec.structs.replace(rules, surprise=0.0) if is_stopped(state, PER_ORCHESTRATOR) else rules


def train_order(
    state: ConfigState,
    rules: LearningRules,
    files: Sequence[Samples],
    parent: Model | None,
    *,
    sample_steps: int,
    rate_factor: float = 1.0,
) -> JobOrder:
    """Train on from *parent*, or a new network if there is none, for as long as one piece of training may.

    Without its checkpoint, from the parent's weights with a fresh optimizer.
    """
    checkpoint = "" if parent is None else kept_checkpoint(state, parent)
    taken = 0 if parent is None else parent.rows_seen // rules.batch
    slowed = 1.0 if taken < rules.learning_rate_steps else sqrt(rules.learning_rate_steps / taken)
    rate = rules.learning_rate * slowed * rate_factor
    steps = max(1, sample_steps // rules.batch)
    params, inputs = _training(state, rules, files, parent, steps=steps)
    params |= {
        "seconds": rules.training_job_s,
        "lr": rate,
        "lr_end": rate,
        "warmup_steps": 0 if checkpoint else WARMUP_STEPS,
        "average_decay": rules.average_decay,
        "check_every": steps,  # one look, at the end: the newest weights are what is wanted
        "held_rows": HELD_ROWS,
    }
    if checkpoint:
        inputs[CHECKPOINT_FILE] = checkpoint
        params["checkpoint"] = f"{INPUTS}/{CHECKPOINT_FILE}"
    return JobOrder(config=state.config, params=params, inputs=inputs)


def student_order(
    state: ConfigState,
    rules: LearningRules,
    files: Sequence[Samples],
    parent: Model | None,
    *,
    preset: str,
    purpose: str,
) -> JobOrder:
    """Teach a network beside the line of champions, from the first rate to the last in one training."""
    rows = sum(samples.rows for samples in files)
    steps = max(1, round(rules.bucket.steps_per_row * rows) // rules.batch)
    params, inputs = _training(state, rules, files, parent, steps=steps)
    params |= {
        "preset": preset,
        "lr": rules.learning_rate,
        "lr_end": rules.learning_rate * LAST_RATE_SHARE,
        "warmup_steps": min(STUDENT_WARMUP_STEPS, steps),
        "average_decay": max(0.0, 1.0 - AVERAGED_SHARE / steps),
    }
    return JobOrder(config=state.config, params=params, inputs=inputs, purpose=purpose)


def _training(
    state: ConfigState,
    rules: LearningRules,
    files: Sequence[Samples],
    parent: Model | None,
    *,
    steps: int,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Parameters and inputs that all trainings have; the newest file comes last."""
    inputs = {f"samples-{number:03d}.npz": samples.digest for number, samples in enumerate(files)}
    params: dict[str, Any] = {
        "config": state.config,
        "samples": [f"{INPUTS}/{name}" for name in inputs],
        "out": f"{OUT}/model{WEIGHTS_SUFFIX}",
        "preset": rules.preset,
        "seed": order_seed(state, rules, "train"),
        "steps": steps,
        "batch": rules.batch,
        "hold_out": rules.hold_out,
        "patience": 0,
    }
    if rules.weight_decay is not None:
        params["weight_decay"] = rules.weight_decay
    if parent is not None:
        inputs |= model_files("parent", parent)
        params["parent"] = f"{INPUTS}/parent{WEIGHTS_SUFFIX}"
    return params, inputs


def begun_with(order: JobOrder, warm: CascadeStart) -> JobOrder:
    """The training of a new network that begins with what fits of another config's."""
    files = {f"warm{WEIGHTS_SUFFIX}": warm.model, "warm.json": warm.card}
    params = {**order.params, "warm_start": f"{INPUTS}/warm{WEIGHTS_SUFFIX}"}
    return msgspec.structs.replace(order, params=params, inputs={**order.inputs, **files})


def evaluate_order(
    state: ConfigState,
    rules: LearningRules,
    candidate: Model,
    pairings: Sequence[Pairing],
    *,
    purpose: str,
) -> JobOrder:
    """Paired games of *candidate*, one pairing after another until one is not passed.

    Opponents are digests of models, or names of baselines.
    """
    inputs, gates = model_files("candidate", candidate), []
    for number, pairing in enumerate(pairings):
        text, model = pairing.opponent, state.player(pairing.opponent)
        if model is not None:
            inputs |= model_files(f"opponent-{number}", model)
            text = player_text(f"opponent-{number}{WEIGHTS_SUFFIX}", rules.evaluation_simulations)
        gates.append({"opponent": text, **_gate(pairing)})
    params: dict[str, Any] = {
        "config": state.config,
        "candidate": player_text(f"candidate{WEIGHTS_SUFFIX}", rules.evaluation_simulations),
        "gates": gates,
        "out": OUT,
        "seconds": rules.evaluation_job_s,
        "batch": _judging_batch(state, rules, pairings),
        "seed": order_seed(state, rules, "evaluate"),
    }
    if "evaluate" in rules.own_programs:
        # A program that knows no gates plays so many games against each opponent.
        games = ordered_games(params)
        params |= {"opponents": list(games), "games": min(games.values()), "test": "none"}
    return JobOrder(config=state.config, params=params, inputs=inputs, purpose=purpose)


def _gate(pairing: Pairing) -> dict[str, Any]:
    """A pairing as the job takes it; its games are counted together with those before."""
    gate: dict[str, Any] = {"purpose": pairing.purpose}
    test, before = pairing.test, pairing.before
    if isinstance(test, SequentialTest):
        config = test.config
        gate |= {"test": "sprt", "games": test.games_max, "elo0": config.elo0, "elo1": config.elo1}
        gate |= {"alpha": config.alpha, "beta": config.beta, "clear_gains": test.clear_gains}
    elif isinstance(test, FloorTest):
        gate |= {"test": "floor", "games": test.games_max, "floor": test.share, "games_min": test.games_min}
    else:
        return {**gate, "test": "none", "games": pairing.games}
    if before is not None and before.games:
        counts = {"games": before.games, "wins": before.wins, "draws": before.draws, "losses": before.losses}
        gate["prior"] = {**counts, "pairs": list(before.pairs), "places": list(before.places)}
    return gate


def match_batch(state: ConfigState, rules: LearningRules) -> int:
    """How many games of a match go on at a time: as many as one job has time for, as measured.

    More make better use of the networks; but all that have begun are played to their end.
    """
    recent = [match for match in state.matches[-RECENT_MATCHES:] if match.cpu_s > 0]
    if not recent:
        large = base_rows(state.config) >= LARGE_BOARD_ROWS
        openings = OPENINGS_AT_A_TIME_FIRST_LARGE if large else OPENINGS_AT_A_TIME_FIRST
        return openings * board_and_players(state.config)[1]
    speed = sum(match.games for match in recent) / sum(match.cpu_s for match in recent)
    wanted = min(GAMES_AT_A_TIME_MAX, speed * rules.evaluation_job_s)
    players = recent[-1].players
    return max(1, int(wanted) // players) * players


def _judging_batch(state: ConfigState, rules: LearningRules, pairings: Sequence[Pairing]) -> int:
    """Fewer games at a time while a few may decide: those that go on beside them would be played in vain."""
    batch, first = match_batch(state, rules), pairings[0]
    may_end_soon = isinstance(first.test, SequentialTest) and first.test.clear_gains
    if not may_end_soon or (first.before is not None and first.before.games) or state.gpus:
        return batch
    return min(batch, GAMES_AT_A_TIME_NEW)


def tournament_order(state: ConfigState, rules: LearningRules, models: Sequence[Model]) -> JobOrder:
    """Every pair of *models* meets."""
    inputs: dict[str, str] = {}
    for number, model in enumerate(models):
        inputs |= model_files(f"player-{number}", model)
    texts = [
        player_text(f"player-{number}{WEIGHTS_SUFFIX}", rules.evaluation_simulations)
        for number in range(len(models))
    ]
    params = {
        "config": state.config,
        "players": texts,
        "out": OUT,
        "games": rules.tournament_games,
        "seed": order_seed(state, rules, "tournament"),
    }
    return JobOrder(config=state.config, params=params, inputs=inputs, purpose=RATING)


def order_seed(state: ConfigState, rules: LearningRules, kind: str) -> int:
    """Every order of a kind has a seed of its own, and so has every run whose rules say so."""
    return rules.seed * SEED_STEP + state.issued[kind] + 1


def model_files(name: str, model: Model) -> dict[str, str]:
    """A model is two files: the weights and the card beside them."""
    return {f"{name}{WEIGHTS_SUFFIX}": model.digest, f"{name}.json": model.card}


def shard_name(shard: Shard) -> str:
    return f"{shard.digest[:NAME_DIGITS]}.shard.db"


def unfinished_name(held: Unfinished) -> str:
    return f"{held.digest[:NAME_DIGITS]}.unfinished.json"


def report_name(shard: Shard) -> str:
    return f"{shard_name(shard)}.report.json"
