"""The data plane of this process, and what syncs of one's own are made of: daemon, transport."""

from __future__ import annotations

import asyncio
from typing import Unpack

from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.event_router import get_router
from ringrift.data.config import AutoSyncConfig, read_nodes
from ringrift.data.manifest.store import ManifestView
from ringrift.data.plane import DaemonParts, DataPlane, WakingDaemon, assemble_plane
from ringrift.data.protection.promise_store import PromiseStore
from ringrift.data.sync.cluster_view import ClusterView, NodeReportCollector, NodeReports, read_cluster_view
from ringrift.data.transfer.contract import Pace, Transport
from ringrift.engine.opening import get_engine, get_engine_blocking, has_store
from ringrift.process import getter_of, process_scope, reset_of
from ringrift.runtime import system_runtime
from ringrift.work.backpressure import Announced, read_announced

__all__ = ["DataPlane", "Pace", "SyncDaemonBase", "Transport", "open_data_plane"]


def get_data_plane() -> DataPlane:
    """Return this process's data plane; the first call opens the engine and may wait for it."""
    scope, engine = process_scope(), get_engine_blocking()

    def make() -> DataPlane:
        return assemble_plane(engine, get_settings(), system_runtime(), router=get_router())

    plane = scope.get(DataPlane, make)
    if plane.engine is not engine:  # that one was closed
        scope.drop(DataPlane)
        plane = scope.get(DataPlane, make)
    return plane


async def open_data_plane() -> DataPlane:
    """Return this process's data plane without holding up the event loop."""
    await get_engine()
    if process_scope().peek(DataPlane) is None:
        # The first record of promises is synced to the disk: that takes longer than the loop may be held up.
        folder = get_settings().blob_dir
        await asyncio.to_thread(lambda: PromiseStore(folder, system_runtime()).close())
    return get_data_plane()


async def existing_data_plane() -> DataPlane | None:
    """Return this process's data plane; None where no run was ever, because looking never makes a store."""
    return await open_data_plane() if await asyncio.to_thread(has_store) else None


async def close_data_plane() -> None:
    """End this process's data plane, if there is one, before its engine is closed."""
    plane = process_scope().drop(DataPlane)
    if plane is not None:
        await plane.close()


async def look_at_cluster(
    plane: DataPlane | None, config: AutoSyncConfig, *, reports: NodeReports
) -> ClusterView:
    """Read everything as it is now, at *plane* or this process's; nothing where no run was ever."""
    plane = plane or await existing_data_plane()
    if plane is not None:
        return await read_cluster_view(plane, config, reports=reports)
    settings, runtime = get_settings(), system_runtime()
    nodes = read_nodes(settings.node_name or runtime.hostname, settings.nodes)
    return ClusterView(
        view=ManifestView(), nodes=nodes, now_s=runtime.now_s(), config=config, reports=reports
    )


def of_process(parts: DaemonParts) -> DaemonParts:
    """The parts of a daemon: those that are given, else this process's."""
    return {
        "plane": parts.get("plane") or open_data_plane,
        "router": parts.get("router") or get_router(),
        "runtime": parts.get("runtime"),
    }


async def read_pressure(plane: DataPlane | None) -> Announced:
    """What QUEUE_MONITOR has measured of the queues of the run; nothing where nobody measures."""
    plane = plane or await existing_data_plane()
    return Announced() if plane is None else await read_announced(plane.kv)


class SyncDaemonBase(WakingDaemon):
    """Looks at the data plane now and then, and soon after it was woken; by default at this process's."""

    def __init__(self, name: str, *, interval_s: float, **parts: Unpack[DaemonParts]) -> None:
        super().__init__(name, interval_s=interval_s, **of_process(parts))


# What events told of nodes in this process: one collector for all who sync.
get_node_reports = getter_of("get_node_reports", NodeReportCollector)
reset_node_reports = reset_of("reset_node_reports", NodeReportCollector)
