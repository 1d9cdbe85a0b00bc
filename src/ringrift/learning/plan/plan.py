"""What a config should do next, and why: one pure function of what is known.

`plan` looks at the state and the time and returns three things: what is decided (facts to be written), what
work is wanted (ordered when a worker is free), and for every stage a sentence that says why it does or does
not do something now. It is asked again after every change; an event is only a reason to ask.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from statistics import median

import msgspec

from ringrift.learning.facts.facts import (
    PRICE_TOPIC,
    AnyFact,
    Archived,
    GeneratorMoved,
    Noted,
    Promoted,
    Rejected,
    Staged,
)
from ringrift.learning.facts.records import (
    BucketRules,
    Model,
    ModelState,
    Shard,
    ShardState,
    rows_missing,
    steps_to_train,
)
from ringrift.learning.facts.results import OUTSIDE
from ringrift.learning.facts.state import ConfigState, OpenJob
from ringrift.learning.models import kept_checkpoint, not_needed
from ringrift.learning.plan.evaluation import decided_generator, plan_judgment, plan_tournament, who_plays
from ringrift.learning.plan.orders import (
    TUNING,
    CascadeStart,
    ConfigPlan,
    Snapshot,
    Wanted,
    begun_with,
    export_order,
    is_running,
    rows_without_network,
    selfplay_games,
    selfplay_order,
    train_order,
    validate_order,
    warm_start,
)
from ringrift.learning.plan.rules import LearningRules
from ringrift.learning.plan.stages import (
    AUTO_PROMOTION,
    CASCADE_TRAINING,
    EVALUATION,
    NEEDED,
    NPZ_COMBINATION,
    Gate,
    health_gate,
    is_stopped,
    stage_gate,
    stopped_gate,
    stops_of,
)
from ringrift.learning.plan.students import plan_distillation, plan_small_net
from ringrift.learning.plan.training_data import (
    FILES_MAX,
    data_wait,
    decided_reset,
    distrusted_models,
    fit_shards,
    freshness_note,
    missing_files,
    next_export,
    refused_lately,
    rows_in_window,
    unsampled_shards,
    window_files,
)
from ringrift.learning.plan.trust import (
    decided_by_recall,
    decided_by_standing,
    plan_diagnosis,
    plan_recomputation,
)
from ringrift.learning.tuning import dropped_finding, trials
from ringrift.work.job.protocol import RINGRIFT_PROGRAM
from ringrift.work.shares import PREPARING, FairTurns, Supply, next_kind, search_budget, wanted_items

PROMOTIONS = (GeneratorMoved, Promoted, Rejected, Staged)  # what follows from verdicts
UNCHECKED_SHARDS_MAX = 64
CHECKED_WITHIN_S = 60.0  # what waits for a check for longer piles up
PRICE_S_MIN = 600.0  # between two changes of what a row earns
SPEEDS_SEEN = 5
SHARDS_SEEN = 20
NEW_ROWS_SHARE = 0.08  # of all rows, that are worth a training
STAYS_SHARE = 0.8  # of the depth that there is: down to it nothing changes
DEEPER = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)  # few steps, so that the number rests
SELFPLAY_S_MIN = 4.0  # of a job: starting one costs about a tenth of it
SPEED_ROWS_MIN = 500  # rows before their pace is believed
PLAYED_SHARE = 0.8  # of the slots that do not train: judging and checking take the rest
TURNS_AHEAD = 3.0  # of self-play whose rows may be on their way besides
JOBS_FREE = 4  # of self-play that may be open in any case: few slots never wait for what is being played
CHUNKS_AHEAD = 2.0  # pieces that one training may take, and that may wait before games are held back


def plan(snapshot: Snapshot) -> ConfigPlan:
    """Decide for one config. The same snapshot gives the same plan."""
    made = ConfigPlan(rows_collected=_rows_collected(snapshot), games_collected=_games_collected(snapshot))
    # A recall changes the champion before anything else is thought of.
    turned = decided_by_recall(snapshot.state, snapshot.rules, snapshot.now_s)
    if turned is not None:
        made.decided.append(turned)
        return made
    fact: AnyFact | None = decided_by_standing(snapshot)
    if fact is None:
        fact = decided_reset(snapshot.state, snapshot.rules, now_s=snapshot.now_s)
    if fact is not None:
        made.decided.append(fact)
        return made
    if (moved := decided_generator(snapshot)) is not None:
        made.decided.append(moved)
    for stage, think in _THOUGHTS.items():
        gate = _gate(snapshot, stage)
        if gate.open:
            think(snapshot, made)
            continue
        made.say_closed(stage, gate)
        if gate.decision is not None:
            made.decided.append(gate.decision)
    made.decided += [
        Archived(at_s=snapshot.now_s, model=digest, reason=reason)
        for digest, reason in not_needed(snapshot.state, snapshot.now_s)
    ]
    if (fresh := freshness_note(snapshot.state, is_due=False, now_s=snapshot.now_s)) is not None:
        made.decided.append(fresh)
    if (priced := _price(snapshot)) is not None:
        made.decided.append(priced)
    _judge_findings(snapshot, made)
    _leave_out_stopped(snapshot.state, made, now_s=snapshot.now_s)
    return made


def _judge_findings(snapshot: Snapshot, made: ConfigPlan) -> None:
    """Drop what a search found if candidates speak against it, and say what is in force."""
    found = trials(snapshot.state)
    if (dropped := dropped_finding(found, snapshot.rules, snapshot.now_s)) is not None:
        made.decided.append(dropped)
    for trial in found:
        made.say(TUNING, trial.in_words(), will=trial.is_in_force)


def _rows_collected(snapshot: Snapshot) -> int:
    """How many rows may be there that no training was offered: for one that runs, the next, and on their way.

    Whoever looks for what piles up must not count them: they are there because the next training needs them.
    """
    pieces = 2 * CHUNKS_AHEAD + TURNS_AHEAD
    rows = round(pieces * _chunk_steps(snapshot) / snapshot.rules.bucket.steps_per_row)
    return rows if snapshot.state.models else max(rows, snapshot.rules.bucket.rows_first_min)


def _games_collected(snapshot: Snapshot) -> int:
    """How many games may be unchecked: all until a check is due, then those that have come since."""
    shards, now_s = snapshot.state.unchecked(), snapshot.now_s
    if snapshot.state.open_of("validate") or _is_check_due(snapshot):
        shards = [shard for shard in shards if now_s - shard.made_s < CHECKED_WITHIN_S]
    return sum(shard.games for shard in shards)


def plan_next_games(snapshot: Snapshot, made: ConfigPlan) -> None:
    """Change *made* to what it is after the order of games that it wanted, which nothing else depends on."""
    made.wanted = [each for each in made.wanted if each.stage != "selfplay"]
    made.explanations = [each for each in made.explanations if each.stage != "selfplay"]
    _selfplay(snapshot, made)


def _leave_out_stopped(state: ConfigState, made: ConfigPlan, *, now_s: float) -> None:
    """Take out of *made* what nobody plans now of judging and of what follows from verdicts, and say so.

    Judging is no stage with one gate: whatever was played is decided on, also while no more is ordered.
    """
    held = health_gate(state, "evaluate", now_s=now_s)
    if (stopped := stopped_gate(state, EVALUATION) or held) is not None:
        made.wanted = [each for each in made.wanted if each.stage != "evaluate"]
        made.explanations = [each for each in made.explanations if each.stage != "evaluate"]
        made.say_closed("evaluate", stopped)
    if (stopped := stopped_gate(state, AUTO_PROMOTION)) is not None:
        made.decided = [fact for fact in made.decided if not isinstance(fact, PROMOTIONS)]
        made.say_closed("promote", stopped)
    for name, stop in stops_of(state).items():
        if name not in NEEDED:  # of those the stages say so themselves
            made.say_closed(name, Gate(False, stop.reason, paused=stop.by_person, stopped=True))


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
    """Wanted as long as training can use the rows while they are fresh."""
    state, rules = snapshot.state, snapshot.rules
    simulations = selfplay_simulations(snapshot)
    if why := _why_no_more_first_games(snapshot) or _why_no_games(snapshot):
        made.say("selfplay", why)
        return
    missing = _missing(snapshot)
    why = f"; the next training waits for {missing:,} more rows" if missing else ""
    is_timed = rules.selfplay_program == RINGRIFT_PROGRAM
    seconds, factor = _selfplay_s(snapshot), snapshot.feedback.exploration
    much = f"{seconds:g} s of games" if is_timed else f"{selfplay_games(state, rules)} games"
    order = selfplay_order(state, rules, simulations=simulations, exploration=factor, seconds=seconds)
    resumed = sum(held.games for d in order.inputs.values() if (held := state.unfinished.get(d)) is not None)
    first = f", first {resumed} that are unfinished" if resumed else ""
    made.want("selfplay", order, f"{much}{first}, {simulations} simulations a move: {who_plays(state)}{why}")


def selfplay_simulations(snapshot: Snapshot) -> int:
    """Simulations of a move: the number of the rules, or by how far the config has come, times feedback."""
    state, rules, factor = snapshot.state, snapshot.rules, snapshot.feedback.simulations
    if rules.search_budget == "fixed":
        return max(1, round(rules.simulations * _depth(snapshot)))
    return search_budget(state.config, games=state.games, rating=snapshot.rating, intensity=factor)


def _selfplay_s(snapshot: Snapshot) -> float:
    """How long a job plays: until all slots together made the rows of a piece of training, as measured.

    They make no more of them than training takes: on many slots games would else be ordered every moment.
    """
    state, rules = snapshot.state, snapshot.rules
    recent = _recent_shards(state)
    if state.generator is None:
        return rules.selfplay_job_s  # so many games end it
    if not recent or _rows(recent) < SPEED_ROWS_MIN:
        return min(rules.selfplay_job_s, SELFPLAY_S_MIN)
    rows_per_s = _rows(recent) / sum(shard.cpu_s for shard in recent) * max(1.0, state.slots - 1.0)
    taken_per_s = _training_speed(state) / rules.bucket.steps_per_row
    rows_per_s = min(rows_per_s, taken_per_s) if taken_per_s else rows_per_s
    wanted_s = _chunk_steps(snapshot) / rules.bucket.steps_per_row / rows_per_s
    # In steps, so that the same is ordered until it matters.
    return min(rules.selfplay_job_s, SELFPLAY_S_MIN * max(1, round(wanted_s / SELFPLAY_S_MIN)))


def _depth(snapshot: Snapshot) -> float:
    """How many times the simulations of the rules: as feedback asks, and more where slots would be left over.

    One training at a time learns from so many rows a second; of the time of slots beyond those that play as
    many, a deeper search makes better rows. The bound is for both: a plateau would else take ever more slots.
    """
    state, rules, asked = snapshot.state, snapshot.rules, snapshot.feedback.simulations
    speed = _training_speed(state, state.gpus_since_s) or _training_speed(state)
    playing = state.slots - 1.0
    recent = _recent_shards(state)
    if playing <= 1.0 or not speed or not recent:
        return asked
    rows_per_s = (
        sum(s.rows * s.simulations for s in recent) / sum(s.cpu_s for s in recent) / rules.simulations
    )
    surplus = playing * PLAYED_SHARE * rows_per_s * rules.bucket.steps_per_row / speed
    wanted, before = asked * max(1.0, surplus), recent[0].simulations / rules.simulations
    nearest, now = (min(DEEPER, key=lambda factor: abs(factor - depth)) for depth in (wanted, before))
    # Between two steps it stays with the deeper one: it would else go to and fro, and leave slots idle.
    return now if nearest < now and wanted > STAYS_SHARE * now else nearest


def _why_no_more_first_games(snapshot: Snapshot) -> str:
    """Why more games without a network would not help; empty if they are needed, or a network plays.

    They are fast, so those that are not needed would soon be most of what is learned from.
    """
    state, rules = snapshot.state, snapshot.rules
    if state.generator is not None or state.models:
        return ""
    first_min = rules.bucket.rows_first_min
    if state.open_of("export", "train") or (
        state.rows >= first_min
        and _steps(snapshot) > 0
        and any(fit_shards(state))
        and data_wait(state, now_s=snapshot.now_s) is None
    ):
        return "the first model is being made, and more games without a network teach little"
    # Rows that were checked and are not fit to learn from are no reason to wait.
    if state.rows < first_min <= rows_without_network(state):
        return f"the games that are played or checked now are enough for the first model ({first_min:,} rows)"
    return ""


def _why_no_games(snapshot: Snapshot) -> str:
    """Why more rows would only wait; empty if training is ready for them.

    What is being played counts too: hundreds of slots play more in one turn than a training takes in minutes.
    """
    state, rules = snapshot.state, snapshot.rules
    if state.generator is None:
        return ""
    unchecked = state.totals[f"rows {ShardState.UNCHECKED}"] * rules.bucket.steps_per_row
    waiting = state.bucket.available - _steps_ordered(state) + unchecked
    enough = CHUNKS_AHEAD * _chunk_steps(snapshot)
    # A training that waits for newer games waits for these.
    if waiting >= enough and (unchecked >= enough or data_wait(state, now_s=snapshot.now_s) is None):
        return (
            f"{waiting:,.0f} sample-steps wait to be trained, {enough:,.0f} are enough: "
            "more rows would grow old"
        )
    playing, speed = len(state.open_of("selfplay")), _training_speed(state, state.gpus_since_s)
    if playing < JOBS_FREE or not _training_speed(state):
        return ""
    if not speed:
        return f"{playing} jobs play until a training shows how much it takes with the GPUs there are now"
    coming = _rows_in_play(snapshot) * rules.bucket.steps_per_row
    enough += TURNS_AHEAD * speed * _selfplay_s(snapshot)
    if waiting + coming < enough:
        return ""
    return (
        f"{waiting:,.0f} sample-steps wait to be trained and about {coming:,.0f} are being played, "
        f"{enough:,.0f} are enough: more rows would grow old"
    )


def _rows_in_play(snapshot: Snapshot) -> float:
    """What the open jobs of self-play bring, at the pace of the last."""
    state, rules = snapshot.state, snapshot.rules
    if recent := _recent_shards(state):
        rows_per_s = _rows(recent) / sum(shard.cpu_s for shard in recent)
    else:  # the games without a network are all there is to go by
        rows = state.rows + state.totals[f"rows {ShardState.UNCHECKED}"]
        rows_per_s = rows / max(state.cpu_of.get("selfplay", 0.0), 1.0)
    played_s = sum(
        float(job.order.params.get("seconds", rules.selfplay_job_s)) for job in state.open_of("selfplay")
    )
    return rows_per_s * played_s


def _validate(snapshot: Snapshot, made: ConfigPlan) -> None:
    """Check games by the rules as soon as they would pay for a training, or before they are many."""
    state = snapshot.state
    if is_running(snapshot, made, "validate"):
        return
    shards = state.unchecked()
    rows, missing = state.totals[f"rows {ShardState.UNCHECKED}"], _missing(snapshot)
    if not shards:
        made.say("validate", "all games are checked")
    elif _is_check_due(snapshot):
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


def _is_check_due(snapshot: Snapshot) -> bool:
    """Whether the unchecked games would pay for a training, or are many."""
    state, enough, missing = snapshot.state, _rows_worth_a_job(snapshot), _missing(snapshot)
    rows = state.totals[f"rows {ShardState.UNCHECKED}"]
    shards = state.unchecked()
    # How many rows games from outside have, only their check finds out.
    is_many = len(shards) >= UNCHECKED_SHARDS_MAX or any(shard.worker == OUTSIDE for shard in shards)
    return is_many or (bool(shards) and rows >= min(missing or enough, enough))


# --- samples and training ---------------------------------------------------------------------------------


def _export(snapshot: Snapshot, made: ConfigPlan) -> None:
    """Make samples of what was checked since the last time: each game once."""
    state, rules = snapshot.state, snapshot.rules
    if is_running(snapshot, made, "export"):
        return
    shards = next_export(state, rules)
    if not shards:
        nothing = not any(fit_shards(state))
        made.say(
            "export", "no checked game is fit to learn from" if nothing else "all checked games are exported"
        )
        return
    rows, enough = _rows(shards), _rows_worth_a_job(snapshot)
    waits = not _steps(snapshot) or state.open_of("train")  # nobody would read a small file now
    if rows < enough and waits:
        made.say("export", f"{rows:,} checked rows are not exported yet; {enough:,} are worth a file")
        return
    made.want("export", export_order(state, rules, shards), f"{rows:,} rows of {len(shards)} shards")


def _train(snapshot: Snapshot, made: ConfigPlan) -> None:
    """Go on training as soon as rows have earned it, whatever is being judged."""
    state, rules = snapshot.state, snapshot.rules
    if is_running(snapshot, made, "train"):
        return
    steps = _steps(snapshot)
    if not steps:
        missing = f"{_missing(snapshot):,} more checked rows have to earn it"
        made.say("train", "; ".join(filter(None, (missing, refused_lately(state)))))
        return
    files = window_files(state, rules)
    if is_stopped(state, NPZ_COMBINATION):
        files = files[-1:]
    left = _rows(unsampled_shards(state, rules)) * rules.bucket.steps_per_row
    if not files or left >= state.bucket.available / 2:
        made.say("train", "waits for the export of the newest games")
        return
    if (wait := data_wait(state, now_s=snapshot.now_s)) is not None:
        made.say("train", wait.reason, until_s=wait.until_s)
        if (note := freshness_note(state, is_due=True, now_s=snapshot.now_s)) is not None:
            made.decided.append(note)
        return
    parent = training_parent(state, rules)
    is_first = parent is None and not state.models
    warm = warm_start(state) if is_first and not is_stopped(state, CASCADE_TRAINING) else None
    rows = sum(samples.rows for samples in files)
    begun = _beginning(state, parent, warm, rules)
    reason = f"new rows have earned {steps:,} sample-steps; {begun} on {rows:,} rows"
    if parent is None and state.models:
        # It competes with a champion that saw every row of the run, so one piece would never do.
        steps = max(steps, round(rules.bucket.steps_per_row * rows))
    rate = snapshot.feedback.learning_rate
    order = train_order(state, rules, files, parent, sample_steps=steps, rate_factor=rate)
    made.want("train", order if warm is None else begun_with(order, warm), reason)


def _beginning(
    state: ConfigState, parent: Model | None, warm: CascadeStart | None, rules: LearningRules
) -> str:
    if parent is not None:
        begun = f"from model {parent.number} ({parent.digest[:12]})"
        if parent.checkpoint and not kept_checkpoint(state, parent):
            return f"{begun}, by its weights with a fresh optimizer as its checkpoint is gone or unusable,"
        return begun
    if warm is not None:
        return f"a new {rules.preset} network with what fits of {warm.config}'s ({warm.model[:12]})"
    return f"a new {rules.preset} network"


def training_parent(state: ConfigState, rules: LearningRules) -> Model | None:
    """Train on from the newest model, or from where training was set back to.

    A model of another size is no beginning: a line of its own size goes on from its newest.
    """
    unusable = {*distrusted_models(state, rules), *missing_files(state)}
    first = state.models[state.reset.model] if state.reset is not None and state.restarts else None
    for model in (first, *reversed(state.models.values())):
        if model is None or model.digest in unusable or model.state is ModelState.ROLLED_BACK:
            continue
        if model.preset in ("", rules.preset):
            return model
    return None


# --- how much -----------------------------------------------------------------------------------------------


def _steps(snapshot: Snapshot) -> int:
    """What a training may spend now; 0 until new rows have earned a piece."""
    state, rules = snapshot.state, _bucket_rules(snapshot)
    has_model = bool(state.models)
    if not steps_to_train(state.bucket, rules, rows_total=state.rows, has_model=has_model):
        return 0
    pieces = CHUNKS_AHEAD if has_model else 1
    return min(int(state.bucket.available), round(pieces * rules.chunk_steps))


def _missing(snapshot: Snapshot) -> int:
    """How many more checked rows the next training waits for."""
    state = snapshot.state
    rules = _bucket_rules(snapshot)
    return rows_missing(state.bucket, rules, rows_total=state.rows, has_model=bool(state.models))


def _bucket_rules(snapshot: Snapshot) -> BucketRules:
    return msgspec.structs.replace(snapshot.rules.bucket, chunk_steps=_chunk_steps(snapshot))


def _chunk_steps(snapshot: Snapshot) -> int:
    """What one piece of training spends: what a share of all rows earns.

    A network that has seen few rows changes much with a few more, and should play soon after. Later a piece
    grows, to half of the time that it may take at most, so that starting it is a small part of it; and with a
    window of many files each new one is large enough that the order need not name hundreds.
    """
    state, rules = snapshot.state, snapshot.rules
    price = rules.bucket.steps_per_row
    # What a GPU earned in a second, nobody would train for minutes after it went: the first piece is small.
    half = _training_speed(state, state.gpus_since_s) * rules.training_job_s / 2
    grown = min(NEW_ROWS_SHARE * state.rows * price, half)
    by_window = 2 * rows_in_window(state, rules) * price / FILES_MAX
    most = rules.bucket.cap_steps / (2 * CHUNKS_AHEAD)
    return round(max(rules.bucket.chunk_steps, min(max(grown, by_window), most)))


def _rows_worth_a_job(snapshot: Snapshot) -> int:
    """Rows that are worth a check or an export of their own while no training waits: a piece.

    Of short games a training takes seconds, and starting jobs for halves of a piece costs what they take.
    """
    return round(_chunk_steps(snapshot) / snapshot.rules.bucket.steps_per_row)


def _recent_shards(state: ConfigState) -> list[Shard]:
    """The newest games with a network whose cost is known: by them the pace of playing is measured.

    Games from before GPUs came or went count only until there are others.
    """
    newest = islice(fit_shards(state), SHARDS_SEEN)
    known = [shard for shard in newest if shard.model is not None and shard.cpu_s > 0]
    return [shard for shard in known if shard.made_s >= state.gpus_since_s] or known


def _training_speed(state: ConfigState, since_s: float = 0.0) -> float:
    """Sample-steps a second of the last trainings; 0 before the first that was ordered after *since_s*."""
    speeds = [
        float(speed)
        for model in islice(reversed(state.models.values()), SPEEDS_SEEN)
        if isinstance(speed := model.losses.get("samples_per_s"), int | float)
        and model.history[0][0] >= since_s
    ]
    return median(speeds) if speeds else 0.0


def _steps_ordered(state: ConfigState) -> int:
    """Sample-steps of trainings that are under way: they are spent when those end."""
    orders = [job.order.params for job in state.open_of("train")]
    return sum(int(params.get("steps", 0)) * int(params.get("batch", 0)) for params in orders)


def _rows(shards: Sequence[Shard]) -> int:
    return sum(shard.rows for shard in shards)


_THOUGHTS: dict[str, Callable[[Snapshot, ConfigPlan], None]] = {
    "evaluate": plan_judgment,
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


# Which of the wanted work is ordered now: a few items at a time, when a worker can take them.
#
# Work is pulled. It is the turn of the config that has had the least processor time for its share, whatever
# it was spent on; and the config does what it needs most. Games fill the slots and one more order waits, so
# that no worker is idle while the next is planned; everything else takes the place of games, which give way
# at once.


# Which config was served how much processor time, by jobs of every kind.
#
# Kept in memory only. After a restart everybody begins anew, which is fair enough.


SELFPLAY = "selfplay"
JOB_S_FIRST = {"selfplay": 20.0, "validate": 2.0, "export": 2.0, "train": 20.0, "evaluate": 20.0}
JOB_S_OTHER = 30.0
NEWEST_SHARE = 0.3  # of the newest measurement in what is expected of the next job


@dataclass(slots=True)
class Effort:
    """A job counts with what is expected of it until it ends."""

    turns: FairTurns = FairTurns()
    expected_s: dict[tuple[str, str], float] = field(default_factory=dict)  # config and kind: of one job
    booked_s: dict[str, float] = field(default_factory=dict)  # open job: what was expected of it

    def start(self, config: str, job: OpenJob, *, share: float) -> None:
        first_s = JOB_S_FIRST.get(job.kind, JOB_S_OTHER)
        expected_s = self.expected_s.get((config, job.kind), first_s)
        self.booked_s[job.job_id] = expected_s
        self.turns = self.turns.started(config, share=share, expected_s=expected_s)

    def end(self, config: str, job: OpenJob, cpu_s: float | None, *, share: float) -> None:
        """*cpu_s* is None for a job that failed: it served nobody."""
        booked_s, measured_s = self.booked_s.pop(job.job_id, 0.0), cpu_s or 0.0
        self.turns = self.turns.ended(config, share=share, expected_s=booked_s, measured_s=measured_s)
        if cpu_s is not None:
            before_s = self.expected_s.get((config, job.kind), cpu_s)
            self.expected_s[config, job.kind] = before_s + NEWEST_SHARE * (cpu_s - before_s)


# The choice among what is wanted.


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the workers can take."""

    slots: int
    open_selfplay: int
    open_other: int
    throttle: float = 1.0  # the part of full speed that is left to games

    def supply(self) -> Supply:
        """How many more games may be ordered now, and why."""
        open_jobs = self.open_selfplay + self.open_other
        claimed = min(self.slots, open_jobs)
        return wanted_items(self.slots, ready=open_jobs - claimed, claimed=claimed, throttle=self.throttle)

    def has_room_for(self, kind: str) -> bool:
        if kind in PREPARING:
            return True  # at most one of each a config, and short
        if kind == SELFPLAY:
            return self.supply().items > 0
        return self.open_other < self.slots


@dataclass(frozen=True, slots=True)
class Choice:
    """What to order next."""

    config: str
    wanted: Wanted


def choose(
    plans: Mapping[str, ConfigPlan],
    capacity: Capacity,
    *,
    config_served: Mapping[str, float],
    config_shares: Mapping[str, float],
    held: Collection[str] = (),
) -> Choice | None:
    """The next order, or None while nothing is wanted or nobody could take it; kinds in *held* wait."""
    offers: dict[str, Wanted] = {}
    for config, plan in plans.items():
        possible = [
            each for each in plan.wanted if each.kind not in held and capacity.has_room_for(each.kind)
        ]
        if possible:
            offers[config] = min(possible, key=_rank)
    # Seconds of work that all other work waits for are never held up, but count as every other does.
    preparing = [config for config, wanted in offers.items() if wanted.kind in PREPARING]
    if not offers:
        return None
    config = next_kind(config_served, config_shares, preparing or offers)
    return Choice(config, offers[config])


def _rank(wanted: Wanted) -> int:
    """What a config needs most comes first. Each of the first is wanted only when it is due: a training when
    rows have earned it, a judgment within its share of the time; so games have what is left.
    """
    if wanted.kind in PREPARING:
        return 0
    return _RANKS.get(wanted.stage, 3)


_RANKS = {"train": 1, "evaluate": 2, SELFPLAY: 4}
