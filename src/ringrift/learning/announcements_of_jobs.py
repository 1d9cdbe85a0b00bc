"""What is told when a job was ordered, came to its end, or failed for good."""

from __future__ import annotations

from collections.abc import Callable

from ringrift.learning.announcement_scene import Announcement, Scene, blob_path
from ringrift.learning.announcements_of_training import trained, training_failed
from ringrift.learning.facts import JobIssued
from ringrift.learning.records import Match
from ringrift.learning.results_matches import ordered_games, participant
from ringrift.learning.state import OpenJob
from ringrift.learning.window import steps_to_train
from ringrift.work.job_orders import JobArtifact, JobOrder, JobReport

Issued = Callable[[Scene, JobIssued], list[Announcement]]
Ended = Callable[[Scene, OpenJob, JobReport], list[Announcement]]
Failed = Callable[[Scene, OpenJob, str], list[Announcement]]

_REPORT_SUFFIX = ".report.json"


# --- games ------------------------------------------------------------------------------------------------


def _selfplay_issued(scene: Scene, fact: JobIssued) -> list[Announcement]:
    batch = {
        "batch_id": fact.job_id,
        "batch_type": "selfplay",
        "config_key": scene.config,
        "target_nodes": [],  # whoever claims it
    }
    return [
        ("BATCH_SCHEDULED", {**batch, "job_count": 1, "reason": fact.reason}),
        ("BATCH_DISPATCHED", {**batch, "jobs_dispatched": 1, "jobs_failed": 0}),
    ]


def _selfplay_ended(scene: Scene, job: OpenJob, report: JobReport) -> list[Announcement]:
    shards = _artifacts(report, "shard")
    created: list[Announcement] = [
        (
            "DATABASE_CREATED",
            {
                "db_path": blob_path(shard.digest),
                "config_key": scene.config,
                "node_id": report.node,
                "engine_mode": "search",
            },
        )
        for shard in shards
    ]
    complete = {
        **_selfplay_task(scene, job),
        "node_id": report.node,
        "games_generated": _total(shards, "games"),
        "success": True,
        "duration_seconds": report.wall_s,
    }
    return [*created, ("SELFPLAY_COMPLETE", complete)]


def _selfplay_failed(scene: Scene, job: OpenJob, error: str) -> list[Announcement]:
    failed = {**_selfplay_task(scene, job), "games_generated": 0, "success": False, "error": error}
    return [("SELFPLAY_COMPLETE", failed)]


def _selfplay_task(scene: Scene, job: OpenJob) -> dict[str, object]:
    return {
        "config_key": scene.config,
        "task_id": job.job_id,
        "selfplay_type": "gpu_selfplay" if job.order.gpu else "canonical",
        "iteration": len(scene.state.models),
    }


def _validate_issued(scene: Scene, fact: JobIssued) -> list[Announcement]:
    return [("QUALITY_CHECK_REQUESTED", {"config_key": scene.config, "reason": fact.reason})]


def _validate_ended(scene: Scene, job: OpenJob, report: JobReport) -> list[Announcement]:
    """Games are new when the rules agreed with them, not before."""
    told = [_cpu_job(job, report)]
    shards = [
        scene.state.shards[digest] for digest in job.order.inputs.values() if digest in scene.state.shards
    ]
    accepted = sum(shard.games for shard in shards)
    if accepted:
        games = {"new_games": accepted, "total_games": scene.state.games}
        told.append(("NEW_GAMES_AVAILABLE", {"config_key": scene.config, "node_id": report.node, **games}))
    if (reached := _threshold(scene, rows=sum(shard.rows for shard in shards))) is not None:
        told.append(reached)
    return told


def _threshold(scene: Scene, *, rows: int) -> Announcement | None:
    """Told once: by the rows with which the steps for a training were earned."""
    state, rules = scene.state, scene.state.bucket_rules
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
    return ("TRAINING_THRESHOLD_REACHED", {"config_key": scene.config, **reached})


# --- samples ----------------------------------------------------------------------------------------------


def _export_issued(scene: Scene, fact: JobIssued) -> list[Announcement]:
    shards = _shards_of(fact.order)
    games = sum(scene.state.shards[digest].games for digest in shards if digest in scene.state.shards)
    config = {"config_key": scene.config}
    told: list[Announcement] = [
        ("EXPORT_TRIGGERED", {**config, "threshold_met": True, "games_synced": games}),
        ("NPZ_EXPORT_STARTED", {**config, "job_id": fact.job_id, "games_planned": games}),
    ]
    return [*told, ("NPZ_COMBINATION_STARTED", config)] if len(shards) > 1 else told


def _export_ended(scene: Scene, job: OpenJob, report: JobReport) -> list[Announcement]:
    files, shards = _artifacts(report, "samples"), _shards_of(job.order)
    if not files:
        return [_cpu_job(job, report)]
    rows, path = _total(files, "rows"), blob_path(files[-1].digest)
    exported = {
        "config_key": scene.config,
        "output_path": path,
        "samples_exported": rows,
        "games_exported": _total(files, "games"),
        "duration_seconds": report.wall_s,
        "success": True,
    }
    combined = {
        "config_key": scene.config,
        "output_path": path,
        "total_samples": rows,
        "source_files": len(shards),
        "quality_weighted": False,
    }
    buffer = {"config_key": scene.config, "buffer_path": path, "samples": rows}
    told = [_cpu_job(job, report), ("NPZ_EXPORT_COMPLETE", exported)]
    if len(shards) > 1:
        told.append(("NPZ_COMBINATION_COMPLETE", combined))
    return [*told, ("PER_BUFFER_REBUILT", buffer)]


def _export_failed(scene: Scene, job: OpenJob, error: str) -> list[Announcement]:
    told = _cpu_job_failed(scene, job, error)
    if len(_shards_of(job.order)) > 1:
        told.append(("NPZ_COMBINATION_FAILED", {"config_key": scene.config, "error": error}))
    return told


def _cpu_job(job: OpenJob, report: JobReport) -> Announcement:
    about = {"job_id": job.job_id, "job_type": job.kind, "node_id": report.node, "success": True}
    return ("CPU_PIPELINE_JOB_COMPLETED", {**about, "duration_seconds": report.wall_s})


def _cpu_job_failed(scene: Scene, job: OpenJob, error: str) -> list[Announcement]:
    about = {"job_id": job.job_id, "job_type": job.kind, "node_id": "", "success": False}
    took_s = max(0.0, scene.at_s - job.issued_s)
    return [("CPU_PIPELINE_JOB_COMPLETED", {**about, "duration_seconds": took_s, "error": error})]


# --- training and matches ---------------------------------------------------------------------------------


def _train_issued(scene: Scene, fact: JobIssued) -> list[Announcement]:
    known = scene.state.samples
    files = [known[digest] for digest in fact.order.inputs.values() if digest in known]
    triggered = {
        "config_key": scene.config,
        "samples": sum(samples.rows for samples in files),
        "job_id": fact.job_id,
        "trigger_reason": fact.reason,
        "iteration": len(scene.state.models) + 1,
    }
    return [("TRAINING_TRIGGERED", triggered)]


def _evaluate_issued(scene: Scene, fact: JobIssued) -> list[Announcement]:
    """A candidate's evaluation starts with its first games; further ones only add to them."""
    model, _ = participant(str(fact.order.params["candidate"]), fact.order.inputs)
    if fact.order.purpose != "promotion" or scene.matches_of(model, "promotion"):
        return []
    games = sum(ordered_games(fact.order.params).values())
    about = {"config_key": scene.config, "model_id": model, "model_path": blob_path(model)}
    return [("EVALUATION_STARTED", {**about, "games_planned": games})]


def _evaluate_ended(scene: Scene, job: OpenJob, _report: JobReport) -> list[Announcement]:
    """More games of a candidate are progress; the verdict comes with the decision about it."""
    model, _ = participant(str(job.order.params["candidate"]), job.order.inputs)
    new = [match for match in scene.state.matches if match.job_id == job.job_id]
    games = sum(match.games for match in new)
    if not games:
        return []
    if job.order.purpose == "promotion":
        matches = scene.matches_of(model, "promotion")
        played, wins = sum(match.games for match in matches), sum(match.wins for match in matches)
        progress = {
            "config_key": scene.config,
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
    return [_met(scene, new, job.order.purpose or "match")]


def _tournament_ended(scene: Scene, job: OpenJob, _report: JobReport) -> list[Announcement]:
    new = [match for match in scene.state.matches if match.job_id == job.job_id]
    return [_met(scene, new, "round_robin")] if new else []


def _met(scene: Scene, matches: list[Match], kind: str) -> Announcement:
    """Who played whom, and what they are rated now; no verdict on anybody."""
    names = list(dict.fromkeys(name for match in matches for name in (match.first, match.second)))
    ratings = {name: scene.ratings[name] for name in names if name in scene.ratings}
    ended = {
        "games_played": sum(match.games for match in matches),
        "participants": names,
        "ratings": ratings,
    }
    return ("TOURNAMENT_COMPLETED", {"config_key": scene.config, **ended, "evaluation_type": kind})


def _evaluate_failed(scene: Scene, job: OpenJob, error: str) -> list[Announcement]:
    model, _ = participant(str(job.order.params["candidate"]), job.order.inputs)
    about = {"config_key": scene.config, "model_id": model, "model_path": blob_path(model)}
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
