"""The queue populator: how much work is ready, how much could be taken, and why there is not more.

It shows what the loop goes by; the loop itself adds the items, when somebody can take them. What it hears
(ends, failures, releases) wakes the loop, because each may have made room.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar

from ringrift.coordination.handler_base import SubscribedCoordinator
from ringrift.coordination.progress_watchdog import velocity_per_hour
from ringrift.coordination.run_coordinator import StageDaemon, get_loop_waker
from ringrift.engine.arguments import check_part
from ringrift.engine.opening import get_engine
from ringrift.engine.ports import Engine, WorkState
from ringrift.engine.run_reports import reported
from ringrift.events.event import RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.health.run_status import RunStatus, read_run_status
from ringrift.runtime import Runtime
from ringrift.work.coordinator import ConfigSignals
from ringrift.work.shares import PREPARING, TARGET_RATING, Supply, SupplyLimits, slots_for, wanted_items
from ringrift.work.worker.records import live_workers

__all__ = [
    "QueuePopulatorDaemon",
    "Supply",
    "SupplyLimits",
    "UnifiedQueuePopulator",
    "create_queue_populator_daemon",
    "get_queue_populator",
    "reset_queue_populator",
    "slots_for",
    "wanted_items",
    "wire_supply_events",
]

NAME = "queue_populator"
INTERVAL_S = 5.0
KIND = "selfplay"


class UnifiedQueuePopulator(SubscribedCoordinator):
    """What the queue holds against what the workers can take."""

    capability: ClassVar[str] = "work_supply"

    def __init__(
        self,
        get_shared: Callable[[], Awaitable[Engine]] | None = None,
        *,
        limits: SupplyLimits | None = None,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        super().__init__(NAME, router=router, runtime=runtime)
        self._get_engine = get_shared or get_engine
        self.limits = limits or SupplyLimits()
        self.signals = ConfigSignals()
        self.supply: Supply | None = None
        self.counts: dict[str, dict[str, int]] = {}
        self._run: RunStatus | None = None

    def reactions(self) -> Mapping[str, Callback]:
        return {
            "ELO_UPDATED": self.signals.note,
            "TRAINING_COMPLETED": self._wake,
            "NEW_GAMES_AVAILABLE": self._wake,
            "SELFPLAY_COMPLETE": self._wake,
            "SELFPLAY_TARGET_UPDATED": self._wake,
            "TRAINING_BLOCKED_BY_QUALITY": self._wake,
            "WORK_COMPLETED": self._wake,
            "WORK_FAILED": self._wake,
            "WORK_TIMEOUT": self._wake,
            "TASK_ABANDONED": self._wake,
            "BACKPRESSURE_RELEASED": self._wake,
        }

    def _wake(self, event: RouterEvent) -> None:
        self.signals.note(event)
        get_loop_waker().wake_for(event)

    async def look(self) -> Supply:
        """Count what there is, and say how many items there is room for."""
        engine = await self._get_engine()
        counts = await engine.queue.counts()
        self.counts = {kind: {str(state): n for state, n in of.items()} for kind, of in counts.items()}
        # Whatever takes a slot counts, as it does when the loop orders games.
        taking = [of for kind, of in counts.items() if kind not in PREPARING]
        self.supply = wanted_items(
            slots_for(await live_workers(engine.kv), KIND),
            ready=sum(of.get(WorkState.READY, 0) for of in taking),
            claimed=sum(of.get(WorkState.CLAIMED, 0) for of in taking),
            limits=self.limits,
        )
        self._run = await read_run_status(engine.kv)
        return self.supply

    def all_targets_met(self) -> bool:
        """Whether every config is at its target; each keeps its maintenance share even then."""
        configs = {} if self._run is None else self._run.configs
        return bool(configs) and all((each.rating or 0.0) >= TARGET_RATING for each in configs.values())

    def velocities(self) -> dict[str, float | None]:
        """Return rating points per hour by config; None while it is not known."""
        configs = {} if self._run is None else self._run.configs
        return {config: velocity_per_hour(seen.curve) for config, seen in configs.items()}

    @reported
    def get_stats(self) -> dict[str, Any]:
        supply = self.supply
        return {
            "queue": self.counts,
            "slots": 0 if supply is None else supply.slots,
            "wanted_items": 0 if supply is None else supply.items,
            "reason": "it has not looked yet" if supply is None else supply.reason,
            "velocities": self.velocities(),
            "all_targets_met": self.all_targets_met(),
        }


class QueuePopulatorDaemon(StageDaemon):
    """QUEUE_POPULATOR: keeps the populator's view fresh, and rings when there is room."""

    capability: ClassVar[str] = "work_supply"
    plans_as = "queue_populator"

    def __init__(
        self,
        populator: UnifiedQueuePopulator | None = None,
        *,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        super().__init__("queue_populator_daemon", cycle_interval=INTERVAL_S, router=router, runtime=runtime)
        self.populator = get_queue_populator() if populator is None else populator
        check_part("populator", self.populator, UnifiedQueuePopulator)
        self._unwire: Callable[[], None] | None = None

    async def _on_start(self) -> None:
        self._unwire = self.populator.wire_for()

    async def _run_cycle(self) -> None:
        supply = await self.populator.look()
        if supply.items:
            get_loop_waker().wake("there is room for work")

    async def _on_stop(self) -> None:
        if self._unwire is not None:
            self._unwire()

    def get_status(self) -> dict[str, Any]:
        return {**super().get_status(), **self.populator.get_stats()}


def get_queue_populator(limits: SupplyLimits | None = None) -> UnifiedQueuePopulator:
    """Return the populator of this process; other *limits* than it was made with are a `ConfigError`."""
    if limits is None:
        return UnifiedQueuePopulator.get_instance()
    return UnifiedQueuePopulator.get_instance(limits=limits)


reset_queue_populator = UnifiedQueuePopulator.reset_instance
wire_supply_events = UnifiedQueuePopulator.wired


def create_queue_populator_daemon(
    router: UnifiedEventRouter | None = None, runtime: Runtime | None = None
) -> QueuePopulatorDaemon:
    return QueuePopulatorDaemon(router=router, runtime=runtime)
