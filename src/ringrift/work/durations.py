"""How long each kind of work takes, measured: estimates for people, timeouts for the job runner.

The home of the capability. Whoever completes a job calls `record_duration`; the job runner asks
`estimate_timeout_s` before it starts one.
"""

from __future__ import annotations

from ringrift.work.durations_book import DurationBook, get_duration_book
from ringrift.work.durations_rules import DEFAULT_DURATIONS_S, DurationEstimate, TaskOutcome
from ringrift.work.durations_scheduler import (
    BusyHours,
    DurationScheduler,
    can_schedule_task,
    estimate_task_duration,
    get_duration_scheduler,
    record_task_completion,
    reset_duration_scheduler,
)

__all__ = [
    "DEFAULT_DURATIONS_S",
    "BusyHours",
    "DurationBook",
    "DurationEstimate",
    "DurationScheduler",
    "TaskOutcome",
    "can_schedule_task",
    "estimate_task_duration",
    "estimate_timeout_s",
    "get_duration_book",
    "get_duration_scheduler",
    "record_duration",
    "record_task_completion",
    "reset_duration_scheduler",
]


async def record_duration(
    kind: str, config: str, node: str, seconds: float, *, outcome: TaskOutcome = TaskOutcome.OK
) -> None:
    """Remember how long a job took, and how it ended."""
    await get_duration_book().record(kind, config, node, seconds, outcome=outcome)


async def estimate_timeout_s(kind: str, config: str = "") -> float:
    """How long a job may run before it counts as stuck: from the slow end of what succeeded."""
    return await get_duration_book().timeout_s(kind, config)
