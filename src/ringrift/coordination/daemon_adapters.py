"""Daemons as objects that one starts and stops, and objects of one's own as daemons.

A `DaemonAdapter` is a handle on one daemon of this process's manager. `adapt` goes the other way: an object
with `start` and `stop` (or `run`) of one's own becomes a daemon that the manager supervises.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from ringrift.coordination.daemon_manager import get_daemon_manager
from ringrift.daemons.types import DaemonInfo, DaemonType
from ringrift.errors import ConfigError
from ringrift.status import CoordinatorStatus, HealthCheckResult

__all__ = [
    "DaemonAdapter",
    "DistillationDaemonAdapter",
    "PromotionDaemonAdapter",
    "SyncDaemonAdapter",
    "adapt",
    "get_daemon_adapter",
]

_LIFE = ("run", "start")


class DaemonAdapter:
    """One daemon of the manager of this process."""

    daemon_type: DaemonType

    def __init__(self, daemon_type: DaemonType | str) -> None:
        try:
            self.daemon_type = DaemonType(daemon_type)
        except ValueError:
            raise ConfigError(f"{daemon_type!r} is no daemon type; DaemonType lists them") from None

    async def start(self) -> bool:
        """Start it; False when it is not up afterwards, and `why` says why."""
        return await get_daemon_manager().start(self.daemon_type)

    async def stop(self) -> bool:
        """Stop it for as long as nobody starts it."""
        return await get_daemon_manager().stop(self.daemon_type)

    async def restart(self) -> bool:
        # One that could not be ended is not started a second time beside itself.
        return await self.stop() and await self.start()

    def pause(self) -> bool:
        return get_daemon_manager().pause(self.daemon_type)

    def resume(self) -> bool:
        return get_daemon_manager().resume(self.daemon_type)

    @property
    def is_running(self) -> bool:
        return get_daemon_manager().is_running(self.daemon_type)

    @property
    def why(self) -> str:
        """Why it is not up; empty when it is."""
        return get_daemon_manager().why(self.daemon_type)

    @property
    def info(self) -> DaemonInfo:
        return get_daemon_manager().get_status()[self.daemon_type]

    def health_check(self) -> HealthCheckResult:
        """What the manager's health rounds found; one that nobody wants is stopped, not broken."""
        found = get_daemon_manager().get_all_daemon_health()[self.daemon_type]
        if not self.is_running:
            return HealthCheckResult(False, CoordinatorStatus.STOPPED, self.why, found)
        status = CoordinatorStatus.RUNNING if found["healthy"] else CoordinatorStatus.ERROR
        return HealthCheckResult(found["healthy"], status, found["message"], found)


class _Fixed(DaemonAdapter):
    of_type: ClassVar[DaemonType]

    def __init__(self) -> None:
        super().__init__(self.of_type)


class SyncDaemonAdapter(_Fixed):
    """AUTO_SYNC: brings games and models to where they are safe and needed."""

    of_type = DaemonType.AUTO_SYNC


class PromotionDaemonAdapter(_Fixed):
    """AUTO_PROMOTION: makes a model that has shown to be stronger the champion."""

    of_type = DaemonType.AUTO_PROMOTION


class DistillationDaemonAdapter(_Fixed):
    """DISTILLATION: trains small students of a champion."""

    of_type = DaemonType.DISTILLATION


def get_daemon_adapter(daemon_type: DaemonType | str) -> DaemonAdapter:
    return DaemonAdapter(daemon_type)


def adapt(daemon: Any, name: str, *, depends_on: Iterable[DaemonType] = (), **row: Any) -> DaemonAdapter:
    """Make an object of one's own a daemon called *name*, and return its handle; start it with that.

    It has `run()`, or `start()` and if need be `stop()`, plain or async. Further keywords are those of
    `DaemonManager.register_factory`.
    """
    if not any(callable(getattr(daemon, each, None)) for each in _LIFE):
        raise ConfigError(f"{type(daemon).__name__} has neither run() nor start(), so it cannot be a daemon")
    daemon_type = DaemonType.register(name)
    # The same object at every restart: what it keeps in its fields outlives a crash of its run.
    get_daemon_manager().register_factory(daemon_type, lambda: daemon, depends_on, **row)
    return DaemonAdapter(daemon_type)
