"""Where data should go and where it is best had from, under the names of the documents."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

import structlog

from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.sync_base import (
    get_data_plane,
    get_node_reports,
    look_at_cluster,
    open_data_plane,
    read_pressure,
)
from ringrift.data.artifacts import data_type_named, kinds_of
from ringrift.data.config import AutoSyncConfig, read_nodes, read_sync_config
from ringrift.data.manifest.store import DiskState, DiskStates
from ringrift.data.plane import DataPlane
from ringrift.data.sync.cluster_view import (
    ClusterView,
    NodeReportCollector,
    SyncHistory,
    SyncRecord,
    tell_disk,
)
from ringrift.data.sync.plan import (
    ReplicationPlan,
    ScoredNode,
    plan_copies,
    ranked,
    source_score,
    sources_of,
    target_score,
)
from ringrift.engine.blocking import background_loop, blocking, loop_is_running, run_blocking
from ringrift.engine.run_reports import reported_slowly
from ringrift.errors import RingRiftError
from ringrift.process import getter_of, reset_of
from ringrift.runtime import Runtime, system_runtime
from ringrift.status import HealthCheckResult
from ringrift.work.backpressure import Announced
from ringrift.work.shares import split_config

__all__ = ["SyncRouter", "get_sync_router", "reset_sync_router"]

LOOK_S = 30.0

log = structlog.get_logger()


class SyncRouter:
    """Answers from the present state; it keeps nothing of its own but what events told."""

    def __init__(
        self,
        plane: DataPlane | None = None,
        *,
        config: AutoSyncConfig | None = None,
        reports: NodeReportCollector | None = None,
    ) -> None:
        self._plane, self._config = plane, config
        self.reports = reports or get_node_reports()
        self._pressure = Announced()
        self._looking: Future[None] | None = None

    @property
    def plane(self) -> DataPlane:
        return self._plane or get_data_plane()

    @property
    def config(self) -> AutoSyncConfig:
        if self._config is None:
            settings = get_settings() if self._plane is None else self._plane.settings
            nodes = read_nodes(settings.node_name or self._runtime.hostname, settings.nodes)
            self._config = read_sync_config(settings.sync)
            # Here and not at the first transfer: a rule for a node that does not exist is a mistake.
            self._config.check_nodes(nodes)
        return self._config

    @property
    def _runtime(self) -> Runtime:
        return system_runtime() if self._plane is None else self._plane.runtime

    async def cluster_view(self) -> ClusterView:
        return await look_at_cluster(self._plane, self.config, reports=self.reports.reports(self._runtime))

    @blocking
    async def _look(self) -> ClusterView:
        return await self.cluster_view()

    # --- where to, where from -------------------------------------------------------------------------

    async def targets(
        self,
        data_type: str,
        *,
        exclude_nodes: Iterable[str] = (),
        max_targets: int | None = 10,
        size_bytes: int = 0,
    ) -> list[ScoredNode]:
        wanted, excluded = data_type_named(data_type), frozenset(exclude_nodes)
        cluster = await self.cluster_view()
        fit = [
            node
            for node in cluster.nodes.others()
            if node.name not in excluded
            and not cluster.unfit(node, wanted)
            and not cluster.blocked(node, wanted)
            and _has_room(cluster.disks.get(node.name), size_bytes, cluster.disk_limit(node))
        ]
        return ranked(target_score(cluster, node, wanted) for node in fit)[:max_targets]

    _targets = blocking(targets)

    def get_sync_targets(
        self,
        data_type: str,
        board_type: str | None = None,
        num_players: int | None = None,
        exclude_nodes: Iterable[str] = (),
        max_targets: int = 10,
        size_bytes: int = 0,
    ) -> list[ScoredNode]:
        """The nodes that should get data of this type, the first first."""
        # All of them: which ones lack the data is asked below, and only those count.
        found = self._targets(data_type, exclude_nodes=exclude_nodes, max_targets=None, size_bytes=size_bytes)
        if board_type is not None or num_players is not None:
            found = [each for each in found if self._lacks(each.node_id, data_type, board_type, num_players)]
        return found[:max_targets]

    def get_sync_sources(
        self,
        data_type: str,
        board_type: str | None = None,
        num_players: int | None = None,
        exclude_nodes: Iterable[str] = (),
        max_sources: int = 5,
    ) -> list[ScoredNode]:
        """The nodes that hold such data, the best to fetch from first."""
        cluster, wanted, excluded = self._look(), data_type_named(data_type), frozenset(exclude_nodes)
        holding = {
            node
            for artifact in cluster.view.of_kinds(kinds_of(wanted))
            if _is_of(artifact.config, board_type, num_players)
            for node in cluster.view.holders(artifact.digest)
        }
        fit = [node for node in cluster.nodes.others() if node.active and node.name in holding - excluded]
        return ranked(source_score(cluster, node, wanted) for node in fit)[:max_sources]

    def should_sync_to_node(self, node_id: str, data_type: str = "games") -> bool:
        cluster, wanted = self._look(), data_type_named(data_type)
        node = cluster.nodes[node_id]
        return not cluster.unfit(node, wanted) and not cluster.blocked(node, wanted)

    def get_optimal_source(self, digest: str, target: str) -> str | None:
        cluster = self._look()
        artifact = cluster.view.artifacts.get(digest)
        sources = [] if artifact is None else sources_of(cluster, artifact, cluster.nodes[target])
        return sources[0].name if sources else None

    def plan_replication(
        self, digest: str, min_copies: int = 2, quality_score: float | None = None
    ) -> ReplicationPlan:
        cluster = self._look()
        return plan_copies(cluster, digest, min_copies=min_copies, quality=quality_score)

    # --- what is told to it ---------------------------------------------------------------------------

    @blocking
    async def record_sync_success(self, node_id: str, games: int = 0, bytes_transferred: int = 0) -> None:
        plane = self._plane or await open_data_plane()
        now_s = plane.runtime.now_s()
        record = SyncRecord(
            host=node_id,
            by=plane.this.name,
            started_s=now_s,
            completed_s=now_s,
            success=True,
            games=games,
            bytes_transferred=bytes_transferred,
        )
        await SyncHistory(plane.kv, plane.runtime).add(record, at_s=now_s)

    def is_under_backpressure(self, node_id: str = "") -> bool:  # noqa: ARG002 - documented signature
        """Whether the queues are too full now, which are one set for all nodes.

        On an event loop nobody can wait for the store: there it answers by what was measured when it was last
        asked, for as long as that holds, and looks again meanwhile. What is not known presses nobody.
        """
        if not loop_is_running():
            run_blocking(self._look_at_pressure())
        elif self._looking is None or self._looking.done():
            self._looking = background_loop().begin(self._look_meanwhile())
        return self._pressure.in_force(self._runtime.now_s()).throttles

    async def _look_at_pressure(self) -> None:
        self._pressure = await read_pressure(self._plane)

    async def _look_meanwhile(self) -> None:
        try:
            async with asyncio.timeout(LOOK_S):
                await self._look_at_pressure()
        except (RingRiftError, TimeoutError) as error:  # nobody waits for it who could be told
            log.warning("sync_router.pressure_unread", reason=str(error))

    def update_training_active_nodes(self, nodes: set[str]) -> None:
        self.reports.replace_training(frozenset(nodes), self._runtime.now_s())

    @blocking
    async def refresh_all_capacity(self) -> dict[str, DiskState]:
        """Measure this node's disk anew and return what every node said of its own."""
        plane = self._plane or await open_data_plane()
        await tell_disk(plane, anew=True)
        return await DiskStates(plane.kv).all()

    # --- places that are no nodes ---------------------------------------------------------------------

    def get_external_storage_path(self) -> str | None:
        return self.config.external_storage or None

    def get_s3_uri(self, data_type: str, name: str = "") -> str | None:
        place = self.config.s3
        if not place.bucket:
            return None
        return "/".join(
            part for part in (f"s3://{place.bucket}", place.prefix, data_type_named(data_type), name) if part
        )

    def is_s3_primary_for(self, data_type: str) -> bool:
        return bool(self.config.s3.bucket) and data_type_named(data_type) in self.config.s3.primary_for

    def should_push_to_s3(self, data_type: str) -> bool:
        return self.is_s3_primary_for(data_type)

    # --- how it is ------------------------------------------------------------------------------------

    @property
    def works_here(self) -> bool:
        """Whether somebody told this one of nodes; the coordinator of the run tells its own."""
        return self.reports.has_reports

    @reported_slowly
    def get_status(self) -> dict[str, Any]:
        cluster = self._look()
        others = cluster.nodes.others()
        return {
            "nodes": len(others),
            "active": sum(node.active for node in others),
            "away": len(cluster.aside),
            "closed": len(cluster.reports.closed),
            "training": sum(cluster.is_training(node) for node in others),
            "known_disks": len(cluster.disks),
        }

    def health_check(self) -> HealthCheckResult:
        status = self.get_status()
        if status["active"] and status["away"] >= status["active"]:
            return HealthCheckResult.degraded("no other node answers", **status)
        return HealthCheckResult.ok("", **status)

    def _lacks(self, node: str, data_type: str, board: str | None, players: int | None) -> bool:
        view = self._look().view
        wanted = [each for each in view.of_kinds(kinds_of(data_type)) if _is_of(each.config, board, players)]
        return bool(view.missing_at(node, wanted))


def _is_of(config: str, board: str | None, players: int | None) -> bool:
    name, count = split_config(config)
    return board in (None, name) and players in (None, count)


def _has_room(disk: DiskState | None, size_bytes: int, limit_percent: float) -> bool:
    # Of a disk that was never reported nothing is known; the transfer itself finds out.
    if disk is None or not size_bytes:
        return True
    return disk.free_bytes - size_bytes > disk.total_bytes * (1 - limit_percent / 100)


get_sync_router = getter_of("get_sync_router", SyncRouter)
reset_sync_router = reset_of("reset_sync_router", SyncRouter)
