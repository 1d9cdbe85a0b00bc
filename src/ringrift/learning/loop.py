"""The loop as it runs in the control process: wakes, reconciles, and keeps the picture of the run fresh.

It plans only when there is a reason: work ended, somebody rang the bell, or some seconds have passed, because
a gate may have opened by time alone. Between them it waits, for the queue to say that work ended, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import structlog

from ringrift.daemons.foreign import call_async
from ringrift.engine.ports import Engine
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.learning.announcing import RouterAnnouncer
from ringrift.learning.controller import Controller
from ringrift.learning.intake import FileIntake
from ringrift.learning.rules import configured_rules
from ringrift.learning.run_check import MarkKeeper
from ringrift.learning.run_status import RunStatus
from ringrift.learning.signals_source import get_open_run
from ringrift.learning.status_writer import StatusWriter
from ringrift.runtime import Runtime
from ringrift.settings import Settings
from ringrift.work.safeguards import get_safeguards
from ringrift.work.scheduling_bell import get_bell
from ringrift.work.stages import get_stage_members

END_WAIT_S = 600.0
PLAN_AT_LEAST_EVERY_S = 2.0
STATUS_EVERY_S = 1.0
PICTURE_S_MAX = 60.0

log = structlog.get_logger()


class TrainingLoop:
    """Drives a controller until it is cancelled."""

    def __init__(
        self,
        engine: Engine,
        runtime: Runtime,
        router: UnifiedEventRouter,
        settings: Settings,
    ) -> None:
        self._runtime = runtime
        mark = MarkKeeper(engine.kv, runtime, settings.data_dir, beside=(settings.dlq_path,))
        self.controller = Controller(
            engine,
            runtime,
            configured_rules(settings),
            announcer=RouterAnnouncer(router),
            safeguards=get_safeguards(),
            keep_mark=mark.keep,
            stages=get_stage_members(),
        )
        self._status = StatusWriter(engine, runtime, settings, self.controller, router=router, mark=mark)
        self._intake = FileIntake(self.controller, engine, settings, runtime)
        self._woken = asyncio.Event()
        self.pictures_failed = 0
        self.picture_problem = ""  # why the last picture could not be made; empty if it could

    async def run(self, configs: Sequence[str], on_ready: Callable[[], None] | None = None) -> None:
        """Learn *configs*; ends by cancellation, and then leaves a last picture that says so."""
        await self.controller.open(configs)
        loop, run = asyncio.get_running_loop(), get_open_run()

        def wake() -> None:
            loop.call_soon_threadsafe(self._woken.set)

        end_listening = get_bell().listen(wake)
        run.loop = self.controller
        try:
            if on_ready is not None:
                on_ready()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._take_in_waiting_files())
                await self._turn_until_cancelled()
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None  # whoever reads of the end wants its cause
        finally:
            run.loop = None
            end_listening()
            await self._show("stopped")

    async def _turn_until_cancelled(self) -> None:
        planned_s = shown_s = float("-inf")
        ends = self._listen_for_ends()
        try:
            while True:
                now_s = self._runtime.monotonic_s()
                if self._woken.is_set() or now_s - planned_s >= PLAN_AT_LEAST_EVERY_S:
                    self._woken.clear()
                    await self.controller.reconcile()
                    planned_s = now_s
                if ends.done():
                    ends.result()  # an engine that is away ends the loop
                    ends = self._listen_for_ends()
                if now_s - shown_s >= STATUS_EVERY_S:
                    await self.controller.remember_seen_end()
                    await self._show("running")
                    shown_s = now_s
                await self._wait(min(planned_s + PLAN_AT_LEAST_EVERY_S, shown_s + STATUS_EVERY_S))
        finally:
            ends.cancel()
            await asyncio.wait({ends})

    async def _take_in_waiting_files(self) -> None:
        """Beside the turns: a long file must not keep the loop from planning."""
        while True:
            await self._intake.take_waiting()
            await self._runtime.sleep(PLAN_AT_LEAST_EVERY_S)

    def _listen_for_ends(self) -> asyncio.Future[None]:
        """Wake the loop when work ends that it has not taken in yet."""
        ends = asyncio.ensure_future(self.controller.wait_for_end(END_WAIT_S))
        ends.add_done_callback(lambda _: self._woken.set())
        return ends

    async def _show(self, state: str) -> None:
        """Store the picture. Learning does not end because it cannot be drawn: that is counted and told."""
        drawn = await call_async(partial(self._status.write, state), timeout_s=PICTURE_S_MAX)
        if drawn.error is not None:
            self.pictures_failed += 1
            if drawn.problem != self.picture_problem:
                log.error("learning.picture_failed", problem=drawn.problem, exc_info=drawn.error)
        self.picture_problem = drawn.problem

    async def _wait(self, until_s: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, until_s - self._runtime.monotonic_s())):
                await self._woken.wait()
        except TimeoutError:
            return

    async def status(self) -> RunStatus:
        """The picture of the run now."""
        return await self._status.picture("running")
