"""What happened to a config, as a sequence of facts that only grows. Everything else follows from it.

One process writes the facts of a config, numbered without a gap, so a second writer collides instead of
counting twice. `learning.facts.state` folds them into what is known now; the same facts give the same state,
and the same state gives the same plan, which is how a decision is replayed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ringrift.work.job.protocol import JobOrder, JobReport

# Topics of notes that the state itself goes by.
RULES_TOPIC = "rules"  # puts rules in force
REBUILT_TOPIC = "rebuilt"  # the facts before it were made again from sealed files
SLOTS_TOPIC = "slots"  # how many jobs the workers of the run take at a time
PRICE_TOPIC = "steps_per_row"  # changes what rows earn from then on
STAGES_TOPIC = "stages"  # which daemons do not plan
QUALITY_MONITOR = "quality_monitor"  # of these the one without which no score refuses games
FRESHNESS_TOPIC = "freshness"  # since when a training waits for newer games
SYNC_FAILED_TOPIC = "sync_failed"  # how many syncs failed that could have brought them
MISSING_TOPIC = "missing_files"  # what the facts name and the blobs lack
TRAINING_SLOT_TOPIC = "training_slot"  # who else trains the config
HEALTH_TOPIC = "health"  # why new work waits for the health of the system


class Fact(msgspec.Struct, frozen=True, kw_only=True, tag_field="fact"):
    """Something that happened at a wall-clock time."""

    at_s: float


class JobIssued(Fact, frozen=True, kw_only=True, tag="job_issued"):
    """Work was ordered; written before the item is in the queue, so that a crash between is made good."""

    job_id: str
    kind: str
    order: JobOrder
    priority: int
    reason: str


class JobEnded(Fact, frozen=True, kw_only=True, tag="job_ended"):
    """Work came to its end, once per job."""

    job_id: str
    report: JobReport | None = None  # None: it failed for good or was cancelled
    error: str = ""
    cancelled: bool = False


class Staged(Fact, frozen=True, kw_only=True, tag="staged"):
    """A candidate beat the champion, and only the last gate before its place is open."""

    model: str
    reason: str
    evidence: dict[str, Any] = {}


class Promoted(Fact, frozen=True, kw_only=True, tag="promoted"):
    """The champion changed."""

    model: str
    previous: str | None
    reason: str
    evidence: dict[str, Any] = {}


class RolledBack(Fact, frozen=True, kw_only=True, tag="rolled_back"):
    """A promotion was taken back; the evidence stays here."""

    model: str  # the one that lost its place
    restored: str | None
    reason: str
    evidence: dict[str, Any] = {}


class Rejected(Fact, frozen=True, kw_only=True, tag="rejected"):
    """A candidate was refused."""

    model: str
    gate: str
    reason: str
    evidence: dict[str, Any] = {}


class Archived(Fact, frozen=True, kw_only=True, tag="archived"):
    """A model is kept for its history only."""

    model: str
    reason: str


class GeneratorMoved(Fact, frozen=True, kw_only=True, tag="generator_moved"):
    """Another network plays the games from now on; who is published is another question."""

    model: str | None  # None: games are played without a network
    previous: str | None
    reason: str


class TrainingReset(Fact, frozen=True, kw_only=True, tag="training_reset"):
    """Training begins again from the checkpoint of an earlier model; what was trained since is given up."""

    model: str
    reason: str
    evidence: dict[str, Any] = {}


class Recalled(Fact, frozen=True, kw_only=True, tag="recalled"):
    """Games are not to be trusted any more: they leave window, ratings and evidence."""

    recall_id: str
    reason: str
    worker: str | None = None
    model: str | None = None
    from_s: float | None = None
    until_s: float | None = None
    withdrawn: bool = False  # the recall itself is taken back


class Blocked(Fact, frozen=True, kw_only=True, tag="blocked"):
    """A stage waits, for a reason, until a time."""

    stage: str
    reason: str
    until_s: float


class Noted(Fact, frozen=True, kw_only=True, tag="noted"):
    """A finding that changes the plan: a plateau, a regression, an anomaly, a request of the user."""

    topic: str
    text: str
    details: dict[str, Any] = {}


class WorkerSetAside(Fact, frozen=True, kw_only=True, tag="worker_set_aside"):
    """A worker gets no more work, and what it still brings does not count."""

    worker: str
    reason: str
    until_s: float
    by: str  # the plan, a person, or the config that found it
    evidence: dict[str, Any] = {}


class WorkerResumed(Fact, frozen=True, kw_only=True, tag="worker_resumed"):
    """A person gave a worker work again."""

    worker: str
    reason: str


AnyFact = (
    JobIssued
    | JobEnded
    | Staged
    | Promoted
    | RolledBack
    | Rejected
    | Archived
    | GeneratorMoved
    | TrainingReset
    | Recalled
    | Blocked
    | Noted
    | WorkerSetAside
    | WorkerResumed
)
