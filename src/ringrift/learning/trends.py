"""Trends: what the curves of a run say, and the faces that tell of it."""

from ringrift.learning.trends_curves import rating_curve
from ringrift.learning.trends_metrics import (
    MetricsAnalysisOrchestrator,
    analyze_metrics,
    get_metrics_orchestrator,
    record_metric,
    reset_metrics_orchestrator,
    wire_metrics_events,
)
from ringrift.learning.trends_plateaus import PlateauFinding, plateau
from ringrift.learning.trends_regressions import RegressionFinding, RegressionSeverity, regression
from ringrift.learning.trends_watchdog import MetricsAnalysisDaemon, ModelPerformanceWatchdog
from ringrift.learning.trends_windows import Line, TrendDirection, WindowAnalysis, analyse, fit_line, trend

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
