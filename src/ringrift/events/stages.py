"""The stages of the pipeline and how one of them ended. Each stage has its event in the catalog."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

__all__ = ["StageCompletionResult", "StageEvent"]


class StageEvent(StrEnum):
    """The end (or the start) of a pipeline stage."""

    SELFPLAY_COMPLETE = "selfplay_complete"
    CANONICAL_SELFPLAY_COMPLETE = "canonical_selfplay_complete"
    GPU_SELFPLAY_COMPLETE = "gpu_selfplay_complete"
    SYNC_COMPLETE = "sync_complete"
    PARITY_VALIDATION_COMPLETE = "parity_validation_complete"
    NPZ_EXPORT_STARTED = "npz_export_started"
    NPZ_EXPORT_COMPLETE = "npz_export_complete"
    TRAINING_COMPLETE = "training_complete"
    TRAINING_STARTED = "training_started"
    TRAINING_FAILED = "training_failed"
    EVALUATION_COMPLETE = "evaluation_complete"
    SHADOW_TOURNAMENT_COMPLETE = "shadow_tournament_complete"
    ELO_CALIBRATION_COMPLETE = "elo_calibration_complete"
    CMAES_COMPLETE = "cmaes_complete"
    PBT_COMPLETE = "pbt_complete"
    NAS_COMPLETE = "nas_complete"
    PROMOTION_COMPLETE = "promotion_complete"
    TIER_GATING_COMPLETE = "tier_gating_complete"
    ITERATION_COMPLETE = "iteration_complete"
    CLUSTER_SYNC_COMPLETE = "cluster_sync_complete"
    MODEL_SYNC_COMPLETE = "model_sync_complete"


@dataclass(slots=True)
class StageCompletionResult:
    """How a stage ended."""

    event: StageEvent
    success: bool
    iteration: int
    timestamp: str
    board_type: str = "square8"
    num_players: int = 2
    games_generated: int = 0
    model_path: str | None = None
    model_id: str | None = None
    train_loss: float | None = None
    val_loss: float | None = None
    win_rate: float | None = None
    elo_delta: float | None = None
    promoted: bool = False
    promotion_reason: str | None = None
    error: str | None = None
    error_details: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {**values, "event": self.event.value, "metadata": dict(self.metadata)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StageCompletionResult:
        """Read what `to_dict` wrote. Keys of other versions are ignored."""
        known = {item.name for item in fields(cls)}
        values = {key: value for key, value in data.items() if key in known}
        values["event"] = StageEvent(values.get("event", StageEvent.SELFPLAY_COMPLETE))
        values["metadata"] = dict(values.get("metadata") or {})
        return cls(**{"success": False, "iteration": 0, "timestamp": "", **values})
