"""The stages of the pipeline and how one of them ended. Each stage has its event in the catalog."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Literal

from ringrift.events.catalog.event_types import DataEventType
from ringrift.events.catalog.names import normalize_event_type, resolve
from ringrift.events.catalog.table import ALIASES, CATALOG

__all__ = [
    "DATA_TO_CROSS_PROCESS_MAP",
    "DATA_TO_STAGE_EVENT_MAP",
    "STAGE_TO_CROSS_PROCESS_MAP",
    "STAGE_TO_DATA_EVENT_MAP",
    "StageCompletionResult",
    "StageEvent",
    "get_all_event_types",
    "get_cross_process_event_type",
    "get_data_event_type",
    "get_stage_event_type",
    "is_mapped_event",
    "validate_mappings",
]


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


# How stages, events and the log between processes name the same thing; all of it read off the catalog.
#
# Keys are wire values. The members of `DataEventType` and `StageEvent` equal theirs, so a member works as a
# key too.


def _data_of(stage: StageEvent) -> DataEventType:
    return DataEventType[normalize_event_type(stage)]


def _stage_by_data() -> dict[str, StageEvent]:
    """Only a plain stage stands for its event: not every self-play was on a GPU."""
    table: dict[str, StageEvent] = {}
    for stage in StageEvent:
        alias = ALIASES.get(stage.name)
        if alias is None or not alias.sets:
            table.setdefault(_data_of(stage), stage)
    return table


DATA_TO_CROSS_PROCESS_MAP: Mapping[str, str] = MappingProxyType(
    {spec.value: spec.name for spec in CATALOG.values() if spec.crosses}
)
STAGE_TO_DATA_EVENT_MAP: Mapping[str, DataEventType] = MappingProxyType(
    {stage: _data_of(stage) for stage in StageEvent}
)
DATA_TO_STAGE_EVENT_MAP: Mapping[str, StageEvent] = MappingProxyType(_stage_by_data())
STAGE_TO_CROSS_PROCESS_MAP: Mapping[str, str] = MappingProxyType(
    {stage: data.name for stage, data in STAGE_TO_DATA_EVENT_MAP.items() if data in DATA_TO_CROSS_PROCESS_MAP}
)


def get_data_event_type(stage_event: Any) -> DataEventType | None:
    """Return the event of a stage, given as member, value or name."""
    return STAGE_TO_DATA_EVENT_MAP.get(str(getattr(stage_event, "value", stage_event)).lower())


def get_stage_event_type(data_event: Any) -> StageEvent | None:
    """Return the stage that an event ends, in any spelling of the event."""
    spec = resolve(data_event)[1]
    return None if spec is None else DATA_TO_STAGE_EVENT_MAP.get(spec.value)


def get_cross_process_event_type(event_type: Any, source: Literal["data", "stage"] = "data") -> str | None:
    """Return the name under which an event crosses processes; None if it stays in its own."""
    if source == "stage":
        return STAGE_TO_CROSS_PROCESS_MAP.get(str(getattr(event_type, "value", event_type)).lower())
    spec = resolve(event_type)[1]
    return spec.name if spec is not None and spec.crosses else None


def is_mapped_event(event_type: Any) -> bool:
    """Whether an event crosses processes."""
    return get_cross_process_event_type(event_type) is not None


def get_all_event_types() -> set[str]:
    """Return every canonical name and every stage value."""
    return set(CATALOG) | {stage.value for stage in StageEvent}


def validate_mappings() -> list[str]:
    """Return what is wrong: a high-impact event that stays in its process, a stage without an event."""
    problems = [
        f"{spec.name} has high impact and does not cross processes"
        for spec in CATALOG.values()
        if spec.high_impact and not spec.crosses
    ]
    problems += [f"{stage} has no event" for stage in StageEvent if resolve(stage)[1] is None]
    return problems
