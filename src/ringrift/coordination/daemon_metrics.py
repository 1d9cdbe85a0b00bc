"""How well each daemon of this process's manager does: uptime, restarts, health, what its cycles came to."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ringrift.daemons.manager import get_daemon_manager
from ringrift.daemons.reports import DaemonStatus
from ringrift.daemons.types import DaemonType
from ringrift.errors import ConfigError

__all__ = ["DaemonMetrics", "get_all_daemon_metrics", "get_daemon_metrics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonMetrics:
    """One daemon. A number that nobody measured is None: a daemon that is down has no uptime."""

    daemon_type: DaemonType
    state: str
    healthy: bool
    message: str
    uptime_s: float | None
    restarts: int
    restarts_recent: int  # in the last five minutes
    last_error: str
    permanently_failed: bool

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "daemon_type": self.daemon_type.value}


def get_daemon_metrics(daemon_type: DaemonType | str) -> DaemonMetrics:
    """Return the metrics of one daemon; `ConfigError` for one that the manager does not know."""
    status = get_daemon_manager().get_status()
    if daemon_type not in status:
        raise ConfigError(f"{daemon_type} is not registered")
    return _metrics(DaemonType(daemon_type), status)


def get_all_daemon_metrics() -> dict[DaemonType, DaemonMetrics]:
    status = get_daemon_manager().get_status()
    return {daemon_type: _metrics(daemon_type, status) for daemon_type in status}


def _metrics(daemon_type: DaemonType, status: DaemonStatus) -> DaemonMetrics:
    manager = get_daemon_manager()
    row, health = status["daemons"][daemon_type.value], manager.get_all_daemon_health()[daemon_type]
    return DaemonMetrics(
        daemon_type=daemon_type,
        state=row["state"],
        healthy=health["healthy"],
        message=health["message"],
        uptime_s=row["uptime_seconds"] if manager.is_running(daemon_type) else None,
        restarts=row["restart_count"],
        restarts_recent=manager.get_recent_restarts().get(daemon_type, 0),
        last_error=row["last_error"] or "",
        permanently_failed=manager.is_permanently_failed(daemon_type),
    )
