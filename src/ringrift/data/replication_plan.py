"""Which artifacts have too few copies, and what to copy where: a pure function of what is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ringrift.data.artifacts import DATA_TYPES, Artifact, ArtifactKind, Receipt
from ringrift.data.copies import Copies, CopyView
from ringrift.data.deletion_records import Tombstone
from ringrift.data.nodes import DataNode
from ringrift.errors import ConfigError

LEVEL_CRITICAL, LEVEL_WARNING = "critical", "warning"
_TYPE_OF = {kind: name for name, kinds in DATA_TYPES.items() if name != "all" for kind in kinds}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationRules:
    """How many copies there should be, and how hard to try."""

    copies_min: int = 2
    copies_target: int = 3
    cooldown_s: float = 600.0  # between two repairs of one artifact
    parallel: int = 5
    repairs_per_hour: int = 500
    repair_timeout_s: float = 300.0
    batch: int = 1_000
    single_alert: int = 100
    under_alert_s: float = 900.0
    emergency_single: int = 500
    emergency_under: int = 1_000

    def __post_init__(self) -> None:
        if not 1 <= self.copies_min <= self.copies_target:
            raise ConfigError(
                f"copies_min is {self.copies_min} and copies_target {self.copies_target}; "
                "the minimum is at least 1 and at most the target"
            )
        if min(self.parallel, self.repairs_per_hour, self.batch) < 1:
            raise ConfigError("parallel, repairs_per_hour and batch must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiesSnapshot:
    """What is known at one moment."""

    artifacts: Sequence[Artifact]
    receipts: Mapping[str, Sequence[Receipt]]
    view: CopyView
    this: str
    tombstones: Mapping[str, Tombstone] = field(default_factory=dict)
    heirs: frozenset[str] = frozenset()  # artifacts that live on in another
    disk_percent: Mapping[str, float] = field(default_factory=dict)
    resting: frozenset[str] = frozenset()  # repaired, or tried, a short time ago
    failing: frozenset[str] = frozenset()  # nodes that the last repair did not get to: the last choice
    repairs_last_hour: int = 0
    failed_share: float = 0.0
    under_since_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """One copy to make."""

    artifact: Artifact
    source: str
    target: str
    copies: int
    priority: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationAlert:
    """Something that a person should know."""

    level: str
    kind: str
    message: str
    artifacts: int = 0
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairPlan:
    """How copies stand, and what to do."""

    total: int = 0
    none: int = 0  # without any copy that counts
    single: int = 0
    under: int = 0  # below the minimum, those two included
    below_target: int = 0
    score: float = 100.0
    emergency: bool = False
    repairs: tuple[Repair, ...] = ()
    alerts: tuple[ReplicationAlert, ...] = ()
    stuck: Mapping[str, str] = field(default_factory=dict)  # cannot be repaired, and why
    under_now: frozenset[str] = frozenset()

    @property
    def verdict(self) -> str:
        """A share hides a few files among many, so it is never better than the worst file."""
        if self.none:
            return "critical"
        if self.under and self.score >= _HEALTHY:
            return "degraded"
        return next((word for bar, word in _VERDICTS if self.score >= bar), "critical")


_HEALTHY = 90.0
_VERDICTS = ((_HEALTHY, "healthy"), (70.0, "degraded"), (50.0, "unhealthy"))


@dataclass(slots=True)
class _Standing:
    """One artifact against what it should have."""

    artifact: Artifact
    copies: Copies
    wanted_min: int
    wanted: int

    @property
    def count(self) -> int:
        return len(self.copies.counted)


def data_type_of(kind: ArtifactKind) -> str:
    """What a node must accept to hold artifacts of this kind; reports go where the games go."""
    return _TYPE_OF.get(kind, "games")


def plan(snapshot: CopiesSnapshot, rules: ReplicationRules) -> RepairPlan:
    """Decide what to copy. Artifacts with the fewest copies come first."""
    standings = [_standing(artifact, snapshot, rules) for artifact in _kept(snapshot)]
    under = [each for each in standings if each.count < each.wanted_min]
    none = sum(not each.count for each in under)
    single = sum(each.count == 1 for each in under)
    emergency = bool(none) or single >= rules.emergency_single or len(under) >= rules.emergency_under
    short = sorted(
        (each for each in standings if each.count < each.wanted),
        key=lambda each: (each.count, each.artifact.created_s, each.artifact.digest),
    )
    allowed = (
        rules.batch if emergency else min(rules.batch, rules.repairs_per_hour - snapshot.repairs_last_hour)
    )
    repairs, stuck = _repairs(short, snapshot, max(0, allowed))
    return RepairPlan(
        total=len(standings),
        none=none,
        single=single,
        under=len(under),
        below_target=len(short),
        score=_score(
            len(standings), none=none, single=single, under=len(under), failed=snapshot.failed_share
        ),
        emergency=emergency,
        repairs=tuple(repairs),
        alerts=tuple(_alerts(snapshot, rules, under, none=none, single=single)),
        stuck=stuck,
        under_now=frozenset(each.artifact.digest for each in under),
    )


def holders(nodes: Iterable[DataNode], kind: ArtifactKind) -> list[DataNode]:
    """The nodes whose copies of this kind would count, each shared folder once."""
    shares: set[str] = set()
    able = []
    for node in nodes:
        if node.ephemeral or not node.accepts(data_type_of(kind)) or node.nfs in shares:
            continue
        if node.nfs:
            shares.add(node.nfs)
        able.append(node)
    return able


def _kept(snapshot: CopiesSnapshot) -> list[Artifact]:
    return [artifact for artifact in snapshot.artifacts if artifact.digest not in snapshot.heirs]


def _standing(artifact: Artifact, snapshot: CopiesSnapshot, rules: ReplicationRules) -> _Standing:
    receipts = snapshot.receipts.get(artifact.digest, ())
    copies = snapshot.view.of(receipts, snapshot.tombstones.get(artifact.digest))
    # A machine alone keeps what it has; nobody is alarmed because there is no second one.
    able = max(1, len(holders(snapshot.view.nodes.all(), artifact.kind)))
    return _Standing(artifact, copies, min(rules.copies_min, able), min(rules.copies_target, able))


def _repairs(
    short: Sequence[_Standing], snapshot: CopiesSnapshot, allowed: int
) -> tuple[list[Repair], dict[str, str]]:
    repairs: list[Repair] = []
    stuck: dict[str, str] = {}
    for each in short:
        digest = each.artifact.digest
        if digest in snapshot.resting:
            continue
        source = _source(each.copies, snapshot)
        target = _target(each, snapshot)
        if source is None:
            stuck[digest] = "no node is known to have it"
        elif target is None:
            stuck[digest] = "no other node can take it: " + _why_no_target(each, snapshot)
        elif len(repairs) < allowed:
            repairs.append(_repair(each, source, target))
    return repairs, stuck


def _repair(each: _Standing, source: str, target: str) -> Repair:
    below = each.count < each.wanted_min
    priority = "critical" if not each.count else "high" if below else "low"
    bar = f"minimum {each.wanted_min}" if below else f"target {each.wanted}"
    return Repair(
        artifact=each.artifact,
        source=source,
        target=target,
        copies=each.count,
        priority=priority,
        reason=f"{each.count} verified copies, {bar}",
    )


def _source(copies: Copies, snapshot: CopiesSnapshot) -> str | None:
    """This node if it has it: that takes one transfer instead of two."""
    reachable = [
        name for name in copies.sources if name in snapshot.view.nodes and name not in snapshot.view.away
    ]
    return snapshot.this if snapshot.this in reachable else next(iter(reachable), None)


def _target(each: _Standing, snapshot: CopiesSnapshot) -> str | None:
    able = [node for node in snapshot.view.nodes.all() if not _refusal(node, each, snapshot)]

    def order(node: DataNode) -> tuple[bool, float, str]:
        return node.name not in snapshot.failing, _target_score(node, snapshot), node.name

    best = max(able, key=order, default=None)
    return None if best is None else best.name


def _refusal(node: DataNode, each: _Standing, snapshot: CopiesSnapshot) -> str:
    """Why a node cannot take a copy that counts; empty if it can."""
    if node.name in each.copies.nodes:
        return "has it"
    if not node.active:
        return f"is {node.status}"
    if node.name in snapshot.view.away:
        return "does not answer"
    if node.ephemeral:
        return "may vanish"
    if not node.accepts(data_type_of(each.artifact.kind)):
        return f"takes no {data_type_of(each.artifact.kind)}"
    percent = snapshot.disk_percent.get(node.name)
    if percent is not None and percent >= node.disk_max_percent:
        return f"its disk is {percent:.0f} % full"
    if node.nfs and any(snapshot.view.nodes[name].nfs == node.nfs for name in each.copies.nodes):
        return "shares the disk of a node that has it"
    return ""


def _why_no_target(each: _Standing, snapshot: CopiesSnapshot) -> str:
    return ", ".join(f"{node.name} {_refusal(node, each, snapshot)}" for node in snapshot.view.nodes.all())


def _target_score(node: DataNode, snapshot: CopiesSnapshot) -> float:
    score = 50.0 + (20.0 if node.training else 0.0) - (30.0 if node.role == "coordinator" else 0.0)
    percent = snapshot.disk_percent.get(node.name)
    if percent is None:
        return score
    return score + (10.0 if percent < 50 else 0.0) - (20.0 if percent > 80 else 0.0)


def _score(total: int, *, none: int, single: int, under: int, failed: float) -> float:
    if not total:
        return 100.0
    lost = 50.0 * under / total + 30.0 * single / total + 100.0 * none / total + 20.0 * failed
    return max(0.0, 100.0 - lost)


def _alerts(
    snapshot: CopiesSnapshot, rules: ReplicationRules, under: Sequence[_Standing], *, none: int, single: int
) -> Iterable[ReplicationAlert]:
    if none:
        lost = [each for each in under if not each.count]
        last = sorted({name for each in lost for name in each.copies.sources})
        told = f"{none} artifacts have no verified copy that counts"
        yield ReplicationAlert(
            level=LEVEL_CRITICAL, kind="zero_copy", message=told, artifacts=none, nodes=tuple(last)
        )
    if single >= rules.single_alert:
        where = Counter(name for each in under if each.count == 1 for name in each.copies.nodes)
        told = f"{single} artifacts have a single verified copy"
        nodes = tuple(name for name, _ in where.most_common(10))
        yield ReplicationAlert(
            level=LEVEL_WARNING, kind="single_copy", message=told, artifacts=single, nodes=nodes
        )
    oldest_s = snapshot.view.now_s - rules.under_alert_s
    late = [
        each for each in under if snapshot.under_since_s.get(each.artifact.digest, oldest_s + 1) <= oldest_s
    ]
    if late:
        told = f"{len(late)} artifacts have had too few copies for {rules.under_alert_s / 60:.0f} minutes"
        yield ReplicationAlert(
            level=LEVEL_WARNING, kind="under_replicated", message=told, artifacts=len(late)
        )
