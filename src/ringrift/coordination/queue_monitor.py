"""The pressure on the named queues of this process's engine, and whether producers should slow down."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from ringrift.coordination.coordinator_config import get_settings
from ringrift.engine.blocking import run_blocking
from ringrift.engine.opening import engine_on_demand, shared_engine
from ringrift.engine.ports import Engine
from ringrift.errors import ConfigError
from ringrift.machine import NodeResources, read_resources
from ringrift.process import SingletonMixin
from ringrift.runtime import Runtime, system_runtime
from ringrift.status import HealthCheckResult, reported_by_store
from ringrift.work.backpressure import (
    QUEUE_LIMITS,
    BackpressureLevel,
    QueueLevels,
    QueueLimits,
    QueueType,
    read_announced,
)

ANSWER_S = 10.0


class QueueMonitor(QueueLevels, SingletonMixin):
    """The levels of the queues; of this process's engine and machine, unless others are given."""

    def __init__(
        self,
        engine: Callable[[], Awaitable[Engine]] = engine_on_demand,
        *,
        runtime: Runtime | None = None,
        limits: Mapping[QueueType, QueueLimits] = QUEUE_LIMITS,
        resources: Callable[[], Awaitable[NodeResources]] | None = None,
    ) -> None:
        here = resources or (lambda: read_resources(get_settings().data_dir))
        super().__init__(engine, resources=here, runtime=runtime, limits=limits)

    @reported_by_store
    def health_check(self) -> HealthCheckResult:
        """Measure, unless that was done in the last ten seconds, and say which queue is fullest."""
        if not self.is_fresh:
            run_blocking(self.refresh(), timeout_s=ANSWER_S)
        fullest = self.fullest()
        about = {"queue": fullest.queue.value, "depth": fullest.depth, "level": fullest.level.name.lower()}
        if fullest.level is BackpressureLevel.STOP:
            return HealthCheckResult.degraded(f"{fullest.queue} is full: producers have to stop", **about)
        return HealthCheckResult.ok("", **about)


def get_queue_monitor(limits: Mapping[QueueType, QueueLimits] | None = None) -> QueueMonitor:
    """Return the monitor of this process; other *limits* than it was made with are a `ConfigError`."""
    return QueueMonitor.get_instance() if limits is None else QueueMonitor.get_instance(limits=limits)


reset_queue_monitor = QueueMonitor.reset_instance


async def check_backpressure_async(
    queue: QueueType | None = None, current_depth: float | None = None
) -> BackpressureLevel:
    """The level of *queue*, from a depth that the caller knows or from the engine (at most 10 s old).

    Without a queue it is the highest level of all.
    """
    monitor = get_queue_monitor()
    if current_depth is not None:
        return _noted(monitor, queue, current_depth)
    if not monitor.is_fresh:
        await monitor.refresh()
    return _level(monitor, queue)


def check_backpressure(
    queue: QueueType | None = None, current_depth: float | None = None
) -> BackpressureLevel:
    """`check_backpressure_async` for code that cannot wait: it reads at most once in ten seconds."""
    monitor = get_queue_monitor()
    if current_depth is not None:
        return _noted(monitor, queue, current_depth)
    if not monitor.is_fresh:
        run_blocking(monitor.refresh(), timeout_s=ANSWER_S)
    return _level(monitor, queue)


async def measured_pressure() -> str:
    """Why producers are to rest, as QUEUE_MONITOR has measured it; empty if they are not, or nobody knows."""
    engine = shared_engine().peek()  # only a process that has its store open has producers
    return "" if engine is None else (await read_announced(engine.kv)).why_held(system_runtime().now_s())


def should_throttle_production(queue: QueueType | None = None, current_depth: float | None = None) -> bool:
    """Whether producers of *queue* (of any queue, when none is named) should slow down."""
    return check_backpressure(queue, current_depth).throttles


def should_stop_production(queue: QueueType | None = None, current_depth: float | None = None) -> bool:
    return check_backpressure(queue, current_depth) is BackpressureLevel.STOP


def get_throttle_factor(queue: QueueType | None = None, current_depth: float | None = None) -> float:
    """The share of full speed at which producers of *queue* should run, from 1 down to 0."""
    return check_backpressure(queue, current_depth).throttle_factor


def _noted(monitor: QueueMonitor, queue: QueueType | None, depth: float) -> BackpressureLevel:
    if queue is None:
        raise ConfigError(f"a depth of {depth:g} is of one queue; name it")
    return monitor.note(queue, depth)


def _level(monitor: QueueMonitor, queue: QueueType | None) -> BackpressureLevel:
    return max(monitor.level(item) for item in QueueType) if queue is None else monitor.level(queue)
