"""Asks every running daemon how it is, each at its own interval, from one timer.

A verdict must repeat before anything follows, none is passed while a daemon is young, and a daemon without
`health_check()` costs nothing: the end of its task is noticed anyway.
"""

from __future__ import annotations

import asyncio
import heapq
import inspect
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import structlog

from ringrift.daemons import foreign
from ringrift.daemons.planning import Phase
from ringrift.daemons.supervisor import Supervisor
from ringrift.daemons.types import DaemonType
from ringrift.daemons.unit import Run, Unit
from ringrift.status import HealthCheckResult, as_result

log = structlog.get_logger()

CHECK_S_MAX = 5.0
AT_ONCE_MAX = 20
UNHEALTHY_IN_A_ROW = 3
SAYS_NOTHING = "health_check says nothing"
BATCH_S = 0.25  # checks that are due this close together share one wake-up

Offload = Callable[[Callable[[], Any]], Any]  # runs a function that may block; returns an awaitable


async def in_thread(function: Callable[[], Any]) -> Any:
    """Run a function that may block, in a thread that never keeps the process alive."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()

    def report(called: foreign.Called) -> None:
        if answer.done():
            return
        if called.error is None:
            answer.set_result(called.value)
        else:
            answer.set_exception(called.error)

    def work() -> None:
        called = foreign.call(function)
        try:
            loop.call_soon_threadsafe(report, called)
        except RuntimeError:  # the loop was closed meanwhile; nobody waits for the answer
            return

    threading.Thread(target=work, name="daemon-health", daemon=True).start()
    return await answer


class HealthRounds:
    """One task for all daemons; it sleeps until the next check is due."""

    def __init__(self, supervisor: Supervisor, *, offload: Offload = in_thread) -> None:
        self._supervisor, self._offload = supervisor, offload
        self._runtime = supervisor.runtime
        self._due: list[tuple[float, int, DaemonType]] = []
        self._scheduled: dict[DaemonType, Run] = {}
        self._count = 0
        self._task: asyncio.Task[None] | None = None
        self._checks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self.checks_done = 0

    def start(self) -> None:
        self._wake = asyncio.Event()
        self._supervisor.on_change = self._wake.set
        self._task = asyncio.get_running_loop().create_task(self._rounds(), name="daemon-health")

    @property
    def alive(self) -> bool:
        return self._task is not None and not self._task.done()

    async def stop(self) -> None:
        tasks = {*self._checks, *([] if self._task is None else [self._task])}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CHECK_S_MAX)
        self._task = None
        self._due.clear()
        self._scheduled.clear()

    async def _rounds(self) -> None:
        while True:
            self._take_in_new_runs()
            now_s = self._runtime.monotonic_s()
            while self._due and self._due[0][0] <= now_s + BATCH_S and len(self._checks) < AT_ONCE_MAX:
                _, _, daemon_type = heapq.heappop(self._due)
                self._begin_check(daemon_type)
            if len(self._checks) >= AT_ONCE_MAX:
                await asyncio.wait(self._checks, timeout=CHECK_S_MAX, return_when=asyncio.FIRST_COMPLETED)
                continue
            self._wake.clear()
            wait_s = self._due[0][0] - now_s if self._due else 3600.0
            await self._sleep(max(wait_s, 0.0))

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return

    def _take_in_new_runs(self) -> None:
        now_s = self._runtime.monotonic_s()
        for daemon_type, unit in self._supervisor.units.items():
            run = unit.run
            if run is None or unit.phase is not Phase.UP or self._scheduled.get(daemon_type) is run:
                continue
            if unit.info.instance is None:
                continue  # not made yet, or a function, which cannot be asked
            self._scheduled[daemon_type] = run
            if callable(getattr(unit.info.instance, "health_check", None)):
                # Spread, so that daemons that started together are not checked together.
                spread_s = self._runtime.rng.uniform(0.0, unit.info.health_check_interval)
                grace_left_s = run.began_s + unit.info.startup_grace_period - now_s
                self._push(daemon_type, now_s + max(grace_left_s, 0.0) + spread_s)

    def _push(self, daemon_type: DaemonType, at_s: float) -> None:
        self._count += 1
        heapq.heappush(self._due, (at_s, self._count, daemon_type))
        if self._due[0][2] is daemon_type:
            self._wake.set()

    def _begin_check(self, daemon_type: DaemonType) -> None:
        unit = self._supervisor.units[daemon_type]
        run = unit.run
        if run is None or self._scheduled.get(daemon_type) is not run or unit.phase is not Phase.UP:
            return
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._check(unit, run), name=f"health:{daemon_type.value}")
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    async def _check(self, unit: Unit, run: Run) -> None:
        answer = HealthCheckResult.ok("paused") if unit.info.paused else await self._ask(unit)
        self.checks_done += 1
        if unit.run is not run or unit.phase is not Phase.UP:
            return
        self._judge(unit, answer)
        if unit.run is run and unit.phase is Phase.UP:
            self._push(unit.daemon_type, self._runtime.monotonic_s() + unit.info.health_check_interval)

    async def _ask(self, unit: Unit) -> HealthCheckResult:
        check = unit.info.instance.health_check
        direct = inspect.iscoroutinefunction(check)
        called = await foreign.call_async(partial(self._answer, check, direct=direct), timeout_s=CHECK_S_MAX)
        if isinstance(called.error, TimeoutError):
            return HealthCheckResult.unhealthy(f"health_check took over {CHECK_S_MAX:g} s")
        if called.error is not None:
            return HealthCheckResult.unhealthy(f"health_check raised {called.problem}")
        if called.value is None:
            return HealthCheckResult.unhealthy(SAYS_NOTHING)
        return as_result(called.value)

    async def _answer(self, check: Callable[[], Any], *, direct: bool) -> Any:
        result = check() if direct else await self._offload(check)
        return await result if inspect.isawaitable(result) else result

    def _judge(self, unit: Unit, answer: HealthCheckResult) -> None:
        unit.health = (answer.healthy, answer.message)
        if answer.healthy or answer.message == SAYS_NOTHING:
            # Unknown is not healthy, and is no reason to restart what may well run.
            unit.unhealthy_in_a_row = 0
            return
        unit.unhealthy_in_a_row += 1
        log.warning(
            "daemons.unhealthy",
            daemon=unit.daemon_type.value,
            message=answer.message,
            in_a_row=unit.unhealthy_in_a_row,
        )
        if unit.unhealthy_in_a_row >= UNHEALTHY_IN_A_ROW and unit.info.auto_restart:
            cause = f"unhealthy {unit.unhealthy_in_a_row} times in a row: {answer.message}"
            self._supervisor.end(unit, cause, crash_cause=cause)
