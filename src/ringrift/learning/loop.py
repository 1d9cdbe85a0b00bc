"""The loop as it runs in the control process: wakes, reconciles, and keeps the status of the run fresh."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import structlog

from ringrift.daemons.running import call_async
from ringrift.engine.ports import Engine, KeyValue
from ringrift.engine.records import write_record
from ringrift.engine.work_rules import HOLDS
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.health.run_status import EXPLAIN_PREFIX, STATUS_KEY, RunStatus, read_run_choice
from ringrift.learning.announcements import RouterAnnouncer
from ringrift.learning.controller import Controller
from ringrift.learning.doctor.examination import DoctorRounds
from ringrift.learning.doctor.findings import Finding, Level
from ringrift.learning.facts.high_water import ConfigMark
from ringrift.learning.facts.ledger import known_configs, quoted
from ringrift.learning.facts.state import ConfigState
from ringrift.learning.facts.store_check import MarkWriter
from ringrift.learning.intake import FileIntake
from ringrift.learning.plan.rules import configured_rules
from ringrift.learning.plan.stages import LoopWaker, StageMembers
from ringrift.learning.requests import ALL, ReadPauses
from ringrift.learning.situation import OpenRun
from ringrift.learning.status_view import (
    AroundConfig,
    config_status,
    decisions,
    idle_slots,
    start_status,
    worker_statistics,
)
from ringrift.runtime import Runtime, first_error
from ringrift.settings import Settings
from ringrift.work.admission import SpawnGate
from ringrift.work.shares import PREPARING
from ringrift.work.worker.records import RUNNING, WORKERS, WorkerRecord, jobs_in, workers_in

# The status of the run is kept in the key-value port, where any process reads it in one step.


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
        mark: MarkWriter | None = None,
    ) -> None:
        self._engine, self._runtime, self._settings = engine, runtime, settings
        self._controller = controller
        self._doctor = DoctorRounds(engine.kv, runtime, data_dir=settings.data_dir, router=router)
        self._mark = mark
        self._covered: dict[str, ConfigMark] = {}  # how far the configs were in the last status with a mark
        self._started_s = runtime.now_s()
        self._stored: dict[str, bytes] = {}  # config: its explanation as it is stored
        self._ill = ""  # why the doctor could not look, when last asked
        self.doctor_failures = 0

    async def write(self, state: str) -> None:
        """Store the status, why each config does or does not do something, and how far the run has come."""
        kv = self._engine.kv
        await write_record(kv, STATUS_KEY, await self.status_view(state))
        for config, plan in self._controller.plans.items():
            content = msgspec.json.encode(plan.explanations)
            if content != self._stored.get(config):
                await kv.put(EXPLAIN_PREFIX + quoted(config), content)
                self._stored[config] = content
        if self._mark is not None:
            marks = self._controller.marks()
            await self._mark.keep(marks, always=marks != self._covered)  # the status is to be covered, too
            self._covered = marks

    async def status_view(self, run_state: str) -> RunStatus:
        """The status of the run now; *run_state* is running or stopped."""
        controller, kv, now_s = self._controller, self._engine.kv, self._runtime.now_s()
        read = await kv.entries(RUNNING, WORKERS, HOLDS)
        running, workers, pauses = jobs_in(read), workers_in(read), ReadPauses(read)
        states = [controller.state(config) for config in controller.configs()]
        shares, idle = controller.shares(), idle_slots(states, workers, running, now_s=now_s)
        snapshots = {}
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
            snapshots[state.config] = config_status(state, around)
        paused = pauses.of(ALL)
        counts = await self._engine.queue.counts()
        return RunStatus(
            at_s=now_s,
            started_s=self._started_s,
            node=self._runtime.hostname,
            state="paused" if paused is not None and run_state == "running" else run_state,
            workers=sum(worker.slots for worker in workers if not _only_prepares(worker)),
            configs=snapshots,
            decisions=decisions(states),
            queue={kind: {str(s): n for s, n in by.items()} for kind, by in counts.items()},
            findings=await self._findings(states),
            starting=start_status(states),
            worker_statistics=worker_statistics(states, workers, now_s),
            paused=None if paused is None else paused.to_dict(),
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


# The loop plans only when there is a reason: work ended, somebody woke it, or some seconds have passed,
# because a gate may have opened by time alone. Between them it waits, for the queue to say that work ended,
# too.


END_WAIT_S = 600.0
PLAN_AT_LEAST_EVERY_S = 2.0
STATUS_EVERY_S = 2.0
STATUS_S_MAX = 60.0


class TrainingLoop:
    """Drives a controller until it is cancelled."""

    def __init__(
        self,
        engine: Engine,
        runtime: Runtime,
        router: UnifiedEventRouter,
        settings: Settings,
        *,
        safeguards: SpawnGate | None = None,
        stages: StageMembers | None = None,
        waker: LoopWaker | None = None,
        run: OpenRun | None = None,
    ) -> None:
        """Whoever gives *waker* can wake it, and whoever gives *run* finds its controller there."""
        self._runtime = runtime
        self._engine, self._waker, self._run = engine, waker or LoopWaker(), run or OpenRun()
        mark = MarkWriter(engine.kv, runtime, settings.data_dir, beside=(settings.dlq_path,))
        self.controller = Controller(
            engine,
            runtime,
            configured_rules(settings),
            announcer=RouterAnnouncer(router),
            safeguards=safeguards,
            keep_mark=mark.keep,
            stages=stages,
        )
        self._status = StatusWriter(engine, runtime, settings, self.controller, router=router, mark=mark)
        self._intake = FileIntake(self.controller, engine, settings, runtime, wake=self._waker.wake_for)
        self._woken = asyncio.Event()
        self.status_writes_failed = 0
        self.status_problem = ""  # why the last status could not be made; empty if it could

    async def run(self, configs: Sequence[str], on_ready: Callable[[], None] | None = None) -> None:
        """Learn *configs*; ends by cancellation, and then leaves a last status that says so."""
        await self.controller.open(configs)
        loop = asyncio.get_running_loop()

        def wake() -> None:
            loop.call_soon_threadsafe(self._woken.set)

        end_listening = self._waker.listen(wake)
        self._run.loop, self._run.engine = self.controller, self._engine
        try:
            if on_ready is not None:
                on_ready()
            with first_error():
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._take_in_waiting_files())
                    await self._turn_until_cancelled(group)
        finally:
            self._run.loop = self._run.engine = None
            end_listening()
            await self._show("stopped")

    async def _turn_until_cancelled(self, group: asyncio.TaskGroup) -> None:
        planned_s = shown_s = float("-inf")
        ends = group.create_task(self._wait_for_end())
        while True:
            now_s = self._runtime.monotonic_s()
            if self._woken.is_set() or now_s - planned_s >= PLAN_AT_LEAST_EVERY_S:
                self._woken.clear()
                await self.controller.reconcile()
                planned_s = now_s
            if ends.done():
                ends = group.create_task(self._wait_for_end())
            if now_s - shown_s >= STATUS_EVERY_S:
                await self.controller.remember_seen_end()
                await self._show("running")
                shown_s = now_s
            await self._wait(min(planned_s + PLAN_AT_LEAST_EVERY_S, shown_s + STATUS_EVERY_S))

    async def _take_in_waiting_files(self) -> None:
        """Beside the turns: a long file must not keep the loop from planning."""
        while True:
            await self._intake.take_waiting()
            await self._runtime.sleep(PLAN_AT_LEAST_EVERY_S)

    async def _wait_for_end(self) -> None:
        """Wake the loop when work ends that it has not taken in yet; an engine that is away ends the loop."""
        await self.controller.wait_for_end(END_WAIT_S)
        self._woken.set()

    async def _show(self, state: str) -> None:
        """Store the status. Learning does not end because it cannot be drawn: that is counted and told."""
        drawn = await call_async(partial(self._status.write, state), timeout_s=STATUS_S_MAX)
        if drawn.error is not None:
            self.status_writes_failed += 1
            if drawn.problem != self.status_problem:
                log.error("learning.picture_failed", problem=drawn.problem, exc_info=drawn.error)
        self.status_problem = drawn.problem

    async def _wait(self, until_s: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, until_s - self._runtime.monotonic_s())):
                await self._woken.wait()
        except TimeoutError:
            return

    async def status(self) -> RunStatus:
        """The status of the run now."""
        return await self._status.status_view("running")


# Which run it is.


async def configs_of_the_run(kv: KeyValue) -> tuple[str, ...]:
    """Return what the run was asked to learn; without a request, what has been learned before."""
    choice = await read_run_choice(kv)
    if choice is not None and choice.configs:
        return choice.configs
    return tuple(await known_configs(kv))
