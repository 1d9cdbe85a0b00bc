"""From the state of the run to the status that people see, and what holds learning back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice, takewhile
from statistics import median
from typing import Any

import msgspec

from ringrift.health.run_status import (
    ConfigStatus,
    Cost,
    Curve,
    LossPoint,
    RunDecision,
    StageProgress,
    StartStatus,
    WorkerStatus,
)
from ringrift.learning.facts.facts import (
    AnyFact,
    Archived,
    Blocked,
    GeneratorMoved,
    JobEnded,
    JobIssued,
    Noted,
    Promoted,
    Recalled,
    Rejected,
    RolledBack,
    Staged,
    TrainingReset,
    WorkerResumed,
    WorkerSetAside,
)
from ringrift.learning.facts.records import Model, ModelState, ShardState
from ringrift.learning.facts.state import Block, ConfigState, EndedJob
from ringrift.learning.plan.evaluation import waiting_for_verdict, who_plays
from ringrift.learning.plan.orders import EXTRA_STAGES, STAGES, TUNING, ConfigPlan
from ringrift.learning.plan.rules import LearningRules
from ringrift.learning.plan.stages import (
    NEEDED,
    breaker_gate,
    hold_of,
    slot_of,
    stage_gate,
    stop_of,
    stops_of,
)
from ringrift.learning.tuning import trials
from ringrift.work.limits import Pause
from ringrift.work.shares import PREPARING, slots_for
from ringrift.work.worker.records import RunningRecord, WorkerRecord

# What holds learning back, in one sentence with its number.
#
# Every cause has the share of the recent work that it costs; the costliest is named. Games that training
# waits for, which no run can do without, are named when nothing else costs more than it should.


RECENT_S = 900.0
JUDGING_SHARE_MAX = 0.15
PREPARING_SHARE_MAX = 0.05
STARTING_SHARE_MAX = 0.05
IDLE_SHARE_MAX = 0.05
# Less of it says nothing: a worker that has just come is not idle. Many slots are seen for a short time only,
# because of the newest jobs of a config so many are kept.
IDLE_SEEN_S_MIN, IDLE_SLOT_S_MIN = 15.0, 60.0
EARNED_TIMES_MAX = 1.25
UNSHOWN_MIN = 3  # candidates
UNSHOWN_COST = 0.1  # of a candidate that was not shown to be stronger
COST_UNAVOIDABLE, COST_STOPPED = 0.01, 1.0
COST_STAGE = 2.0  # whatever else is found follows from it
JUDGING = ("evaluate", "tournament")
_PASSED = (ModelState.PRODUCTION, ModelState.SUPERSEDED, ModelState.ROLLED_BACK)


class Bottleneck(msgspec.Struct, frozen=True, kw_only=True):
    """The cause that costs most, in a sentence with its number."""

    # stages, failures, workers, slots, games, training, judging, preparing, starting, candidates, nothing
    cause: str
    text: str
    cost: float  # share of the recent work; 1: nothing goes on


class IdleSlots(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the slots that take games did nothing lately, on average."""

    idle: float
    slots: int
    seconds: float  # how far back that looks


def idle_slots(
    states: Sequence[ConfigState],
    workers: Sequence[WorkerRecord],
    running: Sequence[RunningRecord],
    *,
    now_s: float,
) -> IdleSlots | None:
    """What the living workers could have done in the recent past, less what all configs did; None if unknown.

    Work of workers that are gone counts, so too few slots are called idle after a loss, not too many.
    """
    kept_since_s = (
        state.recent_jobs[0].at_s for state in states if len(state.recent_jobs) == state.recent_jobs.maxlen
    )
    since_s = max([now_s - RECENT_S, *kept_since_s])
    able_s = sum(
        slots_for([worker], "selfplay") * max(0.0, now_s - max(since_s, worker.started_s))
        for worker in workers
    )
    seconds = now_s - since_s
    if seconds < IDLE_SEEN_S_MIN or able_s < IDLE_SLOT_S_MIN:
        return None
    done_s = sum(
        max(0.0, min(job.wall_s, job.at_s - since_s)) for state in states for job in state.recent_jobs
    )
    under_way_s = sum(max(0.0, now_s - max(since_s, job.started_s)) for job in running)
    slots = slots_for(workers, "selfplay")
    idle = slots * max(0.0, 1 - (done_s + under_way_s) / able_s)
    return IdleSlots(idle=idle, slots=slots, seconds=seconds)


def bottleneck(
    state: ConfigState, rules: LearningRules, *, now_s: float, idle: IdleSlots | None = None
) -> Bottleneck:
    """What to look at first when *state* should learn faster; *idle* is what no config of the run used."""
    return max((*_causes(state, rules, now_s), *_idle(idle)), key=lambda each: each.cost)


def _idle(found: IdleSlots | None) -> Iterator[Bottleneck]:
    if found is None or found.idle <= IDLE_SHARE_MAX * found.slots:
        return
    text = (
        f"idle slots: {found.idle:.1f} of {found.slots} had no work in the last {found.seconds / 60:.1f} min"
    )
    yield Bottleneck(cause="slots", text=text, cost=found.idle / found.slots)


def _causes(state: ConfigState, rules: LearningRules, now_s: float) -> Iterator[Bottleneck]:
    since_s = now_s - RECENT_S
    jobs = list(takewhile(lambda job: job.at_s >= since_s, reversed(state.recent_jobs)))
    yield from _stopped(state, now_s)
    yield from _failures(state, rules, now_s)
    yield from _no_network_yet(state, rules)
    if not jobs:
        yield from _no_workers(state, now_s)
        return
    yield from _unspent(state, rules, since_s)
    yield from _overhead(jobs)
    yield from _starting(jobs)
    yield from _unshown(state)
    yield from _waiting_for_rows(state, rules, jobs, now_s - max(since_s, state.first_s))


def _stopped(state: ConfigState, now_s: float) -> Iterator[Bottleneck]:
    if (held := hold_of(state, now_s=now_s)) is not None:
        yield Bottleneck(cause="stages", text=f"the health of the run: {held.reason}", cost=COST_STAGE)
    if (stop := stop_of(state, *NEEDED)) is not None:
        yield Bottleneck(cause="stages", text=f"a stopped daemon: {stop.reason}", cost=COST_STAGE)
    if (hold := slot_of(state)) is not None:
        yield Bottleneck(cause="stages", text=f"a training of somebody else: {hold.reason}", cost=COST_STAGE)


def _failures(state: ConfigState, rules: LearningRules, now_s: float) -> Iterator[Bottleneck]:
    for stage, failures in state.failures.items():
        if not breaker_gate(stage, failures, rules, now_s=now_s).open:
            times = "once" if failures.in_a_row == 1 else f"{failures.in_a_row} times in a row"
            yield Bottleneck(
                cause="failures", text=f"{stage}: it failed {times} and rests", cost=COST_STOPPED
            )


def _no_network_yet(state: ConfigState, rules: LearningRules) -> Iterator[Bottleneck]:
    if state.models:
        return
    wanted = rules.bucket.rows_first_min
    if state.rows < wanted:
        text = f"games: {state.rows:,} of {wanted:,} rows are there for the first network"
        yield Bottleneck(cause="games", text=text, cost=COST_STOPPED / 2)
    else:
        text = f"training: {state.rows:,} rows wait for the first network"
        yield Bottleneck(cause="training", text=text, cost=COST_STOPPED / 2)


def _no_workers(state: ConfigState, now_s: float) -> Iterator[Bottleneck]:
    last_s = state.recent_jobs[-1].at_s if state.recent_jobs else state.first_s
    minutes = max(0.0, now_s - last_s) / 60
    text = f"workers: no job of it has ended for {minutes:.0f} min"
    # With no network yet the first jobs may simply be long.
    yield Bottleneck(cause="workers", text=text, cost=COST_STOPPED if state.recent_jobs else COST_UNAVOIDABLE)


def _unspent(state: ConfigState, rules: LearningRules, since_s: float) -> Iterator[Bottleneck]:
    """Rows that come faster than they are trained on: their games were played for nothing."""
    shards = takewhile(lambda shard: shard.made_s >= since_s, reversed(state.shards.values()))
    earned = sum(
        shard.rows * (shard.steps_per_row or rules.bucket.steps_per_row)
        for shard in shards
        if shard.state is ShardState.CHECKED
    )
    models = takewhile(lambda model: model.made_s >= since_s, reversed(state.models.values()))
    spent = sum(model.steps_spent for model in models)
    if not state.models or state.bucket.available < rules.bucket.chunk_steps or earned <= 0:
        return
    if spent <= 0:
        trainings = state.bucket.available / rules.bucket.chunk_steps
        text = f"training: rows have earned {trainings:.1f} trainings, and none was made"
        yield Bottleneck(cause="training", text=text, cost=COST_STOPPED)
    elif earned > EARNED_TIMES_MAX * spent:
        text = f"training: rows earn {earned / spent:.1f} x as many steps as are trained"
        yield Bottleneck(cause="training", text=text, cost=1 - spent / earned)


def _overhead(jobs: list[EndedJob]) -> Iterator[Bottleneck]:
    """Work that is neither playing nor training, as far as it takes more than it should."""
    cpu_s: defaultdict[str, float] = defaultdict(float)
    for job in jobs:
        cpu_s[job.kind] += job.cpu_s
    whole = max(sum(cpu_s.values()), 1e-9)
    judging = sum(cpu_s[kind] for kind in JUDGING) / whole
    if judging > JUDGING_SHARE_MAX:
        text = f"judging: it takes {judging:.0%} of processor time"
        yield Bottleneck(cause="judging", text=text, cost=judging)
    preparing = sum(cpu_s[kind] for kind in PREPARING) / whole
    if preparing > PREPARING_SHARE_MAX:
        text = f"preparing: checking and exporting take {preparing:.0%} of processor time"
        yield Bottleneck(cause="preparing", text=text, cost=preparing)


def _starting(jobs: list[EndedJob]) -> Iterator[Bottleneck]:
    """Time of the workers in which no job plays or learns yet."""
    timed = [(job.start_s, job.wall_s) for job in jobs if job.start_s is not None]
    whole_s = sum(max(start_s, wall_s) for start_s, wall_s in timed)
    share = sum(start_s for start_s, _ in timed) / max(whole_s, 1e-9)
    if share > STARTING_SHARE_MAX:
        text = f"starting: jobs take {share:.0%} of the workers' time before their first game or step"
        yield Bottleneck(cause="starting", text=text, cost=share)


def _unshown(state: ConfigState) -> Iterator[Bottleneck]:
    """Candidates that do not get past the champion."""
    refused, champion = 0, None
    for model in reversed(state.models.values()):
        if model.state in _PASSED:
            champion = model
            break
        refused += model.state is ModelState.REJECTED
    if refused < UNSHOWN_MIN:
        return
    text = f"candidates: the last {refused} were not shown to be stronger than the champion"
    if champion is not None and (behind := _newest(state).number - champion.number) > refused:
        text += f", which is {behind} trainings old"
    yield Bottleneck(cause="candidates", text=text, cost=min(0.6, UNSHOWN_COST * refused))


def _newest(state: ConfigState) -> Model:
    return next(reversed(state.models.values()))


def _waiting_for_rows(
    state: ConfigState, rules: LearningRules, jobs: list[EndedJob], seconds: float
) -> Iterator[Bottleneck]:
    training_s = sum(job.wall_s for job in jobs if job.kind == "train")
    waits = 1 - min(1.0, training_s / max(seconds, 1e-9))
    if state.models and state.bucket.available < rules.bucket.chunk_steps and waits > 0:
        text = f"games: training waits {waits:.0%} of the time for rows"
        yield Bottleneck(cause="games", text=text, cost=COST_UNAVOIDABLE)
    else:
        text = f"nothing: {len(jobs)} jobs ended in the last {RECENT_S / 60:.0f} min, none of them in vain"
        yield Bottleneck(cause="nothing", text=text, cost=0.0)


# The status of a config, of the workers and of a start.


LOSSES_SHOWN = 200
STARTS_SHOWN = 100  # jobs whose starts count as recent
DECISIONS_SHOWN = 50
# Of several jobs under way, the one furthest along is what the config is doing.
_FURTHEST = ("evaluate", "train", "export", "validate", "selfplay", "tournament", "diagnose", "recompute")


@dataclass(frozen=True, slots=True, kw_only=True)
class AroundConfig:
    """What is not in the facts of a config."""

    plan: ConfigPlan | None
    rules: LearningRules
    curve: tuple[Curve, ...]
    running: Sequence[RunningRecord]
    share: float
    paused: Pause | None
    prices: Mapping[str, float]
    now_s: float
    held: Mapping[str, Block] = field(default_factory=dict)  # kind: why the machine may not take more of it
    idle: IdleSlots | None = None  # of the whole run


def config_status(state: ConfigState, around: AroundConfig) -> ConfigStatus:
    """One config."""
    curve, paused = around.curve, around.paused
    ours = [job for job in around.running if job.job_id in state.open_jobs]
    blocked = {
        **{kind: {"reason": each.reason, "until_s": each.until_s} for kind, each in around.held.items()},
        **_blocked(state, around.rules, now_s=around.now_s),
    }
    newest = state.newest_model
    trained_on = None if newest is None else state.samples.get(newest.samples)
    rating = _rating(state, curve)
    return ConfigStatus(
        games=state.games,
        games_unchecked=state.totals[f"games {ShardState.UNCHECKED}"],
        games_refused=state.totals["refused"],
        rows=state.rows,
        trained_rows=0 if trained_on is None else trained_on.rows_generated,
        sample_steps=int(state.bucket.spent),
        promotions=len(state.promotions),
        rollbacks=state.rollbacks,
        rejections=state.rejections,
        champion=state.champion,
        rating=None if rating is None else rating.rating,
        rating_interval=None if rating is None else (rating.low, rating.high),
        stage="paused" if paused is not None else _stage(ours, blocked),
        blocked=blocked,
        share=around.share,
        games_per_s=sum(job.rate for job in ours if job.kind == "selfplay"),
        curve=curve,
        losses=tuple(_losses(state)),
        running=tuple(_progress(job) for job in ours),
        cost=cost(state, curve, around.prices),
        bucket=state.bucket.available,
        next=_next(around.plan),
        generator=state.generator,
        who_plays=who_plays(state),
        tuned=tuple(trial.in_words() for trial in trials(state)),
        candidates=waiting_for_verdict(state),
        held_back="" if paused is not None else _held_back(state, around),
        paused=None if paused is None else paused.to_dict(),
        stopped={
            name: {"why": stop.why, "since_s": stop.since_s, "by_person": stop.by_person}
            for name, stop in stops_of(state).items()
        },
        **_collected(state, around, trained=0 if trained_on is None else trained_on.rows_generated),
    )


def _collected(state: ConfigState, around: AroundConfig, *, trained: int) -> dict[str, int]:
    """What is there and waits on purpose: all of it while somebody has paused the config."""
    if around.paused is not None:
        unchecked = state.totals[f"games {ShardState.UNCHECKED}"]
        return {"rows_collected": max(0, state.rows - trained), "games_collected": unchecked}
    plan = around.plan or ConfigPlan()
    return {"rows_collected": plan.rows_collected, "games_collected": plan.games_collected}


def _held_back(state: ConfigState, around: AroundConfig) -> str:
    return bottleneck(state, around.rules, now_s=around.now_s, idle=around.idle).text


def _rating(state: ConfigState, curve: Sequence[Curve]) -> Curve | None:
    return next((point for point in reversed(curve) if point.model == state.champion), None)


def _blocked(state: ConfigState, rules: LearningRules, *, now_s: float) -> dict[str, dict[str, Any]]:
    """What waits by itself; pauses and stopped daemons are not among it.

    What waits besides the usual stages is told while it lasts, too.
    """
    stages = (*STAGES, *(stage for stage in EXTRA_STAGES if stage in state.failures))
    gates = {stage: stage_gate(state, stage, rules, now_s=now_s, paused=None) for stage in stages}
    return {
        stage: {"reason": gate.reason, "until_s": gate.until_s}
        for stage, gate in gates.items()
        if not gate.open and not gate.paused and not gate.stopped
    }


def _stage(running: Sequence[RunningRecord], blocked: Mapping[str, Any]) -> str:
    kinds = {job.kind for job in running}
    found = next((kind for kind in _FURTHEST if kind in kinds), None)
    return found or ("blocked" if blocked else "idle")


def _losses(state: ConfigState) -> list[LossPoint]:
    models = islice(reversed(state.models.values()), LOSSES_SHOWN)
    points = [
        LossPoint(
            at_s=model.made_s,
            model=model.digest,
            rows_seen=model.rows_seen,
            policy=_part(model.losses.get("train"), "policy"),
            value=_part(model.losses.get("train"), "value"),
            hold_out=_number(model.losses.get("best_held")),
        )
        for model in models
    ]
    return points[::-1]


def _part(losses: object, name: str) -> float | None:
    return _number(losses.get(name)) if isinstance(losses, Mapping) else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _progress(job: RunningRecord) -> StageProgress:
    return StageProgress(
        kind=job.kind,
        job_id=job.job_id,
        worker=job.worker,
        done=int(job.done),
        total=None if job.total is None else int(job.total),
        rate=job.rate,
        eta_s=job.eta_s,
        started_s=job.started_s,
        text=job.line,
    )


def cost(state: ConfigState, curve: Sequence[Curve], prices: Mapping[str, float]) -> Cost:
    """What was spent, and what for. Money only where every node that worked has a price."""
    priced = bool(state.node_s) and all(node in prices for node in state.node_s)
    money = sum(prices[node] * used_s / 3600 for node, used_s in state.node_s.items()) if priced else None
    gained = curve[-1].rating - curve[0].rating if len(curve) > 1 else 0.0

    promotions = len(state.promotions)

    def per(spent: float | None, count: float) -> float | None:
        return None if spent is None or count <= 0 else spent / count

    return Cost(
        cpu_s=state.cpu_s,
        gpu_s=state.gpu_s,
        money=money,
        cpu_s_per_game=per(state.cpu_s, state.games),
        cpu_s_per_promotion=per(state.cpu_s, promotions),
        cpu_s_per_rating_point=per(state.cpu_s, gained),
        gpu_s_per_game=per(state.gpu_s, state.games),
        gpu_s_per_promotion=per(state.gpu_s, promotions),
        gpu_s_per_rating_point=per(state.gpu_s, gained),
        money_per_game=per(money, state.games),
        money_per_promotion=per(money, promotions),
        money_per_rating_point=per(money, gained),
    )


def _next(plan: ConfigPlan | None) -> str:
    """What the config waits for: the most advanced stage that has something to say."""
    if plan is None:
        return "starting"
    order = {stage: number for number, stage in enumerate(("train", "evaluate", *STAGES))}
    explained = (each for each in plan.explanations if each.stage != TUNING)
    said = sorted(explained, key=lambda each: (not each.will, order.get(each.stage, len(order))))
    return f"{said[0].stage}: {said[0].reason}" if said else ""


def start_status(states: Sequence[ConfigState]) -> StartStatus | None:
    """What starting took over all configs; None if no job has told of it."""
    timed_s = sum(state.timed_s for state in states)
    ended = (job for state in states for job in islice(reversed(state.recent_jobs), STARTS_SHOWN))
    newest = sorted(ended, key=lambda job: job.at_s)[-STARTS_SHOWN:]
    recent = [job.start_s for job in newest if job.start_s is not None]
    if not recent or timed_s <= 0:
        return None
    share = sum(state.starting_s for state in states) / timed_s
    return StartStatus(share=round(share, 4), median_s=round(median(recent), 3))


def worker_statistics(
    states: Sequence[ConfigState], live: Sequence[WorkerRecord], now_s: float
) -> tuple[WorkerStatus, ...]:
    """Everybody who lives or ever brought something, over all configs, by name."""
    records = {record.name: record for record in live}
    names = {*records, *(name for state in states for name in state.workers if name)}
    return tuple(_worker_status(name, records.get(name), states, now_s) for name in sorted(names))


def _worker_status(
    name: str, record: WorkerRecord | None, states: Sequence[ConfigState], now_s: float
) -> WorkerStatus:
    known = [state.workers[name] for state in states if name in state.workers]
    aside = next((each.set_aside for each in known if each.set_aside and each.is_set_aside(now_s)), None)
    return WorkerStatus(
        name=name,
        node=None if record is None else record.node,
        slots=0 if record is None else record.slots,
        busy=0 if record is None else record.busy,
        failed=0 if record is None else record.failed,
        jobs=sum(each.jobs for each in known),
        games=sum(each.games for each in known),
        games_of_user_program=sum(each.games_of_user_program for each in known),
        rows=sum(each.rows for each in known),
        refused=sum(each.refused for each in known),
        compared=sum(each.compared for each in known),
        games_compared=sum(each.games_compared for each in known),
        moves_compared=sum(each.moves_compared for each in known),
        recomputed=sum(each.recomputed for each in known),
        faults=sum(each.faults for each in known),
        disputed=sum(each.disputed for each in known),
        last_faults=tuple(words for each in known for words in each.words),
        set_aside=None if aside is None else asdict(aside),
    )


def decisions(states: Sequence[ConfigState]) -> tuple[RunDecision, ...]:
    """The newest decisions of all configs, newest first."""
    found = [
        RunDecision(at_s=fact.at_s, config=state.config, what=what, reason=reason)
        for state in states
        for fact in islice(reversed(state.decisions), DECISIONS_SHOWN)
        for what, reason in [_in_words(fact)]
    ]
    return tuple(sorted(found, key=lambda each: -each.at_s)[:DECISIONS_SHOWN])


def _in_words(fact: AnyFact) -> tuple[str, str]:
    match fact:
        case JobIssued():
            return fact.kind, fact.reason
        case JobEnded():
            return f"{fact.job_id} failed", fact.error
        case Noted():
            return fact.topic, fact.text
        case Recalled():
            return "recall withdrawn" if fact.withdrawn else "recall", fact.reason
        case Blocked():
            return f"{fact.stage} waits", fact.reason
        case GeneratorMoved():
            return f"games by {(fact.model or 'no network')[:12]}", fact.reason
        case WorkerSetAside():
            return f"set {fact.worker} aside", fact.reason
        case WorkerResumed():
            return f"resumed {fact.worker}", fact.reason
        case _:
            return _VERDICTS[type(fact)].format(fact.model[:12]), fact.reason


_VERDICTS: dict[type, str] = {
    Staged: "staged {}",
    Promoted: "promoted {}",
    Rejected: "refused {}",
    RolledBack: "took back {}",
    Archived: "archived",
    TrainingReset: "training again from {}",
}
