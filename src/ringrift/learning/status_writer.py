"""Keeps the picture of the run in the key-value port, where any process reads it in one step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import structlog

from ringrift.daemons.foreign import call_async
from ringrift.engine.ports import Engine
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.learning.bottleneck import idle_slots
from ringrift.learning.controller import Controller
from ringrift.learning.doctor_findings import Finding, Level
from ringrift.learning.doctor_rounds import DoctorRounds
from ringrift.learning.high_water import ConfigMark
from ringrift.learning.ledger import quoted
from ringrift.learning.pauses import ALL, Pauses
from ringrift.learning.run_check import MarkKeeper
from ringrift.learning.run_status import EXPLAIN_PREFIX, STATUS_KEY, RunStatus
from ringrift.learning.state import ConfigState
from ringrift.learning.status_view import (
    AroundConfig,
    config_status,
    decisions,
    start_status,
    worker_statistics,
)
from ringrift.runtime import Runtime
from ringrift.settings import Settings
from ringrift.work.shares import PREPARING
from ringrift.work.worker_records import WorkerRecord, live_workers, running_jobs

DOCTOR_S_MAX = 30.0
REPORT_IT = "Learning goes on. Please report it with the log"

log = structlog.get_logger()


class StatusWriter:
    """Looks at a controller and what is around it."""

    def __init__(
        self,
        engine: Engine,
        runtime: Runtime,
        settings: Settings,
        controller: Controller,
        *,
        router: UnifiedEventRouter,
        mark: MarkKeeper | None = None,
    ) -> None:
        self._engine, self._runtime, self._settings = engine, runtime, settings
        self._controller = controller
        self._doctor = DoctorRounds(engine.kv, runtime, data_dir=settings.data_dir, router=router)
        self._mark = mark
        self._covered: dict[str, ConfigMark] = {}  # how far the configs were in the last picture with a mark
        self._started_s = runtime.now_s()
        self._told: dict[str, bytes] = {}  # config: its explanation as it is stored
        self._ill = ""  # why the doctor could not look, when last asked
        self.doctor_failures = 0

    async def write(self, state: str) -> None:
        """Store the picture, why each config does or does not do something, and how far the run has come."""
        kv = self._engine.kv
        await kv.put(STATUS_KEY, msgspec.json.encode(await self.picture(state)))
        for config, plan in self._controller.plans.items():
            told = msgspec.json.encode(plan.explanations)
            if told != self._told.get(config):
                await kv.put(EXPLAIN_PREFIX + quoted(config), told)
                self._told[config] = told
        if self._mark is not None:
            marks = self._controller.marks()
            await self._mark.keep(marks, always=marks != self._covered)  # the picture is to be covered, too
            self._covered = marks

    async def picture(self, run_state: str) -> RunStatus:
        """The picture of the run now; *run_state* is running or stopped."""
        controller, kv, now_s = self._controller, self._engine.kv, self._runtime.now_s()
        running, workers, pauses = await running_jobs(kv), await live_workers(kv), await Pauses(kv).read()
        states = [controller.state(config) for config in controller.configs()]
        shares, idle = controller.shares(), idle_slots(states, workers, running, now_s=now_s)
        pictures = {}
        for state in states:
            around = AroundConfig(
                plan=controller.plans.get(state.config),
                rules=controller.rules,
                curve=controller.curves.of(state),
                running=running,
                share=shares[state.config],
                paused=pauses.of(state.config),
                prices=self._settings.prices or {},
                now_s=now_s,
                held=controller.held(state.config),
                idle=idle,
            )
            pictures[state.config] = config_status(state, around)
        paused = pauses.of(ALL)
        counts = await self._engine.queue.counts()
        return RunStatus(
            at_s=now_s,
            started_s=self._started_s,
            node=self._runtime.hostname,
            state="paused" if paused is not None and run_state == "running" else run_state,
            workers=sum(worker.slots for worker in workers if not _only_prepares(worker)),
            configs=pictures,
            decisions=decisions(states),
            queue={kind: {str(s): n for s, n in by.items()} for kind, by in counts.items()},
            findings=await self._findings(states),
            starting=start_status(states),
            worker_statistics=worker_statistics(states, workers, now_s),
            paused=None if paused is None else msgspec.to_builtins(paused),
        )

    async def _findings(self, states: Sequence[ConfigState]) -> tuple[dict[str, Any], ...]:
        """What the doctor says. One that fails says so instead: what it looks at must not hang on it."""
        looked = await call_async(
            partial(self._doctor.findings, states, self._controller.rules), timeout_s=DOCTOR_S_MAX
        )
        problem, before, self._ill = looked.problem, self._ill, looked.problem
        if looked.error is None:
            found: tuple[dict[str, Any], ...] = looked.value
            return found
        self.doctor_failures += 1
        if problem != before:
            log.error("doctor.failed", problem=problem, exc_info=looked.error)
        ill = Finding(
            check="doctor",
            level=Level.WARNING,
            text=f"the doctor could not look: {problem}",
            advice=REPORT_IT,
        )
        return (msgspec.to_builtins(ill),)


def _only_prepares(worker: WorkerRecord) -> bool:
    """The slot beside the others that only checks and exports games is not what a person calls a worker."""
    return worker.kinds is not None and set(worker.kinds) <= set(PREPARING)
