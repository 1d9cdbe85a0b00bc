"""Upkeep for programs: the disk under the data folder, logs, dead letters."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.dead_letter_queue import get_dead_letter_queue
from ringrift.coordination.event_router import get_router
from ringrift.coordination.sync_base import open_data_plane
from ringrift.data.plane import WakingDaemon
from ringrift.data.transfer.receiving import DiskUsage, disk_usage
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.resources.disk import (
    DEAD_LETTER_DAYS,
    DiskLevel,
    DiskRules,
    DiskSpaceManagerDaemon,
    Freed,
    UpkeepDaemon,
)
from ringrift.runtime import Runtime
from ringrift.settings import Settings

__all__ = [
    "DiskLevel",
    "DiskRules",
    "DiskSpaceManagerDaemon",
    "DiskUsage",
    "Freed",
    "MaintenanceDaemon",
    "create_housekeeping_daemon",
    "disk_usage",
]


class MaintenanceDaemon(UpkeepDaemon):
    """Does each kind of upkeep when its time has come; by default in this process's data folder."""

    def __init__(
        self,
        *,
        settings: Settings | None = None,
        purge_dead_letters: Callable[[], int] | None = None,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        super().__init__(
            settings=settings or get_settings(),
            purge_dead_letters=purge_dead_letters or _purge_dead_letters,
            router=router or get_router(),
            runtime=runtime,
        )


def _purge_dead_letters() -> int:
    return get_dead_letter_queue().purge_old_events(DEAD_LETTER_DAYS)


def create_housekeeping_daemon(
    settings: Mapping[str, str] | None = None,
    router: UnifiedEventRouter | None = None,
    runtime: Runtime | None = None,
) -> WakingDaemon:
    """The daemon of the scope that its row of the daemon table names."""
    given = settings or {}
    if given.get("scope", "disk") != "disk":
        return MaintenanceDaemon(router=router, runtime=runtime)
    return DiskSpaceManagerDaemon(
        copy_out=given.get("copy_out") == "yes",
        plane=open_data_plane,
        router=router or get_router(),
        runtime=runtime,
    )
