"""All that a sync decision looks at, at one moment; the decisions themselves are pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ringrift.data.artifacts import Artifact
from ringrift.data.capacity import DiskState, DiskStates
from ringrift.data.copies import is_given_up
from ringrift.data.deletion_records import Tombstone
from ringrift.data.manifest import data_type_of
from ringrift.data.manifest_index import ManifestView
from ringrift.data.nodes import DataNode, DataNodes
from ringrift.data.plane import DataPlane
from ringrift.data.sync.config import AutoSyncConfig
from ringrift.data.sync.history import HostHistory, SyncHistory


@dataclass(frozen=True, slots=True)
class NodeNews:
    """What events told of nodes since the start; each word has its end."""

    training: frozenset[str] = frozenset()  # a training runs there now
    away: frozenset[str] = frozenset()  # said to be offline
    closed: Mapping[tuple[str, str], float] = field(default_factory=dict)  # (node, data type): until when
    leader: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncPicture:
    """Files, copies, nodes, disks and what happened to each host lately."""

    view: ManifestView
    nodes: DataNodes
    now_s: float
    config: AutoSyncConfig = field(default_factory=AutoSyncConfig)
    disks: Mapping[str, DiskState] = field(default_factory=dict)
    history: Mapping[str, HostHistory] = field(default_factory=dict)
    news: NodeNews = field(default_factory=NodeNews)
    given_up: Mapping[str, frozenset[str]] = field(default_factory=dict)  # by digest: who deleted it
    superseded: frozenset[str] = frozenset()  # all of them is in other files, too
    aside: Mapping[str, str] = field(default_factory=dict)  # nodes that are left alone: why, and for how long

    @property
    def this(self) -> DataNode:
        return self.nodes.this

    def disk_percent(self, node: str) -> float | None:
        known = self.disks.get(node)
        return None if known is None else known.used_percent

    def last_sync_s(self, node: str) -> float | None:
        known = self.history.get(node)
        return None if known is None else known.last_success_s

    def is_training(self, node: DataNode) -> bool:
        return node.training or "training" in node.role or node.name in self.news.training

    def unfit(self, node: DataNode, data_type: str) -> str:
        """Why *node* cannot be given data of this type by its own settings; empty if it can."""
        if node.name == self.this.name:
            return "it is this node"
        if not node.active:
            return f"its status is {node.status!r}"
        if not node.accepts(data_type):
            return f"it does not receive {data_type}"
        if node.name in self.config.excluded_hosts:
            return "[sync] excludes it"
        if node.nfs and node.nfs == self.this.nfs:
            return f"it sees the same files on {node.nfs}"
        return ""

    def blocked(self, node: DataNode, data_type: str) -> str:
        """Why it cannot be given any just now, which will pass; empty if it can."""
        if node.name in self.news.away:
            return "it is offline"
        if why := self.aside.get(node.name):
            return why
        closed = (self.news.closed.get((node.name, each), 0.0) for each in (data_type, "all"))
        if (left_s := max(closed) - self.now_s) > 0:
            return f"every way to it failed; it is tried again in {left_s:.0f} s"
        disk, limit = self.disks.get(node.name), self.disk_limit(node)
        if disk is not None and disk.writes_blocked:
            return "its disk is so full that it writes nothing"
        used = self.disk_percent(node.name)
        if used is not None and used >= limit:
            return f"its disk is {used:.0f} % full, the limit is {limit:g} %"
        return ""

    def disk_limit(self, node: DataNode) -> float:
        default = DataNode(name=node.name).disk_max_percent
        return self.config.disk_percent_max if node.disk_max_percent == default else node.disk_max_percent

    def takes(self, node: DataNode, artifact: Artifact) -> bool:
        """Whether a node takes this file by its kind."""
        return node.accepts(data_type_of(artifact.kind))

    def wants(self, node: DataNode, artifact: Artifact) -> bool:
        """Whether to bring it there unasked: not what the node deleted, nor what lives on in another file."""
        gone = node.name in self.given_up.get(artifact.digest, ())
        return self.takes(node, artifact) and not gone and artifact.digest not in self.superseded


async def take_picture(
    plane: DataPlane,
    config: AutoSyncConfig,
    *,
    news: NodeNews | None = None,
) -> SyncPicture:
    """Read everything as it is now."""
    tombstones = await plane.tombstones()
    view = await plane.view()
    return SyncPicture(
        view=_without_deleted(view, tombstones, plane.nodes),
        nodes=plane.nodes,
        now_s=plane.runtime.now_s(),
        config=config,
        disks=await DiskStates(plane.kv).all(),
        history=await SyncHistory(plane.kv, plane.runtime).hosts(),
        news=news or NodeNews(),
        given_up={digest: frozenset(each.nodes) for digest, each in tombstones.items()},
        superseded=frozenset(await plane.heirs()),
        aside=await plane.stalls.told_async(),
    )


def _without_deleted(
    view: ManifestView, tombstones: Mapping[str, Tombstone], nodes: DataNodes
) -> ManifestView:
    """A copy that its node has decided to give up is none, although its receipt may still stand."""
    copies = dict(view.copies)
    for digest, tombstone in tombstones.items():
        places = copies.get(digest, {})
        copies[digest] = {
            node: each for node, each in places.items() if not is_given_up(each, tombstone, nodes)
        }
    return ManifestView(view.artifacts, copies)
