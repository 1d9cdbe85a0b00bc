"""Backpressure: the daemons that watch the named queues and the work queue, and the measured pressure."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.duration_scheduler import get_duration_store
from ringrift.coordination.handler_base import HandlerBase
from ringrift.coordination.queue_monitor import (
    QueueMonitor,
    check_backpressure,
    check_backpressure_async,
    get_queue_monitor,
    get_throttle_factor,
    reset_queue_monitor,
    should_stop_production,
    should_throttle_production,
)
from ringrift.coordination.task_lifecycle_coordinator import (
    TaskLifecycleCoordinator,
    get_task_lifecycle_coordinator,
)
from ringrift.engine.opening import engine_on_demand
from ringrift.engine.ports import Engine
from ringrift.events.event import RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.machine import NodeResources, read_resources
from ringrift.runtime import Runtime
from ringrift.status import HealthCheckResult
from ringrift.work.backpressure import (
    QUEUE_LIMITS,
    Announced,
    BackpressureLevel,
    BackpressureSignal,
    QueueLimits,
    QueueStatus,
    QueueType,
    level_of,
    next_level,
)
from ringrift.work.tasks import DurationStore, RunningTask, TaskRegistry, counted

__all__ = [
    "QUEUE_LIMITS",
    "BackpressureLevel",
    "BackpressureSignal",
    "QueueLimits",
    "QueueMonitor",
    "QueueMonitorDaemon",
    "QueueStatus",
    "QueueType",
    "WorkQueueMonitorDaemon",
    "check_backpressure",
    "check_backpressure_async",
    "get_backpressure_signal",
    "get_queue_monitor",
    "get_throttle_factor",
    "level_of",
    "next_level",
    "reset_queue_monitor",
    "should_stop_production",
    "should_throttle_production",
]

QUEUE_INTERVAL_S = 10.0
WORK_INTERVAL_S = 30.0
# The mean should follow the present load within minutes, so old times fall out.
TIMES_KEPT = 500
# An item whose claim is never announced here would stay for good, so the oldest are dropped.
ITEMS_REMEMBERED = 10_000
# Above it the kernel may kill any process at any moment.
MEMORY_PERCENT_MAX = 95.0
LOAD_PER_CORE_MAX = 1.5
# Others move work away on this event; that takes effect when jobs end, and not within one interval.
OVERLOAD_COOLDOWN_S = 300.0


class QueueMonitorDaemon(HandlerBase):
    """QUEUE_MONITOR: reads every queue, and tells when producers should slow down and when not any more.

    What it told stands in the store, so that the next one takes back what this one announced.
    """

    capability: ClassVar[str] = "backpressure"
    emits: ClassVar[tuple[str, ...]] = ("BACKPRESSURE_ACTIVATED", "BACKPRESSURE_RELEASED")

    def __init__(
        self,
        *,
        monitor: QueueMonitor | None = None,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
        interval_s: float = QUEUE_INTERVAL_S,
    ) -> None:
        super().__init__("queue_monitor", cycle_interval=interval_s, router=router, runtime=runtime)
        self._monitor = monitor or get_queue_monitor()
        self.announced = Announced()

    async def _run_cycle(self) -> None:
        await self._monitor.refresh()
        signal = await self._monitor.signal()
        level = self._monitor.overall()
        # A busy machine is the normal case during self-play; only what asks for a pause counts as a level.
        if signal.should_pause:
            level = max(level, signal.level)
        before, now_s = await self._monitor.announced(), self._runtime.now_s()
        last = before
        if before.active and level.throttles and not before.is_measured(now_s):
            last = Announced()  # nobody goes by it any more, so it is told again
        self.announced, reports = last.step(level, now_s)
        if self.announced.active:
            why = _why(self._monitor.fullest(), signal, level) if level.throttles else before.reason
            self.announced = replace(self.announced, reason=why, measured_s=now_s)
        if self.announced != before:
            # First, because whoever hears the event looks here.
            await self._monitor.keep(self.announced)
        if reports:
            await self._tell(*self._reports(before, signal, level))

    def _reports(
        self, before: Announced, signal: BackpressureSignal, level: BackpressureLevel
    ) -> tuple[str, dict[str, Any]]:
        # The level may come from a queue or from the machine: the reason names whichever is the higher.
        fullest, node = self._monitor.fullest(), self._runtime.hostname
        depth = {"queue_depth": int(fullest.depth)}
        if self.announced.active:
            return "BACKPRESSURE_ACTIVATED", {
                "node_id": node,
                "level": str(level),
                "reason": self.announced.reason,
                "resource_type": fullest.queue.value if fullest.level >= level else signal.highest,
                "utilization": round(signal.overall_pressure, 3),
                "spawn_rate_multiplier": min(level.throttle_factor, signal.spawn_rate_multiplier),
                **depth,
            }
        lasted_s = self._runtime.now_s() - (before.changed_s or 0.0)
        return "BACKPRESSURE_RELEASED", {
            "node_id": node,
            "previous_level": str(before.level),
            "reason": "every queue has room again",
            "duration_seconds": lasted_s,
            **depth,
        }

    def health_check(self) -> HealthCheckResult:
        """Its own health; a full queue is not its fault and stands in the details."""
        return (
            super()
            .health_check()
            .with_details(backpressure=self._monitor.get_stats(), announced=self.announced.active)
        )


def _why(fullest: QueueStatus, signal: BackpressureSignal, level: BackpressureLevel) -> str:
    if fullest.level >= level:
        return f"{fullest.queue.value} holds {fullest.depth:.0f}, {fullest.limits.soft:.0f} is its soft limit"
    return f"pressure on the machine is {signal.overall_pressure:.2f}, most of it from {signal.highest}"


class WorkQueueMonitorDaemon(HandlerBase):
    """WORK_QUEUE_MONITOR: waiting and running times, stuck claims, load by node, tasks that fell silent."""

    capability: ClassVar[str] = "backpressure"
    emits: ClassVar[tuple[str, ...]] = ("NODE_OVERLOADED",)

    def __init__(
        self,
        *,
        engine: Callable[[], Awaitable[Engine]] = engine_on_demand,
        lifecycle: TaskLifecycleCoordinator | None = None,
        book: DurationStore | None = None,
        resources: Callable[[], Awaitable[NodeResources]] | None = None,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
        interval_s: float = WORK_INTERVAL_S,
    ) -> None:
        super().__init__("work_queue_monitor", cycle_interval=interval_s, router=router, runtime=runtime)
        self._engine, self._durations = engine, book or get_duration_store()
        self._lifecycle = lifecycle or get_task_lifecycle_coordinator()
        self._resources = resources or (lambda: read_resources(get_settings().data_dir))
        # A registry of its own: it must read from the engine that this daemon was given.
        self._registry = TaskRegistry(engine, runtime=self._runtime)
        # In order of arrival, because the oldest are dropped at the bound.
        self._queued_s: OrderedDict[str, float] = OrderedDict()
        self.waited_s: deque[float] = deque(maxlen=TIMES_KEPT)
        self.ran_s: deque[float] = deque(maxlen=TIMES_KEPT)
        self.events: dict[str, int] = {}
        self.last_failures: deque[str] = deque(maxlen=20)
        self.depth: dict[str, dict[str, int]] = {}
        self.by_node: dict[str, int] = {}
        self.stuck: list[str] = []
        self._overloaded_s: float | None = None

    def _get_event_subscriptions(self) -> Mapping[Any, Callback]:
        return {
            "WORK_QUEUED": self._on_queued,
            "WORK_CLAIMED": self._on_claimed,
            "WORK_STARTED": self._on_counted,
            "WORK_COMPLETED": self._on_completed,
            "WORK_FAILED": self._on_failed,
            "WORK_RETRY": self._on_failed,
            "WORK_CANCELLED": self._on_cancelled,
        }

    async def _run_cycle(self) -> None:
        engine = await self._engine()
        counts = await engine.queue.counts()
        self.depth = {kind: {state.value: n for state, n in each.items()} for kind, each in counts.items()}
        tasks = await self._registry.running()
        nodes = {task.node for task in tasks}
        self.by_node = {node: counted(tasks, node=node).total() for node in sorted(nodes)}
        self.stuck = [task.task_id for task in tasks if await self._is_stuck(task)]
        await self._lifecycle.check_orphans()
        await self._tell_overload(self.by_node.get(self._runtime.hostname, 0))

    async def _is_stuck(self, task: RunningTask) -> bool:
        """Running for longer than its job runner should have let it."""
        limit_s = await self._durations.timeout_s(task.task_type.value, task.config_key)
        # The job runner ends a job at the limit itself; one that outlives that by far has nobody who does.
        return self._runtime.now_s() - task.started_s > 2 * limit_s

    async def _tell_overload(self, jobs: int) -> None:
        seen, now_s = await self._resources(), self._runtime.now_s()
        what = _overload(seen, jobs)
        resting = self._overloaded_s is not None and now_s - self._overloaded_s < OVERLOAD_COOLDOWN_S
        if not what or resting:
            return
        self._overloaded_s = now_s
        payload = {
            "node_id": self._runtime.hostname,
            "resource_type": what,
            "memory_percent": seen.memory_percent,
            "job_count": jobs,
        }
        if seen.cpu_percent is not None:
            payload["cpu_percent"] = seen.cpu_percent
        await self._tell("NODE_OVERLOADED", payload)

    # --- what is said of work -------------------------------------------------------------------------

    def _on_counted(self, event: RouterEvent) -> None:
        self.events[event.event_type] = self.events.get(event.event_type, 0) + 1

    def _on_queued(self, event: RouterEvent) -> None:
        self._on_counted(event)
        self._queued_s[str(event.payload.get("work_id"))] = event.timestamp
        while len(self._queued_s) > ITEMS_REMEMBERED:
            self._queued_s.popitem(last=False)

    def _on_claimed(self, event: RouterEvent) -> None:
        self._on_counted(event)
        queued_s = self._queued_s.pop(str(event.payload.get("work_id")), None)
        if queued_s is not None:
            # Two processes stamped them; on different machines the claim can seem older than the item.
            self.waited_s.append(max(0.0, event.timestamp - queued_s))

    def _on_completed(self, event: RouterEvent) -> None:
        self._on_counted(event)
        took = event.payload.get("duration_seconds")
        if isinstance(took, int | float):
            self.ran_s.append(float(took))

    def _on_failed(self, event: RouterEvent) -> None:
        self._on_counted(event)
        said = event.payload
        self.last_failures.append(f"{said.get('work_type')} {said.get('work_id')}: {said.get('error')}"[:300])

    def _on_cancelled(self, event: RouterEvent) -> None:
        self._on_counted(event)
        self._queued_s.pop(str(event.payload.get("work_id")), None)

    # --- what it knows --------------------------------------------------------------------------------

    def get_metrics(self) -> dict[str, Any]:
        return {
            "depth": self.depth,
            "by_node": self.by_node,
            "stuck": list(self.stuck),
            "mean_wait_seconds": _mean(self.waited_s),
            "mean_run_seconds": _mean(self.ran_s),
            "events": dict(self.events),
            "last_failures": list(self.last_failures),
        }

    def health_check(self) -> HealthCheckResult:
        own = super().health_check().with_details(**self.get_metrics())
        return own.or_degraded(f"{len(self.stuck)} jobs run far too long" if self.stuck else "")


def _overload(seen: NodeResources, jobs: int) -> str:
    """What this machine has too little of; empty when it has enough. Our own jobs may use every core."""
    if seen.memory_percent >= MEMORY_PERCENT_MAX:
        return "memory"
    return "cpu" if (seen.load - jobs) / seen.cores >= LOAD_PER_CORE_MAX else ""


def _mean(values: deque[float]) -> float | None:
    return sum(values) / len(values) if values else None


async def get_backpressure_signal() -> BackpressureSignal:
    """The pressure on this machine, measured in the last ten seconds."""
    return await get_queue_monitor().signal()
