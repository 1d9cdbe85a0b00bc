"""The types of tasks that limits and estimates know, and how job kinds map to them."""

from __future__ import annotations

from enum import StrEnum


class TaskType(StrEnum):
    """What a task is, as limits, durations and events name it."""

    SELFPLAY = "selfplay"
    GPU_SELFPLAY = "gpu_selfplay"
    HYBRID_SELFPLAY = "hybrid_selfplay"
    TRAINING = "training"
    EVALUATION = "evaluation"
    TOURNAMENT = "tournament"
    VALIDATION = "validation"
    EXPORT = "export"
    SYNC = "sync"
    CMAES = "cmaes"
    PIPELINE = "pipeline"
    IMPROVEMENT_LOOP = "improvement_loop"
    OTHER = "other"  # a user's own kind of work


_OF_KIND = {
    **{known.value: known for known in TaskType},
    "train": TaskType.TRAINING,
    "evaluate": TaskType.EVALUATION,
    "gauntlet": TaskType.EVALUATION,
    "validate": TaskType.VALIDATION,
    "data_sync": TaskType.SYNC,
    "tune": TaskType.CMAES,
    "gpu_cmaes": TaskType.CMAES,
    "cpu_cmaes": TaskType.CMAES,
    "hyperparam_sweep": TaskType.CMAES,
}
SELFPLAY_TYPES = frozenset({TaskType.SELFPLAY, TaskType.GPU_SELFPLAY, TaskType.HYBRID_SELFPLAY})
INTENSIVE_TYPES = frozenset(
    {TaskType.TRAINING, TaskType.CMAES, TaskType.PIPELINE, TaskType.IMPROVEMENT_LOOP}
)  # two of them on one machine get in each other's way


def task_type_of(kind: str) -> TaskType:
    """The type of a job kind or of a written type; what is neither is OTHER."""
    return _OF_KIND.get(kind, TaskType.OTHER)


def canonical_kind(kind: str) -> str:
    """One name for what job kinds and types call differently: `train` is `training`."""
    known = task_type_of(kind)
    return kind if known is TaskType.OTHER else known.value


def family(task_type: TaskType) -> TaskType:
    """The type that limits count: all kinds of self-play are one."""
    return TaskType.SELFPLAY if task_type in SELFPLAY_TYPES else task_type
