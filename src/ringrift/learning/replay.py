"""Every decision made again from what was known: to check a run by its facts, and to rebuild lost facts from
its files.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ringrift.decoding import decode_as
from ringrift.learning.controller import DECISIONS_AT_ONCE, job_id
from ringrift.learning.facts.facts import (
    REBUILT_TOPIC,
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
from ringrift.learning.facts.results import OUTSIDE, problem_with
from ringrift.learning.facts.state import ConfigState, fold, stage_of, state_before
from ringrift.learning.judging.feedback import RatingCurves
from ringrift.learning.plan.orders import ConfigPlan, outlook, priority_of
from ringrift.learning.plan.plan import plan
from ringrift.learning.plan.rules import LearningRules, decided_by_other_plans, rules_note, rules_of
from ringrift.learning.plan.trust import BY_PLAN, RECALL_ID
from ringrift.learning.tuning import TOPIC as TUNED_TOPIC
from ringrift.learning.tuning import is_drop
from ringrift.work.job.protocol import JobArtifact, JobOrder, JobReport, SealedJob

# Whether what a config did follows from what was known.
#
# `replay` folds the facts one by one. Before each decision it asks the plan, with the rules that were in
# force and at the recorded time, and reports where the recorded decision is not among those that the plan
# makes. Pauses are no facts: a decision shows by itself that its config was not paused.


# Written beside the plan, by others or by the loop itself, which may then still act on the plan that it made
# before.
_BESIDE = (Noted, Blocked, Archived)
EARLIER_MAX = 8


class DecisionDivergence(msgspec.Struct, frozen=True, kw_only=True):
    """A decision that does not follow from what was known before it."""

    number: int  # of the fact, from 1
    at_s: float
    what: str
    why: str


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """What was known, and what followed from it, before one fact."""

    number: int
    state: ConfigState
    rules: LearningRules
    made: ConfigPlan
    fact: AnyFact | None  # None: after the last
    divergence: DecisionDivergence | None


def replay(config: str, facts: Sequence[AnyFact], rules: LearningRules) -> list[DecisionDivergence]:
    """All that does not follow. *rules* count until the facts name others."""
    return list(_divergences(config, facts, rules))


def rebuilt_facts(facts: Sequence[AnyFact]) -> int:
    """How many of the first facts were made again from sealed files, and so follow from nothing."""
    return max(
        (n for n, fact in enumerate(facts, 1) if isinstance(fact, Noted) and fact.topic == REBUILT_TOPIC),
        default=0,
    )


def moment(config: str, facts: Sequence[AnyFact], rules: LearningRules, *, at: int) -> Moment:
    """What the plan says after the first *at* facts, and whether the next fact follows from it."""
    before, after = facts[:at], facts[at] if at < len(facts) else None
    for fact in before:
        rules = rules_of(fact) or rules
    state = fold(config, before, bucket_rules=rules.bucket)
    at_s = state.last_s if after is None else after.at_s
    made = _plan(state, rules, at_s, RatingCurves())
    found = [each for each in replay(config, facts[: at + 1], rules) if each.number == at + 1]
    divergence = found[0] if found else None
    return Moment(number=at + 1, state=state, rules=rules, made=made, fact=after, divergence=divergence)


def _divergences(config: str, facts: Sequence[AnyFact], rules: LearningRules) -> Iterator[DecisionDivergence]:
    state, curves = state_before(config, facts, bucket_rules=rules.bucket), RatingCurves()
    earlier: list[ConfigPlan] = []  # those that the loop may still have acted on
    rebuilt = max(rebuilt_facts(facts), decided_by_other_plans(facts))
    for number, fact in enumerate(facts, start=1):
        if number <= rebuilt:
            pass  # taken from files, in the order of the files; or another version of the plan decided it
        elif _is_of_the_plan(fact):
            why = _why_not(fact, [_plan(state, rules, fact.at_s, curves), *earlier])
            if why:
                yield DecisionDivergence(number=number, at_s=fact.at_s, what=in_short(fact), why=why)
        elif isinstance(fact, JobEnded) and fact.job_id not in state.open_jobs:
            why = "no such job was open"
            yield DecisionDivergence(number=number, at_s=fact.at_s, what=in_short(fact), why=why)
        if isinstance(fact, _BESIDE):
            earlier = [_plan(state, rules, fact.at_s, curves), *earlier[: EARLIER_MAX - 1]]
        else:
            earlier = []
        state.apply(fact)
        rules = rules_of(fact) or rules


def _is_of_the_plan(fact: AnyFact) -> bool:
    """Whether only the plan can have made it: people recall games and set workers aside too."""
    match fact:
        case WorkerSetAside():
            return fact.by == BY_PLAN
        case JobIssued():
            return fact.order.purpose != OUTSIDE
        case Recalled():
            return fact.recall_id.startswith(RECALL_ID) and not fact.withdrawn
        case Noted():
            return fact.topic == TUNED_TOPIC and is_drop(fact)
        case _:
            return isinstance(
                fact, Staged | Promoted | Rejected | RolledBack | GeneratorMoved | TrainingReset
            )


def _plan(state: ConfigState, rules: LearningRules, at_s: float, curves: RatingCurves) -> ConfigPlan:
    return plan(outlook(state, rules, curves, now_s=at_s))


def _why_not(fact: AnyFact, plans: Sequence[ConfigPlan]) -> str:
    """Why *fact* follows from none of *plans*; empty if it follows from one."""
    whys = [
        _why_not_ordered(fact, made) if isinstance(fact, JobIssued) else _why_not_decided(fact, made)
        for made in plans
    ]
    return "" if "" in whys else whys[0]


def _why_not_ordered(fact: JobIssued, made: ConfigPlan) -> str:
    if first := [each for each in made.decided if not isinstance(each, _BESIDE)]:
        return f"the plan decides first: {', '.join(in_short(each) for each in first)}"
    stage = stage_of(fact.kind, fact.order.purpose)
    wanted = [each for each in made.wanted if each.stage == stage]
    if not wanted:
        said = [each.reason for each in made.explanations if each.stage == stage]
        return f"the plan wants no {stage}: {'; '.join(said) or 'it says nothing of it'}"
    if fact.priority != priority_of(stage):
        return f"the priority of {stage} is {priority_of(stage)}, not {fact.priority}"
    lacking = [_difference(plain(each.order), plain(fact.order)) for each in wanted]
    return "" if "" in lacking else f"the plan orders it otherwise: {lacking[0]}"


def _why_not_decided(fact: AnyFact, made: ConfigPlan) -> str:
    if not made.decided:
        said = [each.reason for each in made.explanations if each.stage == "evaluate"]
        wanted = [each.reason for each in made.wanted if each.kind == "evaluate"]
        return f"the plan decides nothing here: {'; '.join(said or wanted) or 'it has nothing to judge'}"
    lacking = [_difference(plain(each), plain(fact)) for each in made.decided]
    return "" if "" in lacking else f"the plan decides otherwise: {lacking[0]}"


def _difference(expected: Any, found: Any, name: str = "") -> str:
    """The first place where two plain values differ; empty if nowhere."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in dict.fromkeys((*expected, *found)):
            if key not in expected or key not in found:
                return f"{name}{key} is {'missing' if key not in found else 'too much'}"
            if difference := _difference(expected[key], found[key], f"{name}{key}."):
                return difference
        return ""
    return "" if expected == found else f"{name.rstrip('.')} is {_brief(found)}, not {_brief(expected)}"


def _brief(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def plain(value: Any) -> Any:
    """As it comes back from the store."""
    return decode_as(msgspec.json.encode(value), Any)


def in_short(fact: AnyFact) -> str:
    """A fact in a few words."""
    match fact:
        case JobIssued():
            return f"ordered {fact.job_id}"
        case JobEnded():
            return f"end of {fact.job_id}"
        case (
            Staged()
            | Promoted()
            | Rejected()
            | RolledBack()
            | Archived()
            | GeneratorMoved()
            | TrainingReset()
        ):
            return f"{type(fact).__name__.lower()} {(fact.model or 'none')[:12]}"
        case Recalled():
            return f"recall {fact.recall_id}"
        case Blocked():
            return f"{fact.stage} blocked"
        case Noted():
            return f"note {fact.topic}"
        case WorkerSetAside():
            return f"{fact.worker} set aside"
        case WorkerResumed():
            return f"{fact.worker} resumed"


# The facts of a config made again from the sealed files of its run, as far as they go.
#
# Every job that brought files left a sealed record of what it was asked and what it brought; those records,
# in the order of their ends, are orders and ends again. Decisions are not copied from anywhere: the plan
# makes them again from the same evidence, under the rules of now, so a model is champion only if its matches
# say so. Games whose job left no record are taken in unchecked, and the loop checks them again. What no file
# tells stays unknown and is said: failures, pauses, recalls, notes, and the rules of before.


SELFPLAY = "selfplay"
UNKNOWN = "unknown"  # who played games whose job left no record
REASON = "made again from its sealed record"
LOST = "no file tells what became of it"
UNRECORDED = (
    "jobs that failed or were cancelled",
    "pauses, notes and recalls (`ringrift recall` has to be given again)",
    "decisions that the rules of now would not make from the same matches",
)
_NUMBER = re.compile(r"\.(\d{6,})$")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundShard:
    """A file of games, by what it says of itself."""

    digest: str
    config: str
    games: int
    rows: int
    size_bytes: int
    made_s: float


@dataclass(slots=True)
class RebuiltConfig:
    """The facts of one config, and where they are from."""

    config: str
    facts: list[AnyFact]
    state: ConfigState
    kept: int = 0  # facts that were there and sound
    jobs: int = 0  # from sealed records
    shards: int = 0  # whose job left no record
    lost: int = 0  # jobs of which nothing is left
    left_out: list[str] = field(default_factory=list)  # records that fit nowhere, and why

    @property
    def made(self) -> int:
        return len(self.facts) - self.kept


def rebuild(
    config: str,
    kept: Sequence[AnyFact],
    jobs: Iterable[SealedJob],
    shards: Iterable[FoundShard],
    rules: LearningRules,
    *,
    now_s: float,
) -> RebuiltConfig:
    """Go on from *kept* with what *jobs* and *shards* tell and it lacks. The same again if nothing does."""
    for fact in kept:
        rules = rules_of(fact) or rules
    work = _Rebuilding(config, kept, rules)
    known = {fact.job_id for fact in kept if isinstance(fact, JobEnded)}
    ended = {each.item_id: each for each in jobs if each.order.config == config}
    missing = sorted((each for each in ended.values() if each.item_id not in known), key=lambda e: e.ended_s)
    in_reports = {artifact.digest for each in ended.values() for artifact in each.report.artifacts}
    stray = [each for each in shards if each.config == config and each.digest not in work.state.shards]
    stray = [each for each in stray if each.digest not in in_reports]
    if not missing and not stray:
        return work.done
    work.begin(min([each.ended_s for each in missing] + [each.made_s for each in stray]))
    work.account_for_lost(missing)
    waiting = missing
    while waiting:  # a record may need another that was sealed in the same moment
        later = [each for each in waiting if not work.take_in(each)]
        if len(later) == len(waiting):
            work.leave_out(later)
            break
        waiting = later
    for shard in sorted(stray, key=lambda each: (each.made_s, each.digest)):
        work.take_in_shard(shard)
    work.end(now_s)
    return work.done


class _Rebuilding:
    """Facts as they come, and the state that they add up to."""

    def __init__(self, config: str, kept: Sequence[AnyFact], rules: LearningRules) -> None:
        self.rules, self.curves = rules, RatingCurves()
        self.state = fold(config, kept, bucket_rules=rules.bucket)
        self.done = RebuiltConfig(config, list(kept), self.state, kept=len(kept))

    def add(self, fact: AnyFact) -> None:
        self.done.facts.append(fact)
        self.state.apply(fact)

    def begin(self, at_s: float) -> None:
        noted = rules_note(self.state, self.rules, at_s=max(self.state.last_s, at_s))
        if noted is not None:
            self.add(noted)

    def account_for_lost(self, jobs: Sequence[SealedJob]) -> None:
        """Numbers of jobs are given once: those that nothing tells of are taken, too."""
        numbers: defaultdict[str, set[int]] = defaultdict(set)
        for job in jobs:
            if found := _NUMBER.search(job.item_id):
                numbers[job.kind].add(int(found[1]))
        for kind, ended in sorted(numbers.items()):
            for number in sorted(set(range(self.state.issued[kind] + 1, max(ended) + 1)) - ended):
                name = job_id(self.state.config, kind, number)
                self._order(
                    name, kind, JobOrder(config=self.state.config, params={}), self.state.last_s, LOST
                )
                self.add(JobEnded(at_s=self.state.last_s, job_id=name, cancelled=True, error=LOST))
                self.done.lost += 1

    def take_in(self, job: SealedJob) -> bool:
        """Whether *job* fits to what is known by now."""
        if job.item_id not in self.state.open_jobs:
            self._order(job.item_id, job.kind, job.order, job.report.started_s, REASON)
        if problem_with(self.state, self.state.open_jobs[job.item_id], job.report):
            return False
        self.add(JobEnded(at_s=job.ended_s, job_id=job.item_id, report=job.report))
        self.done.jobs += 1
        self._decide(job.ended_s)
        return True

    def leave_out(self, jobs: Iterable[SealedJob]) -> None:
        for job in jobs:
            why = problem_with(self.state, self.state.open_jobs[job.item_id], job.report)
            self.add(JobEnded(at_s=job.ended_s, job_id=job.item_id, cancelled=True, error=why))
            self.done.left_out.append(f"{job.item_id}: {why}")

    def take_in_shard(self, shard: FoundShard) -> None:
        """Games of which only the file is left: unchecked, so that the loop replays them by the rules."""
        name = job_id(self.state.config, SELFPLAY, self.state.issued[SELFPLAY] + 1)
        self._order(name, SELFPLAY, JobOrder(config=self.state.config, params={}), shard.made_s, REASON)
        counts = {"games": shard.games, "rows": shard.rows}
        artifact = JobArtifact(
            name=f"{shard.digest[:16]}.shard.db",
            kind="shard",
            digest=shard.digest,
            size_bytes=shard.size_bytes,
            counts=counts,
        )
        report = JobReport(
            status="done",
            worker=UNKNOWN,
            node=UNKNOWN,
            started_s=shard.made_s,
            wall_s=0.0,
            cpu_s=0.0,
            artifacts=(artifact,),
        )
        self.add(JobEnded(at_s=shard.made_s, job_id=name, report=report))
        self.done.shards += 1

    def end(self, now_s: float) -> None:
        """Say that these facts are no longer those that were written as things happened."""
        made = self.done.made
        self.add(
            Noted(
                at_s=now_s,
                topic=REBUILT_TOPIC,
                text=f"{made} facts were made again from sealed files",
                details={"kept": self.done.kept, "made": made, "lost_jobs": self.done.lost},
            )
        )

    def _order(self, name: str, kind: str, order: JobOrder, at_s: float, reason: str) -> None:
        priority = priority_of(stage_of(kind, order.purpose))
        self.add(JobIssued(at_s=at_s, job_id=name, kind=kind, order=order, priority=priority, reason=reason))

    def _decide(self, at_s: float) -> None:
        for _ in range(DECISIONS_AT_ONCE):
            decided = plan(outlook(self.state, self.rules, self.curves, now_s=at_s)).decided
            if not decided:
                return
            for fact in decided:
                self.add(fact)


def unrecorded(found: RebuiltConfig) -> Iterator[str]:
    """What is missing from *found*, in sentences."""
    if found.lost:
        yield f"jobs without a record (failed, cancelled, or their files are gone): {found.lost}"
    if found.shards:
        yield f"files of games without a record of their job (they are checked again): {found.shards}"
    candidates = Counter(str(model.state) for model in found.state.models.values())
    if found.state.champion is None and candidates:
        yield "no matches prove a champion; the newest model is evaluated again"
    yield from found.left_out
