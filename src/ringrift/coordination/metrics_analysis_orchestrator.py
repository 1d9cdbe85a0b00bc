"""What the curves of a run say, told: metrics of any source in windows, and the daemons that look at trends
by themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import msgspec

from ringrift.coordination.handler_base import HandlerBase
from ringrift.coordination.run_coordinator import EvaluationWatcher, ListeningCoordinator
from ringrift.engine.run_reports import answers_here, reported, reported_slowly
from ringrift.errors import ConfigError
from ringrift.events.event import Announcement
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.learning.judging.feedback import gauntlet_of, held_loss, rating_curve
from ringrift.learning.judging.ratings import (
    WINDOW_POINTS,
    Line,
    PlateauFinding,
    RegressionFinding,
    RegressionSeverity,
    TrendDirection,
    WindowAnalysis,
    analyse,
    fit_line,
    plateau,
    regression,
    trend,
)
from ringrift.learning.situation import Situation, Situations
from ringrift.process import getter_of
from ringrift.runtime import Runtime
from ringrift.status import HealthCheckResult

__all__ = [
    "Line",
    "MetricsAnalysisDaemon",
    "MetricsAnalysisOrchestrator",
    "ModelPerformanceWatchdog",
    "PlateauFinding",
    "RegressionFinding",
    "RegressionSeverity",
    "TrendDirection",
    "WindowAnalysis",
    "analyse",
    "analyze_metrics",
    "fit_line",
    "get_metrics_orchestrator",
    "plateau",
    "rating_curve",
    "record_metric",
    "regression",
    "reset_metrics_orchestrator",
    "trend",
    "wire_metrics_events",
]


# Every metric that is told, in windows of a hundred points, and what they show.
#
# `record_metric` takes a point from anybody; the coordinator also reads the numbers out of the events of
# other parts. `analyze_metrics` judges the windows.


# Names come from anybody's events, so there is a bound on how many are kept.
METRICS_MAX = 2_000
# An age by its whole word: usage, coverage and average end in it as well.
_LOWER_IS_BETTER = ("loss", "seconds", "error", "failed", ".age", "_age")

# The numbers that are worth a curve, by event: field of the payload: name of the metric.
NUMBERS: Mapping[str, Mapping[str, str]] = {
    "BATCH_DISPATCHED": {"jobs_dispatched": "batch.jobs", "jobs_failed": "batch.failed"},
    "BATCH_SCHEDULED": {"job_count": "batch.scheduled"},
    "CACHE_INVALIDATED": {"count": "cache.invalidated"},
    "DATA_BACKUP_COMPLETED": {"total_bytes": "backup.bytes"},
    "DISK_CLEANUP_TRIGGERED": {"bytes_freed": "disk.bytes_freed"},
    "ELO_UPDATED": {"new_elo": "rating"},
    "EVALUATION_PROGRESS": {"win_rate": "evaluation.win_rate"},
    "EVALUATION_STARTED": {"games_planned": "evaluation.games"},
    "ITERATION_COMPLETED": {"duration_seconds": "iteration.seconds"},
    "JOB_PREEMPTED": {"runtime_seconds": "preempted.seconds"},
    "MODEL_DISTRIBUTION_STARTED": {"total_models": "distribution.models"},
    "NAS_GENERATION_COMPLETE": {"best_score": "architecture_search.score"},
    "NPZ_EXPORT_STARTED": {"games_planned": "export.games"},
    "ORPHAN_GAMES_REGISTERED": {"registered_count": "orphans.games"},
    "P2P_SELFPLAY_SCALED": {"new_count": "selfplay.count"},
    "PBT_GENERATION_COMPLETE": {"best_score": "population.score"},
    "PBT_STARTED": {"population_size": "population.size"},
    "PER_BUFFER_REBUILT": {"samples": "replay.samples"},
    "PER_PRIORITIES_UPDATED": {"samples_updated": "replay.updated"},
    "RECOVERY_COMPLETED": {"duration_seconds": "recovery.seconds"},
    "RECOVERY_INITIATED": {"attempt": "recovery.attempt"},
    "REPAIR_COMPLETED": {"duration_seconds": "repair.seconds"},
    "S3_BACKUP_COMPLETED": {"uploaded_count": "backup.uploaded"},
    "TOURNAMENT_COMPLETED": {"games_played": "tournament.games"},
    "TRAINING_PROGRESS": {"train_loss": "training.loss", "val_loss": "training.held_loss"},
    "WORK_RETRY": {"attempt": "work.attempt"},
}


class Metric(msgspec.Struct, kw_only=True):
    """One series. Names that end in a loss, a time or a failure are better when lower."""

    name: str
    config: str | None
    higher_is_better: bool
    values: deque[float]
    times_s: deque[float]

    def analysis(self) -> WindowAnalysis:
        return analyse(list(self.values), list(self.times_s), higher_is_better=self.higher_is_better)


class MetricsAnalysisOrchestrator(ListeningCoordinator):
    """The coordinator of metrics. It holds points, not truth: after a restart the windows fill again."""

    component: ClassVar[str] = "metrics_orchestrator"
    emits: ClassVar[tuple[str, ...]] = ("METRICS_UPDATED", "PLATEAU_DETECTED")

    def _set_up(self) -> None:
        self._metrics: dict[str, Metric] = {}
        self._models_seen: dict[str, int] = {}
        self._plateaus: dict[str, PlateauFinding | None] = {}

    async def _on_event(self, event_type: str, payload: Mapping[str, Any], /) -> None:
        config = payload.get("config_key")
        config = None if config is None else str(config)
        if event_type == "METRICS_UPDATED":
            labels = payload.get("labels") or {}
            self.record(str(payload["metric_name"]), float(payload["value"]), config=labels.get("config_key"))
            return
        for field, name in NUMBERS.get(event_type, {}).items():
            value = payload.get(field)
            # A bool is an int to Python, and no point of a curve.
            if isinstance(value, int | float) and not isinstance(value, bool):
                self.record(name, float(value), config=config)

    def record(
        self, name: str, value: float, *, config: str | None = None, higher_is_better: bool | None = None
    ) -> Metric:
        """Add a point. Beyond `METRICS_MAX` series the one that was longest without a point goes."""
        key = name if config is None else f"{name}/{config}"
        # Out and in again: the dictionary is in the order of the newest points.
        metric = self._metrics.pop(key, None)
        if metric is None:
            better = (
                not f".{name}".endswith(_LOWER_IS_BETTER) if higher_is_better is None else higher_is_better
            )
            values, times_s = deque[float](maxlen=WINDOW_POINTS), deque[float](maxlen=WINDOW_POINTS)
            metric = Metric(name=name, config=config, higher_is_better=better, values=values, times_s=times_s)
        metric.values.append(value)
        metric.times_s.append(self._runtime.now_s())
        self._metrics[key] = metric
        while len(self._metrics) > METRICS_MAX:
            del self._metrics[next(iter(self._metrics))]
        return metric

    async def judge(self) -> None:
        """Record what the run's state has that is new, and tell plateaus when they begin or grow."""
        for config, situation in self._situations.all().items():
            await self.tell(self._new_points(config, situation))
            found, before = situation.feedback.plateau, self._plateaus.get(config)
            self._plateaus[config] = found
            if found is not None and (before is None or found.level > before.level):
                await self.tell([_plateau_event(config, situation, found)])

    def _new_points(self, config: str, situation: Situation) -> list[Announcement]:
        models = list(situation.state.models.values())
        events: list[Announcement] = []
        # After a start all models are new; those before the last window would fall out at once.
        for model in models[self._models_seen.get(config, 0) :][-WINDOW_POINTS:]:
            loss = held_loss(model.losses)
            if loss is not None:
                self.record("model.held_loss", loss, config=config)
                events.append(_point("model.held_loss", loss, config))
        self._models_seen[config] = len(models)
        return events

    def publish_point(self, name: str, value: float, labels: Mapping[str, Any]) -> None:
        """Tell a point to other processes, from code that may not be async."""
        kept = {key: label for key, label in labels.items() if label is not None}
        self.events_reported["METRICS_UPDATED"] += 1
        payload = {"metric_name": name, "value": value, "labels": kept}
        self.router.publish_sync("METRICS_UPDATED", payload, self.name)

    def analyze(self, name: str | None = None, config: str | None = None) -> dict[str, WindowAnalysis]:
        """Judge the windows of one metric, of one config, or of all; elsewhere as the run told them last."""
        reported = {} if answers_here(self) else self._reported_by_run()
        # What this process recorded itself is newer.
        rows = {**reported, **self._analyses(list(self._metrics.items()))}
        return {
            key: WindowAnalysis(**{**row["window"], "direction": TrendDirection(row["window"]["direction"])})
            for key, row in rows.items()
            if name in (None, row["name"]) and config in (None, row["config"])
        }

    @reported_slowly
    def _reported_by_run(self) -> dict[str, Any]:
        # A copy: it is asked off the loop, and points come in meanwhile.
        return self._analyses(list(self._metrics.copy().items()))

    @staticmethod
    def _analyses(metrics: list[tuple[str, Metric]]) -> dict[str, Any]:
        return {
            key: {"name": each.name, "config": each.config, "window": asdict(each.analysis())}
            for key, each in metrics
        }

    def plateaus(self) -> dict[str, PlateauFinding]:
        """The configs on a plateau, with what it changes in their plan."""
        return _plateaus(self._answers)

    @reported
    def get_metrics(self) -> dict[str, Any]:
        plateaus = len(_plateaus(self._situations))
        return {**super().get_metrics(), "series": len(self._metrics), "plateaus": plateaus}


def _plateaus(situations: Situations) -> dict[str, PlateauFinding]:
    found = {config: each.feedback.plateau for config, each in situations.all().items()}
    return {config: finding for config, finding in found.items() if finding is not None}


def _point(name: str, value: float, config: str) -> Announcement:
    return "METRICS_UPDATED", {"metric_name": name, "value": value, "labels": {"config_key": config}}


def _plateau_event(config: str, situation: Situation, found: PlateauFinding) -> Announcement:
    curve = situation.curve
    current = curve[-1].rating if curve else 0.0
    payload: dict[str, Any] = {
        "config_key": config,
        "metric_name": "rating",
        "current_value": current,
        "epochs_since_improvement": found.refused,
        "plateau_type": f"level {found.level}",
        "recommendation": found.reason,
    }
    if curve:
        payload |= {"best_value": max(point.rating for point in curve), "current_elo": current}
    return "PLATEAU_DETECTED", payload


# --- one per process -----------------------------------------------------------------------------------


get_metrics_orchestrator = getter_of("get_metrics_orchestrator", MetricsAnalysisOrchestrator)
reset_metrics_orchestrator = MetricsAnalysisOrchestrator.reset_instance
wire_metrics_events = MetricsAnalysisOrchestrator.wired


def record_metric(name: str, value: float, config_key: str | None = None, **labels: Any) -> None:
    """Add a point to the series *name*, and tell the other processes of it."""
    if not name:
        raise ConfigError("a metric needs a name")
    orchestrator = get_metrics_orchestrator()
    orchestrator.record(name, float(value), config=config_key)
    orchestrator.publish_point(name, float(value), {**labels, "config_key": config_key})


def analyze_metrics(name: str | None = None, config_key: str | None = None) -> dict[str, WindowAnalysis]:
    """Judge the series: direction, plateau, regression and anomaly of each."""
    return get_metrics_orchestrator().analyze(name, config_key)


# METRICS_ANALYSIS and MODEL_PERFORMANCE_WATCHDOG: the daemons that look at trends by themselves.


ANALYSIS_S = 30.0
WATCH_S = 300.0
# Each evaluation brings a look, and a series of them would bring as many alerts.
ALERT_COOLDOWN_S = 300.0
WIN_RATE_MIN = 0.55  # against the heuristic

_SEVERITY_EVENTS = {
    RegressionSeverity.MINOR: "REGRESSION_MINOR",
    RegressionSeverity.MODERATE: "REGRESSION_MODERATE",
    RegressionSeverity.SEVERE: "REGRESSION_SEVERE",
}


class MetricsAnalysisDaemon(HandlerBase):
    """Asks the metrics coordinator to judge, at an interval."""

    capability: ClassVar[str] = "trend_analysis"
    emits: ClassVar[tuple[str, ...]] = MetricsAnalysisOrchestrator.emits

    def __init__(
        self,
        *,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
        orchestrator: MetricsAnalysisOrchestrator | None = None,
        interval_s: float = ANALYSIS_S,
    ) -> None:
        super().__init__("metrics_analysis", cycle_interval=interval_s, router=router, runtime=runtime)
        self._orchestrator = orchestrator or get_metrics_orchestrator()

    async def _run_cycle(self) -> None:
        await self._orchestrator.judge()

    def health_check(self) -> HealthCheckResult:
        own = super().health_check()
        plateaus = {config: found.reason for config, found in self._orchestrator.plateaus().items()}
        return own.with_details(**{**self._orchestrator.get_metrics(), "plateaus": plateaus})


@dataclass(slots=True)
class _Watched:
    """What was said of the regression of one config."""

    model: str | None = None  # the point that was judged last
    finding: RegressionFinding | None = None
    in_a_row: int = 0
    alerted_s: float = float("-inf")


class ModelPerformanceWatchdog(EvaluationWatcher):
    """Tells when the newest champion is weaker than an earlier one, how much, and when that is over."""

    capability: ClassVar[str] = "trend_analysis"
    plans_as = "model_performance_watchdog"
    interval_s = WATCH_S
    emits: ClassVar[tuple[str, ...]] = (
        "REGRESSION_CLEARED",
        "REGRESSION_CRITICAL",
        "REGRESSION_DETECTED",
        "REGRESSION_MINOR",
        "REGRESSION_MODERATE",
        "REGRESSION_SEVERE",
        "TRAINING_ROLLBACK_NEEDED",
    )

    def _set_up(self) -> None:
        self._watched: dict[str, _Watched] = {}

    async def _look(self, situation: Situation) -> None:
        config = situation.state.config
        watched = self._watched.setdefault(config, _Watched())
        await self.tell(self._judge(situation, watched) + self._win_rate(situation, watched))

    def _judge(self, situation: Situation, watched: _Watched) -> list[Announcement]:
        curve = situation.curve
        newest = curve[-1].model if curve else None
        fresh = newest != watched.model
        # The same champion judged again is one regression: its own count is taken back first.
        found = regression(curve, in_a_row_before=watched.in_a_row if fresh else max(0, watched.in_a_row - 1))
        before, watched.finding, watched.model = watched.finding, found, newest
        if found is None:
            watched.in_a_row = 0
            return [] if before is None else [_cleared(situation, before)]
        watched.in_a_row = found.in_a_row
        if before is not None and not fresh and found.severity <= before.severity:
            return []
        return _regression_events(situation.state.config, found)

    def _win_rate(self, situation: Situation, watched: _Watched) -> list[Announcement]:
        """A champion that hardly beats the heuristic, once per cooldown."""
        rate, now_s = gauntlet_of(situation.state).vs_heuristic, self._runtime.now_s()
        if rate is None or rate >= WIN_RATE_MIN or now_s - watched.alerted_s < ALERT_COOLDOWN_S:
            return []
        watched.alerted_s = now_s
        payload = {
            "config_key": situation.state.config,
            "severity": RegressionSeverity.MINOR.word,
            "metric_name": "win rate against the heuristic",
            "current_value": rate,
            "previous_value": WIN_RATE_MIN,
        }
        return [("REGRESSION_DETECTED", payload)]

    def regressions(self) -> dict[str, RegressionFinding]:
        """The configs whose newest champion is weaker than an earlier one."""
        return {name: each.finding for name, each in self._watched.items() if each.finding is not None}

    def health_check(self) -> HealthCheckResult:
        found = {name: f"{each.severity.word}: {each.reason}" for name, each in self.regressions().items()}
        own = super().health_check().with_details(regressions=found)
        return own.or_degraded("a champion got weaker" if found else "")


def _regression_events(config: str, found: RegressionFinding) -> list[Announcement]:
    about = {"config_key": config, "model_id": found.model}
    events: list[Announcement] = [
        (
            "REGRESSION_DETECTED",
            {
                **about,
                "severity": found.severity.word,
                "metric_name": "rating",
                "current_value": found.rating,
                "previous_value": found.best,
                "elo_drop": found.drop,
                "consecutive_regressions": found.in_a_row,
            },
        )
    ]
    if found.severity in _SEVERITY_EVENTS:
        events.append((_SEVERITY_EVENTS[found.severity], {**about, "elo_drop": found.drop}))
    else:
        critical = {
            "current_elo": found.rating,
            "elo_drop": found.drop,
            "consecutive_regressions": found.in_a_row,
            "recommendation": "roll back to the best champion",
            "reason": found.reason,
        }
        events.append(("REGRESSION_CRITICAL", {**about, **critical}))
    if found.needs_rollback:
        needed = {"reason": found.reason, "severity": found.severity.word}
        events.append(("TRAINING_ROLLBACK_NEEDED", {**about, **needed}))
    return events


def _cleared(situation: Situation, before: RegressionFinding) -> Announcement:
    state = situation.state
    recovered = situation.curve[-1].rating - before.rating if situation.curve else 0.0
    payload = {
        "config_key": state.config,
        "model_id": state.champion or "",
        "metric_name": "rating",
        "elo_recovered": recovered,
        "reason": "the newest champion is as strong as the best before it",
    }
    return "REGRESSION_CLEARED", payload
