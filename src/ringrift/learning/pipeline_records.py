"""Stages of the pipeline, as they were told: transitions, turns of the loop, and what they add up to."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

TRANSITIONS_MAX = 500
ITERATIONS_MAX = 200
TASKS_MAX = 200


class PipelineStage(StrEnum):
    """Where a config is. Self-play goes on beside all of them."""

    IDLE = "idle"
    SELFPLAY = "selfplay"
    DATA_SYNC = "data_sync"  # games have landed and agree with the rules
    NPZ_EXPORT = "npz_export"
    NPZ_COMBINATION = "npz_combination"
    TRAINING = "training"
    EVALUATION = "evaluation"
    PROMOTION = "promotion"
    COMPLETE = "complete"


_ORDER = tuple(PipelineStage)

# What each event says about where its config is now.
ENTERED: Mapping[str, PipelineStage] = {
    "SELFPLAY_COMPLETE": PipelineStage.SELFPLAY,
    "DATA_SYNC_COMPLETED": PipelineStage.DATA_SYNC,
    "NEW_GAMES_AVAILABLE": PipelineStage.DATA_SYNC,
    "NPZ_EXPORT_STARTED": PipelineStage.NPZ_EXPORT,
    "NPZ_EXPORT_COMPLETE": PipelineStage.NPZ_EXPORT,
    "NPZ_COMBINATION_COMPLETE": PipelineStage.NPZ_COMBINATION,
    "TRAINING_STARTED": PipelineStage.TRAINING,
    "TRAINING_COMPLETED": PipelineStage.EVALUATION,
    "EVALUATION_COMPLETED": PipelineStage.PROMOTION,
    "MODEL_PROMOTED": PipelineStage.COMPLETE,
    "PROMOTION_REJECTED": PipelineStage.COMPLETE,
}
FAILED: Mapping[str, PipelineStage] = {
    "DATA_SYNC_FAILED": PipelineStage.DATA_SYNC,
    "NPZ_COMBINATION_FAILED": PipelineStage.NPZ_COMBINATION,
    "TRAINING_FAILED": PipelineStage.TRAINING,
    "EVALUATION_FAILED": PipelineStage.EVALUATION,
    "PROMOTION_FAILED": PipelineStage.PROMOTION,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTransition:
    """A config went from one stage to another, or failed in one."""

    config_key: str
    from_stage: PipelineStage
    to_stage: PipelineStage
    iteration: int
    timestamp: float
    success: bool
    duration_seconds: float  # in the stage it left
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationRecord:
    """One turn of the loop of a config; *end_time* is None while it is under way."""

    config_key: str
    iteration: int
    start_time: float
    end_time: float | None = None
    success: bool = False
    stages_completed: tuple[str, ...] = ()
    games_generated: int = 0
    model_id: str = ""
    elo_delta: float = 0.0
    promoted: bool = False
    error: str = ""

    @property
    def duration(self) -> float:
        return 0.0 if self.end_time is None else self.end_time - self.start_time

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "duration": self.duration}


@dataclass(slots=True)
class _Open:
    stage: PipelineStage
    since_s: float
    started_s: float
    iteration: int
    stages: list[str] = field(default_factory=list)
    games: int = 0
    error: str = ""


class PipelineBook:
    """What was told of every config. Events that come twice or late change nothing that went further."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self.transitions: deque[StageTransition] = deque(maxlen=TRANSITIONS_MAX)
        self.iterations: deque[IterationRecord] = deque(maxlen=ITERATIONS_MAX)
        self.completed = self.failed = self.promotions = self.games = 0
        self._stage_seconds: dict[str, tuple[int, float]] = {}
        self._counted: deque[str] = deque(maxlen=TASKS_MAX)

    def stage(self, config: str) -> PipelineStage:
        found = self._open.get(config)
        return PipelineStage.IDLE if found is None else found.stage

    def stages(self) -> dict[str, str]:
        return {config: each.stage.value for config, each in self._open.items()}

    def enter(self, config: str, stage: PipelineStage, at_s: float, told: Mapping[str, Any]) -> None:
        """A config is in *stage* now, unless it was further already."""
        now = self._open.get(config)
        if now is None or now.stage is PipelineStage.COMPLETE:
            iteration = 1 if now is None else now.iteration + 1
            now = _Open(PipelineStage.IDLE, at_s, at_s, iteration)
            self._open[config] = now
        if stage is PipelineStage.SELFPLAY and self._is_new(told.get("task_id")):
            games = int(told.get("games_generated") or 0)
            now.games += games
            self.games += games
        if _ORDER.index(stage) <= _ORDER.index(now.stage):
            return
        self._move(config, now, stage, at_s, told)
        if stage is PipelineStage.COMPLETE:
            self._complete(config, now, at_s, told)

    def fail(self, config: str, stage: PipelineStage, at_s: float, error: str) -> None:
        """A config failed in *stage*; it stays where it is, and is tried again."""
        now = self._open.setdefault(config, _Open(stage, at_s, at_s, 1))
        now.error = error
        self.failed += 1
        self.transitions.append(
            StageTransition(
                config_key=config,
                from_stage=stage,
                to_stage=now.stage,
                iteration=now.iteration,
                timestamp=at_s,
                success=False,
                duration_seconds=max(0.0, at_s - now.since_s),
                metadata={"error": error},
            )
        )

    def _is_new(self, task_id: str | None) -> bool:
        """Whether the games of a task were not counted yet: worker and loop may both tell of them."""
        if task_id is None:
            return True
        if task_id in self._counted:
            return False
        self._counted.append(task_id)
        return True

    def _move(
        self, config: str, now: _Open, stage: PipelineStage, at_s: float, told: Mapping[str, Any]
    ) -> None:
        took_s = max(0.0, at_s - now.since_s)
        self.transitions.append(
            StageTransition(
                config_key=config,
                from_stage=now.stage,
                to_stage=stage,
                iteration=now.iteration,
                timestamp=at_s,
                success=True,
                duration_seconds=took_s,
                metadata={name: told[name] for name in ("model_id", "samples_exported") if name in told},
            )
        )
        if now.stage is not PipelineStage.IDLE:
            count, seconds = self._stage_seconds.get(now.stage.value, (0, 0.0))
            self._stage_seconds[now.stage.value] = (count + 1, seconds + took_s)
            now.stages.append(now.stage.value)
        now.stage, now.since_s = stage, at_s

    def _complete(self, config: str, now: _Open, at_s: float, told: Mapping[str, Any]) -> None:
        promoted = "elo" in told and "gate" not in told
        self.completed += 1
        self.promotions += promoted
        self.iterations.append(
            IterationRecord(
                config_key=config,
                iteration=now.iteration,
                start_time=now.started_s,
                end_time=at_s,
                success=True,
                stages_completed=tuple(now.stages),
                games_generated=now.games,
                model_id=str(told.get("model_id") or ""),
                elo_delta=float(told.get("elo_gain") or told.get("elo_improvement") or 0.0),
                promoted=promoted,
                error=now.error,
            )
        )

    def stats(self) -> dict[str, Any]:
        ended = [each.duration for each in self.iterations]
        return {
            "iterations_completed": self.completed,
            "stage_failures": self.failed,
            "games_generated": self.games,
            "promotions": self.promotions,
            "average_iteration_seconds": sum(ended) / len(ended) if ended else 0.0,
            "stage_seconds": {s: total / count for s, (count, total) in self._stage_seconds.items()},
            "last_activity": self.transitions[-1].timestamp if self.transitions else None,
        }
