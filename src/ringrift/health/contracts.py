"""What the system expects of a coordinator and of a daemon, and the one directory of those that run here."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Protocol, cast, runtime_checkable

from ringrift.health.isolation import attempt_async
from ringrift.process import process_scope
from ringrift.status import CoordinatorStatus, HealthCheckResult

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
        self._by_name[key] = coordinator
        return key

    def unregister(self, name: str) -> bool:
        return self._by_name.pop(name, None) is not None

    def get(self, name: str) -> Any | None:
        return self._by_name.get(name)

    def all(self) -> dict[str, Any]:
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

    A check that is missing or raises answers with *default_on_error*, which is unhealthy by default.
    """
    check = getattr(component, "health_check", None)
    if check is None:
        return _on_error("has no health_check", default_on_error)
    answer = await attempt_async(f"health check of {_label(component)}", check)
    if answer.error is not None:
        return _on_error(f"health_check raised {answer.error!r}", default_on_error)
    return as_result(answer.value)


def as_result(answer: Any) -> HealthCheckResult:
    """Read any answer that health checks give; what says nothing is unhealthy."""
    if isinstance(answer, HealthCheckResult):
        return answer
    if isinstance(answer, bool):
        return HealthCheckResult.ok() if answer else HealthCheckResult.unhealthy("reported unhealthy")
    if isinstance(answer, Mapping) and "healthy" in answer:
        make = HealthCheckResult.ok if answer["healthy"] else HealthCheckResult.unhealthy
        return make(str(answer.get("message", "")), **dict(answer.get("details") or {}))
    if hasattr(answer, "healthy"):
        make = HealthCheckResult.ok if answer.healthy else HealthCheckResult.unhealthy
        return make(str(getattr(answer, "message", "")))
    return HealthCheckResult.unhealthy(f"health_check answered {type(answer).__name__}, which says nothing")


async def health_check_all() -> dict[str, HealthCheckResult]:
    """Ask every registered coordinator, in order."""
    found = coordinator_directory().all()
    return {name: await invoke_health_check(coordinator) for name, coordinator in found.items()}


def get_all_metrics() -> dict[str, dict[str, Any]]:
    """Return the metrics of every registered coordinator that has some."""
    found = coordinator_directory().all()
    return {
        name: dict(cast("Mapping[str, Any]", coordinator.get_metrics()))
        for name, coordinator in found.items()
        if hasattr(coordinator, "get_metrics")
    }


def _on_error(reason: str, default: bool) -> HealthCheckResult:  # noqa: FBT001 - one caller, by position
    return HealthCheckResult.degraded(reason) if default else HealthCheckResult.unhealthy(reason)


def _label(component: Any) -> str:
    return str(getattr(component, "name", type(component).__name__))
