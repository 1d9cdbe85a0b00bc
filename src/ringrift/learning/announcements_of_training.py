"""What is told when a training came to its end. One training run counts as one epoch of the config."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from ringrift.learning.announcement_scene import Announcement, Scene, blob_path, loss_of
from ringrift.learning.records import Model
from ringrift.learning.state import OpenJob
from ringrift.learning.window import rows_missing
from ringrift.work.job_orders import JobReport

ALL_STEPS = "all steps made"
ANOMALY_DEVIATIONS = 3.0
ANOMALY_RUNS_MIN = 5
TREND_SHARE = 0.01  # a change of the loss below this is no trend


def trained(scene: Scene, job: OpenJob, report: JobReport) -> list[Announcement]:
    """All that a finished training says, the completion last: what it says is known by then."""
    model = next((each for each in scene.state.models.values() if each.job_id == job.job_id), None)
    if model is None:
        return []
    loss, earlier = loss_of(report.fields), _losses_before(scene, model)
    told = [*_checkpoints(scene, model, loss)]
    if loss is not None:
        told += _early_stop(scene, model, report, loss)
        told += _anomaly(scene, model, loss, earlier)
        told += _trend(scene, model, loss, earlier)
    return [*told, _completed(scene, job, model, report, loss), _next_target(scene)]


def training_failed(scene: Scene, job: OpenJob, error: str) -> list[Announcement]:
    took_s = max(0.0, scene.at_s - job.issued_s)
    failed = {"config_key": scene.config, "job_id": job.job_id, "error": error, "duration_seconds": took_s}
    return [("TRAINING_FAILED", failed)]


def _losses_before(scene: Scene, model: Model) -> list[float]:
    older = [each for each in scene.state.models.values() if each.number < model.number]
    return [loss for each in older if (loss := loss_of(each.losses)) is not None]


def _checkpoints(scene: Scene, model: Model, loss: float | None) -> list[Announcement]:
    about = {"config_key": scene.config}
    saved = {**about, "checkpoint_path": blob_path(model.digest), "epoch": model.number}
    if loss is not None:
        saved["metrics"] = {"loss": loss}
    told: list[Announcement] = [("CHECKPOINT_SAVED", saved)]
    if model.parent is None:
        return told
    loaded = {**about, "checkpoint_path": blob_path(model.parent), "epoch": scene.number(model.parent)}
    return [("CHECKPOINT_LOADED", loaded), *told]


def _early_stop(scene: Scene, model: Model, report: JobReport, loss: float) -> list[Announcement]:
    ended = str(report.fields.get("ended", ALL_STEPS))
    if ended == ALL_STEPS:
        return []
    steps, best = int(report.fields.get("steps", 0)), int(report.fields.get("best_step", 0))
    stopped = {
        "config_key": scene.config,
        "epoch": model.number,
        "best_loss": loss,
        "final_loss": loss,
        "reason": ended,
        "epochs_without_improvement": max(0, steps - best),
    }
    return [("TRAINING_EARLY_STOPPED", stopped)]


def _anomaly(scene: Scene, model: Model, loss: float, earlier: Sequence[float]) -> list[Announcement]:
    if len(earlier) < ANOMALY_RUNS_MIN:
        return []
    mean, deviation = statistics.fmean(earlier), statistics.stdev(earlier)
    if loss <= mean + ANOMALY_DEVIATIONS * max(deviation, TREND_SHARE * abs(mean)):
        return []
    anomaly = {"current_loss": loss, "avg_loss": mean}
    if mean > 0:
        anomaly["anomaly_ratio"] = loss / mean
    return [("TRAINING_LOSS_ANOMALY", {"config_key": scene.config, "epoch": model.number, **anomaly})]


def _trend(scene: Scene, model: Model, loss: float, earlier: Sequence[float]) -> list[Announcement]:
    """Told when it flips, not with every training."""
    if not earlier:
        return []
    before = "" if len(earlier) < 2 else _direction(earlier[-2], earlier[-1])
    now = _direction(earlier[-1], loss)
    if now == before:
        return []
    change = {"trend": now, "current_loss": loss, "previous_loss": earlier[-1]}
    change["improvement_rate"] = earlier[-1] - loss
    return [("TRAINING_LOSS_TREND", {"config_key": scene.config, "epoch": model.number, **change})]


def _direction(before: float, after: float) -> str:
    if abs(after - before) <= TREND_SHARE * max(abs(before), 1e-9):
        return "stable"
    return "improving" if after < before else "degrading"


def _completed(
    scene: Scene, job: OpenJob, model: Model, report: JobReport, loss: float | None
) -> Announcement:
    samples = scene.state.samples.get(model.samples)
    completed = {
        "config_key": scene.config,
        "job_id": job.job_id,
        "success": True,
        "model_path": blob_path(model.digest),
        "model_id": model.digest,
        "epochs": 1,
        "samples_trained": int(report.fields.get("steps", 0)) * int(job.order.params.get("batch", 0)),
        "training_games": 0 if samples is None else samples.games,
        "duration_seconds": report.wall_s,
        "early_stopped": str(report.fields.get("ended", ALL_STEPS)) != ALL_STEPS,
    }
    if loss is not None:
        completed |= {"train_loss": loss, "val_loss": loss}
    return ("TRAINING_COMPLETED", completed)


def _next_target(scene: Scene) -> Announcement:
    """What self-play has to bring before the next training."""
    state = scene.state
    missing = rows_missing(state.bucket, state.bucket_rules, rows_total=state.rows, has_model=True)
    games = round(missing * state.games / state.rows) if state.rows else 0
    target = {"target_games": state.games + games, "extra_games": games}
    reason = f"the next training waits for {missing:,} more rows"
    return ("SELFPLAY_TARGET_UPDATED", {"config_key": scene.config, **target, "reason": reason})
