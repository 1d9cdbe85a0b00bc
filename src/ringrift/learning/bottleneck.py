"""What holds learning back, in one sentence with its number.

Every cause has the share of the recent work that it costs; the costliest is named. Games that training waits
for, which no run can do without, are named when nothing else costs more than it should.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import takewhile

import msgspec

from ringrift.learning.gates import breaker_gate
from ringrift.learning.records import Model, ModelState, ShardState
from ringrift.learning.rules import LearningRules
from ringrift.learning.slot_holds import slot_of
from ringrift.learning.stages import NEEDED, stop_of
from ringrift.learning.state import ConfigState, EndedJob
from ringrift.work.shares import PREPARING
from ringrift.work.supply_rules import slots_for
from ringrift.work.worker_records import RunningRecord, WorkerRecord

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
    yield from _stopped(state)
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


def _stopped(state: ConfigState) -> Iterator[Bottleneck]:
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
