"""The daemon manager of this process: one for everybody who asks by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.event_router import get_router
from ringrift.coordination.queue_monitor import measured_pressure
from ringrift.coordination.sync_base import open_data_plane
from ringrift.daemons.manager import DaemonService, check_parts
from ringrift.daemons.restarts import JsonLedger
from ringrift.daemons.types import DaemonManagerConfig, ReadySignals
from ringrift.errors import ConfigError
from ringrift.process import SingletonMixin, process_scope

__all__ = ["DaemonManager", "get_daemon_manager", "reset_daemon_manager"]


class DaemonManager(DaemonService, SingletonMixin):
    """Starts, watches, restarts and stops daemons; those of the product work at this process's data plane."""

    def _parts(self) -> Mapping[str, Any]:
        return {"plane": open_data_plane, "router": get_router()}

    @classmethod
    def get_instance(cls, config: DaemonManagerConfig | None = None) -> Self:
        """Return the manager of this process; the first call may say how it is configured.

        Raises `ConfigError` for another configuration than the manager that is there has.
        """
        check_parts(config=config)
        manager = process_scope().get(cls, lambda: cls._for_this_process(config))
        if config is not None and manager.config != config:
            raise ConfigError(
                "the daemon manager of this process has another configuration; give it with the first call, "
                "or shut the manager down and drop it with reset_daemon_manager()"
            )
        return manager

    @classmethod
    def reset_instance(cls) -> Self | None:
        """Forget the manager of this process and return it; a running one should be shut down first."""
        process_scope().drop(ReadySignals)
        return super().reset_instance()

    @classmethod
    def _for_this_process(cls, config: DaemonManagerConfig | None = None) -> Self:
        """On the process's router, with the ledger on disk."""
        store = JsonLedger(get_settings().coordination_dir / "daemon_restarts.json")
        manager = cls(config, bus=get_router(), ledger=store)
        manager.reactions.pressure = measured_pressure
        process_scope().put(ReadySignals, ReadySignals(manager.mark_ready))
        return manager


def get_daemon_manager(config: DaemonManagerConfig | None = None) -> DaemonManager:
    """Return the manager of this process; see `DaemonManager.get_instance`."""
    return DaemonManager.get_instance(config)


def reset_daemon_manager() -> None:
    """Forget the manager of this process."""
    DaemonManager.reset_instance()
