"""What exists in the cluster and where verified copies are, asked without an event loop.

Whoever has one reads `ManifestIndex` instead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.sync_base import existing_data_plane, get_data_plane, open_data_plane
from ringrift.data.artifacts import Artifact, Receipt, data_type_of, kinds_of
from ringrift.data.config import DataNodes
from ringrift.data.manifest.catalog import receivers_of
from ringrift.data.manifest.store import ManifestIndex, ManifestStore, ManifestView, games_in
from ringrift.data.plane import DataPlane
from ringrift.data.protection.deletion import DeletionVerdict, verdict_on
from ringrift.engine.blocking import blocking
from ringrift.errors import ConfigError
from ringrift.process import SingletonMixin, getter_of
from ringrift.runtime import system_runtime
from ringrift.status import HealthCheckResult

__all__ = [
    "ClusterManifest",
    "ManifestIndex",
    "ManifestStore",
    "ManifestView",
    "NodeHoldings",
    "StaleData",
    "get_cluster_manifest",
    "reset_cluster_manifest",
    "stale_data",
]

# With two, one node may be lost without a file being lost.
COPIES_MIN = 2
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleData:
    """Files of one node and config that should be elsewhere by now and are not."""

    node: str
    config: str
    data_type: str
    digests: tuple[str, ...]
    games: int
    size_bytes: int
    age_hours: float  # of the oldest

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHoldings:
    """What one node holds."""

    node: str
    files: int
    games: int
    size_bytes: int
    by_kind: Mapping[str, int]


def stale_data(
    view: ManifestView, nodes: DataNodes, *, now_s: float, max_age_hours: float, data_type: str = "all"
) -> list[StaleData]:
    """Files older than *max_age_hours* that one node alone holds although others would take them.

    A cluster of one node has nothing stale: there is nowhere to bring the files.
    """
    groups: dict[tuple[str, str, str], list[Artifact]] = defaultdict(list)
    for artifact in view.of_kinds(kinds_of(data_type)):
        holders = view.holders(artifact.digest)
        # A file without any copy is not stale: no sync can bring it anywhere. `health_check` reports those.
        if len(holders) != 1 or now_s - artifact.created_s < max_age_hours * _HOUR_S:
            continue
        kind = data_type_of(artifact.kind)
        # What no other node accepts stays where it is by configuration: no sync would ever clear it.
        if receivers_of(kind, holders[0], nodes.all()):
            groups[holders[0], artifact.config, kind].append(artifact)
    return [
        StaleData(
            node=node,
            config=config,
            data_type=kind,
            digests=tuple(each.digest for each in files),
            games=games_in(files),
            size_bytes=sum(each.size for each in files),
            age_hours=(now_s - min(each.created_s for each in files)) / _HOUR_S,
        )
        for (node, config, kind), files in sorted(groups.items())
    ]


class ClusterManifest(SingletonMixin):
    """Reads the manifest, and notes what receivers confirmed. Each call reads the present state."""

    def __init__(self, plane: DataPlane | None = None) -> None:
        self._plane = plane

    @property
    def plane(self) -> DataPlane:
        return self._plane or get_data_plane()

    @property
    def _this(self) -> str:
        plane = self._plane
        # Not by opening a plane: the name is asked for where no store exists, and asking must not make one.
        return plane.this.name if plane is not None else get_settings().node_name or system_runtime().hostname

    @blocking
    async def view(self) -> ManifestView:
        # Reading an empty folder answers with an empty manifest and leaves the folder as it is.
        plane = self._plane or await existing_data_plane()
        return ManifestView() if plane is None else await plane.view()

    def find_stale_data(self, max_age_hours: float = 1.0, data_type: str = "all") -> list[StaleData]:
        """Return what only one node holds although it is older than that and others would take it."""
        if max_age_hours < 0:
            raise ConfigError(f"max_age_hours is {max_age_hours!r}; it must not be below 0")
        view = self.view()
        if not view.artifacts:
            return []
        plane = self.plane
        now_s = plane.runtime.now_s()
        return stale_data(view, plane.nodes, now_s=now_s, max_age_hours=max_age_hours, data_type=data_type)

    # --- what exists and where ------------------------------------------------------------------------

    def get_artifact(self, digest: str) -> Artifact | None:
        return self.view().artifacts.get(digest)

    def get_locations(self, digest: str) -> list[Receipt]:
        """Return who verified a copy of it, and when."""
        return list(self.view().copies.get(digest, {}).values())

    def get_all_game_locations(self) -> dict[str, tuple[str, ...]]:
        """Return the nodes that hold each file of games, by digest."""
        view = self.view()
        return {each.digest: view.holders(each.digest) for each in view.of_kinds(kinds_of("games"))}

    def get_replication_count(self, digest: str) -> int:
        """Return how many nodes verified a copy once; `is_safe_to_delete` asks whether they still have it."""
        return len(self.get_locations(digest))

    def is_safe_to_delete(self, digest: str) -> bool:
        """Whether the deletion rule would delete this node's copy now."""
        return self.deletion_verdict(digest).allowed

    @blocking
    async def deletion_verdict(self, digest: str) -> DeletionVerdict:
        """What the deletion rule says of this node's copy, with its reason; the other holders are asked."""
        plane = self._plane or await existing_data_plane()
        if plane is None:
            return DeletionVerdict(allowed=False, reason="this node has none")
        return await verdict_on(plane, digest)

    def get_under_replicated(self, copies: int = COPIES_MIN, data_type: str = "all") -> list[Artifact]:
        view = self.view()
        return [
            each for each in view.of_kinds(kinds_of(data_type)) if len(view.holders(each.digest)) < copies
        ]

    def get_node_inventory(self, node: str | None = None) -> NodeHoldings:
        name = node or self._this
        files = self.view().held_by(name)
        kinds: dict[str, int] = defaultdict(int)
        for each in files:
            kinds[each.kind.value] += 1
        return NodeHoldings(
            node=name,
            files=len(files),
            games=games_in(files),
            size_bytes=sum(each.size for each in files),
            by_kind=dict(kinds),
        )

    # --- what was confirmed ---------------------------------------------------------------------------

    @blocking
    async def register(self, artifacts: Iterable[Artifact]) -> int:
        """Note files; return how many were new. Their bytes are in a store already."""
        return await (await self._manifest()).register(tuple(artifacts))

    @blocking
    async def add_receipts(self, receipts: Iterable[Receipt]) -> None:
        await (await self._manifest()).add_receipts(tuple(receipts))

    @blocking
    async def drop_copy(self, digest: str, node: str) -> bool:
        return await (await self._manifest()).drop_copy(digest, node)

    async def _manifest(self) -> ManifestStore:
        return (self._plane or await open_data_plane()).manifest

    # --- how it is ------------------------------------------------------------------------------------

    def get_stats(self) -> dict[str, Any]:
        view = self.view()
        copies = [len(view.holders(digest)) for digest in view.artifacts]
        return {
            "artifacts": len(view.artifacts),
            "copies": sum(copies),
            "without_copy": copies.count(0),
            "single_copy": copies.count(1),
            "games": games_in(view.artifacts.values()),
            "bytes": sum(each.size for each in view.artifacts.values()),
            "nodes": len({node for places in view.copies.values() for node in places}),
        }

    def health_check(self) -> HealthCheckResult:
        stats = self.get_stats()
        if stats["without_copy"]:
            return HealthCheckResult.degraded(f"{stats['without_copy']} files have no copy at all", **stats)
        return HealthCheckResult.ok("", **stats)


get_cluster_manifest = getter_of("get_cluster_manifest", ClusterManifest)


def reset_cluster_manifest() -> None:
    ClusterManifest.reset_instance()
