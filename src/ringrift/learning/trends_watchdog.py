"""METRICS_ANALYSIS and MODEL_PERFORMANCE_WATCHDOG: the daemons that look at trends by themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ringrift.events.handlers import HandlerBase
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.learning.feedback_rules import gauntlet_of
from ringrift.learning.signals_face import Told
from ringrift.learning.signals_source import Situation, Situations
from ringrift.learning.situation_daemons import EvaluationWatcher
from ringrift.learning.trends_metrics import MetricsAnalysisOrchestrator, get_metrics_orchestrator
from ringrift.learning.trends_regressions import RegressionFinding, RegressionSeverity, regression
from ringrift.runtime import Runtime
from ringrift.status import HealthCheckResult

ANALYSIS_S = 30.0
WATCH_S = 300.0
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
    emits: ClassVar[tuple[str, ...]] = (
        "REGRESSION_CLEARED",
        "REGRESSION_CRITICAL",
        "REGRESSION_DETECTED",
        "REGRESSION_MINOR",
        "REGRESSION_MODERATE",
        "REGRESSION_SEVERE",
        "TRAINING_ROLLBACK_NEEDED",
    )

    def __init__(
        self,
        *,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
        situations: Situations | None = None,
        interval_s: float = WATCH_S,
    ) -> None:
        super().__init__(
            "model_performance_watchdog",
            interval_s=interval_s,
            router=router,
            runtime=runtime,
            situations=situations,
        )
        self._watched: dict[str, _Watched] = {}

    async def _look(self, situation: Situation) -> None:
        config = situation.state.config
        watched = self._watched.setdefault(config, _Watched())
        told = self._judge(situation, watched) + self._win_rate(situation, watched)
        for name, payload in told:
            await self.router.publish(name, payload, self.name)

    def _judge(self, situation: Situation, watched: _Watched) -> list[Told]:
        curve = situation.curve
        newest = curve[-1].model if curve else None
        fresh = newest != watched.model
        found = regression(curve, in_a_row_before=watched.in_a_row if fresh else max(0, watched.in_a_row - 1))
        before, watched.finding, watched.model = watched.finding, found, newest
        if found is None:
            watched.in_a_row = 0
            return [] if before is None else [_cleared(situation, before)]
        watched.in_a_row = found.in_a_row
        if before is not None and not fresh and found.severity <= before.severity:
            return []
        return _regression_events(situation.state.config, found)

    def _win_rate(self, situation: Situation, watched: _Watched) -> list[Told]:
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
        own = super().health_check()
        found = {name: f"{each.severity.word}: {each.reason}" for name, each in self.regressions().items()}
        if own.healthy and found:
            return HealthCheckResult.degraded("a champion got weaker", **own.details, regressions=found)
        return own.with_details(regressions=found)


def _regression_events(config: str, found: RegressionFinding) -> list[Told]:
    about = {"config_key": config, "model_id": found.model}
    told: list[Told] = [
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
        told.append((_SEVERITY_EVENTS[found.severity], {**about, "elo_drop": found.drop}))
    else:
        critical = {
            "current_elo": found.rating,
            "elo_drop": found.drop,
            "consecutive_regressions": found.in_a_row,
            "recommendation": "roll back to the best champion",
            "reason": found.reason,
        }
        told.append(("REGRESSION_CRITICAL", {**about, **critical}))
    if found.needs_rollback:
        needed = {"reason": found.reason, "severity": found.severity.word}
        told.append(("TRAINING_ROLLBACK_NEEDED", {**about, **needed}))
    return told


def _cleared(situation: Situation, before: RegressionFinding) -> Told:
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
