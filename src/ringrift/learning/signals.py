"""Signals: what other parts of the system said that feedback listens to, newest kept per config.

A signal is a hint with a time. It makes the feedback look again at once; what feedback decides follows from
the state of the run alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ringrift.process import process_scope

HISTORY_MAX = 1_000
CONFIGS_MAX = 1_000


class SignalType(StrEnum):
    """What a signal is about."""

    INTENSITY = "intensity"
    EXPLORATION = "exploration"
    CURRICULUM = "curriculum"
    FRESHNESS = "freshness"
    QUALITY = "quality"
    REGRESSION = "regression"
    PROMOTION = "promotion"


@dataclass(frozen=True, slots=True)
class FeedbackSignal:
    """One signal."""

    signal_type: SignalType
    config_key: str  # empty: about the whole system
    value: float | None
    source: str
    reason: str
    at_s: float


@dataclass(frozen=True, slots=True)
class _Meaning:
    """How an event is read: its type, and the field that holds its number."""

    signal_type: SignalType
    field: str = ""


_INTENSITY, _EXPLORATION = SignalType.INTENSITY, SignalType.EXPLORATION
_REGRESSION, _PROMOTION = SignalType.REGRESSION, SignalType.PROMOTION
MEANINGS: Mapping[str, _Meaning] = {
    "CLUSTER_CAPACITY_CHANGED": _Meaning(_INTENSITY, "available_gpus"),
    "CMAES_COMPLETED": _Meaning(_INTENSITY, "best_score"),
    "CPU_PIPELINE_JOB_COMPLETED": _Meaning(SignalType.FRESHNESS, "duration_seconds"),
    "CURRICULUM_ADVANCED": _Meaning(SignalType.CURRICULUM, "elo"),
    "DATABASE_CREATED": _Meaning(SignalType.FRESHNESS),
    "DATA_FRESH": _Meaning(SignalType.FRESHNESS, "data_age_hours"),
    "ELO_VELOCITY_CHANGED": _Meaning(_INTENSITY, "velocity"),
    "EVALUATION_COMPLETED": _Meaning(_INTENSITY, "win_rate"),
    "EVALUATION_FAILED": _Meaning(_INTENSITY),
    "HEALTH_CHECK_FAILED": _Meaning(_INTENSITY, "consecutive_failures"),
    "HIGH_QUALITY_DATA_AVAILABLE": _Meaning(SignalType.QUALITY, "avg_quality"),
    "ITERATION_COMPLETED": _Meaning(_INTENSITY, "duration_seconds"),
    "MODEL_PROMOTED": _Meaning(_PROMOTION, "elo"),
    "NAS_COMPLETED": _Meaning(_INTENSITY, "best_score"),
    "P2P_CLUSTER_UNHEALTHY": _Meaning(_INTENSITY, "healthy_nodes"),
    "PBT_COMPLETED": _Meaning(_INTENSITY, "best_score"),
    "PLATEAU_DETECTED": _Meaning(_EXPLORATION, "current_value"),
    "PROMOTION_REJECTED": _Meaning(_PROMOTION, "elo_improvement"),
    "QUALITY_CHECK_FAILED": _Meaning(SignalType.QUALITY, "last_quality"),
    "QUALITY_DEGRADED": _Meaning(SignalType.QUALITY, "quality_score"),
    "QUALITY_FEEDBACK_ADJUSTED": _Meaning(SignalType.QUALITY, "budget_multiplier"),
    "QUALITY_SCORE_UPDATED": _Meaning(SignalType.QUALITY, "quality_score"),
    "REGRESSION_DETECTED": _Meaning(_REGRESSION, "elo_drop"),
    "REGRESSION_MINOR": _Meaning(_REGRESSION, "elo_drop"),
    "REGRESSION_MODERATE": _Meaning(_REGRESSION, "elo_drop"),
    "SCHEDULER_REGISTERED": _Meaning(SignalType.CURRICULUM),
    "SELFPLAY_RATE_CHANGED": _Meaning(SignalType.CURRICULUM, "new_rate"),
    "TRAINING_COMPLETED": _Meaning(_INTENSITY, "val_loss"),
    "TRAINING_EARLY_STOPPED": _Meaning(_INTENSITY, "best_loss"),
    "TRAINING_LOSS_ANOMALY": _Meaning(_EXPLORATION, "anomaly_ratio"),
    "TRAINING_LOSS_TREND": _Meaning(_INTENSITY, "improvement_rate"),
    "TRAINING_ROLLBACK_COMPLETED": _Meaning(_REGRESSION),
    "TRAINING_ROLLBACK_NEEDED": _Meaning(_REGRESSION),
    "WORK_COMPLETED": _Meaning(_INTENSITY, "duration_seconds"),
    "WORK_FAILED": _Meaning(_INTENSITY, "attempts"),
    "WORK_TIMEOUT": _Meaning(_INTENSITY, "duration_seconds"),
}


def read_signal(event_type: str, payload: Mapping[str, Any], *, at_s: float) -> FeedbackSignal | None:
    """What an event says to the feedback; None if nothing."""
    meaning = MEANINGS.get(event_type)
    if meaning is None:
        return None
    value = payload.get(meaning.field) if meaning.field else None
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    words = (payload.get(name) for name in ("reason", "recommendation", "error", "trend"))
    reason = next((str(word) for word in words if word), event_type.lower().replace("_", " "))
    config = str(payload.get("config_key") or "")
    return FeedbackSignal(meaning.signal_type, config, number, event_type, reason[:300], at_s)


class FeedbackSignals:
    """The last thousand signals, and the newest of each type per config."""

    def __init__(self) -> None:
        self._history: deque[FeedbackSignal] = deque(maxlen=HISTORY_MAX)
        self._latest: dict[str, dict[SignalType, FeedbackSignal]] = {}
        self.total = 0

    def add(self, signal: FeedbackSignal) -> None:
        self.total += 1
        self._history.append(signal)
        self._latest.setdefault(signal.config_key, {})[signal.signal_type] = signal
        while len(self._latest) > CONFIGS_MAX:
            del self._latest[next(iter(self._latest))]

    def latest(self, config_key: str) -> dict[SignalType, FeedbackSignal]:
        return dict(self._latest.get(config_key, {}))

    def history(
        self, limit: int = 100, *, config_key: str | None = None, signal_type: SignalType | None = None
    ) -> list[FeedbackSignal]:
        """Up to *limit* signals, oldest first."""
        found = [
            each
            for each in self._history
            if config_key in (None, each.config_key) and signal_type in (None, each.signal_type)
        ]
        return found[-limit:] if limit > 0 else []


def get_feedback_signals() -> FeedbackSignals:
    return process_scope().get(FeedbackSignals, FeedbackSignals)
