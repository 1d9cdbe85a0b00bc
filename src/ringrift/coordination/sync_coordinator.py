"""Sync for programs: advice on what to bring next, and what sync does at events. Gives all its names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Unpack

from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.handler_base import WiredCoordinator
from ringrift.coordination.sync_base import (
    get_node_reports,
    look_at_cluster,
    of_process,
    open_data_plane,
    read_pressure,
)
from ringrift.coordination.sync_facade import (
    ORPHAN_RECOVERY,
    SyncFacade,
    get_sync_facade,
    reset_sync_facade,
    sync,
)
from ringrift.coordination.sync_router import SyncRouter, get_sync_router
from ringrift.data.config import (
    AGE_WEIGHT,
    CRITICAL_S,
    EPHEMERAL_FACTOR,
    FAILURE_FACTOR,
    GAMES_PER_S,
    GAMES_WEIGHT,
    LOCAL_FACTOR,
    MANY_GAMES,
    PERSISTENT_FACTOR,
    STALE_S,
    AutoSyncConfig,
    DataNode,
    SyncAction,
    SyncPriority,
    SyncState,
    SyncStrategy,
    read_sync_config,
)
from ringrift.data.manifest.catalog import receivers_of
from ringrift.data.manifest.store import games_in
from ringrift.data.plane import DaemonParts, DataPlane
from ringrift.data.sync.cluster_view import (
    ClusterView,
    HostHistory,
    NodeReportCollector,
)
from ringrift.data.sync.daemon import DataSyncDaemon
from ringrift.data.sync.executor import SyncAnnouncer
from ringrift.data.sync.requests import SyncBackend, SyncRequest, SyncResponse
from ringrift.data.transfer.service import TransferService
from ringrift.engine.blocking import blocking
from ringrift.engine.run_reports import reported, reported_health
from ringrift.errors import ConfigError
from ringrift.events.event import RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.process import getter_of, reset_of
from ringrift.runtime import Runtime, system_runtime
from ringrift.status import HealthCheckResult
from ringrift.work.backpressure import BackpressureLevel
from ringrift.work.shares import split_config

__all__ = [
    "AutoSyncConfig",
    "AutoSyncDaemon",
    "ClusterDataStatus",
    "HostState",
    "SyncAction",
    "SyncBackend",
    "SyncCoordinator",
    "SyncFacade",
    "SyncPriority",
    "SyncRecommendation",
    "SyncRequest",
    "SyncResponse",
    "SyncRouter",
    "SyncScheduler",
    "SyncState",
    "SyncStrategy",
    "create_sync_daemon",
    "execute_priority_sync",
    "get_cluster_data_status",
    "get_sync_coordinator",
    "get_sync_facade",
    "get_sync_recommendations",
    "get_sync_router",
    "get_sync_scheduler",
    "reset_sync_coordinator",
    "reset_sync_facade",
    "reset_sync_scheduler",
    "sync",
    "wire_sync_events",
]


# Which host's data should be brought to safety next: scores, and the state of the whole cluster, as pure
# functions. A host that may vanish counts three times as much. What is unsynced is read off the manifest:
# games of a host that no other node holds a verified copy of.


_NEVER_S = 7 * 24 * 3600.0  # the age of a host that was never synced


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """One host as the scheduler sees it."""

    host: str
    host_type: str  # ephemeral, persistent, local
    total_games: int
    unsynced_games: int
    unsynced_files: int
    oldest_unsynced_s: float | None
    last_sync_s: float | None
    age_s: float  # since the last good sync, or since its oldest unsynced file
    failures_24h: int
    score: float
    is_stale: bool
    is_critical: bool
    games_per_s: float | None = None
    last_error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRecommendation:
    """What to do about one host, and why."""

    host: str
    action: SyncAction
    priority: SyncPriority
    reason: str
    score: float
    estimated_games: int
    estimated_duration_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDataStatus:
    """How well the data of all hosts is kept."""

    total_hosts: int
    healthy_hosts: int
    stale_hosts: list[str]
    critical_hosts: list[str]
    total_games: int
    unsynced_games: int
    last_full_sync_time: float | None  # when the host that waits longest was last synced
    health_score: float
    recommendations: list[SyncRecommendation] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "recommendations"}


def host_states(cluster: ClusterView) -> list[HostState]:
    """Every active host, the most urgent first."""
    hosts = [_host(cluster, node) for node in cluster.nodes.all() if node.active]
    return sorted(hosts, key=lambda each: (-each.score, each.host))


def _host(cluster: ClusterView, node: DataNode) -> HostState:
    held = cluster.view.held_by(node.name)
    # Without a node that would take them they are as safe as they can be.
    takers = frozenset(other.name for other in receivers_of("games", node.name, cluster.nodes.all()))
    alone = (
        cluster.view.only_at(node.name, among=(each.name for each in cluster.nodes.all())) if takers else []
    )
    games, known = games_in(alone), cluster.history.get(node.name) or HostHistory()
    oldest_s = min((each.created_s for each in alone), default=None)
    age_s = _age_s(cluster.now_s, known.last_success_s, oldest_s)
    host_type = _type_of(cluster, node)
    waits = bool(alone)
    return HostState(
        host=node.name,
        host_type=host_type,
        total_games=games_in(held),
        unsynced_games=games,
        unsynced_files=len(alone),
        oldest_unsynced_s=oldest_s,
        last_sync_s=known.last_success_s,
        age_s=age_s,
        failures_24h=known.failures_24h,
        score=_score(games, age_s if waits else 0.0, host_type, known.failures_24h),
        is_stale=waits and age_s > STALE_S,
        # A machine that may vanish has no time to spare: one game that is only there is at risk.
        is_critical=waits and (age_s > CRITICAL_S or (node.ephemeral and games > 0)),
        games_per_s=known.games_per_s,
        last_error=known.last_error,
    )


def _age_s(now_s: float, last_s: float | None, oldest_s: float | None) -> float:
    """Since when data waits: from the last good sync on, if it was there then, else from when it was made."""
    if oldest_s is None:
        return 0.0
    since_s = oldest_s if last_s is None else max(oldest_s, last_s)
    return min(max(0.0, now_s - since_s), _NEVER_S)


def _type_of(cluster: ClusterView, node: DataNode) -> str:
    if node.ephemeral:
        return "ephemeral"
    return "local" if node.name == cluster.this.name or node.provider == "local" else "persistent"


_FACTORS = {"ephemeral": EPHEMERAL_FACTOR, "persistent": PERSISTENT_FACTOR, "local": LOCAL_FACTOR}


def _score(games: int, age_s: float, host_type: str, failures: int) -> float:
    urgency = games * GAMES_WEIGHT + age_s * AGE_WEIGHT
    # The last factor is below 1: a host that keeps failing must not hold up those that can be served.
    return urgency * _FACTORS[host_type] * FAILURE_FACTOR**failures


def recommend(
    hosts: Sequence[HostState],
    *,
    pressure: BackpressureLevel = BackpressureLevel.NONE,
    max_recommendations: int = 10,
) -> list[SyncRecommendation]:
    """Advise, the most urgent first. Under pressure what can wait waits; when all stops, this does too."""
    advice = [found for host in hosts if (found := _advise(host)) is not None]
    advice.sort(key=lambda each: (-each.priority, -each.score, each.host))
    if pressure is BackpressureLevel.STOP:
        return []
    if pressure.throttles:
        # What is urgent goes under any pressure but a stop; of the rest some is shown as waiting.
        urgent = [each for each in advice if each.priority >= SyncPriority.HIGH]
        others = advice[len(urgent) :]
        room = max(1, int(len(advice) * pressure.throttle_factor)) - len(urgent)
        advice = [*urgent, *(_skipped(each) for each in others[: max(0, room)])]
    return advice[:max_recommendations]


def _advise(host: HostState) -> SyncRecommendation | None:
    if not host.unsynced_files:
        return None
    why = f"{host.unsynced_games} games in {host.unsynced_files} files are on {host.host} alone"
    if host.is_critical:
        action, priority = SyncAction.SYNC_NOW, SyncPriority.CRITICAL
        why += ", which may vanish" if host.host_type == "ephemeral" else f" for {host.age_s / 3600:.1f} h"
    elif host.is_stale:
        action, priority = SyncAction.SYNC_NOW, SyncPriority.HIGH
        why += f" for {host.age_s / 60:.0f} min"
    elif host.unsynced_games > MANY_GAMES:
        action, priority = SyncAction.SCHEDULE, SyncPriority.NORMAL
    else:
        action, priority = SyncAction.SCHEDULE, SyncPriority.LOW
    return SyncRecommendation(
        host=host.host,
        action=action,
        priority=priority,
        reason=why,
        score=host.score,
        estimated_games=host.unsynced_games,
        estimated_duration_seconds=host.unsynced_games / (host.games_per_s or GAMES_PER_S),
    )


def _skipped(advice: SyncRecommendation) -> SyncRecommendation:
    return replace(
        advice, action=SyncAction.SKIP, reason=f"{advice.reason}; it waits while the queues are full"
    )


def cluster_status(
    hosts: Sequence[HostState], advice: Sequence[SyncRecommendation], *, now_s: float
) -> ClusterDataStatus:
    """Sum up: 70 for healthy hosts, minus for stale and critical ones, plus for a recent full round."""
    stale = [each.host for each in hosts if each.is_stale]
    critical = [each.host for each in hosts if each.is_critical]
    healthy = [each for each in hosts if not each.is_stale and not each.is_critical]
    rounds = [each.last_sync_s for each in hosts if each.last_sync_s is not None]
    # A round is full only if no host was left out.
    full_s = min(rounds) if rounds and len(rounds) == len(hosts) else None
    count = max(1, len(hosts))
    score = 70 * len(healthy) / count - 20 * len(stale) / count - 30 * len(critical) / count
    score += _bonus(hosts, full_s, now_s)
    return ClusterDataStatus(
        total_hosts=len(hosts),
        healthy_hosts=len(healthy),
        stale_hosts=stale,
        critical_hosts=critical,
        total_games=sum(each.total_games for each in hosts),
        unsynced_games=sum(each.unsynced_games for each in hosts),
        last_full_sync_time=full_s,
        health_score=min(100.0, max(0.0, score)),
        recommendations=list(advice),
    )


def _bonus(hosts: Sequence[HostState], full_s: float | None, now_s: float) -> float:
    if not any(each.unsynced_files for each in hosts):
        return 30.0  # nothing waits, whenever the last round was
    age_s = float("inf") if full_s is None else now_s - full_s
    return next(
        (points for limit_s, points in ((1800, 30.0), (3600, 20.0), (7200, 10.0)) if age_s < limit_s), 0.0
    )


# The scheduler: advice on request, and carried out when told to.


_ADVICE_MAX = 10


class SyncScheduler:
    """Advises which host's data should be brought to safety next, and does it when told to."""

    def __init__(
        self,
        plane: DataPlane | None = None,
        *,
        config: AutoSyncConfig | None = None,
        facade: SyncFacade | None = None,
        reports: NodeReportCollector | None = None,
    ) -> None:
        self._plane, self._config, self._facade = plane, config, facade
        self._reports = reports or get_node_reports()

    async def hosts(self) -> list[HostState]:
        plane = self._plane
        if self._config is None:
            self._config = read_sync_config((get_settings() if plane is None else plane.settings).sync)
        reports = self._reports.reports(self._runtime)
        return host_states(await look_at_cluster(plane, self._config, reports=reports))

    @property
    def _runtime(self) -> Runtime:
        return system_runtime() if self._plane is None else self._plane.runtime

    async def recommendations(self, max_recommendations: int = _ADVICE_MAX) -> list[SyncRecommendation]:
        return recommend(
            await self.hosts(), pressure=await self._pressure(), max_recommendations=max_recommendations
        )

    async def _pressure(self) -> BackpressureLevel:
        return (await read_pressure(self._plane)).in_force(self._runtime.now_s())

    async def status(self) -> ClusterDataStatus:
        hosts, pressure = await self.hosts(), await self._pressure()
        advice = recommend(hosts, pressure=pressure, max_recommendations=_ADVICE_MAX)
        return cluster_status(hosts, advice, now_s=self._runtime.now_s())

    async def execute(self, advice: SyncRecommendation) -> SyncResponse:
        """Bring the host's data to where it is safe."""
        plane = self._plane or await open_data_plane()
        facade = self._facade or get_sync_facade()
        # Data of this node is sent from here; that of others has to be fetched.
        source = None if advice.host == plane.this.name else advice.host
        return await facade.sync(
            SyncRequest(data_type="all", priority=advice.priority.request_priority, source_node=source)
        )

    # --- for code without an event loop ---------------------------------------------------------------

    get_recommendations = blocking(recommendations)
    get_cluster_status = blocking(status)
    get_host_states = blocking(hosts)

    def health_check(self) -> HealthCheckResult:
        status = self.get_cluster_status()
        if status.critical_hosts:
            why = f"data of {', '.join(status.critical_hosts)} is at risk"
            return HealthCheckResult.degraded(why, **status.to_dict())
        return HealthCheckResult.ok("", **status.to_dict())


get_sync_scheduler = getter_of("get_sync_scheduler", SyncScheduler)
reset_sync_scheduler = reset_of("reset_sync_scheduler", SyncScheduler)


def get_sync_recommendations(max_recommendations: int = _ADVICE_MAX) -> list[SyncRecommendation]:
    """Return which hosts should be synced, the most urgent first."""
    return get_sync_scheduler().get_recommendations(max_recommendations)


def get_cluster_data_status() -> ClusterDataStatus:
    """Return how well the data of all hosts is kept."""
    return get_sync_scheduler().get_cluster_status()


async def execute_priority_sync(
    recommendation: SyncRecommendation | None = None, *, max_syncs: int = 1
) -> list[SyncResponse]:
    """Carry out one recommendation, or the *max_syncs* most urgent ones that are not to be skipped."""
    scheduler = get_sync_scheduler()
    if recommendation is not None:
        return [await scheduler.execute(recommendation)]
    if max_syncs < 1:
        raise ConfigError(f"max_syncs is {max_syncs}; it must be at least 1")
    advised = await scheduler.recommendations(max(max_syncs, _ADVICE_MAX))
    advice = [each for each in advised if each.action is not SyncAction.SKIP]
    return [await scheduler.execute(each) for each in advice[:max_syncs]]


# What sync does at events. A request is carried out by the facade, one at a time; whatever an event failed to
# bring about, the next cycle of the daemon does.


class SyncCoordinator(WiredCoordinator):
    """Hears what concerns sync: about nodes for the router, requests for the facade."""

    capability: ClassVar[str] = "game_sync"
    emits: ClassVar[tuple[str, ...]] = (
        *SyncFacade.emits,
        *TransferService.emits,  # what it asks for goes through them
        "SYNC_REQUEST",
        "SYNC_RETRY_REQUESTED",
    )

    def __init__(
        self,
        *,
        router: UnifiedEventRouter | None = None,
        facade: SyncFacade | None = None,
        sync_router: SyncRouter | None = None,
        scheduler: SyncScheduler | None = None,
        plane: DataPlane | None = None,
    ) -> None:
        super().__init__("sync_coordinator", router=router)
        self._facade, self._sync_router = facade, sync_router
        self._scheduler, self._plane = scheduler, plane
        self._announcer = SyncAnnouncer("sync_router", router=lambda: self.router)
        self.failures_in_a_row = 0
        self.last_failure = ""

    def wire(self) -> None:
        super().wire()
        self.facade.serves = True

    def _hears(self) -> Mapping[str, Callback]:
        return {
            "HOST_ONLINE": self._on_online,
            "NODE_RECOVERED": self._on_online,
            "TRAINING_STARTED": self._on_training,
            "TRAINING_COMPLETED": self._on_training_ended,
            "TRAINING_FAILED": self._on_training_ended,
            "LEADER_ELECTED": self._on_leader,
            "SYNC_STALLED": self._on_stalled,
            "SYNC_NODE_UNREACHABLE": self._on_unreachable,
            "SYNC_CHECKSUM_FAILED": self._on_checksum,
            "SYNC_FAILURE_CRITICAL": self._on_critical,
            "DATA_SYNC_FAILED": self._on_failure,
            "PRIORITY_SYNC_FAILED": self._on_failure,
            "DATA_SYNC_COMPLETED": self._on_success,
            "GAME_SYNCED": self._on_success,
            "MODEL_SYNC_REQUESTED": self._on_model_wanted,
            "HIGH_QUALITY_DATA_AVAILABLE": self._on_good_data,
            "QUALITY_DISTRIBUTION_CHANGED": self._on_good_data,
            "CLUSTER_CAPACITY_CHANGED": self._on_capacity,
            "DATA_STALE": self._on_stale,
            "SYNC_TRIGGERED": self._on_stale,
            "ORPHAN_GAMES_DETECTED": self._on_orphans,
            "SYNC_REQUEST": self._on_request,
            "SYNC_RETRY_REQUESTED": self._on_retry,
        }

    @property
    def facade(self) -> SyncFacade:
        return self._facade or get_sync_facade()

    @property
    def sync_router(self) -> SyncRouter:
        return self._sync_router or get_sync_router()

    @property
    def scheduler(self) -> SyncScheduler:
        return self._scheduler or get_sync_scheduler()

    async def _now_s(self) -> float:
        return (self._plane or await open_data_plane()).runtime.now_s()

    # --- about nodes ----------------------------------------------------------------------------------

    def _on_online(self, event: RouterEvent) -> None:
        self.sync_router.reports.came_back(str(event.payload["node_id"]))

    async def _on_training(self, event: RouterEvent) -> None:
        self.sync_router.reports.training_began(str(event.payload["node_id"]), await self._now_s())

    def _on_training_ended(self, event: RouterEvent) -> None:
        # An end that names no node says nothing of any.
        if node := event.payload.get("node_id"):
            self.sync_router.reports.training_ended(str(node))

    def _on_leader(self, event: RouterEvent) -> None:
        self.sync_router.reports.leader = str(event.payload["leader_id"])

    def _on_capacity(self, event: RouterEvent) -> None:
        """Machines came or went: ways that failed before are worth another try."""
        # A machine that left opens no way that was closed before.
        if event.payload.get("change_type") != "removed":
            self.sync_router.reports.try_all_again()

    # --- about transfers ------------------------------------------------------------------------------

    async def _on_stalled(self, event: RouterEvent) -> None:
        """Try the next way; when all have failed, leave the node alone for a while."""
        said, reports = event.payload, self.sync_router.reports
        node, data_type = str(said["target_node"]), str(said["data_type"])
        following = reports.way_failed(
            node, data_type, str(said.get("transport") or "http"), await self._now_s()
        )
        if following:
            payload = {
                "target_node": node,
                "data_type": data_type,
                "failed_transports": reports.failed_ways(node, data_type),
                "preferred_transport": following,
            }
            await self._announcer.publish("SYNC_RETRY_REQUESTED", payload)

    def _on_unreachable(self, event: RouterEvent) -> None:
        """The breaker of the transfers decides when the node is tried again; here it is only noted."""
        self.last_failure = f"{event.payload['node_id']}: {event.payload.get('error', '')}"

    async def _on_checksum(self, event: RouterEvent) -> None:
        node = str(event.payload["target_node"])
        await self._ask("all", [node], reason="a checksum was wrong there", priority="high")

    def _on_critical(self, event: RouterEvent) -> None:
        """Start afresh: forget which ways failed. What settings close stays closed."""
        self.failures_in_a_row = int(event.payload.get("consecutive_failures") or 0)
        self.sync_router.reports.try_all_again()

    def _on_failure(self, event: RouterEvent) -> None:
        self.failures_in_a_row += 1
        self.last_failure = str(event.payload.get("error") or event.payload.get("errors") or "")

    def _on_success(self, _event: RouterEvent) -> None:
        self.failures_in_a_row = 0

    # --- requests -------------------------------------------------------------------------------------

    async def _on_model_wanted(self, event: RouterEvent) -> None:
        target = event.payload.get("target_node")
        await self._ask("models", [str(target)] if target else None, reason="a model is wanted there")

    async def _on_good_data(self, event: RouterEvent) -> None:
        config = str(event.payload.get("config_key") or "")
        # QUALITY_DISTRIBUTION_CHANGED comes for poor games as well.
        if float(event.payload.get("avg_quality") or 0.0) >= 0.7:
            await self._ask("games", None, reason="good games", config=config)

    def _on_stale(self, _event: RouterEvent) -> None:
        """The daemon looks at once when it hears this; failed ways are tried again then."""
        self.sync_router.reports.try_all_again()

    async def _ask(
        self,
        data_type: str,
        targets: list[str] | None,
        *,
        reason: str,
        config: str = "",
        priority: str = "normal",
    ) -> None:
        payload: dict[str, Any] = {
            "requester": "sync_router",
            "data_type": data_type,
            "reason": reason,
            "priority": priority,
        }
        if targets:
            payload["targets"] = targets
        if config:
            payload["config_key"] = config
        await self._announcer.publish("SYNC_REQUEST", payload)

    async def _on_request(self, event: RouterEvent) -> None:
        said = event.payload
        # A board without a number of players asks for that board, and not for all there is.
        board, players = split_config(str(said.get("config_key") or ""))
        targets = said.get("targets") or None
        await self.facade.sync(
            str(said["data_type"]),
            targets=[targets] if isinstance(targets, str) else targets and list(targets),
            board_type=board or None,
            num_players=players,
            priority=str(said.get("priority") or "normal"),
        )

    async def _on_retry(self, event: RouterEvent) -> None:
        said = event.payload
        await self.facade.sync(str(said["data_type"]), targets=[str(said["target_node"])])

    async def _on_orphans(self, event: RouterEvent) -> None:
        node = str(event.payload["node_id"])
        await self.facade.trigger_priority_sync(ORPHAN_RECOVERY, node)

    # --- how it is ------------------------------------------------------------------------------------

    @reported
    def get_status(self) -> dict[str, Any]:
        return {
            "status": str(self.status),
            "subscribed": self.is_subscribed,
            "failures_in_a_row": self.failures_in_a_row,
            "last_failure": self.last_failure,
            "facade": self.facade.get_stats(),
        }

    @reported_health
    def health_check(self) -> HealthCheckResult:
        health = self.facade.health_check().with_details(subscribed=self.is_subscribed)
        if not self.is_subscribed:
            return HealthCheckResult(False, self.status, "not wired", health.details)
        return health


# The coordinator of this process; it hears events once it is wired.
get_sync_coordinator = getter_of("get_sync_coordinator", SyncCoordinator)
reset_sync_coordinator = SyncCoordinator.reset_instance


def wire_sync_events(router: UnifiedEventRouter | None = None) -> SyncCoordinator:
    """Return this process's coordinator, subscribed; a *router* of its own gives a coordinator of its own."""
    if router is None:
        coordinator = get_sync_coordinator()
    else:
        coordinator = SyncCoordinator(router=router, facade=SyncFacade(router=router))
    coordinator.wire()
    return coordinator


class AutoSyncDaemon(DataSyncDaemon):
    """Keeps this node's files in step with the others; by default at this process's data plane."""

    def __init__(
        self,
        strategy: str | SyncStrategy | None = None,
        *,
        config: AutoSyncConfig | None = None,
        reports: NodeReportCollector | None = None,
        **parts: Unpack[DaemonParts],
    ) -> None:
        super().__init__(strategy, config=config, reports=reports, **of_process(parts))


def create_sync_daemon(
    settings: Mapping[str, str] | None = None,
    router: UnifiedEventRouter | None = None,
    runtime: Runtime | None = None,
) -> AutoSyncDaemon:
    """The daemon with the strategy that its row of the daemon table names.

    A row that says "hybrid" leaves the choice to the node and its config file, as AUTO_SYNC does.
    """
    named = (settings or {}).get("strategy", "hybrid")
    strategy = None if named == "hybrid" else named
    return AutoSyncDaemon(strategy, router=router, runtime=runtime, reports=get_node_reports())
