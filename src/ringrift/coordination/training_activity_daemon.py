"""Data for nodes that train: the daemon that brings the files of a training's order to where it runs."""

from __future__ import annotations

from collections.abc import Mapping

from ringrift.coordination.event_router import get_router
from ringrift.coordination.sync_base import get_node_reports
from ringrift.data.sync.staging import RUNNING, StagingNeed, TrainingActivityDaemon, plan_staging
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.process import process_scope
from ringrift.runtime import Runtime

__all__ = [
    "StagingNeed",
    "TrainingActivityDaemon",
    "create_staging_daemon",
    "get_training_activity_daemon",
    "plan_staging",
]


def get_training_activity_daemon() -> TrainingActivityDaemon:
    """Return the daemon of this process; it hears events once it is started."""
    return process_scope().get(
        TrainingActivityDaemon, lambda: TrainingActivityDaemon(reports=get_node_reports())
    )


def create_staging_daemon(
    settings: Mapping[str, str] | None = None,
    router: UnifiedEventRouter | None = None,
    runtime: Runtime | None = None,
) -> TrainingActivityDaemon:
    """The daemon with the trigger that its row of the daemon table names.

    For trainings that run it is the one of this process, unless it is for another *router*.
    """
    trigger = (settings or {}).get("trigger", RUNNING)
    if trigger == RUNNING and (router is None or router is get_router()):
        return get_training_activity_daemon()
    return TrainingActivityDaemon(trigger, router=router, runtime=runtime, reports=get_node_reports())
