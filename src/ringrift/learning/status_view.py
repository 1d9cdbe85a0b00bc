"""From the state of the run to the picture of it that people see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from statistics import median
from typing import Any

import msgspec

from ringrift.learning.bottleneck import IdleSlots, bottleneck
from ringrift.learning.facts import (
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
from ringrift.learning.gates import stage_gate
from ringrift.learning.generator import who_plays
from ringrift.learning.judging import waiting_for_verdict
from ringrift.learning.pauses import Pause
from ringrift.learning.records import ShardState
from ringrift.learning.rules import LearningRules
from ringrift.learning.run_status import (
    ConfigStatus,
    Cost,
    Curve,
    LossPoint,
    RunDecision,
    StageProgress,
    StartStatus,
    WorkerStatus,
)
from ringrift.learning.snapshot import EXTRA_STAGES, STAGES, ConfigPlan
from ringrift.learning.stages import stops_of
from ringrift.learning.state import Block, ConfigState
from ringrift.work.worker_records import RunningRecord, WorkerRecord

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
        candidates=waiting_for_verdict(state),
        held_back="" if paused is not None else _held_back(state, around),
        paused=None if paused is None else msgspec.to_builtins(paused),
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
    said = sorted(plan.explanations, key=lambda each: (not each.will, order.get(each.stage, len(order))))
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
