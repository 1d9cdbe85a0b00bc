"""The events that are sent when a fact was written, with their payloads, and who sends them.

A pure mapping, so that the story told on the bus cannot differ from what happened. The controller publishes
what `events_of` returns, after the fact is stored; an event that is lost costs a wake-up and nothing else.
How an attempt at a job went is told by its worker, and here only where no worker lived to tell it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any, Protocol, cast

import msgspec

from ringrift.engine.work_rules import LEASE_RAN_OUT
from ringrift.events.event import Announcement
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.learning.facts.facts import (
    FRESHNESS_TOPIC,
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
from ringrift.learning.facts.records import ModelState, ShardState, are_games_recalled
from ringrift.learning.facts.results import OUTSIDE
from ringrift.learning.facts.state import ConfigState, OpenJob, stage_of
from ringrift.learning.job_announcements import (
    ENDED,
    FAILED,
    ISSUED,
    SET_BACK,
    AnnouncementContext,
    blob_path,
)
from ringrift.learning.plan.stages import LOOP_SOURCE
from ringrift.learning.tuning import TOPIC as TUNED_TOPIC
from ringrift.learning.tuning import is_drop
from ringrift.work.limits import FRESH_HOURS_MAX, NEVER_HOURS

# What is told when a model was accepted, refused or taken back.


# Ratings at which a config enters a tier of the documents.
TIERS = ((2000.0, "elite"), (1800.0, "expert"), (1650.0, "production"), (1500.0, "advanced"))
TIERS_LOW = ((1200.0, "heuristic"), (800.0, "novice"))
_UNRANKED = "unranked"


def tier_of(rating: float) -> str:
    return next((name for at_least, name in (*TIERS, *TIERS_LOW) if rating >= at_least), _UNRANKED)


def staged(context: AnnouncementContext, fact: Staged) -> list[Announcement]:
    return [_candidate(context, fact.model)]


def promoted(context: AnnouncementContext, fact: Promoted) -> list[Announcement]:
    config, model = context.config, fact.model
    about = {"config_key": config, "model_id": model}
    elo = context.rating(model)
    change = {**about, "model_path": blob_path(model), "elo": elo, "reason": fact.reason}
    if fact.previous is not None:
        before = context.rating(fact.previous)
        change |= {"previous_elo": before, "elo_gain": elo - before, "supersedes": fact.previous}
    was = {state for _, state, _ in context.state.models[model].history}
    announcements = [
        *_verdict(context, model, passed=True),
        *([] if ModelState.STAGING in was else [_candidate(context, model)]),
        ("PROMOTION_STARTED", about),
        ("MODEL_PROMOTED", change),
    ]
    old = _UNRANKED if fact.previous is None else tier_of(context.rating(fact.previous))
    if (new := tier_of(elo)) != old and model in context.ratings:
        announcements.append(("TIER_PROMOTION", {**about, "old_tier": old, "new_tier": new, "elo": elo}))
    return [*announcements, _iteration(context, model, was_promoted=True)]


def rejected(context: AnnouncementContext, fact: Rejected) -> list[Announcement]:
    refused: dict[str, Any] = {"model_id": fact.model, "reason": fact.reason, "gate": fact.gate}
    if context.state.champion is not None:
        refused["elo_improvement"] = context.rating(fact.model) - context.champion_rating()
    return [
        *_verdict(context, fact.model, passed=False),
        ("PROMOTION_REJECTED", {"config_key": context.config, **refused}),
        _iteration(context, fact.model, was_promoted=False),
    ]


def rolled_back(context: AnnouncementContext, fact: RolledBack) -> list[Announcement]:
    back = {
        "config_key": context.config,
        "from_model_id": fact.model,
        "to_model_id": fact.restored or "",
        "reason": fact.reason,
        "triggered_by": "later evidence",
    }
    return [("PROMOTION_ROLLED_BACK", back)]


def _verdict(context: AnnouncementContext, model: str, *, passed: bool) -> list[Announcement]:
    """A verdict without games is none, so nothing is told of one."""
    matches = context.matches_of(model, "promotion")
    games = sum(match.games for match in matches)
    if not games:
        return []
    by_opponent: dict[str, dict[str, float]] = {}
    for match in matches:
        found = by_opponent.setdefault(match.second, {"games": 0, "wins": 0, "points": 0.0})
        found["games"] += match.games
        found["wins"] += match.wins
        found["points"] += match.score * match.games
    payload = {
        "config_key": context.config,
        "model_id": model,
        "model_path": blob_path(model),
        "elo": context.rating(model),
        "win_rate": sum(match.score * match.games for match in matches) / games,
        "games_played": games,
        "opponent_results": by_opponent,
        "passed": passed,
        "success": True,
    }
    for name, field in (("random", "vs_random_rate"), ("heuristic", "vs_heuristic_rate")):
        if name in by_opponent:
            payload[field] = by_opponent[name]["points"] / by_opponent[name]["games"]
    return [("EVALUATION_COMPLETED", payload)]


def _candidate(context: AnnouncementContext, model: str) -> Announcement:
    about = {"config_key": context.config, "model_id": model, "model_path": blob_path(model)}
    return ("PROMOTION_CANDIDATE", {**about, "elo": context.rating(model)})


def _iteration(context: AnnouncementContext, model: str, *, was_promoted: bool) -> Announcement:
    """One turn of the loop: from a model's training to the decision about it."""
    found = context.state.models.get(model)
    turn = {"config_key": context.config, "iteration": context.number(model), "success": True}
    if found is not None:
        turn["duration_seconds"] = max(0.0, context.at_s - found.made_s)
    return ("ITERATION_COMPLETED", {**turn, "metadata": {"model_id": model, "promoted": was_promoted}})


# Every kind of fact and its events.


PRIORITIES_MAX = 1_000  # shards that are named

# Everything that `events_of` can return, for the wiring audit.
ANNOUNCED = (
    "BATCH_DISPATCHED",
    "BATCH_SCHEDULED",
    "CHECKPOINT_LOADED",
    "CHECKPOINT_SAVED",
    "CPU_PIPELINE_JOB_COMPLETED",
    "DATABASE_CREATED",
    "DATA_FRESH",
    "DATA_QUALITY_ALERT",
    "DATA_STALE",
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
    "RECOVERY_COMPLETED",
    "RECOVERY_FAILED",
    "RECOVERY_INITIATED",
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
    context = AnnouncementContext(state, fact.at_s)
    if isinstance(fact, JobEnded):
        # Without a job this end was noted before, and told then.
        return [] if state.last_ended is None else _ended(context, state.last_ended, fact)
    tell = cast("Callable[[AnnouncementContext, AnyFact], list[Announcement]]", _TELL[type(fact)])
    return tell(context, fact)


def _issued(context: AnnouncementContext, fact: JobIssued) -> list[Announcement]:
    if fact.order.purpose == OUTSIDE:
        return []  # whoever did it told it
    about = {"work_id": fact.job_id, "work_type": fact.kind, "config_key": context.config}
    queued = {**about, "priority": fact.priority, "queue_depth": len(context.state.open_jobs)}
    tell = ISSUED.get(stage_of(fact.kind, fact.order.purpose))
    return [("WORK_QUEUED", queued), *([] if tell is None else tell(context, fact))]


def _ended(context: AnnouncementContext, job: OpenJob, fact: JobEnded) -> list[Announcement]:
    about = {"work_id": job.job_id, "work_type": job.kind}
    if job.order.purpose == OUTSIDE:
        return []  # whoever did it told it
    if fact.cancelled:
        return [("WORK_CANCELLED", {**about, "reason": fact.error or "cancelled"})]
    report = fact.report
    if report is None:
        error = fact.error or "it failed and left no message"
        broken = FAILED.get(job.stage)
        announcements = [] if broken is None else broken(context, job, error)
        if LEASE_RAN_OUT not in error:
            return announcements  # its worker told the failure
        failed = {
            **about,
            "error": error,
            "attempts": context.failures_of(job.stage),
            "config_key": context.config,
        }
        return [("WORK_FAILED", failed), *announcements]
    tell = ENDED.get(job.stage)
    return [] if tell is None else tell(context, job, report)


def _archived(_context: AnnouncementContext, _fact: Archived) -> list[Announcement]:
    """Nobody waits for an archived model."""
    return []


def _generator_moved(_context: AnnouncementContext, _fact: GeneratorMoved) -> list[Announcement]:
    """The orders of games name it; what is published has not changed."""
    return []


def _training_reset(context: AnnouncementContext, fact: TrainingReset) -> list[Announcement]:
    model, newest = context.state.models[fact.model], context.state.newest_model
    completed = {
        "config_key": context.config,
        "model_id": fact.model,
        "checkpoint_path": blob_path(model.checkpoint or fact.model),
        "rollback_from": "" if newest is None else newest.digest,
        "reason": fact.reason,
    }
    # The set-back is done; whether training recovers by it, the next one shows.
    initiated = {"component": context.config, "strategy": SET_BACK, "reason": fact.reason}
    return [("TRAINING_ROLLBACK_COMPLETED", completed), ("RECOVERY_INITIATED", initiated)]


def _recalled(context: AnnouncementContext, fact: Recalled) -> list[Announcement]:
    """How often the rows of the shards it is about are drawn from now on: never, or as before."""
    state = context.state
    about = msgspec.structs.replace(fact, withdrawn=False)
    shards = [each for each in state.shards.values() if are_games_recalled([about], each, state.unfinished)]
    if not shards:
        return []
    drawn = {each.digest: 0.0 if each.state is ShardState.RECALLED else 1.0 for each in shards}
    updated = {
        "config_key": context.config,
        "samples_updated": sum(each.rows for each in shards),
        "priorities": dict(islice(drawn.items(), PRIORITIES_MAX)),
    }
    return [("PER_PRIORITIES_UPDATED", updated)]


def _blocked(_context: AnnouncementContext, _fact: Blocked) -> list[Announcement]:
    """What waits and why is shown; those who hold something back tell it."""
    return []


def _noted(context: AnnouncementContext, fact: Noted) -> list[Announcement]:
    """What the plan itself notes: that a training waits for newer games, or has them, and that what a search
    found is dropped. Of all else, whoever noted it tells it.
    """
    if fact.topic == TUNED_TOPIC and is_drop(fact):
        return _dropped(context, fact)
    if fact.topic != FRESHNESS_TOPIC:
        return []
    age_s = fact.details.get("age_s")
    about = {
        "config_key": context.config,
        "data_age_hours": NEVER_HOURS if age_s is None else age_s / 3600.0,
        "threshold_hours": FRESH_HOURS_MAX,
    }
    return [("DATA_STALE" if fact.details.get("stale") else "DATA_FRESH", about)]


def _dropped(context: AnnouncementContext, fact: Noted) -> list[Announcement]:
    details = fact.details
    about = {"config_key": context.config, "optimizer": details["kind"], "reason": details["reason"]}
    back = details["best_params"]
    return [
        (
            "HYPERPARAMETER_UPDATED",
            {**about, "param_name": name, "old_value": old, "new_value": back.get(name, "")},
        )
        for name, old in details["dropped"].items()
    ]


def _set_aside(context: AnnouncementContext, fact: WorkerSetAside) -> list[Announcement]:
    message = f"{fact.worker} gets no work: {fact.reason}"
    alert = {"alert_type": "worker_set_aside", "severity": "warning", "message": message}
    return [("DATA_QUALITY_ALERT", {"config_key": context.config, **alert})]


def _resumed(_context: AnnouncementContext, _fact: WorkerResumed) -> list[Announcement]:
    """Whoever resumed it knows."""
    return []


_TELL: dict[type, Callable[[AnnouncementContext, Any], list[Announcement]]] = {
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


# Sends what became a fact. Events are hints: the fact stands whether or not they arrive.


SOURCE = LOOP_SOURCE


class Announcer(Protocol):
    """Whoever is to hear of facts: noted as they are stored, published when they may be acted upon."""

    def note(self, fact: AnyFact, state: ConfigState, /) -> None: ...

    def tell(self, event: str, payload: dict[str, Any], /) -> None:
        """Of what is no fact: publish it with the others."""

    async def publish(self) -> None: ...


class RouterAnnouncer:
    """Publishes the events that follow from a fact, without waiting for their handlers."""

    def __init__(self, router: UnifiedEventRouter) -> None:
        self._router = router
        self._noted: deque[Announcement] = deque()

    def note(self, fact: AnyFact, state: ConfigState) -> None:
        self._noted.extend(events_of(fact, state))

    def tell(self, event: str, payload: dict[str, Any]) -> None:
        self._noted.append((event, payload))

    async def publish(self) -> None:
        while self._noted:
            name, payload = self._noted.popleft()
            await self._router.publish(name, payload, SOURCE)


class Silent:
    """Nobody listens."""

    def note(self, _fact: AnyFact, _state: ConfigState) -> None:
        return

    def tell(self, _event: str, _payload: dict[str, Any]) -> None:
        return

    async def publish(self) -> None:
        return
