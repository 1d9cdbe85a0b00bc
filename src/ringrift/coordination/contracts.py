"""What the system expects of a coordinator and of a daemon, and the one directory of those that run here."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Protocol, runtime_checkable

from ringrift.daemons.running import attempt, attempt_async
from ringrift.process import process_scope
from ringrift.status import CoordinatorStatus, HealthCheckResult, as_result

__all__ = [
    "REQUIRED_MEMBERS",
    "CoordinatorDirectory",
    "CoordinatorProtocol",
    "DaemonProtocol",
    "as_result",
    "coordinator_directory",
    "get_all_metrics",
    "get_coordinator",
    "health_check_all",
    "invoke_health_check",
    "register_coordinator",
    "unregister_coordinator",
    "validate_coordinator",
]

# Listed by hand: `isinstance` with a runtime protocol says yes or no, and a caller wants what is missing.
REQUIRED_MEMBERS = ("name", "status", "start", "stop", "get_metrics", "health_check")


@runtime_checkable
class CoordinatorProtocol(Protocol):
    """A part of the system that keeps state and says how it is."""

    @property
    def name(self) -> str: ...

    @property
    def status(self) -> CoordinatorStatus: ...

    async def start(self) -> Any: ...

    async def stop(self) -> Any: ...

    def get_metrics(self) -> Mapping[str, Any]: ...

    def health_check(self) -> HealthCheckResult | Awaitable[HealthCheckResult]: ...


@runtime_checkable
class DaemonProtocol(Protocol):
    """Something that runs until it is stopped."""

    @property
    def name(self) -> str: ...

    @property
    def is_running(self) -> bool: ...

    async def start(self) -> Any: ...

    async def stop(self) -> Any: ...

    def health_check(self) -> HealthCheckResult | Awaitable[HealthCheckResult]: ...


class CoordinatorDirectory:
    """The coordinators of this process, by name, in order of registration."""

    def __init__(self) -> None:
        self._by_name: dict[str, Any] = {}

    def register(self, coordinator: Any, name: str | None = None) -> str:
        """Add or replace. Raises `TypeError` if there is no name to be found by."""
        key = name or getattr(coordinator, "name", None)
        if not isinstance(key, str) or not key:
            raise TypeError(f"{coordinator!r} has no name; pass one")
        # A later one under the same name replaces the first: a restarted coordinator is a new object.
        self._by_name[key] = coordinator
        return key

    def unregister(self, name: str) -> bool:
        return self._by_name.pop(name, None) is not None

    def get(self, name: str) -> Any | None:
        return self._by_name.get(name)

    def all(self) -> dict[str, Any]:
        # A copy: callers await between entries, and a coordinator may leave the directory meanwhile.
        return dict(self._by_name)


def coordinator_directory() -> CoordinatorDirectory:
    """Return the directory of this process."""
    return process_scope().get(CoordinatorDirectory, CoordinatorDirectory)


def register_coordinator(coordinator: Any, name: str | None = None) -> str:
    return coordinator_directory().register(coordinator, name)


def unregister_coordinator(name: str) -> bool:
    return coordinator_directory().unregister(name)


def get_coordinator(name: str) -> Any | None:
    return coordinator_directory().get(name)


def validate_coordinator(coordinator: Any) -> list[str]:
    """Return what *coordinator* lacks; an empty list is good."""
    return [member for member in REQUIRED_MEMBERS if not hasattr(coordinator, member)]


async def invoke_health_check(component: Any, *, default_on_error: bool = False) -> HealthCheckResult:
    """Ask *component* how it is, whatever the shape of its check: sync or async, bool, dict or result.

    A check that raises is an error, always. *default_on_error* says that a component without a check is none:
    then it is unknown how it is, which is not healthy either.
    """
    check = getattr(component, "health_check", None)
    if check is None:
        missing = f"{_label(component)} has no health_check"
        status = CoordinatorStatus.UNKNOWN if default_on_error else CoordinatorStatus.ERROR
        return HealthCheckResult(False, status, missing)
    answer = await attempt_async(f"health check of {_label(component)}", check)
    if answer.error is not None:
        return HealthCheckResult.unhealthy(f"health_check raised {answer.error!r}")
    return as_result(answer.value)


async def health_check_all() -> dict[str, HealthCheckResult]:
    """Ask every registered coordinator, in order."""
    found = coordinator_directory().all()
    return {name: await invoke_health_check(coordinator) for name, coordinator in found.items()}


def get_all_metrics() -> dict[str, dict[str, Any]]:
    """Return the metrics of every registered coordinator that has some; `error` alone where they failed."""
    found = coordinator_directory().all()
    return {name: _metrics_of(each) for name, each in found.items() if hasattr(each, "get_metrics")}


def _metrics_of(coordinator: Any) -> dict[str, Any]:
    answer = attempt(f"metrics of {_label(coordinator)}", lambda: dict(coordinator.get_metrics()))
    return {"error": answer.problem} if answer.error is not None else answer.value


def _label(component: Any) -> str:
    return str(getattr(component, "name", type(component).__name__))
