"""The calls that programs make most often, as variants that answer also when the machine cannot.

`can_spawn_safe` and its like do what the call without `_safe` does. Where the store cannot be reached, is
full or damaged, or a lease is held elsewhere, they log it and return what stands for "unknown": None, or
False with the reason. A wrong argument (`ConfigError`, `TypeError`) is a mistake of the caller and is raised.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import structlog

from ringrift.coordination.backpressure import (
    check_backpressure,
    get_throttle_factor,
    should_throttle_production,
)
from ringrift.coordination.cluster_transport import (
    acquire_sync_lock,
    release_bandwidth,
    release_sync_lock,
    request_bandwidth,
)
from ringrift.coordination.coordination_bootstrap import get_system_health
from ringrift.coordination.data_pipeline_orchestrator import get_pipeline_status
from ringrift.coordination.duration_scheduler import can_schedule_task, estimate_task_duration
from ringrift.coordination.event_buses import publish_event
from ringrift.coordination.model_lifecycle_coordinator import get_production_model_id
from ringrift.coordination.orchestrator_registry import acquire_orchestrator_role, release_orchestrator_role
from ringrift.coordination.task_coordinator import (
    TaskType,
    can_spawn,
    check_before_spawn,
    get_task_coordinator,
    get_task_stats,
    get_work_queue_status,
)
from ringrift.coordination.training_coordinator import (
    can_train,
    get_training_status,
    release_training_slot,
    request_training_slot,
)
from ringrift.errors import ConfigError, RingRiftError, described

__all__ = [
    "acquire_orchestrator_role_safe",
    "acquire_sync_lock_safe",
    "can_schedule_task_safe",
    "can_spawn_safe",
    "can_train_safe",
    "check_backpressure_safe",
    "check_before_spawn_safe",
    "complete_task_safe",
    "estimate_task_duration_safe",
    "fail_task_safe",
    "get_pipeline_status_safe",
    "get_production_model_id_safe",
    "get_system_health_safe",
    "get_task_stats_safe",
    "get_throttle_factor_safe",
    "get_training_status_safe",
    "get_work_queue_status_safe",
    "heartbeat_task_safe",
    "publish_event_safe",
    "register_task_safe",
    "release_bandwidth_safe",
    "release_orchestrator_role_safe",
    "release_sync_lock_safe",
    "release_training_slot_safe",
    "request_bandwidth_safe",
    "request_training_slot_safe",
    "safe",
    "should_throttle_production_safe",
]

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")

log = structlog.get_logger()


def safe(call: Callable[P, T], unknown: Callable[[str], U]) -> Callable[P, T | U]:
    """Return *call* as a variant that returns *unknown(reason)* when the machine cannot answer."""

    @functools.wraps(call)
    def run(*args: P.args, **kwargs: P.kwargs) -> T | U:
        try:
            return call(*args, **kwargs)
        except ConfigError:
            raise
        except (RingRiftError, OSError) as error:
            reason = described(error)
            log.warning("coordination.not_answered", call=call.__name__, reason=reason)
            return unknown(reason)

    run.__name__ = run.__qualname__ = f"{call.__name__}_safe"
    return run


def _none(_reason: str) -> None:
    return None


def _no(_reason: str) -> bool:
    return False


def _no_with_reason(reason: str) -> tuple[bool, str]:
    return False, f"unknown: {reason}"


# --- the life of a task, of the coordinator of this process --------------------------------------------


# Looked up at each call: after a reset the coordinator of the process is another object.
def _register_task(
    task_id: str, task_type: TaskType | str, node_id: str = "", pid: int | None = None, config_key: str = ""
) -> bool:
    get_task_coordinator().register_task(task_id, task_type, node_id, pid, config_key)
    return True


def _heartbeat_task(task_id: str) -> bool:
    return get_task_coordinator().heartbeat_task(task_id)


def _complete_task(task_id: str, result: dict[str, Any] | None = None) -> bool:
    return get_task_coordinator().complete_task(task_id, result)


def _fail_task(task_id: str, error: str) -> bool:
    return get_task_coordinator().fail_task(task_id, error)


register_task_safe = safe(_register_task, _no)
heartbeat_task_safe = safe(_heartbeat_task, _no)
complete_task_safe = safe(_complete_task, _no)
fail_task_safe = safe(_fail_task, _no)

# --- may it start? -------------------------------------------------------------------------------------

can_spawn_safe = safe(can_spawn, _no_with_reason)
check_before_spawn_safe = safe(check_before_spawn, _no_with_reason)
can_schedule_task_safe = safe(can_schedule_task, _no_with_reason)
can_train_safe = safe(can_train, _no_with_reason)
# None where False or a number would be an answer: the caller decides what unknown means.
estimate_task_duration_safe = safe(estimate_task_duration, _none)
check_backpressure_safe = safe(check_backpressure, _none)
get_throttle_factor_safe = safe(get_throttle_factor, _none)
should_throttle_production_safe = safe(should_throttle_production, _none)

# --- what is held --------------------------------------------------------------------------------------

acquire_orchestrator_role_safe = safe(acquire_orchestrator_role, _no)
release_orchestrator_role_safe = safe(release_orchestrator_role, _no)
request_training_slot_safe = safe(request_training_slot, _none)
release_training_slot_safe = safe(release_training_slot, _no)
acquire_sync_lock_safe = safe(acquire_sync_lock, _no)
release_sync_lock_safe = safe(release_sync_lock, _no)
request_bandwidth_safe = safe(request_bandwidth, _none)
release_bandwidth_safe = safe(release_bandwidth, _no)

# --- how it is, and what is said ------------------------------------------------------------------------

get_system_health_safe = safe(get_system_health, _none)
get_pipeline_status_safe = safe(get_pipeline_status, _none)
get_training_status_safe = safe(get_training_status, _none)
get_task_stats_safe = safe(get_task_stats, _none)
get_work_queue_status_safe = safe(get_work_queue_status, _none)
get_production_model_id_safe = safe(get_production_model_id, _none)
publish_event_safe = safe(publish_event, _none)
