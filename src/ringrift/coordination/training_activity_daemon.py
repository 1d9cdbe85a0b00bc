"""Data for nodes that train: the daemon that brings the files of a training's order to where it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

from ringrift.coordination.event_router import get_router
from ringrift.coordination.sync_base import get_node_reports, of_process
from ringrift.data.plane import DaemonParts
from ringrift.data.sync.cluster_view import NodeReportCollector
from ringrift.data.sync.staging import RUNNING, StagingDaemon, StagingNeed, plan_staging
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.process import process_scope, reset_of
from ringrift.runtime import Runtime

__all__ = [
    "StagingNeed",
    "TrainingActivityDaemon",
    "create_staging_daemon",
    "get_training_activity_daemon",
    "plan_staging",
    "reset_training_activity_daemon",
]


class TrainingActivityDaemon(StagingDaemon):
    """Sees to it that trainings find their data where they run; by default at this process's data plane."""

    def __init__(
        self,
        trigger: str = RUNNING,
        *,
        reports: NodeReportCollector | None = None,
        **parts: Unpack[DaemonParts],
    ) -> None:
        super().__init__(trigger, reports=reports, **of_process(parts))


def get_training_activity_daemon() -> TrainingActivityDaemon:
    """Return the daemon of this process; it hears events once it is started."""
    return create_staging_daemon()


reset_training_activity_daemon = reset_of("reset_training_activity_daemon", TrainingActivityDaemon)


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
        return process_scope().get(
            TrainingActivityDaemon,
            lambda: TrainingActivityDaemon(runtime=runtime, reports=get_node_reports()),
        )
    return TrainingActivityDaemon(trigger, router=router, runtime=runtime, reports=get_node_reports())
