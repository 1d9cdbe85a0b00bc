"""The daemons of the foundation that have no home of their own: the router's life and the supervisor's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import structlog

from ringrift.daemons.planning import DaemonView, Phase, Unit, plan
from ringrift.daemons.types import DaemonState, DaemonType
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.runtime import Runtime
from ringrift.status import CoordinatorStatus, HealthCheckResult

if TYPE_CHECKING:
    from ringrift.daemons.manager import DaemonService


# What a working supervisor never shows. Pure.


OVERDUE_S = 5.0


def findings(
    units: Mapping[DaemonType, Unit],
    views: Mapping[DaemonType, DaemonView],
    *,
    now_s: float,
    rounds_alive: bool,
) -> list[str]:
    """Return every broken promise of the supervisor, in words."""
    found = [] if rounds_alive else ["the health rounds have ended"]
    for daemon_type, unit in units.items():
        run = unit.run
        if unit.phase is Phase.UP and (run is None or run.task is None or run.task.done()):
            found.append(f"{daemon_type} counts as up but nothing runs")
        if (unit.info.state is DaemonState.RUNNING) != (unit.phase is Phase.UP):
            found.append(f"{daemon_type} is shown as {unit.info.state} but is {unit.phase}")
    # As of some seconds ago: what was due then and is not done was overlooked, and is not just due.
    overdue = plan(views, now_s=now_s - OVERDUE_S).actions
    found += [f"{action.daemon_type} waits for its {action.do} ({action.reason})" for action in overdue]
    return found


log = structlog.get_logger()

NOT_RUNNING = HealthCheckResult(healthy=False, status=CoordinatorStatus.STOPPED, message="not running")
READER_CHECK_S = 5.0
SELF_CHECK_S = 30.0


def _is_stopped_alone(manager: DaemonService) -> bool:
    """Whether a daemon ends while the others go on: a manager that shuts down ends its rounds first."""
    return manager.health_rounds_alive


class EventRouterDaemon:
    """EVENT_ROUTER: the process's router reads what other processes say, and ends in order."""

    def __init__(self, *, router: UnifiedEventRouter, manager: DaemonService) -> None:
        self._router, self._manager = router, manager
        self._running = False

    async def run(self, *, on_ready: Callable[[], None]) -> None:
        await self._router.start()
        self._running = True
        try:
            on_ready()
            # The router works in tasks of its own; this only stays until it is cancelled.
            await asyncio.get_running_loop().create_future()
        finally:
            self._running = False
            # Every use of a router has it read again, which is not what somebody wants who stops this.
            await (self._router.rest() if _is_stopped_alone(self._manager) else self._router.stop())

    def health_check(self) -> HealthCheckResult:
        """Running, it is not unhealthy for what a restart cannot mend: the router tries its log again."""
        if not self._running:
            return NOT_RUNNING
        stats = self._router.get_stats()
        if stats["cross_process_degraded"]:
            return HealthCheckResult.degraded("the event log cannot be reached")
        return HealthCheckResult.ok()


class CrossProcessPoller:
    """CROSS_PROCESS_POLLER: makes sure that the log is being read while this process lives."""

    def __init__(self, *, runtime: Runtime, router: UnifiedEventRouter, manager: DaemonService) -> None:
        self._runtime, self._router, self._manager = runtime, router, manager
        self._running = False
        self.restarts = 0

    async def run(self, *, on_ready: Callable[[], None]) -> None:
        await self._router.start()
        self._running = True
        try:
            on_ready()
            while True:
                await self._runtime.sleep(READER_CHECK_S)
                await self._read_again()
        finally:
            self._running = False
            if _is_stopped_alone(self._manager) and not self._manager.is_running(DaemonType.EVENT_ROUTER):
                await self._router.rest()  # it read on when EVENT_ROUTER was stopped, so this ends with it

    async def _read_again(self) -> None:
        stats = self._router.get_stats()
        if stats["has_cross_process"] and not stats["cross_process_polling"]:
            self.restarts += 1
            log.warning("daemons.event_reader_restarted", restarts=self.restarts)
            await self._router.start()

    def health_check(self) -> HealthCheckResult:
        if not self._running:
            return NOT_RUNNING
        stats = self._router.get_stats()
        if not stats["has_cross_process"]:
            return HealthCheckResult.ok("events stay in this process")
        details = {"reading": stats["cross_process_polling"], "restarts": self.restarts}
        if not details["reading"]:
            return HealthCheckResult.degraded("the event log is not being read", **details)
        return HealthCheckResult.ok("", **details)


class SupervisorWatch:
    """DAEMON_WATCHDOG: checks that the supervisor itself works. It restarts nothing on its own."""

    def __init__(self, *, manager: DaemonService, runtime: Runtime) -> None:
        self._manager, self._runtime = manager, runtime
        self._seen: list[str] = []
        self._found: list[str] = []
        self._running = False
        self.checks = 0

    async def run(self) -> None:
        self._running = True
        try:
            while True:
                await self._runtime.sleep(SELF_CHECK_S)
                self.check()
        finally:
            self._running = False

    def check(self) -> list[str]:
        """Look once and have the supervisor look again; return what was wrong twice in a row."""
        self.checks += 1
        supervisor = self._manager.supervisor
        seen = findings(
            supervisor.units,
            supervisor.views(),
            now_s=self._runtime.monotonic_s(),
            rounds_alive=self._manager.health_rounds_alive,
        )
        found = [text for text in seen if text in self._seen]
        if new := [text for text in found if text not in self._found]:
            self._manager.alert("supervisor_self_check", "; ".join(new))
        if seen:
            self._manager.repair()
        self._seen, self._found = seen, found
        return found

    def health_check(self) -> HealthCheckResult:
        """The supervisor's faults are not this daemon's: it stays healthy and tells."""
        if not self._running:
            return NOT_RUNNING
        details: dict[str, Any] = {"checks": self.checks, "found": list(self._found)}
        if self._found:
            return HealthCheckResult.degraded(self._found[0], **details)
        return HealthCheckResult.ok("", **details)
