"""Which files should be on which nodes, and what is still missing where: a pure function of what is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ringrift.data.artifacts import Artifact, ArtifactKind, Receipt
from ringrift.data.copies import is_given_up
from ringrift.data.deletion_records import Tombstone
from ringrift.data.nodes import DataNode, DataNodes
from ringrift.data.replication_plan import data_type_of
from ringrift.data.transfer.archives import is_archive
from ringrift.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributionRules:
    """When a distribution counts as done, and how hard to try."""

    nodes_promotion: int = 10
    nodes_evaluation: int = 1
    timeout_s: float = 300.0  # after which what is missing is told
    tries: int = 3
    retry_s: float = 30.0
    retry_growth: float = 1.5
    rest_s: float = 600.0  # after the last try
    transfer_timeout_s: float = 300.0
    parallel: int = 4

    def __post_init__(self) -> None:
        if min(self.nodes_promotion, self.nodes_evaluation, self.tries, self.parallel) < 1:
            raise ConfigError("node counts, tries and parallel must be at least 1")

    def wait_s(self, failures: int) -> float:
        """How long to leave a node alone after this many failures in a row."""
        return self.rest_s if failures >= self.tries else self.retry_s * self.retry_growth ** (failures - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """Files that belong together and should be on nodes."""

    digests: tuple[str, ...]  # the first gives the want its name
    config: str
    required: int  # on so many nodes it counts as distributed
    reason: str
    since_s: float
    priority: str = "high"
    target: str = ""  # one node only
    training_only: bool = False

    @property
    def name(self) -> str:
        return self.digests[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributionScene:
    """What is known at one moment."""

    artifacts: Mapping[str, Artifact]
    receipts: Mapping[str, Sequence[Receipt]]
    nodes: DataNodes
    tombstones: Mapping[str, Tombstone] = field(default_factory=dict)
    away: frozenset[str] = frozenset()
    disk_percent: Mapping[str, float] = field(default_factory=dict)
    resting: frozenset[tuple[str, str]] = frozenset()  # (want, node) that failed a short time ago

    def confirmed(self, digest: str) -> frozenset[str]:
        """The nodes that verified it and did not give it up since."""
        tombstone = self.tombstones.get(digest)
        return frozenset(
            receipt.node
            for receipt in self.receipts.get(digest, ())
            if not is_given_up(receipt, tombstone, self.nodes)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDelivery:
    """Files that one node still lacks."""

    want: Want
    source: str
    target: str
    artifacts: tuple[Artifact, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far one want is."""

    want: Want
    confirmed: tuple[str, ...]  # nodes that have all of it
    missing: tuple[str, ...]
    required: int  # no more than there are nodes
    deliveries: tuple[NodeDelivery, ...] = ()
    unknown: tuple[str, ...] = ()  # files that no node has

    @property
    def done(self) -> bool:
        return len(self.confirmed) >= self.required


def plan(wants: Iterable[Want], scene: DistributionScene) -> list[Standing]:
    """Say for each want who has it and who is to get it."""
    return [_standing(want, scene) for want in wants]


def wants_of_champions(
    champions: Mapping[str, tuple[str, ...]], scene: DistributionScene, rules: DistributionRules
) -> list[Want]:
    """Champions belong on every node that plays."""
    return [
        Want(
            digests=digests,
            config=config,
            required=rules.nodes_promotion,
            reason=f"the champion of {config}",
            since_s=max(
                (scene.artifacts[digest].created_s for digest in digests if digest in scene.artifacts),
                default=0.0,
            ),
        )
        for config, digests in champions.items()
    ]


def wants_of_samples(scene: DistributionScene, rules: DistributionRules) -> list[Want]:
    """The newest sample file of each config belongs on the nodes that train."""
    newest: dict[str, Artifact] = {}
    for artifact in scene.artifacts.values():
        if artifact.kind is ArtifactKind.SAMPLES:
            known = newest.get(artifact.config)
            if known is None or artifact.created_s > known.created_s:
                newest[artifact.config] = artifact
    return [
        Want(
            digests=(artifact.digest,),
            config=config,
            required=rules.nodes_evaluation,
            reason=f"the newest samples of {config}",
            since_s=artifact.created_s,
            priority="normal",
            training_only=True,
        )
        for config, artifact in newest.items()
    ]


def with_card(model: Artifact, artifacts: Iterable[Artifact]) -> tuple[str, ...]:
    """A model and its card: made by the same job, so of the same config, node and time."""
    cards = [
        each.digest
        for each in artifacts
        if each.kind is ArtifactKind.CARD
        and (each.config, each.node, each.created_s) == (model.config, model.node, model.created_s)
    ]
    return (model.digest, *cards[:1])


def _standing(want: Want, scene: DistributionScene) -> Standing:
    known = [scene.artifacts[digest] for digest in want.digests if digest in scene.artifacts]
    has = [scene.confirmed(digest) for digest in want.digests]
    complete = frozenset.intersection(*has)
    unknown = tuple(digest for digest, holders in zip(want.digests, has, strict=True) if not holders)
    asked = [node for node in scene.nodes.all() if _is_asked(node, want, known)]
    missing = [node for node in asked if node.name not in complete and not _shares(node, complete, scene)]
    deliveries = [
        delivery
        for node in missing
        if not unknown and _can_take(node, scene) and (want.name, node.name) not in scene.resting
        if (delivery := _delivery(want, node, known, scene)) is not None
    ]
    return Standing(
        want=want,
        confirmed=tuple(sorted(complete)),
        missing=tuple(node.name for node in missing),
        required=min(want.required, max(1, len({node.name for node in asked} | complete))),
        deliveries=tuple(deliveries),
        unknown=unknown,
    )


def _is_asked(node: DataNode, want: Want, known: Sequence[Artifact]) -> bool:
    if want.target:
        return node.name == want.target and node.active
    if is_archive(node):
        return False  # it keeps files and uses none
    if want.training_only and not node.training:
        return False
    return all(node.accepts(data_type_of(artifact.kind)) for artifact in known)


def _shares(node: DataNode, holders: frozenset[str], scene: DistributionScene) -> bool:
    """Whether the node sees the disk of one that has it."""
    return bool(node.nfs) and any(
        name in scene.nodes and scene.nodes[name].nfs == node.nfs for name in holders
    )


def _can_take(node: DataNode, scene: DistributionScene) -> bool:
    full = scene.disk_percent.get(node.name, 0.0) >= node.disk_max_percent
    return node.name not in scene.away and not full


def _delivery(
    want: Want, node: DataNode, known: Sequence[Artifact], scene: DistributionScene
) -> NodeDelivery | None:
    lacking = tuple(each for each in known if node.name not in scene.confirmed(each.digest))
    holders = frozenset.intersection(*(scene.confirmed(each.digest) for each in lacking)) - scene.away
    usable = sorted(name for name in holders if name in scene.nodes and scene.nodes[name].active)
    if not usable:
        return None
    this = scene.nodes.this.name
    source = this if this in usable else usable[0]
    return NodeDelivery(want=want, source=source, target=node.name, artifacts=lacking)
