"""What is told when a fact was written: the events that follow from it, with their payloads.

A pure mapping, so that the story told on the bus cannot differ from what happened. The controller publishes
what `events_of` returns, after the fact is stored; an event that is lost costs a wake-up and nothing else.
How an attempt at a job went is told by its worker, and here only where no worker lived to tell it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, cast

import msgspec

from ringrift.engine.work_rules import LEASE_RAN_OUT
from ringrift.learning.announcement_scene import Announcement, Scene, blob_path
from ringrift.learning.announcements_of_jobs import ENDED, FAILED, ISSUED
from ringrift.learning.announcements_of_verdicts import promoted, rejected, rolled_back, staged
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
from ringrift.learning.records import ShardState
from ringrift.learning.results import OUTSIDE
from ringrift.learning.state import ConfigState, OpenJob, stage_of
from ringrift.learning.trust import are_games_recalled

PRIORITIES_MAX = 1_000  # shards that are named

# Everything that `events_of` can return, for the wiring audit.
ANNOUNCED = (
    "BATCH_DISPATCHED",
    "BATCH_SCHEDULED",
    "CHECKPOINT_LOADED",
    "CHECKPOINT_SAVED",
    "CPU_PIPELINE_JOB_COMPLETED",
    "DATABASE_CREATED",
    "DATA_QUALITY_ALERT",
    "EVALUATION_COMPLETED",
    "EVALUATION_FAILED",
    "EVALUATION_PROGRESS",
    "EVALUATION_STARTED",
    "EXPORT_TRIGGERED",
    "ITERATION_COMPLETED",
    "MODEL_PROMOTED",
    "NEW_GAMES_AVAILABLE",
    "NPZ_COMBINATION_COMPLETE",
    "NPZ_COMBINATION_FAILED",
    "NPZ_COMBINATION_STARTED",
    "NPZ_EXPORT_COMPLETE",
    "NPZ_EXPORT_STARTED",
    "PER_BUFFER_REBUILT",
    "PER_PRIORITIES_UPDATED",
    "PROMOTION_CANDIDATE",
    "PROMOTION_REJECTED",
    "PROMOTION_ROLLED_BACK",
    "PROMOTION_STARTED",
    "QUALITY_CHECK_REQUESTED",
    "SELFPLAY_COMPLETE",
    "SELFPLAY_TARGET_UPDATED",
    "TIER_PROMOTION",
    "TOURNAMENT_COMPLETED",
    "TRAINING_COMPLETED",
    "TRAINING_EARLY_STOPPED",
    "TRAINING_FAILED",
    "TRAINING_LOSS_ANOMALY",
    "TRAINING_LOSS_TREND",
    "TRAINING_ROLLBACK_COMPLETED",
    "TRAINING_THRESHOLD_REACHED",
    "TRAINING_TRIGGERED",
    "WORK_CANCELLED",
    "WORK_FAILED",
    "WORK_QUEUED",
)


def events_of(fact: AnyFact, state: ConfigState) -> list[Announcement]:
    """Return (event name, payload) for *fact*, in the order in which they are to be told.

    *state* has taken in *fact*, and nothing after it.
    """
    scene = Scene(state, fact.at_s)
    if isinstance(fact, JobEnded):
        # Without a job this end was noted before, and told then.
        return [] if state.last_ended is None else _ended(scene, state.last_ended, fact)
    tell = cast("Callable[[Scene, AnyFact], list[Announcement]]", _TELL[type(fact)])
    return tell(scene, fact)


def _issued(scene: Scene, fact: JobIssued) -> list[Announcement]:
    if fact.order.purpose == OUTSIDE:
        return []  # whoever did it told it
    about = {"work_id": fact.job_id, "work_type": fact.kind, "config_key": scene.config}
    queued = {**about, "priority": fact.priority, "queue_depth": len(scene.state.open_jobs)}
    tell = ISSUED.get(stage_of(fact.kind, fact.order.purpose))
    return [("WORK_QUEUED", queued), *([] if tell is None else tell(scene, fact))]


def _ended(scene: Scene, job: OpenJob, fact: JobEnded) -> list[Announcement]:
    about = {"work_id": job.job_id, "work_type": job.kind}
    if job.order.purpose == OUTSIDE:
        return []  # whoever did it told it
    if fact.cancelled:
        return [("WORK_CANCELLED", {**about, "reason": fact.error or "cancelled"})]
    report = fact.report
    if report is None:
        error = fact.error or "it failed and left no message"
        broken = FAILED.get(job.stage)
        told = [] if broken is None else broken(scene, job, error)
        if LEASE_RAN_OUT not in error:
            return told  # its worker told the failure
        failed = {
            **about,
            "error": error,
            "attempts": scene.failures_of(job.stage),
            "config_key": scene.config,
        }
        return [("WORK_FAILED", failed), *told]
    tell = ENDED.get(job.stage)
    return [] if tell is None else tell(scene, job, report)


def _archived(_scene: Scene, _fact: Archived) -> list[Announcement]:
    """Nobody waits for an archived model."""
    return []


def _generator_moved(_scene: Scene, _fact: GeneratorMoved) -> list[Announcement]:
    """The orders of games name it; what is published has not changed."""
    return []


def _training_reset(scene: Scene, fact: TrainingReset) -> list[Announcement]:
    model, newest = scene.state.models[fact.model], scene.state.newest_model
    completed = {
        "config_key": scene.config,
        "model_id": fact.model,
        "checkpoint_path": blob_path(model.checkpoint or fact.model),
        "rollback_from": "" if newest is None else newest.digest,
        "reason": fact.reason,
    }
    return [("TRAINING_ROLLBACK_COMPLETED", completed)]


def _recalled(scene: Scene, fact: Recalled) -> list[Announcement]:
    """How often the rows of the shards it is about are drawn from now on: never, or as before."""
    state = scene.state
    about = msgspec.structs.replace(fact, withdrawn=False)
    shards = [each for each in state.shards.values() if are_games_recalled([about], each, state.unfinished)]
    if not shards:
        return []
    drawn = {each.digest: 0.0 if each.state is ShardState.RECALLED else 1.0 for each in shards}
    updated = {
        "config_key": scene.config,
        "samples_updated": sum(each.rows for each in shards),
        "priorities": dict(islice(drawn.items(), PRIORITIES_MAX)),
    }
    return [("PER_PRIORITIES_UPDATED", updated)]


def _blocked(_scene: Scene, _fact: Blocked) -> list[Announcement]:
    """What waits and why is shown; those who hold something back tell it."""
    return []


def _noted(_scene: Scene, _fact: Noted) -> list[Announcement]:
    """Whoever noted it tells it."""
    return []


def _set_aside(scene: Scene, fact: WorkerSetAside) -> list[Announcement]:
    message = f"{fact.worker} gets no work: {fact.reason}"
    alert = {"alert_type": "worker_set_aside", "severity": "warning", "message": message}
    return [("DATA_QUALITY_ALERT", {"config_key": scene.config, **alert})]


def _resumed(_scene: Scene, _fact: WorkerResumed) -> list[Announcement]:
    """Whoever resumed it knows."""
    return []


_TELL: dict[type, Callable[[Scene, Any], list[Announcement]]] = {
    JobIssued: _issued,
    Staged: staged,
    Promoted: promoted,
    Rejected: rejected,
    RolledBack: rolled_back,
    Archived: _archived,
    GeneratorMoved: _generator_moved,
    TrainingReset: _training_reset,
    Recalled: _recalled,
    Blocked: _blocked,
    Noted: _noted,
    WorkerSetAside: _set_aside,
    WorkerResumed: _resumed,
}
