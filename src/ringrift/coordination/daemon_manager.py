"""The daemon manager of this process: one for everybody who asks by name."""

from __future__ import annotations

from ringrift.coordination.queue_monitor import measured_pressure
from ringrift.daemons.manager import DaemonManager
from ringrift.daemons.types import DaemonManagerConfig

__all__ = ["get_daemon_manager", "reset_daemon_manager"]


def get_daemon_manager(config: DaemonManagerConfig | None = None) -> DaemonManager:
    """Return the manager of this process; see `DaemonManager.get_instance`."""
    manager = DaemonManager.get_instance(config)
    manager.reactions.pressure = manager.reactions.pressure or measured_pressure
    return manager


def reset_daemon_manager() -> None:
    """Forget the manager of this process."""
    DaemonManager.reset_instance()
