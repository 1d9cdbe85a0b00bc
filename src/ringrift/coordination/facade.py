"""One object for programs that only want to take part: may I start, what runs, how is it all.

Every answer is that of the part it comes from; this keeps nothing.
"""

from __future__ import annotations

from typing import Any

from ringrift.coordination.coordination_bootstrap import get_system_health
from ringrift.coordination.daemon_manager import get_daemon_manager
from ringrift.coordination.data_pipeline_orchestrator import get_pipeline_status
from ringrift.coordination.model_lifecycle_coordinator import get_production_model_id
from ringrift.coordination.task_coordinator import (
    TaskType,
    can_spawn,
    get_task_coordinator,
    get_task_stats,
    get_work_queue_status,
)
from ringrift.coordination.training_coordinator import can_train, get_training_status
from ringrift.process import SingletonMixin, getter_of
from ringrift.runtime import system_runtime

__all__ = ["CoordinationFacade", "get_coordination_facade", "reset_coordination_facade"]


class CoordinationFacade(SingletonMixin):
    """The coordination of this process, for code without an event loop."""

    def spawn_task(
        self,
        task_type: TaskType | str,
        node_id: str = "",
        *,
        task_id: str | None = None,
        pid: int | None = None,
        config_key: str = "",
    ) -> tuple[str | None, str]:
        """Register a task if it may start: its id and "ok", or None and why not."""
        ok, reason = can_spawn(task_type, node_id)
        if not ok:
            return None, reason
        # Not atomic: another process may take the last place in between, and then one task too many runs.
        name = task_id or f"{task_type}-{system_runtime().new_id()}"
        return get_task_coordinator().register_task(name, task_type, node_id, pid, config_key), "ok"

    def complete_task(self, task_id: str, result: dict[str, Any] | None = None) -> bool:
        return get_task_coordinator().complete_task(task_id, result)

    def fail_task(self, task_id: str, error: str) -> bool:
        return get_task_coordinator().fail_task(task_id, error)

    def cancel_task(self, task_id: str, reason: str = "asked for") -> bool:
        return get_task_coordinator().cancel_task(task_id, reason)

    def can_train(self, board_type: str, num_players: int) -> tuple[bool, str]:
        """Whether a trainer of one's own may train a config now, and why not."""
        return can_train(board_type, num_players)

    def get_champion(self, config_key: str) -> str | None:
        """The hash of the champion of a config; None if it has none."""
        return get_production_model_id(config_key=config_key)

    def get_system_health(self) -> dict[str, Any]:
        return get_system_health()

    def get_status(self) -> dict[str, Any]:
        """All of it: daemons, pipeline, training, tasks and the work queue."""
        return {
            "daemons": get_daemon_manager().status_document()["summary"],
            "pipeline": get_pipeline_status(),
            "training": get_training_status(),
            "tasks": get_task_stats(),
            "work_queue": get_work_queue_status(),
        }


get_coordination_facade = getter_of("get_coordination_facade", CoordinationFacade)
reset_coordination_facade = CoordinationFacade.reset_instance
