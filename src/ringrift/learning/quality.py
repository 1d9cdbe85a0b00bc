"""The quality of games: scores, refusals, and the monitor that tells of them."""

from ringrift.learning.quality_monitor import QualityMonitorDaemon, get_quality_monitor
from ringrift.learning.quality_scores import (
    QualityState,
    QualityView,
    passes_gate,
    quality_gate,
    quality_of,
    quality_state,
    quality_view,
    refuse_shard,
)

__all__ = [
    "QualityMonitorDaemon",
    "QualityState",
    "QualityView",
    "get_quality_monitor",
    "passes_gate",
    "quality_gate",
    "quality_of",
    "quality_state",
    "quality_view",
    "refuse_shard",
]
