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


def target_score(cluster_view: ClusterView, node: DataNode, data_type: str) -> ScoredNode:
    """How much a node wants data: those that train first, those that may vanish last."""
    score, used = _Score(50), cluster_view.disk_percent(node.name)
    score.add(50, "trains now", when=node.name in cluster_view.reports.training)
    score.add(30, "trains", when=cluster_view.is_training(node) and data_type in ("games", "npz"))
    score.add(20, "has priority", when=node.name in cluster_view.config.priority_hosts)
    score.add(-15, "may vanish", when=node.ephemeral)
    score.add(10, "has room", when=used is not None and used < 50)
    score.add(-20, "is rather full", when=used is not None and used > 70)
    last_s = cluster_view.last_sync_s(node.name)
    waited = 30.0 if last_s is None else min(30.0 * max(0.0, cluster_view.now_s - last_s) / _HOUR_S, 30.0)
    score.add(round(waited, 1), "was never served" if last_s is None else "waited")
    return score.of(node)


def source_score(cluster_view: ClusterView, node: DataNode, data_type: str) -> ScoredNode:
    """How good a node is to fetch from: games from where they are played, the rest from where it is made."""
    score, used = _Score(0), cluster_view.disk_percent(node.name)
    score.add(100, "plays", when=data_type == "games" and "selfplay" in node.role)
    score.add(50, "trains", when=data_type == "games" and cluster_view.is_training(node))
    score.add(100, "trains", when=data_type != "games" and cluster_view.is_training(node))
    score.add(20, "has a GPU", when="gpu" in node.role)
    score.add(10, "should be relieved", when=used is not None and used > 50)
    score.add(-30, "coordinates", when="coordinator" in node.role)
    return score.of(node)


def optimal_source_score(cluster_view: ClusterView, source: DataNode, target: DataNode) -> ScoredNode:
    """How well a holder suits one receiver."""
    score, used = _Score(50), cluster_view.disk_percent(source.name)
    score.add(20, "is of the same provider", when=source.provider == target.provider != "unknown")
    score.add(-10, "may vanish", when=source.ephemeral)
    score.add(10, "is not full", when=used is not None and used < 50)
    return score.of(source)


def neighbour_score(cluster_view: ClusterView, node: DataNode) -> ScoredNode:
    """How safe a place a node is for what was just made."""
    score, used = _Score(0), cluster_view.disk_percent(node.name)
    score.add(10, "is storage", when=node.role in ("storage", "backbone", "coordinator"))
    score.add(5, "stays", when=not node.ephemeral)
    score.add(2.5 if used is None else round((100 - used) / 20, 2), "for its free disk")
    return score.of(node)


def ranked(scores: Iterable[ScoredNode]) -> list[ScoredNode]:
    """The best first; equal ones in the order of their names, so that every process sees the same."""
    return sorted(scores, key=lambda each: (-each.score, each.node_id))


def best(
    cluster_view: ClusterView,
    nodes: Sequence[DataNode],
    score: Callable[[ClusterView, DataNode], ScoredNode],
    count: int,
) -> list[DataNode]:
    chosen = ranked(score(cluster_view, node) for node in nodes)[:count]
    return [cluster_view.nodes[each.node_id] for each in chosen]


def sources_of(cluster_view: ClusterView, artifact: Artifact, target: DataNode) -> list[DataNode]:
    """Other nodes that hold a verified copy and can be asked for it, the best first."""
    holders = [
        cluster_view.nodes[name]
        for name in cluster_view.view.holders(artifact.digest)
        if name != target.name and name in cluster_view.nodes
    ]
    asleep = cluster_view.reports.away | cluster_view.aside.keys()
    awake = [node for node in holders if node.active and node.name not in asleep]
    scored = ranked(optimal_source_score(cluster_view, node, target) for node in awake)
    return [cluster_view.nodes[each.node_id] for each in scored]


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
    def is_empty(self) -> bool:
        return not self.fetches and not self.sends


def fetches_of(
    cluster_view: ClusterView, files: Iterable[Artifact], reason: str, *, among: Container[str] | None = None
) -> tuple[NodeTransfer, ...]:
    """Fetch *files* here, each from the node (of *among*) that it is best had from; some are had nowhere."""
    by_source: dict[str, list[Artifact]] = {}
    for artifact in files:
        for source in sources_of(cluster_view, artifact, cluster_view.this):
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
    cluster_view: ClusterView, digest: str, *, min_copies: int, quality: float | None = None
) -> ReplicationPlan:
    """Choose nodes for the copies that a file lacks; what is better goes first."""
    artifact = cluster_view.view.artifacts.get(digest)
    if artifact is None:
        raise ConfigError(f"the manifest has no file {digest[:12]!r}")
    holders = cluster_view.view.holders(digest)
    needed = max(0, min_copies - len(holders))
    data_type = data_type_of(artifact.kind)
    fit = [
        node
        for node in cluster_view.nodes.all()
        if node.name not in holders
        and not cluster_view.unfit(node, data_type)
        and not cluster_view.blocked(node, data_type)
        and cluster_view.wants(node, artifact)
    ]
    targets = tuple(ranked(target_score(cluster_view, node, data_type) for node in fit)[:needed])
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


_KEEPERS = ("coordinator", "storage", "backbone")
_BROADCAST_WIDTH = 8
_PLANNED_FILES_MAX = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class CyclePlan:
    """What to do in this cycle, how urgently, and what is held back for which reason."""

    strategy: SyncStrategy
    plan: SyncPlan
    priority: str = "normal"
    held_back: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Cycle:
    """What a planner looks at."""

    cluster_view: ClusterView
    strategy: SyncStrategy
    at_once: bool


def resolve(strategy: SyncStrategy, cluster_view: ClusterView) -> SyncStrategy:
    """What "auto" comes to on this node."""
    if strategy is not SyncStrategy.AUTO:
        return strategy
    if cluster_view.this.ephemeral:
        return SyncStrategy.EPHEMERAL
    if cluster_view.reports.leader == cluster_view.this.name or cluster_view.this.role == "coordinator":
        return SyncStrategy.BROADCAST
    return SyncStrategy.HYBRID


def plan_cycle(cluster_view: ClusterView, strategy: SyncStrategy, *, at_once: bool = False) -> CyclePlan:
    """Plan; *at_once* brings also what would wait for more of its kind."""
    chosen = resolve(strategy, cluster_view)
    plan = _PLANNERS[chosen](_Cycle(cluster_view, chosen, at_once=at_once))
    return replace(plan, held_back=(*plan.held_back, *_blocked(cluster_view)))


# --- what may go --------------------------------------------------------------------------------------


def _held(cluster_view: ClusterView, *, made_here: bool = False) -> tuple[list[Artifact], list[str]]:
    """Files of this node that may leave it, and why others may not."""
    files, held_back = [], []
    for artifact in cluster_view.view.held_by(cluster_view.this.name):
        if made_here and not is_made_by(artifact, cluster_view.this.name):
            continue
        if artifact.quality is not None and artifact.quality < cluster_view.config.quality_min:
            held_back.append(f"{artifact.digest[:12]}: quality {artifact.quality:.2f} is too low")
            continue
        files.append(artifact)
    first = cluster_view.config.priority_configs
    files.sort(key=lambda each: (each.config not in first, each.created_s, each.digest))
    return files, held_back


def _ripe(cycle: _Cycle, files: Sequence[Artifact]) -> tuple[list[Artifact], list[str]]:
    """Files of games wait for company, but not for ever: a few games are not worth a connection."""
    cluster_view = cycle.cluster_view
    games = [each for each in files if each.kind is ArtifactKind.GAMES]
    oldest_s = min((each.created_s for each in games), default=cluster_view.now_s)
    few = games_in(games) < cluster_view.config.games_min
    if (
        cycle.at_once
        or not games
        or not few
        or cluster_view.now_s - oldest_s >= cluster_view.config.wait_s_max
    ):
        return list(files), []
    others = [each for each in files if each.kind is not ArtifactKind.GAMES]
    return others, [f"{games_in(games)} new games wait for more"]


def _open_nodes(cluster_view: ClusterView, data_type: str = "all") -> list[DataNode]:
    return [
        node
        for node in cluster_view.nodes.others()
        if not node.is_archive
        and not cluster_view.unfit(node, data_type)
        and not cluster_view.blocked(node, data_type)
    ]


def _blocked(cluster_view: ClusterView) -> Iterable[str]:
    for node in cluster_view.nodes.others():
        if (
            not node.is_archive
            and not cluster_view.unfit(node, "all")
            and (why := cluster_view.blocked(node, "all"))
        ):
            yield f"{node.name}: {why}"


def _send(
    cluster_view: ClusterView, node: DataNode, files: Iterable[Artifact], reason: str
) -> NodeTransfer | None:
    open_for = {kind: not cluster_view.blocked(node, data_type_of(kind)) for kind in ArtifactKind}
    lacking = [
        each
        for each in cluster_view.view.missing_at(node.name, files)
        if cluster_view.wants(node, each) and open_for[each.kind]
    ]
    return NodeTransfer(node=node.name, artifacts=tuple(lacking), reason=reason) if lacking else None


def _sends(
    cluster_view: ClusterView, nodes: Iterable[DataNode], files: Sequence[Artifact], reason: str
) -> tuple[NodeTransfer, ...]:
    node_transfers = (_send(cluster_view, node, files, reason) for node in nodes)
    return tuple(node_transfer for node_transfer in node_transfers if node_transfer is not None)


def _fetches(cluster_view: ClusterView, sources: Iterable[DataNode], reason: str) -> tuple[NodeTransfer, ...]:
    """What others hold and this node takes and lacks, each file from the best of *sources*."""
    this, names = cluster_view.this, {node.name for node in sources}
    lacking = cluster_view.view.missing_at(this.name, cluster_view.view.artifacts.values())
    wanted = [each for each in lacking if cluster_view.wants(this, each)]
    return fetches_of(cluster_view, wanted, reason, among=names)


def _neighbours(cluster_view: ClusterView) -> list[DataNode]:
    return best(cluster_view, _open_nodes(cluster_view), neighbour_score, cluster_view.config.neighbours)


# --- strategies ---------------------------------------------------------------------------------------


def _hybrid(cycle: _Cycle) -> CyclePlan:
    """Push what was made here to a few good neighbours; nodes that train or keep data also gather it."""
    cluster_view = cycle.cluster_view
    files, low = _held(cluster_view, made_here=True)
    neighbours = _neighbours(cluster_view)
    unsent = [
        each for each in files if any(not cluster_view.view.is_at(each.digest, n.name) for n in neighbours)
    ]
    ripe, waiting = _ripe(cycle, unsent)
    gathers = cluster_view.is_training(cluster_view.this) or cluster_view.this.role in _KEEPERS
    plan = SyncPlan(
        fetches=_fetches(cluster_view, _open_nodes(cluster_view), "gathered here") if gathers else (),
        sends=_sends(cluster_view, neighbours, ripe, "made here"),
        width=cluster_view.config.concurrent_nodes,
    )
    return CyclePlan(strategy=cycle.strategy, plan=plan, held_back=(*low, *(waiting if neighbours else ())))


def _ephemeral(cycle: _Cycle) -> CyclePlan:
    """Write through: what no node that stays has goes to the best of them, the newest first, at once."""
    cluster_view = cycle.cluster_view
    staying = [node for node in _open_nodes(cluster_view) if not node.ephemeral]
    targets = best(
        cluster_view, staying or _open_nodes(cluster_view), neighbour_score, cluster_view.config.neighbours
    )
    keepers = {node.name for node in cluster_view.nodes.others() if not node.ephemeral}
    files, low = _held(cluster_view)
    at_risk = [each for each in files if keepers.isdisjoint(cluster_view.view.holders(each.digest))]
    at_risk.sort(key=lambda each: (-each.created_s, each.digest))
    plan = SyncPlan(
        sends=_first_takers(cluster_view, targets, at_risk)
        + _sends(cluster_view, targets, _but(files, at_risk), "a second copy of what was saved"),
        width=cluster_view.config.concurrent_nodes,
    )
    return CyclePlan(
        strategy=cycle.strategy, plan=plan, priority="critical" if at_risk else "high", held_back=tuple(low)
    )


def _first_takers(
    cluster_view: ClusterView, targets: Sequence[DataNode], files: Iterable[Artifact]
) -> tuple[NodeTransfer, ...]:
    """Each file once, to the first node that takes it: a second copy comes after everything has one."""
    by_node: dict[str, list[Artifact]] = {}
    for artifact in files:
        taker = next(
            (node for node in targets if _send(cluster_view, node, [artifact], "") is not None), None
        )
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
    cluster_view = cycle.cluster_view
    files, low = _held(cluster_view)
    limit = cluster_view.config.broadcast_bytes_max
    small = [each for each in files if each.size <= limit]
    large = [
        f"{each.digest[:12]}: {each.size >> 20} MB are too many to send to all" for each in _but(files, small)
    ]
    nodes = sorted(
        _open_nodes(cluster_view), key=lambda node: (cluster_view.disk_percent(node.name) or 0.0, node.name)
    )
    unsent = [each for each in small if any(not cluster_view.view.is_at(each.digest, n.name) for n in nodes)]
    ripe, waiting = _ripe(cycle, unsent)
    plan = SyncPlan(sends=_sends(cluster_view, nodes, ripe, "for everybody"), width=_BROADCAST_WIDTH)
    return CyclePlan(strategy=cycle.strategy, plan=plan, held_back=(*low, *large, *waiting))


def _pull(cycle: _Cycle) -> CyclePlan:
    cluster_view = cycle.cluster_view
    sources = [node for node in cluster_view.nodes.others() if node.active]
    plan = SyncPlan(
        fetches=_fetches(cluster_view, sources, "kept here"), width=cluster_view.config.concurrent_nodes
    )
    return CyclePlan(strategy=cycle.strategy, plan=plan)


def _gossip(cycle: _Cycle) -> CyclePlan:
    cluster_view = cycle.cluster_view
    plan = SyncPlan(
        fetches=_fetches(cluster_view, _neighbours(cluster_view), "a neighbour has it"),
        width=cluster_view.config.concurrent_nodes,
    )
    return CyclePlan(strategy=cycle.strategy, plan=plan, priority="low")


def _push(cycle: _Cycle) -> CyclePlan:
    """Games go to the coordinator as this node's disk fills, the fuller the more urgently."""
    cluster_view = cycle.cluster_view
    used = cluster_view.disk_percent(cluster_view.this.name)
    config = cluster_view.config
    if not cycle.at_once and (used is None or used < config.push_percent):
        told = "unknown" if used is None else f"{used:.0f} % full"
        return CyclePlan(
            strategy=cycle.strategy, plan=SyncPlan(), held_back=(f"this disk is {told}: nothing is pushed",)
        )
    keepers = [node for node in _open_nodes(cluster_view, "games") if node.role in _KEEPERS]
    files, low = _held(cluster_view)
    games = [each for each in files if each.kind is ArtifactKind.GAMES]
    urgent = used is not None and used >= config.push_urgent_percent
    plan = SyncPlan(
        sends=_sends(cluster_view, keepers, games, "this disk fills"), width=config.concurrent_nodes
    )
    none = () if keepers else ("no coordinator or storage node can be given games",)
    return CyclePlan(
        strategy=cycle.strategy, plan=plan, priority="critical" if urgent else "high", held_back=(*low, *none)
    )


def _planned(cycle: _Cycle) -> CyclePlan:
    """As many copies of each file as wanted, each on the node that the router ranks first."""
    cluster_view = cycle.cluster_view
    files, low = _held(cluster_view)
    node_transfers: dict[str, list[Artifact]] = {}
    lacking = []
    for artifact in files[:_PLANNED_FILES_MAX]:
        wanted = plan_copies(cluster_view, artifact.digest, min_copies=cluster_view.config.copies_min)
        for target in wanted.targets:
            node_transfers.setdefault(target.node_id, []).append(artifact)
        if wanted.missing:
            lacking.append(f"{artifact.digest[:12]}: no node for {wanted.missing} more copies")
    order = best(
        cluster_view,
        [cluster_view.nodes[name] for name in node_transfers],
        lambda view, node: target_score(view, node, "games"),
        len(node_transfers),
    )
    sends = tuple(
        NodeTransfer(node=node.name, artifacts=tuple(node_transfers[node.name]), reason="too few copies")
        for node in order
    )
    plan = SyncPlan(sends=sends, width=cluster_view.config.concurrent_nodes)
    return CyclePlan(strategy=cycle.strategy, plan=plan, held_back=(*low, *lacking))


def _nothing(cycle: _Cycle) -> CyclePlan:
    """Freshness asks others; it moves nothing itself."""
    return CyclePlan(strategy=cycle.strategy, plan=SyncPlan())


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
