"""Which nodes suit a file, and what one cycle of the sync brings where: scores, and a plan for each strategy.

Pure functions of a view of the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace

from ringrift.data.artifacts import Artifact, ArtifactKind, data_type_of
from ringrift.data.config import CONCURRENT_NODES, DataNode, SyncStrategy
from ringrift.data.manifest.store import games_in, is_made_by
from ringrift.data.sync.cluster_view import ClusterView
from ringrift.errors import ConfigError

# Which nodes should get data, and from which it is best had: scores with their reasons, no more.


_QUALITY_UNKNOWN = 0.5
_QUALITY_POINTS = 30
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredNode:
    """A node, how well it suits, and why."""

    node_id: str
    score: float
    reason: str


class _Score:
    """Adds up points and says for what."""

    def __init__(self, start: float) -> None:
        self.points, self._reasons = start, [f"{start:g} to begin with"]

    def add(self, points: float, why: str, *, when: bool = True) -> None:
        if when and points:
            self.points += points
            self._reasons.append(f"{points:+g} {why}")

    def of(self, node: DataNode) -> ScoredNode:
        return ScoredNode(node_id=node.name, score=self.points, reason=", ".join(self._reasons))


def target_score(cluster: ClusterView, node: DataNode, data_type: str) -> ScoredNode:
    """How much a node wants data: those that train first, those that may vanish last."""
    score, used = _Score(50), cluster.disk_percent(node.name)
    score.add(50, "trains now", when=node.name in cluster.reports.training)
    score.add(30, "trains", when=cluster.is_training(node) and data_type in ("games", "npz"))
    score.add(20, "has priority", when=node.name in cluster.config.priority_hosts)
    score.add(-15, "may vanish", when=node.ephemeral)
    score.add(10, "has room", when=used is not None and used < 50)
    score.add(-20, "is rather full", when=used is not None and used > 70)
    last_s = cluster.last_sync_s(node.name)
    waited = 30.0 if last_s is None else min(30.0 * max(0.0, cluster.now_s - last_s) / _HOUR_S, 30.0)
    score.add(round(waited, 1), "was never served" if last_s is None else "waited")
    return score.of(node)


def source_score(cluster: ClusterView, node: DataNode, data_type: str) -> ScoredNode:
    """How good a node is to fetch from: games from where they are played, the rest from where it is made."""
    score, used = _Score(0), cluster.disk_percent(node.name)
    score.add(100, "plays", when=data_type == "games" and "selfplay" in node.role)
    score.add(50, "trains", when=data_type == "games" and cluster.is_training(node))
    score.add(100, "trains", when=data_type != "games" and cluster.is_training(node))
    score.add(20, "has a GPU", when="gpu" in node.role)
    score.add(10, "should be relieved", when=used is not None and used > 50)
    score.add(-30, "coordinates", when="coordinator" in node.role)
    return score.of(node)


def optimal_source_score(cluster: ClusterView, source: DataNode, target: DataNode) -> ScoredNode:
    """How well a holder suits one receiver."""
    score, used = _Score(50), cluster.disk_percent(source.name)
    score.add(20, "is of the same provider", when=source.provider == target.provider != "unknown")
    score.add(-10, "may vanish", when=source.ephemeral)
    score.add(10, "is not full", when=used is not None and used < 50)
    return score.of(source)


def neighbor_score(cluster: ClusterView, node: DataNode) -> ScoredNode:
    """How safe a place a node is for what was just made."""
    score, used = _Score(0), cluster.disk_percent(node.name)
    score.add(10, "is storage", when=node.role in ("storage", "backbone", "coordinator"))
    score.add(5, "stays", when=not node.ephemeral)
    score.add(2.5 if used is None else round((100 - used) / 20, 2), "for its free disk")
    return score.of(node)


def ranked(scores: Iterable[ScoredNode]) -> list[ScoredNode]:
    """The best first; equal ones in the order of their names, so that every process sees the same."""
    return sorted(scores, key=lambda each: (-each.score, each.node_id))


def best(
    cluster: ClusterView,
    nodes: Sequence[DataNode],
    score: Callable[[ClusterView, DataNode], ScoredNode],
    count: int,
) -> list[DataNode]:
    chosen = ranked(score(cluster, node) for node in nodes)[:count]
    return [cluster.nodes[each.node_id] for each in chosen]


def sources_of(cluster: ClusterView, artifact: Artifact, target: DataNode) -> list[DataNode]:
    """Other nodes that hold a verified copy and can be asked for it, the best first."""
    holders = [
        cluster.nodes[name]
        for name in cluster.view.holders(artifact.digest)
        if name != target.name and name in cluster.nodes
    ]
    asleep = cluster.reports.away | cluster.aside.keys()
    awake = [node for node in holders if node.active and node.name not in asleep]
    scored = ranked(optimal_source_score(cluster, node, target) for node in awake)
    return [cluster.nodes[each.node_id] for each in scored]


# What goes where. A transfer carries files between this node and one other, in one direction. Fetches come
# first, because what they bring may have to go on. Whatever is not planned is named with its reason.


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTransfer:
    """Files to send to a node, or to fetch from it."""

    node: str
    artifacts: tuple[Artifact, ...]
    fetch: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncPlan:
    """What a request or a cycle comes to."""

    fetches: tuple[NodeTransfer, ...] = ()
    sends: tuple[NodeTransfer, ...] = ()
    width: int = CONCURRENT_NODES  # nodes at a time
    refused: tuple[str, ...] = ()  # named nodes that cannot be served at all
    blocked: tuple[str, ...] = ()  # nodes that would be served and cannot be just now
    up_to_date: tuple[str, ...] = ()
    not_known: tuple[str, ...] = ()  # nodes that were asked nothing: the manifest has no file to ask about
    notes: tuple[str, ...] = ()  # what a reader of the response should know

    @property
    def transfers(self) -> tuple[NodeTransfer, ...]:
        return (*self.fetches, *self.sends)

    @property
    def nodes(self) -> list[str]:
        """The nodes that files go to or come from, once each."""
        return list(dict.fromkeys(each.node for each in self.transfers))

    @property
    def is_empty(self) -> bool:
        return not self.transfers


def fetches_of(
    cluster: ClusterView, files: Iterable[Artifact], reason: str, *, among: Container[str] | None = None
) -> tuple[NodeTransfer, ...]:
    """Fetch *files* here, each from the node (of *among*) that it is best had from; some are had nowhere."""
    by_source: dict[str, list[Artifact]] = {}
    for artifact in files:
        for source in sources_of(cluster, artifact, cluster.this):
            if among is None or source.name in among:
                by_source.setdefault(source.name, []).append(artifact)
                break
    return tuple(
        NodeTransfer(node=name, artifacts=tuple(found), fetch=True, reason=reason)
        for name, found in by_source.items()
    )


# Where one file should go to have enough copies.


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationPlan:
    """Where one file should go to have enough copies."""

    digest: str
    targets: tuple[ScoredNode, ...]
    copies: int  # verified ones now
    missing: int  # that no node can take
    priority: int


def plan_copies(
    cluster: ClusterView, digest: str, *, min_copies: int, quality: float | None = None
) -> ReplicationPlan:
    """Choose nodes for the copies that a file lacks; what is better goes first."""
    artifact = cluster.view.artifacts.get(digest)
    if artifact is None:
        raise ConfigError(f"the manifest has no file {digest[:12]!r}")
    holders = cluster.view.holders(digest)
    needed = max(0, min_copies - len(holders))
    data_type = data_type_of(artifact.kind)
    fit = [
        node
        for node in cluster.nodes.all()
        if node.name not in holders
        and not cluster.unfit(node, data_type)
        and not cluster.blocked(node, data_type)
        and cluster.wants(node, artifact)
    ]
    targets = tuple(ranked(target_score(cluster, node, data_type) for node in fit)[:needed])
    known = artifact.quality if quality is None else quality
    urgency = int(_QUALITY_POINTS * (_QUALITY_UNKNOWN if known is None else known))
    return ReplicationPlan(
        digest=digest,
        targets=targets,
        copies=len(holders),
        missing=needed - len(targets),
        priority=50 + urgency,
    )


# What one cycle does, by its strategy.


_COLLECTING_ROLES = ("coordinator", "storage", "backbone")
_BROADCAST_WIDTH = 8
_PLANNED_FILES_MAX = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class CyclePlan:
    """What to do in this cycle, how urgently, and what is held back for which reason."""

    plan: SyncPlan
    strategy: SyncStrategy = SyncStrategy.AUTO  # that was chosen
    priority: str = "normal"
    held_back: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Cycle:
    """What a planner looks at."""

    cluster: ClusterView
    at_once: bool


def resolve(strategy: SyncStrategy, cluster: ClusterView) -> SyncStrategy:
    """What "auto" comes to on this node."""
    if strategy is not SyncStrategy.AUTO:
        return strategy
    if cluster.this.ephemeral:
        return SyncStrategy.EPHEMERAL
    if cluster.reports.leader == cluster.this.name or cluster.this.role == "coordinator":
        return SyncStrategy.BROADCAST
    return SyncStrategy.HYBRID


def plan_cycle(cluster: ClusterView, strategy: SyncStrategy, *, at_once: bool = False) -> CyclePlan:
    """Plan; *at_once* brings also what would wait for more of its kind."""
    chosen = resolve(strategy, cluster)
    plan = _PLANNERS[chosen](_Cycle(cluster, at_once=at_once))
    return replace(plan, strategy=chosen, held_back=(*plan.held_back, *_blocked(cluster)))


# --- what may go --------------------------------------------------------------------------------------


def _held(cluster: ClusterView, *, made_here: bool = False) -> tuple[list[Artifact], list[str]]:
    """Files of this node that may leave it, and why others may not."""
    files, held_back = [], []
    for artifact in cluster.view.held_by(cluster.this.name):
        if made_here and not is_made_by(artifact, cluster.this.name):
            continue
        if artifact.quality is not None and artifact.quality < cluster.config.quality_min:
            held_back.append(f"{artifact.digest[:12]}: quality {artifact.quality:.2f} is too low")
            continue
        files.append(artifact)
    first = cluster.config.priority_configs
    files.sort(key=lambda each: (each.config not in first, each.created_s, each.digest))
    return files, held_back


def _ripe(cycle: _Cycle, files: Sequence[Artifact]) -> tuple[list[Artifact], list[str]]:
    """Files of games wait for company, but not for ever: a few games are not worth a connection."""
    cluster = cycle.cluster
    games = [each for each in files if each.kind is ArtifactKind.GAMES]
    oldest_s = min((each.created_s for each in games), default=cluster.now_s)
    few = games_in(games) < cluster.config.games_min
    if cycle.at_once or not games or not few or cluster.now_s - oldest_s >= cluster.config.wait_s_max:
        return list(files), []
    others = [each for each in files if each.kind is not ArtifactKind.GAMES]
    return others, [f"{games_in(games)} new games wait for more"]


def _open_nodes(cluster: ClusterView, data_type: str = "all") -> list[DataNode]:
    return [
        node
        for node in cluster.nodes.others()
        if not node.is_archive and not cluster.unfit(node, data_type) and not cluster.blocked(node, data_type)
    ]


def _blocked(cluster: ClusterView) -> Iterable[str]:
    for node in cluster.nodes.others():
        if not node.is_archive and not cluster.unfit(node, "all") and (why := cluster.blocked(node, "all")):
            yield f"{node.name}: {why}"


def _send(
    cluster: ClusterView, node: DataNode, files: Iterable[Artifact], reason: str
) -> NodeTransfer | None:
    open_for = {kind: not cluster.blocked(node, data_type_of(kind)) for kind in ArtifactKind}
    lacking = [
        each
        for each in cluster.view.missing_at(node.name, files)
        if cluster.wants(node, each) and open_for[each.kind]
    ]
    return NodeTransfer(node=node.name, artifacts=tuple(lacking), reason=reason) if lacking else None


def _sends(
    cluster: ClusterView, nodes: Iterable[DataNode], files: Sequence[Artifact], reason: str
) -> tuple[NodeTransfer, ...]:
    transfers = (_send(cluster, node, files, reason) for node in nodes)
    return tuple(transfer for transfer in transfers if transfer is not None)


def _fetches(cluster: ClusterView, sources: Iterable[DataNode], reason: str) -> tuple[NodeTransfer, ...]:
    """What others hold and this node takes and lacks, each file from the best of *sources*."""
    this, names = cluster.this, {node.name for node in sources}
    lacking = cluster.view.missing_at(this.name, cluster.view.artifacts.values())
    wanted = [each for each in lacking if cluster.wants(this, each)]
    return fetches_of(cluster, wanted, reason, among=names)


def _neighbors(cluster: ClusterView) -> list[DataNode]:
    return best(cluster, _open_nodes(cluster), neighbor_score, cluster.config.neighbours)


# --- strategies ---------------------------------------------------------------------------------------


def _hybrid(cycle: _Cycle) -> CyclePlan:
    """Push what was made here to a few good neighbors; nodes that train or keep data also gather it."""
    cluster = cycle.cluster
    files, low = _held(cluster, made_here=True)
    neighbors = _neighbors(cluster)
    unsent = [each for each in files if any(not cluster.view.is_at(each.digest, n.name) for n in neighbors)]
    ripe, waiting = _ripe(cycle, unsent)
    gathers = cluster.is_training(cluster.this) or cluster.this.role in _COLLECTING_ROLES
    plan = SyncPlan(
        fetches=_fetches(cluster, _open_nodes(cluster), "gathered here") if gathers else (),
        sends=_sends(cluster, neighbors, ripe, "made here"),
        width=cluster.config.concurrent_nodes,
    )
    return CyclePlan(plan=plan, held_back=(*low, *(waiting if neighbors else ())))


def _ephemeral(cycle: _Cycle) -> CyclePlan:
    """Write through: what no node that stays has goes to the best of them, the newest first, at once."""
    cluster = cycle.cluster
    staying = [node for node in _open_nodes(cluster) if not node.ephemeral]
    targets = best(cluster, staying or _open_nodes(cluster), neighbor_score, cluster.config.neighbours)
    lasting = {node.name for node in cluster.nodes.others() if not node.ephemeral}
    files, low = _held(cluster)
    at_risk = [each for each in files if lasting.isdisjoint(cluster.view.holders(each.digest))]
    at_risk.sort(key=lambda each: (-each.created_s, each.digest))
    plan = SyncPlan(
        sends=_first_takers(cluster, targets, at_risk)
        + _sends(cluster, targets, _but(files, at_risk), "a second copy of what was saved"),
        width=cluster.config.concurrent_nodes,
    )
    return CyclePlan(plan=plan, priority="critical" if at_risk else "high", held_back=tuple(low))


def _first_takers(
    cluster: ClusterView, targets: Sequence[DataNode], files: Iterable[Artifact]
) -> tuple[NodeTransfer, ...]:
    """Each file once, to the first node that takes it: a second copy comes after everything has one."""
    by_node: dict[str, list[Artifact]] = {}
    for artifact in files:
        taker = next((node for node in targets if _send(cluster, node, [artifact], "") is not None), None)
        if taker is not None:
            by_node.setdefault(taker.name, []).append(artifact)
    return tuple(
        NodeTransfer(node=name, artifacts=tuple(found), reason="this node may vanish")
        for name, found in by_node.items()
    )


def _but(files: Iterable[Artifact], without: Iterable[Artifact]) -> list[Artifact]:
    left_out = {each.digest for each in without}
    return [each for each in files if each.digest not in left_out]


def _broadcast(cycle: _Cycle) -> CyclePlan:
    """Everything that this node has to everybody, to those with most room first; very large files stay."""
    cluster = cycle.cluster
    files, low = _held(cluster)
    limit = cluster.config.broadcast_bytes_max
    small = [each for each in files if each.size <= limit]
    large = [
        f"{each.digest[:12]}: {each.size >> 20} MB are too many to send to all" for each in _but(files, small)
    ]
    nodes = sorted(_open_nodes(cluster), key=lambda node: (cluster.disk_percent(node.name) or 0.0, node.name))
    unsent = [each for each in small if any(not cluster.view.is_at(each.digest, n.name) for n in nodes)]
    ripe, waiting = _ripe(cycle, unsent)
    plan = SyncPlan(sends=_sends(cluster, nodes, ripe, "for everybody"), width=_BROADCAST_WIDTH)
    return CyclePlan(plan=plan, held_back=(*low, *large, *waiting))


def _pull(cycle: _Cycle) -> CyclePlan:
    cluster = cycle.cluster
    sources = [node for node in cluster.nodes.others() if node.active]
    plan = SyncPlan(fetches=_fetches(cluster, sources, "kept here"), width=cluster.config.concurrent_nodes)
    return CyclePlan(plan=plan)


def _gossip(cycle: _Cycle) -> CyclePlan:
    cluster = cycle.cluster
    plan = SyncPlan(
        fetches=_fetches(cluster, _neighbors(cluster), "a neighbor has it"),
        width=cluster.config.concurrent_nodes,
    )
    return CyclePlan(plan=plan, priority="low")


def _push(cycle: _Cycle) -> CyclePlan:
    """Games go to the coordinator as this node's disk fills, the fuller the more urgently."""
    cluster = cycle.cluster
    used = cluster.disk_percent(cluster.this.name)
    config = cluster.config
    if not cycle.at_once and (used is None or used < config.push_percent):
        fill = "unknown" if used is None else f"{used:.0f} % full"
        return CyclePlan(plan=SyncPlan(), held_back=(f"this disk is {fill}: nothing is pushed",))
    receivers = [node for node in _open_nodes(cluster, "games") if node.role in _COLLECTING_ROLES]
    files, low = _held(cluster)
    games = [each for each in files if each.kind is ArtifactKind.GAMES]
    urgent = used is not None and used >= config.push_urgent_percent
    plan = SyncPlan(sends=_sends(cluster, receivers, games, "this disk fills"), width=config.concurrent_nodes)
    none = () if receivers else ("no coordinator or storage node can be given games",)
    return CyclePlan(plan=plan, priority="critical" if urgent else "high", held_back=(*low, *none))


def _planned(cycle: _Cycle) -> CyclePlan:
    """As many copies of each file as wanted, each on the node that the router ranks first."""
    cluster = cycle.cluster
    files, low = _held(cluster)
    transfers: dict[str, list[Artifact]] = {}
    lacking = []
    for artifact in files[:_PLANNED_FILES_MAX]:
        wanted = plan_copies(cluster, artifact.digest, min_copies=cluster.config.copies_min)
        for target in wanted.targets:
            transfers.setdefault(target.node_id, []).append(artifact)
        if wanted.missing:
            lacking.append(f"{artifact.digest[:12]}: no node for {wanted.missing} more copies")
    order = best(
        cluster,
        [cluster.nodes[name] for name in transfers],
        lambda view, node: target_score(view, node, "games"),
        len(transfers),
    )
    sends = tuple(
        NodeTransfer(node=node.name, artifacts=tuple(transfers[node.name]), reason="too few copies")
        for node in order
    )
    plan = SyncPlan(sends=sends, width=cluster.config.concurrent_nodes)
    return CyclePlan(plan=plan, held_back=(*low, *lacking))


def _nothing(_cycle: _Cycle) -> CyclePlan:
    """Freshness asks others; it moves nothing itself."""
    return CyclePlan(plan=SyncPlan())


Planner = Callable[[_Cycle], CyclePlan]

_PLANNERS: dict[SyncStrategy, Planner] = {
    SyncStrategy.HYBRID: _hybrid,
    SyncStrategy.EPHEMERAL: _ephemeral,
    SyncStrategy.BROADCAST: _broadcast,
    SyncStrategy.PULL: _pull,
    SyncStrategy.GOSSIP: _gossip,
    SyncStrategy.PUSH: _push,
    SyncStrategy.PLANNED: _planned,
    SyncStrategy.FRESHNESS: _nothing,
}
