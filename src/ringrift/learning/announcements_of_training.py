"""What is told when a training came to its end: what it did, by its own report."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

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
    passes = _epochs(scene, job, model, report)
    told = [*_checkpoints(scene, model, report, loss, passes)]
    if loss is not None:
        told += _early_stop(scene, report, loss, passes)
        told += _anomaly(scene, loss, earlier, passes)
        told += _trend(scene, loss, earlier, passes)
    return [*told, _completed(scene, job, model, report, passes), _next_target(scene)]


def training_failed(scene: Scene, job: OpenJob, error: str) -> list[Announcement]:
    took_s = max(0.0, scene.at_s - job.issued_s)
    failed = {"config_key": scene.config, "job_id": job.job_id, "error": error, "duration_seconds": took_s}
    return [("TRAINING_FAILED", failed)]


def _losses_before(scene: Scene, model: Model) -> list[float]:
    older = [each for each in scene.state.models.values() if each.number < model.number]
    return [loss for each in older if (loss := loss_of(each.losses)) is not None]


def _epochs(scene: Scene, job: OpenJob, model: Model, report: JobReport) -> float | None:
    """Passes over the rows: as the job says, else by the rows it was given; None if neither is known."""
    said = report.fields.get("epochs")
    if isinstance(said, int | float) and not isinstance(said, bool):
        return float(said)
    known = scene.state.samples
    rows = sum(known[digest].rows for digest in model.sample_files if digest in known)
    seen = _steps(report) * int(job.order.params.get("batch", 0))
    return round(seen / rows, 3) if rows and seen else None


def _steps(report: JobReport) -> int:
    return int(report.fields.get("steps", 0))


def _at(scene: Scene, passes: float | None) -> dict[str, Any]:
    """The config, and in which pass over its rows a training was, counted from 1."""
    about: dict[str, Any] = {"config_key": scene.config}
    return about if passes is None else {**about, "epoch": max(1, math.ceil(passes))}


def _checkpoints(
    scene: Scene, model: Model, report: JobReport, loss: float | None, passes: float | None
) -> list[Announcement]:
    saved = {**_at(scene, passes), "checkpoint_path": blob_path(model.digest)}
    if steps := _steps(report):
        saved["step"] = steps
    if loss is not None:
        saved["metrics"] = {"loss": loss}
    told: list[Announcement] = [("CHECKPOINT_SAVED", saved)]
    if model.parent is None:
        return told
    loaded = {"config_key": scene.config, "checkpoint_path": blob_path(model.parent)}
    return [("CHECKPOINT_LOADED", loaded), *told]


def _early_stop(scene: Scene, report: JobReport, loss: float, passes: float | None) -> list[Announcement]:
    ended = str(report.fields.get("ended", ALL_STEPS))
    if ended == ALL_STEPS:
        return []
    steps, best = _steps(report), int(report.fields.get("best_step", 0))
    last = _whole_loss(report.fields.get("held"))
    stopped = {**_at(scene, passes), "best_loss": loss, "reason": ended}
    if last is not None:
        stopped["final_loss"] = last
    if passes is not None and steps:
        stopped["epochs_without_improvement"] = round(passes * max(0, steps - best) / steps)
    return [("TRAINING_EARLY_STOPPED", stopped)]


def _anomaly(scene: Scene, loss: float, earlier: Sequence[float], passes: float | None) -> list[Announcement]:
    if len(earlier) < ANOMALY_RUNS_MIN:
        return []
    mean, deviation = statistics.fmean(earlier), statistics.stdev(earlier)
    if loss <= mean + ANOMALY_DEVIATIONS * max(deviation, TREND_SHARE * abs(mean)):
        return []
    anomaly = {"current_loss": loss, "avg_loss": mean}
    if mean > 0:
        anomaly["anomaly_ratio"] = loss / mean
    return [("TRAINING_LOSS_ANOMALY", {**_at(scene, passes), **anomaly})]


def _trend(scene: Scene, loss: float, earlier: Sequence[float], passes: float | None) -> list[Announcement]:
    """Told when it flips, not with every training."""
    if not earlier:
        return []
    before = "" if len(earlier) < 2 else _direction(earlier[-2], earlier[-1])
    now = _direction(earlier[-1], loss)
    if now == before:
        return []
    change = {"trend": now, "current_loss": loss, "previous_loss": earlier[-1]}
    change["improvement_rate"] = earlier[-1] - loss
    return [("TRAINING_LOSS_TREND", {**_at(scene, passes), **change})]


def _direction(before: float, after: float) -> str:
    if abs(after - before) <= TREND_SHARE * max(abs(before), 1e-9):
        return "stable"
    return "improving" if after < before else "degrading"


def _completed(
    scene: Scene, job: OpenJob, model: Model, report: JobReport, passes: float | None
) -> Announcement:
    samples = scene.state.samples.get(model.samples)
    completed = {
        "config_key": scene.config,
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


def _next_target(scene: Scene) -> Announcement:
    """What self-play has to bring before the next training."""
    state = scene.state
    missing = rows_missing(state.bucket, state.bucket_rules, rows_total=state.rows, has_model=True)
    games = round(missing * state.games / state.rows) if state.rows else 0
    target = {"target_games": state.games + games, "extra_games": games}
    reason = f"the next training waits for {missing:,} more rows"
    return ("SELFPLAY_TARGET_UPDATED", {"config_key": scene.config, **target, "reason": reason})
