"""The events that are sent when a job was ordered, came to its end, or failed for good."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ringrift.events.event import Announcement
from ringrift.learning.facts.facts import JobIssued
from ringrift.learning.facts.records import Match, Model, rows_missing, steps_to_train
from ringrift.learning.facts.results import ordered_games, participant
from ringrift.learning.facts.state import ConfigState, OpenJob
from ringrift.learning.judging.ratings import rate
from ringrift.work.job.protocol import JobArtifact, JobOrder, JobReport

# What an announcement may look at: the state after the fact, the time, and the ratings.


SET_BACK = "training_set_back"  # how a config's training recovers: it goes on from an earlier checkpoint

RATING_START = 1500.0  # of whom nobody has played
_LOSSES = ("best_held", "best_loss", "held", "train")


def blob_path(digest: str) -> str:
    """Where a sealed file is found: in the engine's blobs, under its hash."""
    return f"blob:{digest}"


@dataclass(frozen=True)
class AnnouncementContext:
    """One moment of one config."""

    state: ConfigState
    at_s: float

    @cached_property
    def ratings(self) -> dict[str, float]:
        """By model or baseline; fitted only for the few events that speak of strength."""
        return {name: each.rating for name, each in rate(self.state.trusted_matches()).items()}

    @property
    def config(self) -> str:
        return self.state.config

    def rating(self, participant: str) -> float:
        return float(self.ratings.get(participant, RATING_START))

    def champion_rating(self) -> float:
        return RATING_START if self.state.champion is None else self.rating(self.state.champion)

    def number(self, model: str) -> int:
        found = self.state.models.get(model)
        return 0 if found is None else found.number

    def failures_of(self, kind: str) -> int:
        found = self.state.failures.get(kind)
        return 1 if found is None else max(1, found.in_a_row)

    def matches_of(self, model: str, purpose: str) -> list[Match]:
        return [
            match
            for match in self.state.trusted_matches()
            if match.first == model and match.purpose == purpose
        ]


def loss_of(fields: Mapping[str, Any]) -> float | None:
    """The loss that a training is compared by: on held-out games where there are any."""
    known = (_whole_loss(fields.get(name)) for name in _LOSSES)
    return next((loss for loss in known if loss is not None), None)


# What is told when a training came to its end: what it did, by its own report.


ALL_STEPS = "all steps made"
ANOMALY_DEVIATIONS = 3.0
ANOMALY_RUNS_MIN = 5
TREND_SHARE = 0.01  # a change of the loss below this is no trend


def trained(context: AnnouncementContext, job: OpenJob, report: JobReport) -> list[Announcement]:
    """All that a finished training says, the completion last: what it says is known by then."""
    model = next((each for each in context.state.models.values() if each.job_id == job.job_id), None)
    if model is None:
        return []
    loss, earlier = loss_of(report.fields), _losses_before(context, model)
    passes = _epochs(context, job, model, report)
    announcements = [*_checkpoints(context, model, report, loss, passes)]
    if loss is not None:
        announcements += _early_stop(context, report, loss, passes)
        announcements += _anomaly(context, loss, earlier, passes)
        announcements += _trend(context, loss, earlier, passes)
    announcements += [_completed(context, job, model, report, passes), _next_target(context)]
    return [*announcements, *_recovered(context, job)]


def training_failed(context: AnnouncementContext, job: OpenJob, error: str) -> list[Announcement]:
    took_s = max(0.0, context.at_s - job.issued_s)
    failed = {"config_key": context.config, "job_id": job.job_id, "error": error, "duration_seconds": took_s}
    announcements: list[Announcement] = [("TRAINING_FAILED", failed)]
    reset = context.state.reset
    if reset is not None and context.state.restarts and job.issued_s >= reset.at_s:
        attempt = context.failures_of(job.stage)
        about = {"component": context.config, "action": SET_BACK, "error": error, "attempt": attempt}
        announcements.append(("RECOVERY_FAILED", about))
    return announcements


def _recovered(context: AnnouncementContext, job: OpenJob) -> list[Announcement]:
    """A training that was set back has recovered with the first one since that went through."""
    reset = context.state.reset
    if reset is None or job.issued_s < reset.at_s:
        return []
    since = [model for model in context.state.models.values() if model.made_s > reset.at_s]
    if len(since) != 1:
        return []
    took_s = max(0.0, context.at_s - reset.at_s)
    done = {"component": context.config, "action": SET_BACK, "duration_seconds": took_s}
    return [("RECOVERY_COMPLETED", done)]


def _losses_before(context: AnnouncementContext, model: Model) -> list[float]:
    older = [each for each in context.state.models.values() if each.number < model.number]
    return [loss for each in older if (loss := loss_of(each.losses)) is not None]


def _epochs(context: AnnouncementContext, job: OpenJob, model: Model, report: JobReport) -> float | None:
    """Passes over the rows: as the job says, else by the rows it was given; None if neither is known."""
    said = report.fields.get("epochs")
    if isinstance(said, int | float) and not isinstance(said, bool):
        return float(said)
    known = context.state.samples
    rows = sum(known[digest].rows for digest in model.sample_files if digest in known)
    seen = _steps(report) * int(job.order.params.get("batch", 0))
    return round(seen / rows, 3) if rows and seen else None


def _steps(report: JobReport) -> int:
    return int(report.fields.get("steps", 0))


def _at(context: AnnouncementContext, passes: float | None) -> dict[str, Any]:
    """The config, and in which pass over its rows a training was, counted from 1."""
    about: dict[str, Any] = {"config_key": context.config}
    return about if passes is None else {**about, "epoch": max(1, math.ceil(passes))}


def _checkpoints(
    context: AnnouncementContext, model: Model, report: JobReport, loss: float | None, passes: float | None
) -> list[Announcement]:
    saved = {**_at(context, passes), "checkpoint_path": blob_path(model.digest)}
    if steps := _steps(report):
        saved["step"] = steps
    if loss is not None:
        saved["metrics"] = {"loss": loss}
    announcements: list[Announcement] = [("CHECKPOINT_SAVED", saved)]
    if model.parent is None:
        return announcements
    loaded = {"config_key": context.config, "checkpoint_path": blob_path(model.parent)}
    return [("CHECKPOINT_LOADED", loaded), *announcements]


def _early_stop(
    context: AnnouncementContext, report: JobReport, loss: float, passes: float | None
) -> list[Announcement]:
    ended = str(report.fields.get("ended", ALL_STEPS))
    if ended == ALL_STEPS:
        return []
    steps, best = _steps(report), int(report.fields.get("best_step", 0))
    last = _whole_loss(report.fields.get("held"))
    stopped = {**_at(context, passes), "best_loss": loss, "reason": ended}
    if last is not None:
        stopped["final_loss"] = last
    if passes is not None and steps:
        stopped["epochs_without_improvement"] = round(passes * max(0, steps - best) / steps)
    return [("TRAINING_EARLY_STOPPED", stopped)]


def _anomaly(
    context: AnnouncementContext, loss: float, earlier: Sequence[float], passes: float | None
) -> list[Announcement]:
    if len(earlier) < ANOMALY_RUNS_MIN:
        return []
    mean, deviation = statistics.fmean(earlier), statistics.stdev(earlier)
    if loss <= mean + ANOMALY_DEVIATIONS * max(deviation, TREND_SHARE * abs(mean)):
        return []
    anomaly = {"current_loss": loss, "avg_loss": mean}
    if mean > 0:
        anomaly["anomaly_ratio"] = loss / mean
    return [("TRAINING_LOSS_ANOMALY", {**_at(context, passes), **anomaly})]


def _trend(
    context: AnnouncementContext, loss: float, earlier: Sequence[float], passes: float | None
) -> list[Announcement]:
    """Told when it flips, not with every training."""
    if not earlier:
        return []
    before = "" if len(earlier) < 2 else _direction(earlier[-2], earlier[-1])
    now = _direction(earlier[-1], loss)
    if now == before:
        return []
    change = {"trend": now, "current_loss": loss, "previous_loss": earlier[-1]}
    change["improvement_rate"] = earlier[-1] - loss
    return [("TRAINING_LOSS_TREND", {**_at(context, passes), **change})]


def _direction(before: float, after: float) -> str:
    if abs(after - before) <= TREND_SHARE * max(abs(before), 1e-9):
        return "stable"
    return "improving" if after < before else "degrading"


def _completed(
    context: AnnouncementContext, job: OpenJob, model: Model, report: JobReport, passes: float | None
) -> Announcement:
    samples = context.state.samples.get(model.samples)
    completed = {
        "config_key": context.config,
        "job_id": job.job_id,
        "success": True,
        "model_path": blob_path(model.digest),
        "model_id": model.digest,
        "samples_trained": _steps(report) * int(job.order.params.get("batch", 0)),
        "training_games": None if samples is None else samples.games,
        "duration_seconds": report.wall_s,
        "early_stopped": str(report.fields.get("ended", ALL_STEPS)) != ALL_STEPS,
        "epochs": passes,
        "train_loss": _train_loss(report.fields),
        "val_loss": _held_loss(report.fields),
    }
    return ("TRAINING_COMPLETED", {name: value for name, value in completed.items() if value is not None})


def _train_loss(fields: Mapping[str, Any]) -> float | None:
    """On the rows that it learned from, at the last look."""
    return _number(fields.get("loss")) if (found := _whole_loss(fields.get("train"))) is None else found


def _held_loss(fields: Mapping[str, Any]) -> float | None:
    """Of the weights that were kept, on games that were held out; None without a hold-out."""
    best = _whole_loss(fields.get("best_held"))
    return _whole_loss(fields.get("held")) if best is None else best


def _whole_loss(parts: object) -> float | None:
    """Policy and value together, as the hold-out is judged by; another's trainer may say one number."""
    if not isinstance(parts, Mapping):
        return _number(parts)
    known = [_number(parts.get(name)) for name in ("policy", "value")]
    found = [part for part in known if part is not None]
    return math.fsum(found) if found else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _next_target(context: AnnouncementContext) -> Announcement:
    """What self-play has to bring before the next training."""
    state = context.state
    missing = rows_missing(state.bucket, state.bucket_rules, rows_total=state.rows, has_model=True)
    games = round(missing * state.games / state.rows) if state.rows else 0
    target = {"target_games": state.games + games, "extra_games": games}
    reason = f"the next training waits for {missing:,} more rows"
    return ("SELFPLAY_TARGET_UPDATED", {"config_key": context.config, **target, "reason": reason})


# Every kind of job and its events.


Issued = Callable[[AnnouncementContext, JobIssued], list[Announcement]]
Ended = Callable[[AnnouncementContext, OpenJob, JobReport], list[Announcement]]
Failed = Callable[[AnnouncementContext, OpenJob, str], list[Announcement]]

_REPORT_SUFFIX = ".report.json"


# --- games ------------------------------------------------------------------------------------------------


def _selfplay_issued(context: AnnouncementContext, fact: JobIssued) -> list[Announcement]:
    batch = {
        "batch_id": fact.job_id,
        "batch_type": "selfplay",
        "config_key": context.config,
        "target_nodes": [],  # whoever claims it
    }
    return [
        ("BATCH_SCHEDULED", {**batch, "job_count": 1, "reason": fact.reason}),
        ("BATCH_DISPATCHED", {**batch, "jobs_dispatched": 1, "jobs_failed": 0}),
    ]


def _selfplay_ended(context: AnnouncementContext, job: OpenJob, report: JobReport) -> list[Announcement]:
    shards = _artifacts(report, "shard")
    created: list[Announcement] = [
        (
            "DATABASE_CREATED",
            {
                "db_path": blob_path(shard.digest),
                "config_key": context.config,
                "node_id": report.node,
                "engine_mode": "search",
            },
        )
        for shard in shards
    ]
    complete = {
        **_selfplay_task(context, job),
        "node_id": report.node,
        "games_generated": _total(shards, "games"),
        "success": True,
        "duration_seconds": report.wall_s,
    }
    return [*created, ("SELFPLAY_COMPLETE", complete)]


def _selfplay_failed(context: AnnouncementContext, job: OpenJob, error: str) -> list[Announcement]:
    failed = {**_selfplay_task(context, job), "games_generated": 0, "success": False, "error": error}
    return [("SELFPLAY_COMPLETE", failed)]


def _selfplay_task(context: AnnouncementContext, job: OpenJob) -> dict[str, object]:
    return {
        "config_key": context.config,
        "task_id": job.job_id,
        "selfplay_type": "gpu_selfplay" if job.order.gpu else "canonical",
        "iteration": len(context.state.models),
    }


def _validate_issued(context: AnnouncementContext, fact: JobIssued) -> list[Announcement]:
    return [("QUALITY_CHECK_REQUESTED", {"config_key": context.config, "reason": fact.reason})]


def _validate_ended(context: AnnouncementContext, job: OpenJob, report: JobReport) -> list[Announcement]:
    """Games are new when the rules agreed with them, not before."""
    announcements = [_cpu_job(job, report)]
    shards = [
        context.state.shards[digest] for digest in job.order.inputs.values() if digest in context.state.shards
    ]
    accepted = sum(shard.games for shard in shards)
    if accepted:
        games = {"new_games": accepted, "total_games": context.state.games}
        announcements.append(
            ("NEW_GAMES_AVAILABLE", {"config_key": context.config, "node_id": report.node, **games})
        )
    if (reached := _threshold(context, rows=sum(shard.rows for shard in shards))) is not None:
        announcements.append(reached)
    return announcements


def _threshold(context: AnnouncementContext, *, rows: int) -> Announcement | None:
    """Told once: by the rows with which the steps for a training were earned."""
    state, rules = context.state, context.state.bucket_rules
    has_model = bool(state.models)
    steps = steps_to_train(state.bucket, rules, rows_total=state.rows, has_model=has_model)
    earned_before = state.bucket.available - rows * rules.steps_per_row
    was_enough = (
        earned_before >= rules.chunk_steps if has_model else state.rows - rows >= rules.rows_first_min
    )
    if not steps or was_enough or not rows:
        return None
    threshold = rules.chunk_steps if has_model else rules.rows_first_min
    reason = f"new rows have earned {steps:,} sample-steps"
    reached = {"sample_count": state.rows, "threshold": threshold, "reason": reason}
    return ("TRAINING_THRESHOLD_REACHED", {"config_key": context.config, **reached})


# --- samples ----------------------------------------------------------------------------------------------


def _export_issued(context: AnnouncementContext, fact: JobIssued) -> list[Announcement]:
    shards = _shards_of(fact.order)
    games = sum(context.state.shards[digest].games for digest in shards if digest in context.state.shards)
    config = {"config_key": context.config}
    announcements: list[Announcement] = [
        ("EXPORT_TRIGGERED", {**config, "threshold_met": True, "games_synced": games}),
        ("NPZ_EXPORT_STARTED", {**config, "job_id": fact.job_id, "games_planned": games}),
    ]
    return [*announcements, ("NPZ_COMBINATION_STARTED", config)] if len(shards) > 1 else announcements


def _export_ended(context: AnnouncementContext, job: OpenJob, report: JobReport) -> list[Announcement]:
    files, shards = _artifacts(report, "samples"), _shards_of(job.order)
    if not files:
        return [_cpu_job(job, report)]
    rows, path = _total(files, "rows"), blob_path(files[-1].digest)
    exported = {
        "config_key": context.config,
        "output_path": path,
        "samples_exported": rows,
        "games_exported": _total(files, "games"),
        "duration_seconds": report.wall_s,
        "success": True,
    }
    combined = {
        "config_key": context.config,
        "output_path": path,
        "total_samples": rows,
        "source_files": len(shards),
        "quality_weighted": False,
    }
    buffer = {"config_key": context.config, "buffer_path": path, "samples": rows}
    announcements = [_cpu_job(job, report), ("NPZ_EXPORT_COMPLETE", exported)]
    if len(shards) > 1:
        announcements.append(("NPZ_COMBINATION_COMPLETE", combined))
    return [*announcements, ("PER_BUFFER_REBUILT", buffer)]


def _export_failed(context: AnnouncementContext, job: OpenJob, error: str) -> list[Announcement]:
    announcements = _cpu_job_failed(context, job, error)
    if len(_shards_of(job.order)) > 1:
        announcements.append(("NPZ_COMBINATION_FAILED", {"config_key": context.config, "error": error}))
    return announcements


def _cpu_job(job: OpenJob, report: JobReport) -> Announcement:
    about = {"job_id": job.job_id, "job_type": job.kind, "node_id": report.node, "success": True}
    return ("CPU_PIPELINE_JOB_COMPLETED", {**about, "duration_seconds": report.wall_s})


def _cpu_job_failed(context: AnnouncementContext, job: OpenJob, error: str) -> list[Announcement]:
    about = {"job_id": job.job_id, "job_type": job.kind, "node_id": "", "success": False}
    took_s = max(0.0, context.at_s - job.issued_s)
    return [("CPU_PIPELINE_JOB_COMPLETED", {**about, "duration_seconds": took_s, "error": error})]


# --- training and matches ---------------------------------------------------------------------------------


def _train_issued(context: AnnouncementContext, fact: JobIssued) -> list[Announcement]:
    known = context.state.samples
    files = [known[digest] for digest in fact.order.inputs.values() if digest in known]
    triggered = {
        "config_key": context.config,
        "samples": sum(samples.rows for samples in files),
        "job_id": fact.job_id,
        "trigger_reason": fact.reason,
        "iteration": len(context.state.models) + 1,
    }
    return [("TRAINING_TRIGGERED", triggered)]


def _evaluate_issued(context: AnnouncementContext, fact: JobIssued) -> list[Announcement]:
    """A candidate's evaluation starts with its first games; further ones only add to them."""
    model, _ = participant(str(fact.order.params["candidate"]), fact.order.inputs)
    if fact.order.purpose != "promotion" or context.matches_of(model, "promotion"):
        return []
    games = sum(ordered_games(fact.order.params).values())
    about = {"config_key": context.config, "model_id": model, "model_path": blob_path(model)}
    return [("EVALUATION_STARTED", {**about, "games_planned": games})]


def _evaluate_ended(context: AnnouncementContext, job: OpenJob, _report: JobReport) -> list[Announcement]:
    """More games of a candidate are progress; the verdict comes with the decision about it."""
    model, _ = participant(str(job.order.params["candidate"]), job.order.inputs)
    new = [match for match in context.state.matches if match.job_id == job.job_id]
    games = sum(match.games for match in new)
    if not games:
        return []
    if job.order.purpose == "promotion":
        matches = context.matches_of(model, "promotion")
        played, wins = sum(match.games for match in matches), sum(match.wins for match in matches)
        progress = {
            "config_key": context.config,
            "model_id": model,
            "opponent": new[-1].second,
            "games_completed": played,
            "games_total": played,  # how many more depends on the sequential test
            "wins": wins,
            "losses": sum(match.losses for match in matches),
            "draws": sum(match.draws for match in matches),
            "win_rate": sum(match.score * match.games for match in matches) / played if played else 0.0,
        }
        return [("EVALUATION_PROGRESS", progress)]
    return [_met(context, new, job.order.purpose or "match")]


def _tournament_ended(context: AnnouncementContext, job: OpenJob, _report: JobReport) -> list[Announcement]:
    new = [match for match in context.state.matches if match.job_id == job.job_id]
    return [_met(context, new, "round_robin")] if new else []


def _met(context: AnnouncementContext, matches: list[Match], kind: str) -> Announcement:
    """Who played whom, and what they are rated now; no verdict on anybody."""
    names = list(dict.fromkeys(name for match in matches for name in (match.first, match.second)))
    ratings = {name: context.ratings[name] for name in names if name in context.ratings}
    ended = {
        "games_played": sum(match.games for match in matches),
        "participants": names,
        "ratings": ratings,
    }
    return ("TOURNAMENT_COMPLETED", {"config_key": context.config, **ended, "evaluation_type": kind})


def _evaluate_failed(context: AnnouncementContext, job: OpenJob, error: str) -> list[Announcement]:
    model, _ = participant(str(job.order.params["candidate"]), job.order.inputs)
    about = {"config_key": context.config, "model_id": model, "model_path": blob_path(model)}
    return [("EVALUATION_FAILED", {**about, "error": error})]


def _shards_of(order: JobOrder) -> list[str]:
    return [digest for name, digest in order.inputs.items() if not name.endswith(_REPORT_SUFFIX)]


def _artifacts(report: JobReport, kind: str) -> list[JobArtifact]:
    return [each for each in report.artifacts if each.kind == kind]


def _total(artifacts: list[JobArtifact], name: str) -> int:
    return sum(int(each.counts.get(name, 0)) for each in artifacts)


ISSUED: dict[str, Issued] = {
    "selfplay": _selfplay_issued,
    "validate": _validate_issued,
    "export": _export_issued,
    "train": _train_issued,
    "evaluate": _evaluate_issued,
}
ENDED: dict[str, Ended] = {
    "selfplay": _selfplay_ended,
    "validate": _validate_ended,
    "export": _export_ended,
    "train": trained,
    "evaluate": _evaluate_ended,
    "tournament": _tournament_ended,
}
FAILED: dict[str, Failed] = {
    "selfplay": _selfplay_failed,
    "validate": _cpu_job_failed,
    "export": _export_failed,
    "train": training_failed,
    "evaluate": _evaluate_failed,
}
