"""What a sync decision looks at, at one moment: the manifest, the nodes, their disks, and earlier syncs.

The decisions themselves are pure functions of it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from ringrift.data.artifacts import Artifact, data_type_of
from ringrift.data.config import (
    FAILURES_S,
    HISTORY_MAX,
    HISTORY_S,
    AutoSyncConfig,
    DataNode,
    DataNodes,
)
from ringrift.data.kv_records import KvHistory
from ringrift.data.manifest.store import DiskState, DiskStates, ManifestView
from ringrift.data.plane import DataPlane
from ringrift.data.transfer.receiving import FULL_PERCENT, disk_usage
from ringrift.engine.ports import KeyValue
from ringrift.runtime import Runtime

# Every sync with every host, for a week: when it last went well, and how often it failed of late.
#
# A failed sync is no sync: it leaves the time of the last good one as it was. Failures count for a day.


_PREFIX = "data/sync/history/"
_TRIM_EVERY = 200
_RATES = 10


class SyncRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sync with one host, to or from it."""

    host: str
    started_s: float
    completed_s: float
    success: bool
    by: str = ""  # the node that did it
    data_type: str = "all"
    files: int = 0
    games: int = 0
    bytes_transferred: int = 0
    error: str = ""

    @property
    def duration_s(self) -> float:
        return max(0.0, self.completed_s - self.started_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostHistory:
    """What the records say of one host."""

    last_success_s: float | None = None
    failures_24h: int = 0
    games_per_s: float | None = None  # mean of the last good ones that brought games
    last_error: str = ""


def judge_hosts(records: Iterable[SyncRecord], *, now_s: float) -> Mapping[str, HostHistory]:
    """Sum up records, in whatever order they come."""
    by_host: dict[str, list[SyncRecord]] = {}
    for record in sorted(records, key=lambda each: each.completed_s):
        by_host.setdefault(record.host, []).append(record)
    return {host: _judge(found, now_s) for host, found in by_host.items()}


def _judge(records: list[SyncRecord], now_s: float) -> HostHistory:
    good = [each for each in records if each.success]
    bad = [each for each in records if not each.success]
    measured = [each for each in good if each.games and each.duration_s > 0][-_RATES:]
    seconds = sum(each.duration_s for each in measured)
    return HostHistory(
        last_success_s=good[-1].completed_s if good else None,
        failures_24h=sum(now_s - each.completed_s < FAILURES_S for each in bad),
        games_per_s=sum(each.games for each in measured) / seconds if seconds else None,
        last_error=bad[-1].error if bad else "",
    )


class SyncHistory(KvHistory[SyncRecord]):
    """What became of syncs, for a week."""

    def __init__(self, kv: KeyValue, runtime: Runtime) -> None:
        super().__init__(
            kv,
            runtime,
            _PREFIX,
            SyncRecord,
            kept_s=HISTORY_S,
            records_max=HISTORY_MAX,
            trim_every=_TRIM_EVERY,
        )

    async def hosts(self) -> Mapping[str, HostHistory]:
        return judge_hosts(await self.all(), now_s=self._runtime.now_s())


# All of it together, taken at once.


@dataclass(frozen=True, slots=True)
class NodeReports:
    """What events told of nodes since the start; each word has its end."""

    training: frozenset[str] = frozenset()  # a training runs there now
    away: frozenset[str] = frozenset()  # did not answer within this request
    closed: Mapping[tuple[str, str], float] = field(default_factory=dict)  # (node, data type): until when
    leader: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """Files, copies, nodes, disks and what happened to each host lately."""

    view: ManifestView
    nodes: DataNodes
    now_s: float
    config: AutoSyncConfig = field(default_factory=AutoSyncConfig)
    disks: Mapping[str, DiskState] = field(default_factory=dict)
    history: Mapping[str, HostHistory] = field(default_factory=dict)
    reports: NodeReports = field(default_factory=NodeReports)
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
        return node.training or "training" in node.role or node.name in self.reports.training

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
        if node.name in self.reports.away:
            return "it did not answer just now"
        if why := self.aside.get(node.name):
            return why
        closed = (self.reports.closed.get((node.name, each), 0.0) for each in (data_type, "all"))
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


async def read_cluster_view(
    plane: DataPlane,
    config: AutoSyncConfig,
    *,
    reports: NodeReports | None = None,
) -> ClusterView:
    """Read everything as it is now."""
    tombstones, heard = await plane.tombstones(), reports or NodeReports()
    return ClusterView(
        view=(await plane.view()).without(tombstones, plane.nodes),
        nodes=plane.nodes,
        now_s=plane.runtime.now_s(),
        config=config,
        disks=await DiskStates(plane.kv).all(),
        history=await SyncHistory(plane.kv, plane.runtime).hosts(),
        reports=replace(heard, away=heard.away - {plane.this.name}),
        given_up={digest: frozenset(each.nodes) for digest, each in tombstones.items()},
        superseded=frozenset(await plane.successors()),
        aside=await plane.stalls.reasons_async(),
    )


# What events told about nodes: who trains, which ways are closed. Every word has an end.
#
# Nothing here is needed for correctness: without it a sync tries a node that does not answer, and fails.


TRAINING_S = 6 * 3600.0
CLOSED_S = 300.0
NODES_MAX = 1000
TRANSPORTS = ("http", "rsync", "base64")


class _ExpiringReports:
    """Words with an end, the oldest of which give way."""

    def __init__(self) -> None:
        self._until: OrderedDict[Any, float] = OrderedDict()

    def say(self, word: Any, until_s: float) -> None:
        self._until[word] = until_s
        self._until.move_to_end(word)
        while len(self._until) > NODES_MAX:
            self._until.popitem(last=False)

    def unsay(self, word: Any) -> None:
        self._until.pop(word, None)

    def clear(self) -> None:
        self._until.clear()

    def __bool__(self) -> bool:
        return bool(self._until)

    def valid(self, now_s: float) -> dict[Any, float]:
        return {word: until for word, until in self._until.items() if until > now_s}


class NodeReportCollector:
    """Collects what events say; the time is the wall clock's, as in the view."""

    def __init__(self) -> None:
        self._training, self._closed = _ExpiringReports(), _ExpiringReports()
        self._failed: dict[tuple[str, str], list[str]] = {}
        self.leader = ""

    @property
    def has_reports(self) -> bool:
        """Whether any event of this process told it something."""
        return bool(self.leader or self._failed or self._training or self._closed)

    def reports(self, runtime: Runtime) -> NodeReports:
        now_s = runtime.now_s()
        return NodeReports(
            training=frozenset(self._training.valid(now_s)),
            closed=self._closed.valid(now_s),
            leader=self.leader,
        )

    def training_began(self, node: str, now_s: float) -> None:
        self._training.say(node, now_s + TRAINING_S)

    def training_ended(self, node: str) -> None:
        self._training.unsay(node)

    def replace_training(self, nodes: frozenset[str], now_s: float) -> None:
        """These train, and no others."""
        self._training.clear()
        for node in sorted(nodes):
            self.training_began(node, now_s)

    def came_back(self, node: str) -> None:
        """It may be tried again; what it may receive is said by its settings, not by events."""
        for key in [key for key in self._failed if key[0] == node]:
            del self._failed[key]
        for word in [word for word in self._closed.valid(0.0) if word[0] == node]:
            self._closed.unsay(word)

    def way_failed(self, node: str, data_type: str, transport: str, now_s: float) -> str:
        """Note a way that stalled; return the next to try. Empty: all failed, and the type is closed."""
        failed = self._failed.setdefault((node, data_type), [])
        if transport not in failed:
            failed.append(transport)
        left = [each for each in TRANSPORTS if each not in failed]
        if left:
            return left[0]
        del self._failed[node, data_type]
        self._closed.say((node, data_type), now_s + CLOSED_S)
        return ""

    def failed_ways(self, node: str, data_type: str) -> list[str]:
        return list(self._failed.get((node, data_type), ()))

    def try_all_again(self) -> None:
        """Forget failures. Nodes that settings or people closed stay closed: that is not kept here."""
        self._failed.clear()
        self._closed.clear()


# Telling how full this node's disk is where nobody else does, so that others know what it can take.


REPORT_AGE_S_MAX = 300.0


async def tell_disk(plane: DataPlane, *, anew: bool = False) -> DiskState:
    """Return what is known of this node's disk; measure and tell it if that is old, or *anew*."""
    states, now_s = DiskStates(plane.kv), plane.runtime.now_s()
    known = await states.of(plane.this.name)
    if known is not None and not anew and 0 <= now_s - known.at_s < REPORT_AGE_S_MAX:
        return known
    usage = await asyncio.to_thread(disk_usage, plane.settings.data_dir)
    found = DiskState(
        node=plane.this.name,
        used_percent=usage.percent,
        free_bytes=usage.free_bytes,
        total_bytes=usage.total_bytes,
        level="" if known is None else known.level,
        writes_blocked=usage.percent >= FULL_PERCENT,
        at_s=now_s,
    )
    await states.tell(found)
    return found
