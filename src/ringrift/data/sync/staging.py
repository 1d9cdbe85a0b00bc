"""Data to a node before, and while, it trains: what its order names, and the newest samples of its config.

Two settings of one daemon: TRAINING_NODE_WATCHER looks at trainings that run, TRAINING_DATA_SYNC at those
that wait for a node. Both read the work queue; an event only makes them look sooner. The watcher also fetches
back what other work reads and this node does not have any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

from ringrift.data.artifacts import Artifact, kinds_of
from ringrift.data.config import DataNodes, read_sync_config
from ringrift.data.plane import DaemonParts, DataPlane, WakingDaemon
from ringrift.data.sync.cluster_view import ClusterView, NodeReportCollector, read_cluster_view
from ringrift.data.sync.executor import SyncExecutor, SyncPace, record_result
from ringrift.data.sync.plan import NodeTransfer, SyncPlan, fetches_of
from ringrift.engine.ports import WorkItem
from ringrift.engine.run_reports import reported
from ringrift.errors import ConfigError
from ringrift.events.event import RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.work.job.protocol import read_order

__all__ = ["StagingDaemon", "StagingNeed", "plan_staging"]

INTERVAL_S = 30.0
TRAIN = "train"
RUNNING, WAITING = "training_process", "training_request"
_ITEMS_MAX = 200
_RECENT_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingNeed:
    """A node that trains a config, and the files its order names."""

    node: str
    config: str
    digests: tuple[str, ...] = ()
    why: str = ""


def node_of(worker: str, nodes: DataNodes) -> str:
    """Return the node of a worker, which begins its name; empty if no node fits."""
    fitting = [node.name for node in nodes.all() if worker == node.name or worker.startswith(f"{node.name}-")]
    return max(fitting, key=len, default="")


def needs_of_running(items: Iterable[WorkItem], nodes: DataNodes) -> list[StagingNeed]:
    """What trainings that are under way need where they run."""
    found = []
    for item in items:
        node = node_of(item.holder or "", nodes)
        if item.kind == TRAIN and node:
            found.append(_need(item, node, f"training {item.id} runs there"))
    return found


def needs_of_waiting(items: Iterable[WorkItem], cluster: ClusterView) -> list[StagingNeed]:
    """What waiting trainings will need: on every node that trains, since any of them may take it."""
    trainers = [node.name for node in cluster.nodes.all() if node.active and cluster.is_training(node)]
    waiting = [item for item in items if item.kind == TRAIN]
    return [_need(item, node, f"training {item.id} may run there") for item in waiting for node in trainers]


def needs_of_refused(items: Iterable[WorkItem], cluster: ClusterView) -> list[StagingNeed]:
    """What work of any kind will miss here: inputs that this node gave up, or that a worker found lacking.

    A worker gives an item back when an input is not on its node; without this it would do so for ever.
    """
    this, found = cluster.this.name, []
    for item in items:
        need = _need(item, this, f"{item.kind} {item.id} reads it")
        gone = any(this in cluster.given_up.get(digest, ()) for digest in need.digests)
        if need.digests and (item.attempts or gone):
            found.append(need)
    return found


def _need(item: WorkItem, node: str, why: str) -> StagingNeed:
    try:
        order = read_order(item.payload)
    except ConfigError:
        return StagingNeed(node=node, config=str(item.payload.get("config", "")), why=why)
    return StagingNeed(node=node, config=order.config, digests=tuple(order.inputs.values()), why=why)


def plan_staging(cluster: ClusterView, needs: Sequence[StagingNeed]) -> SyncPlan:
    """Send what this node has to who needs it, fetch what this node needs; each file once per node."""
    wanted: dict[str, dict[str, Artifact]] = {}
    why: dict[str, str] = {}
    for need in needs:
        if need.node not in cluster.nodes:
            continue
        why.setdefault(need.node, need.why)
        files = _files(cluster, need)
        lacking = cluster.view.missing_at(need.node, files)
        wanted.setdefault(need.node, {}).update({each.digest: each for each in lacking})
    fetches, sends, blocked = list[NodeTransfer](), [], []
    for name, files_by_digest in wanted.items():
        files = list(files_by_digest.values())
        node = cluster.nodes[name]
        if not files:
            continue
        if name == cluster.this.name:
            fetches += fetches_of(cluster, files, why[name])
        elif reason := cluster.unfit(node, "all") or cluster.blocked(node, "all"):
            blocked.append(f"{name}: {reason}")
        elif held := [each for each in files if cluster.view.is_at(each.digest, cluster.this.name)]:
            sends.append(NodeTransfer(node=name, artifacts=tuple(held), reason=why[name]))
    return SyncPlan(fetches=tuple(fetches), sends=tuple(sends), blocked=tuple(blocked))


def _files(cluster: ClusterView, need: StagingNeed) -> list[Artifact]:
    """The files of the order; without any, the newest samples of the config."""
    named = [cluster.view.artifacts[digest] for digest in need.digests if digest in cluster.view.artifacts]
    if need.digests:
        return named
    samples = [each for each in cluster.view.of_kinds(kinds_of("npz")) if each.config == need.config]
    return samples[-1:]


class StagingDaemon(WakingDaemon):
    """Sees to it that trainings find their data where they run."""

    capability: ClassVar[str] = "training_staging"

    def __init__(
        self,
        trigger: str = RUNNING,
        *,
        reports: NodeReportCollector | None = None,
        **parts: Unpack[DaemonParts],
    ) -> None:
        if trigger not in (RUNNING, WAITING):
            raise ConfigError(f"trigger is {trigger!r}; it must be {RUNNING} or {WAITING}")
        name = "training_activity" if trigger == RUNNING else "training_data_sync"
        super().__init__(name, interval_s=INTERVAL_S, **parts)
        self.trigger = trigger
        self._reports = reports or NodeReportCollector()
        self._heard: dict[str, StagingNeed] = {}
        self.staged_files = 0
        self.last_errors: tuple[str, ...] = ()

    def _get_event_subscriptions(self) -> Mapping[Any, Callback]:
        return {"TRAINING_STARTED": self._on_training}

    def _on_training(self, event: RouterEvent) -> None:
        said = event.payload
        node, config = str(said["node_id"]), str(said["config_key"])
        self._reports.training_began(node, self._runtime.now_s())
        if self.trigger == RUNNING:
            self._heard[node] = StagingNeed(node=node, config=config, why=f"{said['job_id']} began there")
            while len(self._heard) > _RECENT_MAX:
                del self._heard[next(iter(self._heard))]
            self.wake()

    async def _run_cycle(self) -> None:
        plane = await self._opened()
        config = read_sync_config(plane.settings.sync)
        cluster = await read_cluster_view(plane, config, reports=self._reports.reports(plane.runtime))
        heard, self._heard = list(self._heard.values()), {}
        plan = plan_staging(cluster, [*await self._needs(plane, cluster), *heard])
        self.last_errors = plan.blocked
        if plan.is_empty:
            return
        result = await SyncExecutor(plane).carry_out(plan, SyncPace(priority="high"))
        self.staged_files += len(result.moved)
        self.last_errors = (*plan.blocked, *result.errors)
        await record_result(plane, "staging", result)

    async def _needs(self, plane: DataPlane, cluster: ClusterView) -> list[StagingNeed]:
        waiting = await plane.queue.ready(limit=_ITEMS_MAX)
        if self.trigger == WAITING:
            return needs_of_waiting(waiting, cluster)
        waiting += await plane.queue.delayed(limit=_ITEMS_MAX)  # given back by a worker, until its next try
        running = needs_of_running(await plane.queue.claimed(limit=_ITEMS_MAX), plane.nodes)
        return [*running, *needs_of_refused(waiting, cluster)]

    @reported
    def get_status(self) -> dict[str, Any]:
        return {
            **super().get_status(),
            "trigger": self.trigger,
            "staged_files": self.staged_files,
            "last_errors": list(self.last_errors[:5]),
        }
