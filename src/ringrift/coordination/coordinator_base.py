"""The life of a coordinator, and the orderly end of several."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from ringrift.daemons.running import OVERRAN, end_within
from ringrift.errors import ConfigError
from ringrift.process import SingletonMixin
from ringrift.runtime import Runtime, system_runtime
from ringrift.status import CoordinatorStatus, HealthCheckResult

__all__ = ["CoordinatorBase", "CoordinatorRegistry"]

log = structlog.get_logger()

# Both limits must be passed: one failure of the first two operations says nothing, nor do ten in a million.
ERRORS_TOLERATED = 10
ERROR_SHARE_TOLERATED = 0.1

_CANCEL_GRACE_S = 1.0
# ERROR is among them so that a failed start can be tried again on the same object.
_MAY_START = {CoordinatorStatus.READY, CoordinatorStatus.STOPPED, CoordinatorStatus.ERROR}
_ACTIVE = {CoordinatorStatus.RUNNING, CoordinatorStatus.PAUSED, CoordinatorStatus.DEGRADED}


class CoordinatorBase:
    """INITIALIZING → READY → RUNNING ⇄ PAUSED → DRAINING → STOPPED; a failing hook leads to ERROR.

    Subclasses fill in the `_do_*` hooks. Asking for the state that it is in does nothing.
    `get_state` and `restore_state` carry what must survive a restart (see
    `ringrift.coordination.coordinator_persistence`).
    """

    def __init__(self, name: str, *, runtime: Runtime | None = None) -> None:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"the name of a coordinator is {name!r}; it must be text")
        self.name = name
        self.runtime = runtime or system_runtime()
        self.operations = 0
        self.errors = 0
        self.last_error = ""
        self._status = CoordinatorStatus.INITIALIZING
        self._started_s: float | None = None

    @property
    def status(self) -> CoordinatorStatus:
        return self._status

    @property
    def uptime_seconds(self) -> float:
        return 0.0 if self._started_s is None else self.runtime.monotonic_s() - self._started_s

    async def initialize(self) -> None:
        if self._status is CoordinatorStatus.INITIALIZING:
            await self._step(self._do_initialize, CoordinatorStatus.READY)

    async def start(self) -> None:
        """Run; initializes first if that has not been done."""
        await self.initialize()
        if self._status not in _MAY_START:
            return
        self._status = CoordinatorStatus.STARTING
        await self._step(self._do_start, CoordinatorStatus.RUNNING)
        self._started_s = self.runtime.monotonic_s()

    async def pause(self) -> None:
        if self._status is CoordinatorStatus.RUNNING:
            await self._step(self._do_pause, CoordinatorStatus.PAUSED)

    async def resume(self) -> None:
        if self._status is CoordinatorStatus.PAUSED:
            await self._step(self._do_resume, CoordinatorStatus.RUNNING)

    async def stop(self) -> None:
        """Let what was begun finish, then stop."""
        if self._status not in _ACTIVE:
            return
        self._status = CoordinatorStatus.DRAINING
        await self._step(self._do_stop, CoordinatorStatus.STOPPED)
        self._started_s = None

    async def shutdown(self) -> None:
        """Stop and give everything back."""
        await self.stop()
        await self._step(self._do_cleanup, CoordinatorStatus.STOPPED)

    def record_operation(self) -> None:
        self.operations += 1

    def record_error(self, error: BaseException | str) -> None:
        self.operations += 1
        self.errors += 1
        self.last_error = str(error)

    def health_check(self) -> HealthCheckResult:
        details = self.get_metrics()
        if self._status is not CoordinatorStatus.RUNNING:
            healthy = self._status is CoordinatorStatus.PAUSED
            return HealthCheckResult(healthy, self._status, f"{self.name} is {self._status.value}", details)
        share = self.errors / self.operations if self.operations else 0.0
        if self.errors >= ERRORS_TOLERATED and share >= ERROR_SHARE_TOLERATED:
            return HealthCheckResult.unhealthy(
                f"{share:.0%} of {self.operations} operations failed", **details
            )
        return HealthCheckResult.ok("", **details)

    def get_metrics(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "status": self._status.value,
            "uptime_seconds": self.uptime_seconds,
            "operations_count": self.operations,
            "errors_count": self.errors,
            "last_error": self.last_error,
        }

    def get_state(self) -> Mapping[str, Any]:
        """Return what a restart must find again, as JSON values."""
        return {}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` returned in an earlier life."""

    async def _do_initialize(self) -> None: ...

    async def _do_start(self) -> None: ...

    async def _do_pause(self) -> None: ...

    async def _do_resume(self) -> None: ...

    async def _do_stop(self) -> None: ...

    async def _do_cleanup(self) -> None: ...

    async def _step(self, hook: Callable[[], Awaitable[None]], then: CoordinatorStatus) -> None:
        try:
            await hook()
        # Cancellation too: a hook that was cut short has done some of its work, so no earlier state is true.
        except BaseException as error:
            self._status = CoordinatorStatus.ERROR
            self.last_error = str(error) or type(error).__name__
            raise
        self._status = then


@dataclass(frozen=True, slots=True)
class _Registered:
    coordinator: Any
    priority: int


class CoordinatorRegistry(SingletonMixin):
    """Coordinators with the order in which they end: low priority first, then the last registered."""

    def __init__(self) -> None:
        self._entries: dict[str, _Registered] = {}

    def register(self, coordinator: Any, *, shutdown_priority: int = 0) -> None:
        """Add or replace. `ConfigError` for what has no name or cannot be shut down: its end would fail."""
        name, shutdown = getattr(coordinator, "name", None), getattr(coordinator, "shutdown", None)
        if not isinstance(name, str) or not callable(shutdown):
            raise ConfigError(f"{coordinator!r} is no coordinator: it needs a name and shutdown()")
        self._entries[name] = _Registered(coordinator, shutdown_priority)

    def unregister(self, name: str) -> bool:
        return self._entries.pop(name, None) is not None

    def get(self, name: str) -> Any | None:
        entry = self._entries.get(name)
        return None if entry is None else entry.coordinator

    def shutdown_order(self) -> list[str]:
        # The sort is stable, so equal priorities stay newest first: what came later may use what came before.
        newest_first = reversed(self._entries.items())
        return [name for name, entry in sorted(newest_first, key=lambda item: item[1].priority)]

    async def shutdown_all(
        self, timeout: float = 30.0, *, force_after_timeout: bool = True
    ) -> dict[str, bool]:
        """End each within *timeout* seconds. Without force, the first that overruns ends the round."""
        outcome: dict[str, bool] = {}
        for name in self.shutdown_order():
            ending = _shut_down(self._entries[name].coordinator)
            problem = await end_within(ending, timeout, grace_s=_CANCEL_GRACE_S)
            outcome[name] = not problem
            if problem:
                log.error("coordinator.shutdown_failed", coordinator=name, error=problem)
            if problem == OVERRAN and not force_after_timeout:
                break
        return outcome


async def _shut_down(coordinator: Any) -> None:
    """Called in the task that is waited for, so that a plain call that raises is a failure like others."""
    ending = coordinator.shutdown()
    if inspect.isawaitable(ending):
        await ending
