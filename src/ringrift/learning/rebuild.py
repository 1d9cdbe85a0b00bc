"""The facts of a config made again from the sealed files of its run, as far as they go.

Every job that brought files left a sealed record of what it was asked and what it brought; those records, in
the order of their ends, are orders and ends again. Decisions are not copied from anywhere: the plan makes
them again from the same evidence, under the rules of now, so a model is champion only if its matches say so.
Games whose job left no record are taken in unchecked, and the loop checks them again. What no file tells
stays unknown and is said: failures, pauses, recalls, notes, and the rules of before.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ringrift.learning.controller import DECISIONS_AT_ONCE, job_id
from ringrift.learning.facts import REBUILT_TOPIC, AnyFact, JobEnded, JobIssued, Noted
from ringrift.learning.outlook import outlook
from ringrift.learning.plan import plan
from ringrift.learning.results import problem_with
from ringrift.learning.rules import LearningRules
from ringrift.learning.rules_record import rules_note, rules_of
from ringrift.learning.snapshot import priority_of
from ringrift.learning.state import ConfigState, fold, stage_of
from ringrift.learning.trends_curves import RatingCurves
from ringrift.work.job_orders import JobArtifact, JobOrder, JobReport, SealedJob

SELFPLAY = "selfplay"
UNKNOWN = "unknown"  # who played games whose job left no record
REASON = "made again from its sealed record"
LOST = "no file tells what became of it"
UNTOLD = (
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
    told = {each.item_id: each for each in jobs if each.order.config == config}
    missing = sorted((each for each in told.values() if each.item_id not in known), key=lambda e: e.ended_s)
    in_reports = {artifact.digest for each in told.values() for artifact in each.report.artifacts}
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
        for kind, told in sorted(numbers.items()):
            for number in sorted(set(range(self.state.issued[kind] + 1, max(told) + 1)) - told):
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


def untold(found: RebuiltConfig) -> Iterator[str]:
    """What is missing from *found*, in sentences."""
    if found.lost:
        yield f"jobs without a record (failed, cancelled, or their files are gone): {found.lost}"
    if found.shards:
        yield f"files of games without a record of their job (they are checked again): {found.shards}"
    candidates = Counter(str(model.state) for model in found.state.models.values())
    if found.state.champion is None and candidates:
        yield "no matches prove a champion; the newest model is evaluated again"
    yield from found.left_out
