"""How long a task takes, from how long such tasks took. Pure decisions.

An estimate prefers what is most like the task: same kind, config and node; same kind and config; same kind;
the table of defaults. A timeout comes from the slow end of what succeeded; a task that ran into it gets twice
the time at the next attempt, so that work which grew is not killed forever.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from ringrift.work.task_types import TaskType, task_type_of

DAY_S = 86_400.0
SUCCESSES_MIN = 3
ESTIMATE_MARGIN = 1.2
NEAR_S, FAR_S = 7 * DAY_S, 30 * DAY_S
TIMEOUT_MARGIN = 3.0
TIMEOUT_FLOOR_S, TIMEOUT_CEILING_S = 300.0, DAY_S

DEFAULT_DURATIONS_S = {
    TaskType.SELFPLAY: 3600.0,
    TaskType.GPU_SELFPLAY: 7200.0,
    TaskType.HYBRID_SELFPLAY: 7200.0,
    TaskType.TRAINING: 14_400.0,
    TaskType.CMAES: 28_800.0,
    TaskType.TOURNAMENT: 1800.0,
    TaskType.EVALUATION: 3600.0,
    TaskType.VALIDATION: 1800.0,
    TaskType.SYNC: 600.0,
    TaskType.EXPORT: 300.0,
    TaskType.PIPELINE: 21_600.0,
    TaskType.IMPROVEMENT_LOOP: 43_200.0,
    TaskType.OTHER: 3600.0,
}


class TaskOutcome(StrEnum):
    """How a measured task ended."""

    OK = "ok"
    FAILED = "failed"
    TIMED_OUT = "timed_out"


class Measured(msgspec.Struct, frozen=True, array_like=True):
    """One task that ran."""

    at_s: float
    seconds: float
    outcome: TaskOutcome = TaskOutcome.OK


@dataclass(frozen=True, slots=True)
class MeasuredSeries:
    """What is known of one kind, config and node, oldest first."""

    kind: str
    config: str
    node: str
    tasks: Sequence[Measured]


@dataclass(frozen=True, slots=True)
class DurationEstimate:
    """Seconds, and where they come from: exact, config, kind or default."""

    seconds: float
    source: str
    samples: int = 0


def default_duration_s(kind: str) -> float:
    return DEFAULT_DURATIONS_S[task_type_of(kind)]


def estimate(
    series: Iterable[MeasuredSeries], *, kind: str, config: str, node: str, now_s: float
) -> DurationEstimate:
    """The expected duration of a task of *kind*."""
    known = [item for item in series if item.kind == kind]
    of_config = [item for item in known if item.config == config]
    exact = [item for item in of_config if item.node == node]
    for source, items, age_s in (
        ("exact", exact, NEAR_S),
        ("config", of_config, NEAR_S),
        ("kind", known, FAR_S),
    ):
        seconds = _successes(items, since_s=now_s - age_s)
        if len(seconds) >= SUCCESSES_MIN:
            return DurationEstimate(ESTIMATE_MARGIN * sum(seconds) / len(seconds), source, len(seconds))
    return DurationEstimate(default_duration_s(kind), "default")


def timeout_s(series: Iterable[MeasuredSeries], *, kind: str, config: str, now_s: float) -> float:
    """How long a task of *kind* may run before it counts as stuck."""
    known = [item for item in series if item.kind == kind and item.config == config]
    seconds = _successes(known, since_s=now_s - FAR_S)
    enough = len(seconds) >= SUCCESSES_MIN
    wanted_s = TIMEOUT_MARGIN * percentile_95(seconds) if enough else 2.0 * default_duration_s(kind)
    tasks = sorted((task for item in known for task in item.tasks), key=lambda task: task.at_s)
    for task in reversed(tasks):
        if task.outcome is TaskOutcome.OK:
            break
        if task.outcome is TaskOutcome.TIMED_OUT:
            wanted_s = max(wanted_s, 2.0 * task.seconds)
    return min(TIMEOUT_CEILING_S, max(TIMEOUT_FLOOR_S, wanted_s))


def percentile_95(seconds: Sequence[float]) -> float:
    """The nearest rank, so that it is a duration that really happened."""
    ordered = sorted(seconds)
    return ordered[math.ceil(0.95 * len(ordered)) - 1]


def _successes(series: Iterable[MeasuredSeries], *, since_s: float) -> list[float]:
    return [
        task.seconds
        for item in series
        for task in item.tasks
        if task.outcome is TaskOutcome.OK and task.at_s >= since_s
    ]
