"""What sync does at events: they tell about nodes, and ask for syncs.

A request is carried out by the facade, one at a time; whatever an event failed to bring about, the next
cycle of the daemon does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ringrift.data.plane import DataPlane, open_data_plane
from ringrift.data.sync.advice import SyncScheduler, get_sync_scheduler
from ringrift.data.sync.announcing import SyncAnnouncer
from ringrift.data.sync.facade import ORPHAN_RECOVERY, SyncFacade, get_sync_facade
from ringrift.data.sync.router import SyncRouter, get_sync_router
from ringrift.data.transfer.service import TransferService
from ringrift.engine.run_reports import reported, reported_health
from ringrift.events.routed_event import RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.events.wired import WiredCoordinator
from ringrift.process import process_scope
from ringrift.status import HealthCheckResult
from ringrift.work.backpressure_levels import BackpressureLevel


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
        self._announcer = SyncAnnouncer("sync_router", router=router)
        self.failures_in_a_row = 0
        self.last_failure = ""

    def wire(self) -> None:
        super().wire()
        self.facade.serves = True

    def _hears(self) -> Mapping[str, Callback]:
        return {
            "HOST_OFFLINE": self._on_offline,
            "HOST_ONLINE": self._on_online,
            "NODE_RECOVERED": self._on_online,
            "TRAINING_STARTED": self._on_training,
            "TRAINING_COMPLETED": self._on_training_ended,
            "TRAINING_FAILED": self._on_training_ended,
            "LEADER_ELECTED": self._on_leader,
            "BACKPRESSURE_ACTIVATED": self._on_pressure,
            "BACKPRESSURE_RELEASED": self._on_release,
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

    async def _on_offline(self, event: RouterEvent) -> None:
        self.sync_router.news.went_away(str(event.payload["node_id"]), await self._now_s())

    def _on_online(self, event: RouterEvent) -> None:
        self.sync_router.news.came_back(str(event.payload["node_id"]))

    async def _on_training(self, event: RouterEvent) -> None:
        self.sync_router.news.training_began(str(event.payload["node_id"]), await self._now_s())

    def _on_training_ended(self, event: RouterEvent) -> None:
        if node := event.payload.get("node_id"):
            self.sync_router.news.training_ended(str(node))

    def _on_leader(self, event: RouterEvent) -> None:
        self.sync_router.news.leader = str(event.payload["leader_id"])

    def _on_pressure(self, event: RouterEvent) -> None:
        self.sync_router.pressed.add(str(event.payload.get("node_id") or ""))
        self.scheduler.pressure = _level_of(event.payload.get("level"))

    def _on_release(self, event: RouterEvent) -> None:
        self.sync_router.pressed.discard(str(event.payload.get("node_id") or ""))
        if not self.sync_router.pressed:
            self.scheduler.pressure = BackpressureLevel.NONE

    def _on_capacity(self, event: RouterEvent) -> None:
        """Machines came or went: ways that failed before are worth another try."""
        if event.payload.get("change_type") != "removed":
            self.sync_router.news.try_all_again()

    # --- about transfers ------------------------------------------------------------------------------

    async def _on_stalled(self, event: RouterEvent) -> None:
        """Try the next way; when all have failed, leave the node alone for a while."""
        said, news = event.payload, self.sync_router.news
        node, data_type = str(said["target_node"]), str(said["data_type"])
        following = news.way_failed(
            node, data_type, str(said.get("transport") or "http"), await self._now_s()
        )
        if following:
            payload = {
                "target_node": node,
                "data_type": data_type,
                "failed_transports": news.failed_ways(node, data_type),
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
        self.sync_router.news.try_all_again()

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
        if float(event.payload.get("avg_quality") or 0.0) >= 0.7:
            await self._ask("games", None, reason="good games", config=config)

    def _on_stale(self, _event: RouterEvent) -> None:
        """The daemon looks at once when it hears this; failed ways are tried again then."""
        self.sync_router.news.try_all_again()

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
        board, players = _config_of(said.get("config_key"))
        await self.facade.sync(
            str(said["data_type"]),
            targets=list(said.get("targets") or []) or None,
            board_type=board,
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


def _level_of(value: Any) -> BackpressureLevel:
    """A level that is not known slows down and stops nothing."""
    try:
        return BackpressureLevel(value)
    except ValueError:
        return BackpressureLevel.SOFT


def _config_of(key: Any) -> tuple[str | None, int | None]:
    board, _, players = str(key or "").rpartition("_")
    return (board, int(players[:-1])) if board and players[:-1].isdigit() else (None, None)


def get_sync_coordinator() -> SyncCoordinator:
    """Return the coordinator of this process; it hears events once it is wired."""
    return process_scope().get(SyncCoordinator, SyncCoordinator)


def wire_sync_events(router: UnifiedEventRouter | None = None) -> SyncCoordinator:
    """Return this process's coordinator, subscribed; a *router* of its own gives a coordinator of its own."""
    if router is None:
        coordinator = get_sync_coordinator()
    else:
        coordinator = SyncCoordinator(router=router, facade=SyncFacade(router=router))
    coordinator.wire()
    return coordinator
