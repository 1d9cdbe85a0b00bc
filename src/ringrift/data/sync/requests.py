"""What may be asked of a sync, what is answered, and what goes where for a request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any

from ringrift.data.artifacts import Artifact, ArtifactKind, kinds_of
from ringrift.data.config import CONCURRENT_NODES, NEIGHBOURS, DataNode
from ringrift.data.sync.cluster_view import ClusterView
from ringrift.data.sync.plan import (
    NodeTransfer,
    SyncPlan,
    best,
    fetches_of,
    neighbor_score,
    target_score,
)
from ringrift.errors import ConfigError
from ringrift.work.shares import split_config

# What may be asked, and what is answered.


PRIORITIES = ("low", "normal", "high", "critical")
_MBPS_IN_BYTES = 125_000.0  # megabits per second in bytes per second
_PLAYERS = range(2, 5)


class SyncBackend(Enum):
    """Who handles a request. All of them move files in the same way; they differ in what goes where."""

    AUTO_SYNC = "auto_sync"
    CLUSTER_SYNC = "cluster_data_sync"
    DISTRIBUTED = "distributed"
    EPHEMERAL = "ephemeral_sync"
    ROUTER = "router"

    @classmethod
    def _missing_(cls, value: object) -> SyncBackend | None:
        """Old values lead to the backends that do their work now."""
        return {
            "scheduler": cls.AUTO_SYNC,
            "unified_data_sync": cls.AUTO_SYNC,
            "orchestrator": cls.ROUTER,
        }.get(str(value))


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """What to bring where. Built with a value that cannot be honored it raises `ConfigError`."""

    data_type: str
    targets: list[str] | None = None  # None or ["all"]: every node that takes this type
    board_type: str | None = None
    num_players: int | None = None
    priority: str = "normal"
    timeout_seconds: float = 300.0  # for the whole request, fallbacks included
    bandwidth_limit_mbps: float | None = None  # for the whole request, in megabits per second
    exclude_nodes: list[str] = field(default_factory=list)
    prefer_ephemeral: bool = False
    require_confirmation: bool = False  # each receiver hashes each file now, known copies included
    source_node: str | None = None  # only files that this node holds; they are fetched from it

    def __post_init__(self) -> None:
        kinds_of(self.data_type)
        if self.priority not in PRIORITIES:
            raise ConfigError(f"priority is {self.priority!r}; it must be one of {', '.join(PRIORITIES)}")
        if not self.timeout_seconds > 0:
            raise ConfigError(f"timeout_seconds is {self.timeout_seconds!r}; it must be above 0")
        if self.bandwidth_limit_mbps is not None and not self.bandwidth_limit_mbps > 0:
            raise ConfigError(
                f"bandwidth_limit_mbps is {self.bandwidth_limit_mbps!r}; it must be above 0 (None: no limit)"
            )
        if self.num_players is not None and self.num_players not in _PLAYERS:
            raise ConfigError(f"num_players is {self.num_players!r}; it must be 2, 3 or 4")
        for name in ("targets", "exclude_nodes"):
            given = getattr(self, name)
            if isinstance(given, str) or not all(isinstance(each, str) for each in given or ()):
                raise ConfigError(f"{name} is {given!r}; it must be a list of names of nodes")
        if self.explicit_targets and (both := sorted(set(self.explicit_targets) & set(self.exclude_nodes))):
            raise ConfigError(f"node {both[0]!r} stands both in targets and in exclude_nodes")

    @property
    def explicit_targets(self) -> tuple[str, ...]:
        """The named nodes, once each; none when every node is meant."""
        return () if self.targets in (None, ["all"]) else tuple(dict.fromkeys(self.targets or ()))

    @property
    def kinds(self) -> frozenset[ArtifactKind]:
        return kinds_of(self.data_type)

    @property
    def bytes_per_s(self) -> float | None:
        return None if self.bandwidth_limit_mbps is None else self.bandwidth_limit_mbps * _MBPS_IN_BYTES

    @property
    def config_key(self) -> str:
        """The one config that is meant, or nothing."""
        return f"{self.board_type}_{self.num_players}p" if self.board_type and self.num_players else ""

    def wants(self, artifact: Artifact) -> bool:
        """Whether the file is of the type and config that is asked for."""
        board, players = split_config(artifact.config)
        return (
            artifact.kind in self.kinds
            and self.board_type in (None, board)
            and self.num_players in (None, players)
        )


def read_request(request: SyncRequest | Mapping[str, Any] | str, options: Mapping[str, Any]) -> SyncRequest:
    """Accept a request, its fields, or only the data type; `ConfigError` names what is unknown."""
    if isinstance(request, SyncRequest):
        given = {item.name: getattr(request, item.name) for item in fields(SyncRequest)}
    elif isinstance(request, str):
        given = {"data_type": request}
    elif isinstance(request, Mapping):
        given = dict(request)
    else:
        raise ConfigError(f"a sync request is a SyncRequest, a mapping or a data type, not {request!r}")
    given |= options
    known = [item.name for item in fields(SyncRequest)]
    if unknown := sorted(set(given) - set(known)):
        raise ConfigError(f"a sync request has no {unknown[0]!r}; it may have: {', '.join(known)}")
    if "data_type" not in given:
        raise ConfigError("a sync request needs data_type: games, models, npz or all")
    return SyncRequest(**given)


@dataclass(frozen=True, slots=True)
class SyncResponse:
    """What became of a request. Every count comes from receipts that receivers wrote."""

    success: bool
    backend_used: SyncBackend
    nodes_synced: int = 0  # nodes that hold everything they should, and got or confirmed some of it now
    bytes_transferred: int = 0
    duration_seconds: float = 0.0
    errors: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)


# What goes where for a request: pure functions of the cluster's view, one per backend.


_BROADCAST_NODES = 8
_MISSING = "missing here"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLeft:
    """A request and what is left of it after what was confirmed in earlier attempts."""

    request: SyncRequest
    confirmed: frozenset[tuple[str, str]] = field(default_factory=frozenset)  # (node, digest)

    def open_at(self, cluster: ClusterView, node: str, artifacts: Iterable[Artifact]) -> list[Artifact]:
        """What *node* is still to be given: what it lacks, or all that it has not confirmed yet."""
        if not self.request.require_confirmation:
            return cluster.view.missing_at(node, artifacts)
        return [each for each in artifacts if (node, each.digest) not in self.confirmed]


def plan_request(cluster: ClusterView, left: RequestLeft, backend: SyncBackend) -> SyncPlan:
    """Decide what *backend* would do now."""
    request, here = left.request, cluster.this.name
    wanted = [each for each in cluster.view.artifacts.values() if request.wants(each)]
    wanted.sort(key=lambda each: (each.created_s, each.digest))
    if request.source_node is not None and request.source_node != here:
        return _plan_from(cluster, wanted, request.source_node, request)
    targets, refused, blocked = _targets(cluster, request)
    shape = _SHAPES[backend]
    chosen = shape.choose(cluster, request, [node for node in targets if node.name != here])
    plan = _plan_to(cluster, left, wanted, chosen, shape)
    if here in request.explicit_targets:
        missing = cluster.view.missing_at(here, wanted)  # with what is fetched only to go on
        plan = replace(plan, fetches=fetches_of(cluster, missing, _MISSING))
    if not wanted and (request.explicit_targets or request.require_confirmation):
        refused += [f"{node.name}: {_nothing_of(request)}" for node in chosen]
    notes = list(plan.notes)
    if not chosen and here not in request.explicit_targets and not refused:
        notes.append(_why_nobody(cluster, request, blocked))
    return replace(
        plan,
        width=shape.width,
        refused=tuple(refused),
        blocked=tuple(blocked),
        # Nobody is asked anything without a file: whether such a node even answers is not known.
        up_to_date=plan.up_to_date if wanted else (),
        not_known=() if wanted else plan.up_to_date,
        notes=tuple(notes),
    )


def _nothing_of(request: SyncRequest) -> str:
    kind = "files" if request.data_type == "all" else request.data_type
    of = "".join(
        (
            "" if request.board_type is None else f" of {request.board_type}",
            "" if request.num_players is None else f" for {request.num_players} players",
        )
    )
    return f"nothing was brought or confirmed: the manifest knows of no {kind}{of}"


# --- who ----------------------------------------------------------------------------------------------


def _targets(cluster: ClusterView, request: SyncRequest) -> tuple[list[DataNode], list[str], list[str]]:
    """The nodes to serve, and why others are not."""
    named = request.explicit_targets
    targets: list[DataNode] = []
    refused: list[str] = []
    blocked: list[str] = []
    for name in named or tuple(node.name for node in cluster.nodes.all()):
        if name not in cluster.nodes:
            refused.append(f"{name}: no node is called that")
            continue
        node = cluster.nodes[name]
        if name in request.exclude_nodes or (not named and (name == cluster.this.name or node.is_archive)):
            continue  # archives are served by backups, and by sync only when they are named
        unfit = "" if name == cluster.this.name else cluster.unfit(node, request.data_type)
        if unfit:
            refused += [f"{name}: {unfit}"] if named else []
        elif name != cluster.this.name and (why := cluster.blocked(node, request.data_type)):
            blocked.append(f"{name}: {why}")
        else:
            targets.append(node)
    return targets, refused, blocked


def _why_nobody(cluster: ClusterView, request: SyncRequest, blocked: Sequence[str]) -> str:
    others = cluster.nodes.others()
    if not others:
        return "this is the only node; there is nowhere to bring anything"
    if blocked:
        return "no node can be given anything just now"
    why = [
        f"{node.name}: " + ("excluded" if node.name in request.exclude_nodes else unfit)
        for node in others
        if (unfit := cluster.unfit(node, request.data_type)) or node.name in request.exclude_nodes
    ]
    return f"no other node takes {request.data_type}: {'; '.join(why)}"


Choose = Callable[[ClusterView, SyncRequest, list[DataNode]], list[DataNode]]


def _all_of_them(_cluster: ClusterView, _request: SyncRequest, targets: list[DataNode]) -> list[DataNode]:
    return targets


def _by_score(cluster: ClusterView, request: SyncRequest, targets: list[DataNode]) -> list[DataNode]:
    return best(cluster, targets, lambda p, node: target_score(p, node, request.data_type), len(targets))


def _safest(cluster: ClusterView, request: SyncRequest, targets: list[DataNode]) -> list[DataNode]:
    """A few nodes that stay; if there are none, whichever there are."""
    staying = [node for node in targets if not node.ephemeral] or targets
    count = len(staying) if request.explicit_targets else NEIGHBOURS
    return best(cluster, staying, neighbor_score, count)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """How a backend differs from the others."""

    choose: Choose
    width: int = CONCURRENT_NODES
    relays: bool = False  # files that others hold are fetched first and then go on
    newest_first: bool = False


_SHAPES = {
    SyncBackend.AUTO_SYNC: _Shape(choose=_all_of_them),
    SyncBackend.CLUSTER_SYNC: _Shape(choose=_by_score, width=_BROADCAST_NODES, relays=True),
    SyncBackend.ROUTER: _Shape(choose=_by_score, relays=True),
    SyncBackend.DISTRIBUTED: _Shape(choose=_all_of_them, width=1),
    SyncBackend.EPHEMERAL: _Shape(choose=_safest, newest_first=True),
}


# --- what ---------------------------------------------------------------------------------------------


def _plan_to(
    cluster: ClusterView,
    left: RequestLeft,
    wanted: Sequence[Artifact],
    targets: Sequence[DataNode],
    shape: _Shape,
) -> SyncPlan:
    view, here = cluster.view, cluster.this.name
    held = [each for each in wanted if view.is_at(each.digest, here)]
    absent = [each for each in wanted if not view.is_at(each.digest, here)]
    fetches: tuple[NodeTransfer, ...] = ()
    if shape.relays and targets:
        asked = [each for each in absent if any(left.open_at(cluster, n.name, [each]) for n in targets)]
        fetches = fetches_of(cluster, asked, _MISSING)
        held += [each for transfer in fetches for each in transfer.artifacts]
    held.sort(key=lambda each: (each.created_s, each.digest), reverse=shape.newest_first)
    sends, up_to_date = [], []
    for node in targets:
        fits = cluster.takes if left.request.explicit_targets else cluster.wants
        takes = [each for each in held if fits(node, each)]
        if files := left.open_at(cluster, node.name, takes):
            sends.append(NodeTransfer(node=node.name, artifacts=tuple(files), reason="asked for"))
        else:
            up_to_date.append(node.name)
    elsewhere = len(absent) - sum(len(transfer.artifacts) for transfer in fetches)
    notes = (
        [f"{elsewhere} matching files are on other nodes only and did not go from here"] if elsewhere else []
    )
    return SyncPlan(fetches=fetches, sends=tuple(sends), up_to_date=tuple(up_to_date), notes=tuple(notes))


def _plan_from(
    cluster: ClusterView, wanted: Sequence[Artifact], source: str, request: SyncRequest
) -> SyncPlan:
    """Bring to this node what *source* holds and this node lacks."""
    if source not in cluster.nodes:
        return SyncPlan(refused=(f"{source}: no node is called that",))
    node = cluster.nodes[source]
    if not node.active:
        return SyncPlan(refused=(f"{source}: its status is {node.status!r}",))
    there = [each for each in wanted if cluster.view.is_at(each.digest, source)]
    files = cluster.view.missing_at(cluster.this.name, there)
    if files:
        return SyncPlan(
            fetches=(NodeTransfer(node=source, artifacts=tuple(files), fetch=True, reason="its data"),)
        )
    if there:
        return SyncPlan(up_to_date=(source,), notes=(f"nothing of {source} is missing here",))
    note = f"the manifest knows of no such file on {source}"
    if request.require_confirmation:
        refusal = f"{source}: nothing was brought or confirmed: {note}"
        return SyncPlan(refused=(refusal,), not_known=(source,))
    return SyncPlan(not_known=(source,), notes=(note,))
