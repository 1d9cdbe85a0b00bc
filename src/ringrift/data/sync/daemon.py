"""The daemon that keeps data moving by itself; every sync daemon type is a setting of it.

A cycle looks, plans and acts: it catalogs what jobs sealed, takes a view, asks the strategy, carries the
plan out and tells what receivers confirmed. Events only make it look sooner. One process of a node syncs at
a time. What cannot go is named with its reason, and told to people when it lasts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Unpack

import structlog

from ringrift.data.artifacts import Artifact
from ringrift.data.config import (
    BLOCKED_ALERT_S,
    FAILURES_CRITICAL,
    INTERVAL_S_MIN,
    AutoSyncConfig,
    SyncStrategy,
    read_sync_config,
)
from ringrift.data.manifest.catalog import Cataloger, take_over_arrivals
from ringrift.data.plane import DaemonParts, DataPlane, WakingDaemon
from ringrift.data.sync.cluster_view import (
    ClusterView,
    NodeReportCollector,
    read_cluster_view,
    tell_disk,
)
from ringrift.data.sync.executor import (
    LOCK_S,
    SyncAnnouncer,
    SyncExecutor,
    SyncPace,
    SyncProgress,
    SyncResult,
    record_result,
    tell_cycle,
)
from ringrift.data.sync.freshness import FreshnessCheck
from ringrift.data.sync.mutex import SyncLock
from ringrift.data.sync.plan import CyclePlan, plan_cycle
from ringrift.data.transfer.deliveries import DeliveryRecord, RetryQueue, RetryRound
from ringrift.data.transfer.service import TransferService
from ringrift.errors import ConfigError, LeaseLost, Unavailable
from ringrift.events.catalog.audit import ComponentWiring
from ringrift.events.event import RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.runtime import Runtime
from ringrift.status import HealthCheckResult
from ringrift.work.backpressure import read_announced

# What transfers need now and then: deliveries that are due again, and a fresh hint of what is held here.


log = structlog.get_logger()

HINT_S = 300.0


class TransferUpkeep:
    """Called by whoever works in cycles; does only what is due."""

    def __init__(self, transfers: TransferService, runtime: Runtime, *, this: str) -> None:
        self._transfers, self._runtime, self._this = transfers, runtime, this
        self.retries = RetryQueue(transfers.ledger, runtime, source_node=this)
        self.retries.register_handler(self._send_again)
        self._hinted_s: float | None = None

    async def run(self) -> RetryRound:
        """Publish the hint if it is old, and try again what is due."""
        now_s = self._runtime.monotonic_s()
        if self._hinted_s is None or now_s - self._hinted_s >= HINT_S:
            await self._transfers.holdings.publish(self._this)
            self._hinted_s = now_s
        outcome = await self.retries.run_due()
        if outcome.delivered or outcome.given_up:
            log.info("transfer.retried", delivered=outcome.delivered, given_up=outcome.given_up)
        return outcome

    def came_back(self, node: str) -> None:
        """A node said that it is well: what it failed at before says nothing about it now."""
        self._transfers.health.forgive(node)

    async def _send_again(self, delivery: DeliveryRecord) -> bool:
        moved = await self._transfers.send(delivery.target_node, [delivery.data_path], priority="low")
        return not moved.failed


def upkeep_of(plane: DataPlane) -> TransferUpkeep | None:
    """Return the upkeep of a plane's transfers; None if it has none that need it."""
    try:
        transfers = plane.transfers
    except Unavailable:
        return None
    if not isinstance(transfers, TransferService):
        return None
    return TransferUpkeep(transfers, plane.runtime, this=plane.this.name)


FRESHNESS_INTERVAL_S = 300.0
_ALERT_EVERY_S = 3600.0
_REASONS_MAX = 20


@dataclass(slots=True)
class SyncCounts:
    """What the daemon has done since its start."""

    cycles: int = 0
    syncs: int = 0  # cycles that moved something
    failures: int = 0
    failures_in_a_row: int = 0
    files: int = 0
    games: int = 0
    bytes: int = 0
    last_success_s: float | None = None
    blocked_since_s: float | None = None
    alerted_s: float | None = None
    held_back: tuple[str, ...] = ()
    strategy: str = ""
    phase: str = "idle"
    last_errors: tuple[str, ...] = ()


@dataclass(slots=True)
class _Requests:
    """What events asked for since the last cycle."""

    at_once: bool = False
    reasons: list[str] = field(default_factory=list)


class DataSyncDaemon(WakingDaemon):
    """Syncs by one strategy; "auto" chooses by what this node is."""

    capability: ClassVar[str] = "game_sync"
    emits: ClassVar[tuple[str, ...]] = (
        "DATA_SYNC_STARTED",
        "DATA_SYNC_COMPLETED",
        "DATA_SYNC_FAILED",
        "GAME_SYNCED",
        "NEW_GAMES_AVAILABLE",
        "SYNC_FAILURE_CRITICAL",
    )

    def __init__(
        self,
        strategy: str | SyncStrategy | None = None,
        *,
        config: AutoSyncConfig | None = None,
        reports: NodeReportCollector | None = None,
        **parts: Unpack[DaemonParts],
    ) -> None:
        self._strategy = None if strategy is None else _strategy_of(strategy)
        name = "auto_sync" if self._strategy in (None, SyncStrategy.AUTO) else f"auto_sync.{self._strategy}"
        super().__init__(name, interval_s=INTERVAL_S_MIN, **parts)
        self._given_config = config
        self._reports = reports or NodeReportCollector()
        self._announcer = SyncAnnouncer("auto_sync", router=self._hears_through)
        self._requests, self._paused, self._busy = _Requests(), "", False
        self.counts, self._progress = SyncCounts(), SyncProgress(self._runtime)
        self._upkeep: TransferUpkeep | None = None

    # --- life -----------------------------------------------------------------------------------------

    async def _on_start(self) -> None:
        plane = await self._opened()
        self._cycle_interval = self._interval_s(self._config_of(plane))

    def _config_of(self, plane: DataPlane) -> AutoSyncConfig:
        if self._given_config is None:
            self._given_config = read_sync_config(plane.settings.sync)
            self._given_config.check_nodes(plane.nodes)
        return self._given_config

    def _interval_s(self, config: AutoSyncConfig) -> float:
        return {
            SyncStrategy.EPHEMERAL: config.ephemeral_interval_s,
            SyncStrategy.GOSSIP: config.gossip_interval_s,
            SyncStrategy.FRESHNESS: FRESHNESS_INTERVAL_S,
        }.get(self._strategy or config.strategy, config.interval_s)

    def _get_event_subscriptions(self) -> Mapping[Any, Callback]:
        stale = ("DATA_STALE", "SYNC_TRIGGERED")
        # The freshness daemon says these itself: woken by its own words it would never rest.
        asked = () if self._strategy is SyncStrategy.FRESHNESS else stale
        return {
            **dict.fromkeys(asked, self._on_request),
            "SELFPLAY_COMPLETE": self._on_new_data,
            "SYNC_REQUEST": self._on_request,
            "SYNC_RETRY_REQUESTED": self._on_request,
            "NODE_RECOVERED": self._on_recovered,
            "HOST_ONLINE": self._on_recovered,
            "HOST_OFFLINE": self._on_new_data,  # it tries, and finds out
            "TRAINING_STARTED": self._on_training,
            "MODEL_DISTRIBUTION_COMPLETE": self._on_new_data,
            "BACKPRESSURE_ACTIVATED": self._on_new_data,  # it looks at what was measured
            "BACKPRESSURE_RELEASED": self._on_new_data,
        }

    # --- what it hears --------------------------------------------------------------------------------

    def _on_new_data(self, event: RouterEvent) -> None:
        if len(self._requests.reasons) < _REASONS_MAX:
            self._requests.reasons.append(event.event_type)
        self.wake()

    def _on_request(self, event: RouterEvent) -> None:
        self._requests.at_once = True
        self._on_new_data(event)

    async def _on_recovered(self, event: RouterEvent) -> None:
        node = str(event.payload["node_id"])
        self._reports.came_back(node)
        await (await self._opened()).stalls.record_recovery_async(node)
        if self._upkeep is not None:
            self._upkeep.came_back(node)
        self._on_request(event)

    def _on_training(self, event: RouterEvent) -> None:
        self._reports.training_began(str(event.payload["node_id"]), self._runtime.now_s())
        self._on_request(event)

    # --- one cycle ------------------------------------------------------------------------------------

    async def _run_cycle(self) -> None:
        self._busy = True
        try:
            await self._sync_once(await self._opened())
        finally:
            self._busy, self.counts.phase = False, "idle"

    async def _sync_once(self, plane: DataPlane) -> None:
        config, counts = self._config_of(plane), self.counts
        requests, self._requests = self._requests, _Requests()
        counts.cycles += 1
        counts.phase = "catalogue"
        await tell_disk(plane)
        await Cataloger(plane).catalog()
        await take_over_arrivals(plane)
        # What was measured, not what was said of it: anybody may say it, and its end may be lost.
        self._paused = (await read_announced(plane.kv)).why_held(self._runtime.now_s())
        if not config.enabled or self._paused:
            counts.held_back = (self._paused or "sync is switched off",)
            self._requests.at_once |= requests.at_once
            return
        cycle, operation = f"sync_cycle:{plane.this.name}", f"cycle of {self._name}"
        lock = SyncLock(plane.mutex, cycle, operation, timeout=LOCK_S, wait_s=0.0, takes_slot=False)
        try:
            async with lock as had:
                if had:
                    await self._sync_alone(plane, config, requests)
                    return
                counts.held_back = (f"{cycle}: {await plane.mutex.why_not_async(cycle)}",)
        except LeaseLost as lost:  # another may have begun meanwhile; what was brought was brought
            counts.held_back = (f"{cycle}: {lost}",)
        self._requests.at_once |= requests.at_once

    async def _sync_alone(self, plane: DataPlane, config: AutoSyncConfig, requests: _Requests) -> None:
        counts = self.counts
        counts.phase = "retry"
        self._upkeep = self._upkeep or upkeep_of(plane)
        if self._upkeep is not None:
            await self._upkeep.run()
        counts.phase = "plan"
        cluster = await read_cluster_view(plane, config, reports=self._reports.reports(plane.runtime))
        strategy = self._strategy or config.strategy
        if strategy is SyncStrategy.FRESHNESS:
            await FreshnessCheck(plane, router=self.router).watch()
        # Off the loop: with a hundred thousand files it takes a good part of a second.
        cycle = await asyncio.to_thread(plan_cycle, cluster, strategy, at_once=requests.at_once)
        cycle = _without(cycle, await self._locked_by_others(plane))
        counts.strategy, counts.held_back = str(cycle.strategy), cycle.held_back
        if cycle.plan.is_empty:
            await self._judge_blocked(cluster, cycle)
            return
        counts.phase = "transfer"
        reason = next(iter(requests.reasons), "")
        await self._announcer.started(plane, cycle.plan, by=str(cycle.strategy), reason=reason)
        pace = SyncPace(priority=cycle.priority, bytes_per_s=_bytes_per_s(config), data_type="all")
        result = await SyncExecutor(plane, self._progress).carry_out(cycle.plan, pace)
        await record_result(plane, "sync", result, strategy=str(cycle.strategy))
        await self._count(plane, cycle, result)

    async def _locked_by_others(self, plane: DataPlane) -> dict[str, str]:
        """Hosts that somebody else syncs, or keeps from being synced, and who that is."""
        hosts = [info.host for info in await plane.mutex.locks_async()]
        return {host: await plane.mutex.why_not_async(host) for host in hosts}

    async def _count(self, plane: DataPlane, cycle: CyclePlan, result: SyncResult) -> None:
        counts, now_s = self.counts, plane.runtime.now_s()
        errors, files = result.errors, len(result.moved)
        counts.files += files
        counts.games += result.games
        counts.bytes += result.bytes_sent
        counts.last_errors = tuple(errors[:5])
        counts.blocked_since_s = None
        if files:
            counts.syncs += 1
        if errors:
            counts.failures += 1
            counts.failures_in_a_row += 1
        else:
            counts.failures_in_a_row, counts.last_success_s = 0, now_s
        await tell_cycle(self._announcer, plane, cycle, result)
        if counts.failures_in_a_row and counts.failures_in_a_row % FAILURES_CRITICAL == 0:
            await self._tell_critical(now_s)

    async def _tell_critical(self, now_s: float) -> None:
        last_s = self.counts.last_success_s
        payload: dict[str, Any] = {"consecutive_failures": self.counts.failures_in_a_row}
        if last_s is not None:
            payload |= {"last_success": last_s, "time_since_success_seconds": now_s - last_s}
        await self._announcer.publish("SYNC_FAILURE_CRITICAL", payload)

    async def _judge_blocked(self, cluster: ClusterView, cycle: CyclePlan) -> None:
        """Data that waits because no node can take it must not wait in silence."""
        counts, now_s = self.counts, cluster.now_s
        others = [node.name for node in cluster.nodes.all()]
        waits: list[Artifact] = []
        if any(": " in reason for reason in cycle.held_back):
            waits = await asyncio.to_thread(cluster.view.only_at, cluster.this.name, among=others)
        if not waits:
            counts.blocked_since_s = counts.alerted_s = None
            return
        counts.blocked_since_s = now_s if counts.blocked_since_s is None else counts.blocked_since_s
        blocked_s = now_s - counts.blocked_since_s
        last_alert_s = counts.alerted_s
        if blocked_s >= BLOCKED_ALERT_S and (last_alert_s is None or now_s - last_alert_s >= _ALERT_EVERY_S):
            counts.alerted_s = now_s
            why = "; ".join(cycle.held_back[:5])
            error = f"{len(waits)} files go nowhere for {blocked_s / 60:.0f} min: {why}"
            log.error("sync.blocked", files=len(waits), blocked_s=blocked_s, why=why)
            await self._announcer.publish(
                "DATA_SYNC_FAILED", {"node_id": cluster.this.name, "error": error, "targets": []}
            )

    # --- how it is ------------------------------------------------------------------------------------

    def wiring(self) -> ComponentWiring:
        asks = FreshnessCheck.emits if self._strategy is SyncStrategy.FRESHNESS else ()
        found = super().wiring()
        return replace(found, emits=(*found.emits, *asks))

    def get_progress(self) -> dict[str, Any]:
        """Tell how far the present cycle is, or how far the last one came."""
        counts = self.counts
        return {
            **self._progress.to_dict(),
            "is_active": self._busy,
            "current_phase": counts.phase,
            "files_synced": counts.files,
            "bytes_transferred": counts.bytes,
            "error": counts.last_errors[0] if counts.last_errors else "",
        }

    def get_status(self) -> dict[str, Any]:
        return {**super().get_status(), "sync": asdict(self.counts), "paused": self._paused}

    def health_check(self) -> HealthCheckResult:
        found, counts = super().health_check(), self.counts
        if not found.healthy:
            return found
        if counts.blocked_since_s is not None:
            why = "; ".join(counts.held_back[:3])
            return HealthCheckResult.degraded(f"data waits: {why}", **found.details)
        if counts.failures > 0.5 * max(1, counts.syncs) and counts.failures_in_a_row:
            message = f"the last {counts.failures_in_a_row} syncs failed: {'; '.join(counts.last_errors[:1])}"
            return HealthCheckResult.degraded(message, **found.details)
        return found


def _without(cycle: CyclePlan, why: Mapping[str, str]) -> CyclePlan:
    """The cycle without the nodes of *why*, which says for each what keeps it out."""
    plan = cycle.plan
    concerned = set(plan.nodes) & why.keys()
    if not concerned:
        return cycle
    left = replace(
        plan,
        fetches=tuple(each for each in plan.fetches if each.node not in concerned),
        sends=tuple(each for each in plan.sends if each.node not in concerned),
    )
    reasons = tuple(f"{node}: {why[node]}" for node in sorted(concerned))
    return replace(cycle, plan=left, held_back=(*cycle.held_back, *reasons))


def _strategy_of(strategy: str | SyncStrategy) -> SyncStrategy:
    try:
        return SyncStrategy(strategy)
    except ValueError:
        allowed = ", ".join(SyncStrategy)
        raise ConfigError(f"strategy is {strategy!r}; it must be one of {allowed}") from None


def _bytes_per_s(config: AutoSyncConfig) -> float | None:
    return None if config.bandwidth_limit_mbps is None else config.bandwidth_limit_mbps * 125_000.0
