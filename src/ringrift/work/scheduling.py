"""Who plays what, and where: the schedulers under the names of the documents.

The parts: shares and scores (`work.shares`), search budgets (`scheduling_budget`), self-play tasks
(`scheduling_selfplay`), shares by config as the run decided them (`scheduling_priorities`), and jobs by
priority (`scheduling_jobs`).
"""

from __future__ import annotations

from ringrift.work.scheduling_bell import LoopBell, get_bell
from ringrift.work.scheduling_budget import games_needed, quality_factor, search_budget
from ringrift.work.scheduling_jobs import (
    JobPriority,
    JobSchedulerDaemon,
    PriorityJobScheduler,
    ScheduledJob,
    create_job_scheduler_daemon,
    get_job_scheduler,
    reset_job_scheduler,
    select_curriculum_config,
    wire_job_events,
)
from ringrift.work.scheduling_notes import NodeNote, NodeNotes
from ringrift.work.scheduling_priorities import (
    SelfplayScheduler,
    create_selfplay_scheduler,
    get_selfplay_scheduler,
    reset_selfplay_scheduler,
)
from ringrift.work.scheduling_selfplay import (
    SelfplayOrchestrator,
    SelfplayTask,
    SelfplayType,
    emit_selfplay_completion,
    get_selfplay_orchestrator,
    get_selfplay_stats,
    reset_selfplay_orchestrator,
    wire_selfplay_events,
)
from ringrift.work.shares import ConfigView, config_shares, curriculum_weights, next_kind

__all__ = [
    "ConfigView",
    "JobPriority",
    "JobSchedulerDaemon",
    "LoopBell",
    "NodeNote",
    "NodeNotes",
    "PriorityJobScheduler",
    "ScheduledJob",
    "SelfplayOrchestrator",
    "SelfplayScheduler",
    "SelfplayTask",
    "SelfplayType",
    "config_shares",
    "create_job_scheduler_daemon",
    "create_selfplay_scheduler",
    "curriculum_weights",
    "emit_selfplay_completion",
    "games_needed",
    "get_bell",
    "get_job_scheduler",
    "get_selfplay_orchestrator",
    "get_selfplay_scheduler",
    "get_selfplay_stats",
    "next_kind",
    "quality_factor",
    "reset_job_scheduler",
    "reset_selfplay_orchestrator",
    "reset_selfplay_scheduler",
    "search_budget",
    "select_curriculum_config",
    "wire_job_events",
    "wire_selfplay_events",
]
