"""Task coordination: limits, admission, the life of every task, decorators, safeguards.

The home of the capability; each part is in a file of its own.
"""

from __future__ import annotations

from ringrift.work.emergency import (
    EmergencyNotice,
    EmergencyStop,
    clear_emergency_stop,
    emergency_notice,
    get_emergency_stop,
    turn_on_emergency_stop,
)
from ringrift.work.limits import CoordinatorState, SpawnVerdict, TaskLimits, TokenBucket
from ringrift.work.safeguards import Safeguards, check_before_spawn, get_safeguards, reset_safeguards
from ringrift.work.task_coordinator import (
    TaskCoordinator,
    can_spawn,
    can_spawn_async,
    get_task_coordinator,
    reset_task_coordinator,
    wire_task_limits,
)
from ringrift.work.task_decorators import (
    TaskContext,
    async_task_context,
    coordinate_async_task,
    coordinate_task,
    task_context,
)
from ringrift.work.task_lifecycle import (
    EndedTask,
    TaskLifecycleCoordinator,
    TaskStatus,
    get_task_lifecycle_coordinator,
    get_task_stats,
    reset_task_lifecycle_coordinator,
    wire_task_events,
)
from ringrift.work.task_queue_view import get_work_queue_status, work_queue_status
from ringrift.work.task_registry import RunningTask, TaskRegistry
from ringrift.work.task_types import TaskType, task_type_of

__all__ = [
    "CoordinatorState",
    "EmergencyNotice",
    "EmergencyStop",
    "EndedTask",
    "RunningTask",
    "Safeguards",
    "SpawnVerdict",
    "TaskContext",
    "TaskCoordinator",
    "TaskLifecycleCoordinator",
    "TaskLimits",
    "TaskRegistry",
    "TaskStatus",
    "TaskType",
    "TokenBucket",
    "async_task_context",
    "can_spawn",
    "can_spawn_async",
    "check_before_spawn",
    "clear_emergency_stop",
    "coordinate_async_task",
    "coordinate_task",
    "emergency_notice",
    "get_emergency_stop",
    "get_safeguards",
    "get_task_coordinator",
    "get_task_lifecycle_coordinator",
    "get_task_stats",
    "get_work_queue_status",
    "reset_safeguards",
    "reset_task_coordinator",
    "reset_task_lifecycle_coordinator",
    "task_context",
    "task_type_of",
    "turn_on_emergency_stop",
    "wire_task_events",
    "wire_task_limits",
    "work_queue_status",
]
