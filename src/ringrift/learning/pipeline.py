"""The pipeline under the names of the documents, and the daemons that run the loop.

DATA_PIPELINE runs the training loop in the control process while auto-trigger is on (`ringrift run` turns it
on). CONTINUOUS_TRAINING_LOOP is the same under its old name: whichever comes first runs, the other waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from typing import Any, ClassVar

from ringrift.engine.fencing import is_fenced
from ringrift.engine.leases import CONTROL_LEASE, lease_holder
from ringrift.engine.opening import get_engine
from ringrift.engine.ports import Engine, KeyValue
from ringrift.events.audit import ComponentWiring
from ringrift.events.router import get_router
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.learning.announcements import ANNOUNCED
from ringrift.learning.ledger import known_configs
from ringrift.learning.loop import TrainingLoop
from ringrift.learning.pipeline_orchestrator import (
    DataPipelineOrchestrator,
    OperationMode,
    PipelineConfig,
    get_pipeline_orchestrator,
    get_pipeline_status,
    reset_pipeline_orchestrator,
    wire_pipeline_events,
)
from ringrift.learning.pipeline_records import IterationRecord, PipelineStage, StageTransition
from ringrift.learning.run_choice import read_run_choice
from ringrift.process import process_scope
from ringrift.runtime import Runtime, system_runtime
from ringrift.settings import get_settings
from ringrift.status import CoordinatorStatus, HealthCheckResult

__all__ = [
    "BoardType",
    "DataPipelineDaemon",
    "DataPipelineOrchestrator",
    "IterationRecord",
    "OperationMode",
    "PipelineConfig",
    "PipelineStage",
    "StageTransition",
    "create_continuous_loop",
    "create_data_pipeline",
    "get_pipeline_orchestrator",
    "get_pipeline_status",
    "reset_pipeline_orchestrator",
    "wire_pipeline_events",
]

LOOK_S = 1.0
STILL_S_MAX = 60.0  # a loop that has not turned for so long hangs


class BoardType(StrEnum):
    """The boards of RingRift."""

    SQUARE8 = "square8"
    SQUARE19 = "square19"
    HEX8 = "hex8"
    HEXAGONAL = "hexagonal"


class _Seat:
    """One loop a process: facts have one writer."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()


async def configs_of_the_run(kv: KeyValue) -> tuple[str, ...]:
    """Return what the run was asked to learn; without a wish, what has been learned before."""
    choice = await read_run_choice(kv)
    if choice is not None and choice.configs:
        return choice.configs
    return tuple(await known_configs(kv))


async def controlled_elsewhere(engine: Engine) -> bool:
    """Whether another process holds the control lease: facts have one writer, wherever it is."""
    return not is_fenced(engine) and await lease_holder(engine.kv, CONTROL_LEASE) is not None


class DataPipelineDaemon:
    """Runs the loop."""

    capability: ClassVar[str] = "pipeline"

    def __init__(
        self,
        name: str = "data_pipeline",
        *,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self.name = name
        self._router, self._runtime = router, runtime or system_runtime()
        self._waits_for = "its start"
        self._running = False
        self._loop: TrainingLoop | None = None
        self._turned: tuple[int, float] = (0, 0.0)  # passes, when they last grew

    async def run(self, *, on_ready: Callable[[], None] | None = None) -> None:
        """Live until cancelled: wait for a reason to run and for the seat, then learn."""
        self._running = True
        try:
            if on_ready is not None:
                on_ready()
            await self._live()
        finally:
            self._running = False

    async def _live(self) -> None:
        seat = process_scope().get(_Seat, _Seat)
        self._waits_for = "the loop of this process, which runs under another name"
        async with seat.lock:
            try:
                while True:
                    configs = await self._wait_for_work()
                    await self._learn_while_in_control(configs)
            finally:
                self._loop, self._waits_for = None, "its start"

    async def _wait_for_work(self) -> tuple[str, ...]:
        engine = await get_engine()
        while True:
            if await controlled_elsewhere(engine):
                self._waits_for = "control of the run, which another process holds"
            elif not get_pipeline_orchestrator().auto_trigger:
                self._waits_for = "auto-trigger, which is off (COORDINATOR_AUTO_TRIGGER_PIPELINE)"
            elif configs := await configs_of_the_run(engine.kv):
                return configs
            else:
                self._waits_for = "a config to learn; name one with ringrift run --configs"
            await self._runtime.sleep(LOOK_S)

    async def _learn_while_in_control(self, configs: tuple[str, ...]) -> None:
        """Learn; where this process holds no lease, only for as long as nobody else takes it.

        The holder needs no watch here: the store refuses its writes, and its run ends, when it lost control.
        """
        engine = await get_engine()
        if is_fenced(engine):
            await self._learn(configs)
            return
        try:
            async with asyncio.TaskGroup() as group:
                learning = group.create_task(self._learn(configs))
                while not learning.done() and not await controlled_elsewhere(engine):
                    await asyncio.wait({learning}, timeout=LOOK_S)
                learning.cancel()
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None  # the loop's own: whoever reads of the crash wants that
        finally:
            self._loop = None

    async def _learn(self, configs: tuple[str, ...]) -> None:
        settings = get_settings()
        wanted = get_pipeline_orchestrator().config.learning(settings.learning or {})
        settings = replace(settings, learning=wanted or None)
        router = self._router or get_router()
        self._loop = TrainingLoop(await get_engine(), self._runtime, router, settings)
        self._turned = (0, self._runtime.monotonic_s())
        self._waits_for = ""
        await self._loop.run(configs)

    def wiring(self) -> ComponentWiring:
        """Who runs the loop sends what follows from its facts."""
        return ComponentWiring(self.name, self.capability, ANNOUNCED)

    def health_check(self) -> HealthCheckResult:
        """Degraded while there is nothing to run, unhealthy when the loop no longer turns."""
        if not self._running:
            return HealthCheckResult(False, CoordinatorStatus.STOPPED, "not running")
        if self._loop is None:
            return HealthCheckResult.degraded(f"waits for {self._waits_for}")
        passes, now_s = self._loop.controller.passes, self._runtime.monotonic_s()
        if passes != self._turned[0]:
            self._turned = (passes, now_s)
        still_s = now_s - self._turned[1]
        details: dict[str, Any] = {"passes": passes, "configs": self._loop.controller.configs()}
        if still_s > STILL_S_MAX:
            return HealthCheckResult.unhealthy(f"the loop has not turned for {still_s:.0f} s", **details)
        if problem := self._loop.picture_problem:
            details["pictures_failed"] = self._loop.pictures_failed
            return HealthCheckResult.degraded(f"the picture of the run is old: {problem}", **details)
        return HealthCheckResult.ok("", **details)


def create_data_pipeline(
    router: UnifiedEventRouter | None = None,
    runtime: Runtime | None = None,
) -> DataPipelineDaemon:
    return DataPipelineDaemon(router=router, runtime=runtime)


def create_continuous_loop(
    router: UnifiedEventRouter | None = None,
    runtime: Runtime | None = None,
) -> DataPipelineDaemon:
    return DataPipelineDaemon("continuous_training_loop", router=router, runtime=runtime)
