"""Copies counted and repaired: REPLICATION_MONITOR tells how they stand, REPLICATION_REPAIR makes more.

Both look at the same state and ask the same plan. A repair is claimed before it is begun, so that several
repairers share the work, and ends with receipts: an unverified copy does not count.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Unpack

import structlog

from ringrift.data.artifacts import Artifact, ArtifactKind, Receipt, data_type_of, in_batches
from ringrift.data.config import DataNode
from ringrift.data.kv_records import for_each
from ringrift.data.manifest.store import AwayNodes, Copies, CopyView, DiskStates
from ringrift.data.plane import DaemonParts, DataPlane, WakingDaemon, daemon_factory, try_to_copy
from ringrift.data.protection.inventory import Inventory, look_everywhere
from ringrift.data.protection.records import Tombstone
from ringrift.errors import AlreadyExists, ConfigError
from ringrift.events.event import RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.status import HealthCheckResult

__all__ = [
    "CopiesSnapshot",
    "Repair",
    "RepairPlan",
    "ReplicationAlert",
    "ReplicationMonitorDaemon",
    "ReplicationRepairDaemon",
    "ReplicationRules",
    "create_replication_daemon",
    "plan",
    "take_snapshot",
]


# Which artifacts have too few copies, and what to copy where: a pure function of what is known.


LEVEL_CRITICAL, LEVEL_WARNING = "critical", "warning"


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
    successors: frozenset[str] = frozenset()  # artifacts that live on in another
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

    @property
    def size(self) -> int:
        return self.artifact.size


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
    return [artifact for artifact in snapshot.artifacts if artifact.digest not in snapshot.successors]


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
    if not set(each.copies.nodes).isdisjoint(snapshot.view.nodes.sharing(node.name)):
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
        message = f"{none} artifacts have no verified copy that counts"
        yield ReplicationAlert(
            level=LEVEL_CRITICAL, kind="zero_copy", message=message, artifacts=none, nodes=tuple(last)
        )
    if single >= rules.single_alert:
        where = Counter(name for each in under if each.count == 1 for name in each.copies.nodes)
        message = f"{single} artifacts have a single verified copy"
        nodes = tuple(name for name, _ in where.most_common(10))
        yield ReplicationAlert(
            level=LEVEL_WARNING, kind="single_copy", message=message, artifacts=single, nodes=nodes
        )
    oldest_s = snapshot.view.now_s - rules.under_alert_s
    late = [
        each for each in under if snapshot.under_since_s.get(each.artifact.digest, oldest_s + 1) <= oldest_s
    ]
    if late:
        message = f"{len(late)} artifacts have had too few copies for {rules.under_alert_s / 60:.0f} minutes"
        yield ReplicationAlert(
            level=LEVEL_WARNING, kind="under_replicated", message=message, artifacts=len(late)
        )


# The daemons, which carry out what the plan says.


log = structlog.get_logger()

PART = "replication"
CLAIMS = "data/repairs/"
MONITOR_S, REPAIR_S = 300.0, 60.0
ALERT_AGAIN_S = 3_600.0
BATCH_FILES, BATCH_BYTES = 100, 64 << 20
_OUTCOMES_MAX = 200
SILENT_S_MAX = 300.0


async def take_snapshot(plane: DataPlane, away: frozenset[str] = frozenset()) -> CopiesSnapshot:
    """Read what the plan looks at."""
    claims = await plane.kv.entries(CLAIMS)
    manifest = await plane.view()
    return CopiesSnapshot(
        artifacts=manifest.cards,
        receipts=manifest.receipts,
        view=CopyView(nodes=plane.nodes, now_s=plane.runtime.now_s(), away=away),
        this=plane.this.name,
        tombstones=await plane.tombstones(),
        successors=frozenset(await plane.successors()),
        disk_percent=await DiskStates(plane.kv).used_percent(),
        resting=frozenset(entry.key.removeprefix(CLAIMS) for entry in claims),
    )


class _ReplicationDaemon(WakingDaemon):
    """Looks at all copies now and then, and at once when a node goes away."""

    capability: ClassVar[str] = "replication"

    def __init__(
        self,
        name: str,
        *,
        interval_s: float,
        rules: ReplicationRules | None = None,
        **parts: Unpack[DaemonParts],
    ) -> None:
        super().__init__(name, interval_s=interval_s, **parts)
        self.rules = rules or ReplicationRules()
        self.away = AwayNodes(self._runtime)
        self.last_plan: RepairPlan | None = None
        self.seen = Inventory()
        self._silent_since: dict[str, float] = {}

    def _get_event_subscriptions(self) -> Mapping[Any, Callback]:
        return {"HOST_OFFLINE": self._on_offline, "HOST_ONLINE": self.away.on_online}

    def _on_offline(self, event: RouterEvent) -> None:
        self.away.on_offline(event)
        self.wake()

    async def _run_cycle(self) -> None:
        plane = await self._opened()
        self.seen = await look_everywhere(plane, (await plane.view()).cards)
        # Who has just answered is there, whoever said that it went.
        away = (self.away.now() - self.seen.answered) | self._long_silent()
        snapshot = self._complete(await take_snapshot(plane, away))
        self.last_plan = await asyncio.to_thread(plan, snapshot, self.rules)
        await self._act(plane, self.last_plan)

    def _long_silent(self) -> frozenset[str]:
        """Nodes that have not answered for so long that their copies are made anew elsewhere."""
        now_s, silent = self._runtime.monotonic_s(), self.seen.silent
        self._silent_since = {name: self._silent_since.get(name, now_s) for name in silent}
        return frozenset(
            name for name, since_s in self._silent_since.items() if now_s - since_s >= SILENT_S_MAX
        )

    def _complete(self, snapshot: CopiesSnapshot) -> CopiesSnapshot:
        """Add what only this daemon remembers."""
        return snapshot

    @abstractmethod
    async def _act(self, plane: DataPlane, found: RepairPlan) -> None: ...

    def health_check(self) -> HealthCheckResult:
        health, found = super().health_check(), self.last_plan
        if found is None or not health.healthy:
            return health
        details: dict[str, Any] = {
            "score": found.score,
            "none": found.none,
            "single": found.single,
            "under": found.under,
        }
        details["unknown"] = dict(self.seen.silent)
        if self.seen.silent and found.verdict == "healthy":
            message = f"the copies of {', '.join(self.seen.silent)} are not known: no answer"
            return HealthCheckResult.degraded(message, **health.details, **details)
        if found.verdict == "healthy":
            return health.with_details(**details)
        return HealthCheckResult.degraded(f"copies are {found.verdict}", **health.details, **details)


class ReplicationMonitorDaemon(_ReplicationDaemon):
    """REPLICATION_MONITOR: counts, and tells when there are too few."""

    emits: ClassVar[tuple[str, ...]] = ("REPLICATION_ALERT",)

    def __init__(self, *, interval_s: float = MONITOR_S, **given: Any) -> None:
        super().__init__("replication_monitor", interval_s=interval_s, **given)
        self._under_since: dict[str, float] = {}
        self._alerted: dict[str, tuple[int, float]] = {}

    def _complete(self, snapshot: CopiesSnapshot) -> CopiesSnapshot:
        return replace(snapshot, under_since_s=dict(self._under_since))

    async def _act(self, plane: DataPlane, found: RepairPlan) -> None:
        now_s = plane.runtime.now_s()
        self._under_since = {digest: self._under_since.get(digest, now_s) for digest in found.under_now}
        alerts = [*found.alerts, *self._disk_alerts(plane)]
        for alert in alerts:
            if self._should_alert(alert, now_s):
                await self._tell(plane, alert)
        current = {alert.kind for alert in alerts}
        self._alerted = {kind: last for kind, last in self._alerted.items() if kind in current}

    def _disk_alerts(self, plane: DataPlane) -> list[ReplicationAlert]:
        here = self.seen.here
        if not here.message:
            return []
        level, kind = ("critical", "disk_lost") if here.disk_lost else ("warning", "files_gone")
        number, nodes = len(here.missing), (plane.this.name,)
        return [ReplicationAlert(level=level, kind=kind, message=here.message, artifacts=number, nodes=nodes)]

    def _should_alert(self, alert: ReplicationAlert, now_s: float) -> bool:
        """Said again when it got worse, or an hour later."""
        count, said_s = self._alerted.get(alert.kind, (-1, float("-inf")))
        if alert.artifacts <= count and now_s - said_s < ALERT_AGAIN_S:
            return False
        self._alerted[alert.kind] = (alert.artifacts, now_s)
        return True

    async def _tell(self, plane: DataPlane, alert: ReplicationAlert) -> None:
        log.warning("replication.alert", kind=alert.kind, level=alert.level, message=alert.message)
        payload = {
            "level": alert.level,
            "message": alert.message,
            "node_id": plane.this.name,
            "game_count": alert.artifacts,
            "affected_nodes": list(alert.nodes),
        }
        await self.router.publish("REPLICATION_ALERT", payload, self.name)


class ReplicationRepairDaemon(_ReplicationDaemon):
    """REPLICATION_REPAIR: makes the copies that the plan asks for."""

    emits: ClassVar[tuple[str, ...]] = ("REPAIR_COMPLETED", "REPAIR_FAILED")

    def __init__(self, *, interval_s: float = REPAIR_S, **given: Any) -> None:
        super().__init__("replication_repair", interval_s=interval_s, **given)
        self._begun: deque[float] = deque(maxlen=self.rules.repairs_per_hour)
        self._outcomes: deque[bool] = deque(maxlen=_OUTCOMES_MAX)
        self._failed_s: dict[str, float] = {}  # nodes that the last repair did not get to, and when
        self.failures: dict[str, str] = {}  # of the last cycle; digest: why

    def _complete(self, snapshot: CopiesSnapshot) -> CopiesSnapshot:
        hour_ago_s = self._runtime.monotonic_s() - 3_600.0
        failed = self._outcomes.count(False) / len(self._outcomes) if self._outcomes else 0.0
        begun = sum(begun_s > hour_ago_s for begun_s in self._begun)
        failing = frozenset(name for name, failed_s in self._failed_s.items() if failed_s > hour_ago_s)
        return replace(snapshot, repairs_last_hour=begun, failed_share=failed, failing=failing)

    async def repair_once(self) -> RepairPlan:
        """Make the copies that are missing now; return what was planned."""
        await self._run_cycle()
        assert self.last_plan is not None
        return self.last_plan

    async def _act(self, plane: DataPlane, found: RepairPlan) -> None:
        self.failures = {}

        async def repair(group: list[Repair]) -> None:
            claimed = [wanted for wanted in group if await self._claim(plane, wanted)]
            if claimed:
                self._begun.extend([self._runtime.monotonic_s()] * len(claimed))
                await self._repair(plane, claimed)

        await for_each(_grouped(found.repairs), repair, at_once=self.rules.parallel)

    async def _claim(self, plane: DataPlane, repair: Repair) -> bool:
        """One repairer at a time, and not again before the cooldown is over."""
        value = f"{repair.source} to {repair.target}".encode()
        key = CLAIMS + repair.artifact.digest
        try:
            await plane.kv.create(key, value, ttl_s=self.rules.cooldown_s)
        except AlreadyExists:
            return False
        return True

    async def _repair(self, plane: DataPlane, group: list[Repair]) -> None:
        """Make the copies of one transfer; each is told by its own receipt."""
        begun_s, way = self._runtime.monotonic_s(), group[0]
        errors = await try_to_copy(
            plane,
            [repair.artifact for repair in group],
            source=way.source,
            target=way.target,
            priority=way.priority,
            timeout_s=self.rules.repair_timeout_s,
        )
        self.failures |= errors
        self._failed_s.pop(way.target, None)
        if len(errors) == len(group):
            self._failed_s[way.target] = self._runtime.monotonic_s()
        seconds = self._runtime.monotonic_s() - begun_s
        for repair in group:
            digest = repair.artifact.digest
            error = errors.get(digest, "")
            self._outcomes.append(not error)
            await self._tell(plane, repair, error, seconds=seconds)
            if not error and repair.priority != "low":
                await plane.kv.delete(CLAIMS + digest)  # it may need another copy at once

    async def _tell(self, plane: DataPlane, repair: Repair, error: str, *, seconds: float) -> None:
        digest = repair.artifact.digest
        payload = {
            "game_id": digest,
            "source_nodes": [repair.source],
            "target_nodes": [repair.target],
            "duration_seconds": seconds,
        }
        way = {"source": repair.source, "target": repair.target}
        if error:
            log.warning("replication.repair_failed", digest=digest[:12], error=error, **way)
            report = {**payload, "error": error, "current_replica_count": repair.copies}
            await self.router.publish("REPAIR_FAILED", report, self.name)
            await plane.decisions.record(
                PART, "repair_failed", error, digest=digest, wanted=repair.reason, **way
            )
            return
        report = {**payload, "new_replica_count": repair.copies + 1}
        await self.router.publish("REPAIR_COMPLETED", report, self.name)
        await plane.decisions.record(PART, "repaired", repair.reason, digest=digest, **way)

    def get_status(self) -> dict[str, Any]:
        found = self.last_plan
        return {
            **super().get_status(),
            "repairs": len(found.repairs) if found else 0,
            "emergency": found.emergency if found else False,
            "stuck": dict(list(found.stuck.items())[:20]) if found else {},
        }


def _grouped(repairs: Iterable[Repair]) -> list[list[Repair]]:
    """What goes the same way goes together, in portions small enough to lose little to a broken line."""
    by_way: dict[tuple[str, str, str], list[Repair]] = {}
    for repair in repairs:
        by_way.setdefault((repair.source, repair.target, repair.priority), []).append(repair)
    portions = (in_batches(way, files_max=BATCH_FILES, bytes_max=BATCH_BYTES) for way in by_way.values())
    return [portion for way in portions for portion in way]


def _daemon_of(settings: Mapping[str, str]) -> type[ReplicationMonitorDaemon | ReplicationRepairDaemon]:
    """The daemon of the action that its row of the daemon table names: count or repair."""
    repairs = settings.get("action", "count") == "repair"
    return ReplicationRepairDaemon if repairs else ReplicationMonitorDaemon


create_replication_daemon = daemon_factory(_daemon_of)
