"""What is known of one config: the fold of its facts, kept up to date one fact at a time."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from ringrift.decoding import convert_to
from ringrift.errors import Corrupt
from ringrift.learning.facts import results
from ringrift.learning.facts.facts import (
    PRICE_TOPIC,
    QUALITY_MONITOR,
    RULES_TOPIC,
    SLOTS_TOPIC,
    STAGES_TOPIC,
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
from ringrift.learning.facts.records import (
    BucketRules,
    Comparison,
    Match,
    Model,
    ModelState,
    Samples,
    SetAside,
    Shard,
    ShardState,
    TrainBucket,
    Unfinished,
    WorkerStanding,
    are_games_recalled,
    earn,
    is_recalled,
    refuse_shard,
    spend,
    withdraw,
)
from ringrift.work.job.protocol import JobOrder

STUDENTS = ("distillation", "small_net")  # purposes of trainings beside the line of champions
NOTES_MAX = 200
DECISIONS_MAX = 200
RECENT_JOBS_MAX = 1000
TRAININGS_MAX = 200  # that are remembered; all of them are counted
BLOCK_S_MAX = 24 * 3600.0
DIVERGED = "the loss:"  # as a training says that could not go on
RESUMES_MAX = 2  # of a file of unfinished games that fail: it may be the reason
CLOCK_TOLERANCE_S = 5.0  # a stamp later than that after now was made by a clock that has been put back since


@dataclass(frozen=True, slots=True)
class OpenJob:
    """Work that was ordered and has not ended."""

    job_id: str
    kind: str
    order: JobOrder
    priority: int
    reason: str
    issued_s: float

    @property
    def stage(self) -> str:
        return stage_of(self.kind, self.order.purpose)


@dataclass(frozen=True, slots=True)
class DoneJob:
    """Work that ended well."""

    job_id: str
    order: JobOrder
    at_s: float


@dataclass(frozen=True, slots=True)
class EndedJob:
    """What a job that ended well took."""

    kind: str
    at_s: float
    wall_s: float
    cpu_s: float
    start_s: float | None = None  # until its first game or step; None: it told of none


@dataclass(frozen=True, slots=True)
class EndedTraining:
    """A training that brought a model, or failed; one that was cancelled is none."""

    job_id: str
    started_s: float  # when it was ordered, of one that left no report
    at_s: float
    node: str = ""
    error: str = ""
    slot: str = ""  # under which a trainer made it that was no worker


@dataclass(frozen=True, slots=True)
class Promotion:
    """A change of the champion."""

    model: str
    previous: str | None
    at_s: float
    rows: int  # checked rows at that time
    reason: str
    evidence: dict[str, Any]


@dataclass(slots=True)
class StageFailures:
    """The failures of a stage since it last worked."""

    in_a_row: int = 0
    last_s: float = 0.0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """Why something waits, since when and until when."""

    reason: str
    until_s: float
    since_s: float

    def holds(self, now_s: float) -> bool:
        """Whether it still waits. A clock that was put back does not make it wait for longer."""
        is_from_the_future = now_s < self.since_s - CLOCK_TOLERANCE_S
        return not is_from_the_future and now_s < min(self.until_s, self.since_s + BLOCK_S_MAX)


@dataclass(slots=True)
class ConfigState:
    """Everything the facts of one config say."""

    config: str
    bucket_rules: BucketRules = BucketRules()
    facts: int = 0
    first_s: float = 0.0
    last_s: float = 0.0
    shards: dict[str, Shard] = field(default_factory=dict)
    # Kept apart from all that there ever were, which a plan must not look through.
    unchecked_shards: dict[str, Shard] = field(default_factory=dict)
    unfinished: dict[str, Unfinished] = field(default_factory=dict)
    untaken: dict[str, Unfinished] = field(default_factory=dict)  # of those, what no job has
    bad_checkpoints: set[str] = field(default_factory=set)  # from which no training could go on
    bucket: TrainBucket = TrainBucket()
    price: float = 1.0  # times what the rules say a row earns
    pays_for_refused: bool = True  # rows that nobody may learn from earn, too, as before plan version 14
    samples: dict[str, Samples] = field(default_factory=dict)
    models: dict[str, Model] = field(default_factory=dict)
    students: dict[str, Model] = field(default_factory=dict)
    matches: list[Match] = field(default_factory=list)
    champion: str | None = None  # is published
    generator: str | None = None  # plays the games
    reset: TrainingReset | None = None  # the newest
    restarts: bool = False  # the next training begins where `reset` says, not at the newest model
    sampled: dict[str, str] = field(default_factory=dict)  # shard: the newest file of samples with its games
    unfit_samples: set[str] = field(default_factory=set)  # files that a training refused to learn from
    unfit_exports: Counter[str] = field(
        default_factory=Counter
    )  # shard: files with its games that were refused
    promotions: list[Promotion] = field(default_factory=list)
    rollbacks: int = 0
    rejections: int = 0
    open_jobs: dict[str, OpenJob] = field(default_factory=dict)
    last_ended: OpenJob | None = None  # the job of the newest fact, if that was the end of one
    last_done: dict[str, DoneJob] = field(default_factory=dict)  # stage: the newest that ended well
    recent_jobs: deque[EndedJob] = field(default_factory=lambda: deque(maxlen=RECENT_JOBS_MAX))
    trainings: deque[EndedTraining] = field(default_factory=lambda: deque(maxlen=TRAININGS_MAX))
    # Also of trainings that were pushed out above: as many as ends of slots are kept in the store.
    slots_taken_in: deque[str] = field(default_factory=lambda: deque(maxlen=TRAININGS_MAX))
    trained: Counter[str] = field(default_factory=Counter)  # how trainings ended: completed, failed
    issued: Counter[str] = field(default_factory=Counter)
    failures: dict[str, StageFailures] = field(default_factory=dict)
    blocks: dict[str, Block] = field(default_factory=dict)
    recalls: dict[str, Recalled] = field(default_factory=dict)
    served_s: defaultdict[str, float] = field(
        default_factory=lambda: defaultdict(float)
    )  # kind: seconds of workers
    starting_s: float = 0.0  # of the workers' seconds, before the first game or step of a job
    timed_s: float = 0.0  # the workers' seconds of the jobs that told of their start
    cpu_s: float = 0.0
    cpu_of: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))  # kind: processor s
    gpu_s: float = 0.0
    node_s: defaultdict[str, float] = field(
        default_factory=lambda: defaultdict(float)
    )  # node: seconds of its workers
    totals: Counter[str] = field(default_factory=Counter)  # games and rows by state of their shard, refused
    notes: deque[Noted] = field(default_factory=lambda: deque(maxlen=NOTES_MAX))
    newest_notes: dict[tuple[str, str], Noted] = field(default_factory=dict)  # by topic and kind, newest last
    decisions: deque[AnyFact] = field(default_factory=lambda: deque(maxlen=DECISIONS_MAX))
    gpus_since_s: float = 0.0  # since when the workers have as many GPUs as now; 0: always
    trust_before_recall: dict[str, ShardState] = field(default_factory=dict)
    workers: dict[str, WorkerStanding] = field(default_factory=dict)
    comparisons: dict[str, Comparison] = field(default_factory=dict)  # shard: undecided

    # --- what follows from it ---------------------------------------------------------------------------

    @property
    def games(self) -> int:
        return self.totals[f"games {ShardState.CHECKED}"]

    @property
    def rows(self) -> int:
        """Rows of games that agree with the rules and are not recalled."""
        return self.totals[f"rows {ShardState.CHECKED}"]

    @property
    def newest_model(self) -> Model | None:
        return next(reversed(self.models.values()), None)

    @property
    def newest_samples(self) -> Samples | None:
        """The newest file that no training refused."""
        found = (each for each in reversed(self.samples.values()) if each.digest not in self.unfit_samples)
        return next(found, None)

    def newest_note(self, topic: str, *kinds: str) -> Noted | None:
        """The newest note of *topic*, however long ago; with *kinds*, the newest of one of them."""
        for (about, kind), note in reversed(self.newest_notes.items()):
            if about == topic and (not kinds or kind in kinds):
                return note
        return None

    @property
    def slots(self) -> float:
        """This config's part of the jobs that the workers take at a time, as was noted last."""
        note = self.newest_note(SLOTS_TOPIC)
        return 1.0 if note is None else int(note.details["slots"]) / int(note.details["configs"])

    @property
    def gpus(self) -> int:
        """Those of the workers, as was noted last."""
        note = self.newest_note(SLOTS_TOPIC)
        return 0 if note is None else int(note.details.get("gpus", 0))

    def add_samples(self, samples: Samples) -> None:
        self.samples.pop(samples.digest, None)  # made again, it is the newest
        self.samples[samples.digest] = samples
        self.unfit_samples.discard(samples.digest)  # the games in it were checked again
        self.sampled.update(dict.fromkeys(samples.shards, samples.digest))

    def count_by_samples(self, shards: Sequence[str], samples: Samples, games: int) -> None:
        """Files of games that came after the samples that were made of them."""
        # In its place: `add_samples` would make it the newest, and fit again.
        self.samples[samples.digest] = msgspec.structs.replace(
            samples, shards=(*samples.shards, *shards), games_known=samples.games_known + games
        )
        self.sampled.update(dict.fromkeys(shards, samples.digest))

    def add_model(self, model: Model) -> None:
        self.spend(model.steps_spent)
        self.models[model.digest] = model
        self.restarts = False

    def open_of(self, *stages: str) -> list[OpenJob]:
        return [job for job in self.open_jobs.values() if job.stage in stages]

    def player(self, digest: str) -> Model | None:
        """The network of that digest, a student or not; None for a baseline."""
        return self.models.get(digest) or self.students.get(digest)

    def standing(self, worker: str) -> WorkerStanding:
        """What is known of *worker*, from now on if nothing was."""
        return self.workers.setdefault(worker, WorkerStanding(worker))

    def unchecked(self) -> list[Shard]:
        return list(self.unchecked_shards.values())

    def available_unfinished(self) -> list[Unfinished]:
        """Games in progress that nobody has, and that are not recalled."""
        recalls = [each for each in self.recalls.values() if not each.withdrawn]
        return [
            each
            for each in self.untaken.values()
            if each.failures < RESUMES_MAX and not are_games_recalled(recalls, each, self.unfinished)
        ]

    def trusted_matches(self) -> list[Match]:
        return [match for match in self.matches if not match.recalled]

    # --- the fold ----------------------------------------------------------------------------------------

    def apply(self, fact: AnyFact) -> None:
        """Take in the next fact. Facts were checked when they were written; one that cannot be is corrupt."""
        if not self.facts:
            self.first_s = fact.at_s
        self.facts += 1
        self.last_s = max(self.last_s, fact.at_s)
        self.last_ended = self.open_jobs.get(fact.job_id) if isinstance(fact, JobEnded) else None
        cast("Callable[[ConfigState, AnyFact], None]", _APPLY[type(fact)])(self, fact)

    def add_shard(self, shard: Shard) -> None:
        if shard.digest in self.shards:
            return
        self.shards[shard.digest] = shard
        self._count(shard, +1)
        self._recheck_trust([shard])

    def add_unfinished(self, held: Unfinished, order: JobOrder) -> None:
        if held.digest not in self.unfinished:
            self.unfinished[held.digest] = self.untaken[held.digest] = held
            self.standing(held.worker).handed_over(held, order)

    def set_shard(self, shard: Shard, **changes: Any) -> None:
        """Change what is known of a shard, and the totals and the bucket with it."""
        self._count(shard, -1)
        for name, value in changes.items():
            setattr(shard, name, value)
        self._count(shard, +1)

    def add_student(self, student: Model) -> None:
        """It takes the place of the one before it, and nobody pays: there are few for each champion."""
        for older in self.students.values():
            if older.purpose == student.purpose and older.state is ModelState.PRODUCTION:
                older.state = ModelState.SUPERSEDED
                older.history.append((student.made_s, str(older.state), f"by {student.digest[:12]}"))
        self.students[student.digest] = student

    def spend(self, steps: int) -> None:
        self.bucket = spend(self.bucket, steps)

    def _count(self, shard: Shard, sign: int) -> None:
        self.totals[f"games {shard.state}"] += sign * shard.games
        self.totals[f"rows {shard.state}"] += sign * shard.rows
        self.totals["refused"] += sign * shard.refused
        if shard.state is ShardState.UNCHECKED:
            if sign > 0:
                self.unchecked_shards[shard.digest] = shard
            else:
                del self.unchecked_shards[shard.digest]
        if shard.state is ShardState.CHECKED:
            if shard.steps_per_row is None:
                earns = self.pays_for_refused or refuse_shard(shard, by_score=self._refuses_by_score) is None
                shard.steps_per_row = self.bucket_rules.steps_per_row * self.price if earns else 0.0
            if shard.steps_per_row:
                # What is taken back is what was earned, whatever the rules say by then.
                rules = replace(self.bucket_rules, steps_per_row=shard.steps_per_row)
                change = earn if sign > 0 else withdraw
                self.bucket = change(self.bucket, shard.rows, rules)

    @property
    def _refuses_by_score(self) -> bool:
        note = self.newest_note(STAGES_TOPIC)
        return note is None or QUALITY_MONITOR not in note.details.get("stopped", ())

    def _recheck_trust(self, shards: Iterable[Shard]) -> None:
        recalls = [each for each in self.recalls.values() if not each.withdrawn]
        for shard in shards:
            wanted = are_games_recalled(recalls, shard, self.unfinished)
            if wanted and shard.state is not ShardState.RECALLED:
                self.trust_before_recall[shard.digest] = shard.state
                self.set_shard(shard, state=ShardState.RECALLED)
            elif not wanted and shard.state is ShardState.RECALLED:
                self.set_shard(shard, state=self.trust_before_recall.pop(shard.digest))

    def move_model(self, digest: str, state: ModelState, at_s: float, reason: str) -> None:
        model = self.models.get(digest)
        if model is None:
            raise Corrupt(
                self.config, found=f"a fact names the unknown model {digest}", advice="Stop and report it"
            )
        model.state = state
        model.history.append((at_s, str(state), reason))


def stage_of(kind: str, purpose: str) -> str:
    """The stage that a job belongs to: its kind, but for the trainings of students."""
    return purpose if kind == "train" and purpose in STUDENTS else kind


def fold(config: str, facts: Iterable[AnyFact], *, bucket_rules: BucketRules) -> ConfigState:
    """The state after *facts*. *bucket_rules* count only where the facts name none."""
    ordered = list(facts)
    state = state_before(config, ordered, bucket_rules=bucket_rules)
    for fact in ordered:
        state.apply(fact)
    return state


def state_before(config: str, facts: Iterable[AnyFact], *, bucket_rules: BucketRules) -> ConfigState:
    """The state before the first of *facts*: it goes by the first rules that they name."""
    noted = (rules for fact in facts if (rules := bucket_rules_of(fact)) is not None)
    return ConfigState(config, next(noted, bucket_rules))


REFUSED_EARN_NOTHING = 14  # from this version of the plan on


def plan_version(rules: Noted) -> int:
    """Which version of the plan noted *rules*."""
    version = rules.details.get("plan", 1)
    return version if isinstance(version, int) else 1


def bucket_rules_of(fact: AnyFact) -> BucketRules | None:
    """How training is paid for from *fact* on; None if it is about something else."""
    if not isinstance(fact, Noted) or fact.topic != RULES_TOPIC:
        return None
    try:
        return convert_to(fact.details["rules"]["bucket"], BucketRules)
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise Corrupt(
            f"the rules noted at {fact.at_s:.0f}", found=str(error), advice="Use the version that wrote them"
        ) from None


def _job_issued(state: ConfigState, fact: JobIssued) -> None:
    job = OpenJob(fact.job_id, fact.kind, fact.order, fact.priority, fact.reason, fact.at_s)
    state.open_jobs[fact.job_id] = job
    state.issued[fact.kind] += 1
    for digest in fact.order.inputs.values() if fact.kind == "selfplay" else ():
        if digest in state.unfinished:
            state.unfinished[digest].taken_by = fact.job_id
            state.untaken.pop(digest, None)
    if fact.kind != "selfplay":
        state.decisions.append(fact)
    if fact.kind == "recompute" and (shard := results.compared_games(state, fact.order)) is not None:
        state.standing(shard.worker).asked(fact.at_s)


def _job_ended(state: ConfigState, fact: JobEnded) -> None:
    job = state.open_jobs.pop(fact.job_id, None)
    if job is None:  # the end was noted before
        return
    if fact.report is None:
        _give_back_unfinished(state, job, failed=not fact.cancelled)
    if fact.cancelled:
        return
    if job.kind == "train":
        _note_training(state, job, fact)
    failures = state.failures.setdefault(job.stage, StageFailures())
    report = fact.report
    if report is None:
        failures.in_a_row += 1
        failures.last_s, failures.error = fact.at_s, fact.error
        state.decisions.append(fact)
        _note_bad_checkpoint(state, job, fact.error)
        _note_unfit_samples(state, job, fact.error)
        if job.kind == "recompute" and (shard := results.compared_games(state, job.order)) is not None:
            state.comparisons.pop(shard.digest, None)  # its files may be gone; other games are asked about
        return
    failures.in_a_row = 0
    state.last_done[job.stage] = DoneJob(job.job_id, job.order, fact.at_s)
    state.served_s[job.kind] += report.wall_s
    state.node_s[report.node] += report.wall_s if report.node_s is None else report.node_s
    state.cpu_s += report.cpu_s
    state.cpu_of[job.kind] += report.cpu_s
    state.recent_jobs.append(EndedJob(job.kind, fact.at_s, report.wall_s, report.cpu_s, report.start_s))
    if report.start_s is not None:
        state.starting_s += report.start_s
        state.timed_s += max(report.wall_s, report.start_s)
    state.gpu_s += report.gpu_s
    state.standing(report.worker).jobs += 1
    results.take_in(state, job, report, fact.at_s)


def _note_training(state: ConfigState, job: OpenJob, fact: JobEnded) -> None:
    report = fact.report
    state.trained["failed" if report is None else "completed"] += 1
    if report is None:
        error = fact.error or "it left no message"
        state.trainings.append(EndedTraining(job.job_id, job.issued_s, fact.at_s, error=error))
        return
    slot = str(report.fields.get(results.SLOT_FIELD) or "")
    if slot:
        state.slots_taken_in.append(slot)
    state.trainings.append(
        EndedTraining(job.job_id, report.started_s, fact.at_s, node=report.node, slot=slot)
    )


def _note_bad_checkpoint(state: ConfigState, job: OpenJob, error: str) -> None:
    """One that is gone, is no checkpoint of the parent, or holds no numbers would fail every training."""
    checkpoint = job.order.inputs.get(results.CHECKPOINT_FILE)
    message = error.replace(f".{results.CHECKPOINT_FILE}", "")  # of the one that it could not write itself
    if checkpoint and any(sign in message for sign in (results.CHECKPOINT_FILE, checkpoint, DIVERGED)):
        state.bad_checkpoints.add(checkpoint)


def _note_unfit_samples(state: ConfigState, job: OpenJob, error: str) -> None:
    """What a training refuses, the next one would refuse as well: the file is not read any more.

    Workers read inputs whole before a job sees them, so it is the content and not one damaged copy of it.
    """
    for name, digest in job.order.inputs.items() if job.kind == "train" else ():
        samples = state.samples.get(digest)
        if samples is not None and f"/{name}: " in error:
            state.unfit_samples.add(digest)
            state.unfit_exports.update(samples.shards)


def _give_back_unfinished(state: ConfigState, job: OpenJob, *, failed: bool) -> None:
    """The games that *job* should have gone on with are as they were."""
    for digest in job.order.inputs.values():
        held = state.unfinished.get(digest)
        if held is not None and held.taken_by == job.job_id:
            held.taken_by = ""
            held.failures += failed
            state.untaken = {each.digest: each for each in state.unfinished.values() if not each.taken_by}


def _staged(state: ConfigState, fact: Staged) -> None:
    state.move_model(fact.model, ModelState.STAGING, fact.at_s, fact.reason)
    state.decisions.append(fact)


def _promoted(state: ConfigState, fact: Promoted) -> None:
    if fact.previous is not None:
        state.move_model(fact.previous, ModelState.SUPERSEDED, fact.at_s, f"superseded by {fact.model[:12]}")
    state.move_model(fact.model, ModelState.PRODUCTION, fact.at_s, fact.reason)
    state.champion = fact.model
    state.promotions.append(
        Promotion(fact.model, fact.previous, fact.at_s, state.rows, fact.reason, fact.evidence)
    )
    state.decisions.append(fact)


def _rolled_back(state: ConfigState, fact: RolledBack) -> None:
    state.move_model(fact.model, ModelState.ROLLED_BACK, fact.at_s, fact.reason)
    if fact.restored is not None:
        state.move_model(fact.restored, ModelState.PRODUCTION, fact.at_s, "restored")
    state.champion = fact.restored
    state.rollbacks += 1
    state.decisions.append(fact)


def _rejected(state: ConfigState, fact: Rejected) -> None:
    state.move_model(fact.model, ModelState.REJECTED, fact.at_s, fact.reason)
    state.rejections += 1
    state.decisions.append(fact)


def _archived(state: ConfigState, fact: Archived) -> None:
    state.move_model(fact.model, ModelState.ARCHIVED, fact.at_s, fact.reason)


def _generator_moved(state: ConfigState, fact: GeneratorMoved) -> None:
    state.generator = fact.model
    state.decisions.append(fact)


def _training_reset(state: ConfigState, fact: TrainingReset) -> None:
    """Nobody judges what was given up: it would be compared with where training went back to."""
    state.reset, state.restarts = fact, True
    since = state.models[fact.model].number
    for model in state.models.values():
        if model.number > since and model.state in (ModelState.EVALUATING, ModelState.STAGING):
            state.move_model(model.digest, ModelState.ARCHIVED, fact.at_s, f"training reset: {fact.reason}")
    state.decisions.append(fact)


def _recalled(state: ConfigState, fact: Recalled) -> None:
    state.recalls[fact.recall_id] = fact
    state._recheck_trust(state.shards.values())
    of_shards = state.shards.values()  # in their order, also those that are trusted again
    state.unchecked_shards = {each.digest: each for each in of_shards if each.state is ShardState.UNCHECKED}
    recalls = [each for each in state.recalls.values() if not each.withdrawn]
    for number, match in enumerate(state.matches):
        wanted = is_recalled(
            recalls, worker=match.worker, models=(match.first, match.second), at_s=match.at_s
        )
        if wanted != match.recalled:
            state.matches[number] = results.match_with(match, recalled=wanted)
    state.decisions.append(fact)


def _blocked(state: ConfigState, fact: Blocked) -> None:
    state.blocks[fact.stage] = Block(fact.reason, fact.until_s, fact.at_s)
    state.decisions.append(fact)


def _noted(state: ConfigState, fact: Noted) -> None:
    state.notes.append(fact)
    about = (fact.topic, str(fact.details.get("kind", "")))
    before = state.newest_notes.pop(about, None)
    state.newest_notes[about] = fact
    state.bucket_rules = bucket_rules_of(fact) or state.bucket_rules
    if fact.topic == RULES_TOPIC:
        state.pays_for_refused = plan_version(fact) < REFUSED_EARN_NOTHING
    gpus = [0 if note is None else note.details.get("gpus", 0) for note in (before, fact)]
    if fact.topic == SLOTS_TOPIC and before is not None and gpus[0] != gpus[1]:
        state.gpus_since_s = fact.at_s
    if fact.topic == PRICE_TOPIC:
        state.price = float(fact.details["factor"])
    state.decisions.append(fact)


def _worker_set_aside(state: ConfigState, fact: WorkerSetAside) -> None:
    standing = state.standing(fact.worker)
    standing.set_aside = SetAside(fact.reason, fact.at_s, fact.until_s, fact.by)
    standing.start_again()  # when its time is over
    state.decisions.append(fact)


def _worker_resumed(state: ConfigState, fact: WorkerResumed) -> None:
    standing = state.standing(fact.worker)
    standing.set_aside = None
    standing.start_again()
    state.decisions.append(fact)


_APPLY: dict[type, Callable[[ConfigState, Any], None]] = {
    JobIssued: _job_issued,
    JobEnded: _job_ended,
    Staged: _staged,
    Promoted: _promoted,
    RolledBack: _rolled_back,
    Rejected: _rejected,
    Archived: _archived,
    GeneratorMoved: _generator_moved,
    TrainingReset: _training_reset,
    Recalled: _recalled,
    Blocked: _blocked,
    Noted: _noted,
    WorkerSetAside: _worker_set_aside,
    WorkerResumed: _worker_resumed,
}


def has_recalled(state: ConfigState, shards: Iterable[str]) -> bool:
    """Whether any of *shards* is recalled now."""
    return not state.trust_before_recall.keys().isdisjoint(shards)
