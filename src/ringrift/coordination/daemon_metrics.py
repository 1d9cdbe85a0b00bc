"""How well each daemon of the run does: uptime, restarts, health, what its cycles came to."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ringrift.coordination.daemon_manager import get_daemon_manager
from ringrift.daemons.types import DaemonState, DaemonType
from ringrift.errors import ConfigError

__all__ = ["DaemonMetrics", "get_all_daemon_metrics", "get_daemon_metrics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonMetrics:
    """One daemon. What nobody knows is None: a daemon that is down has no uptime."""

    daemon_type: DaemonType
    state: str
    healthy: bool | None
    message: str | None
    uptime_s: float | None
    restarts: int | None
    restarts_recent: int  # in the last five minutes
    last_error: str
    permanently_failed: bool

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "daemon_type": self.daemon_type.value}


def get_daemon_metrics(daemon_type: DaemonType | str) -> DaemonMetrics:
    """Return the metrics of one daemon; `ConfigError` for one that the manager does not know."""
    found = get_all_daemon_metrics()
    if daemon_type not in found:
        raise ConfigError(f"{daemon_type} is not registered")
    return found[DaemonType(daemon_type)]


def get_all_daemon_metrics() -> dict[DaemonType, DaemonMetrics]:
    manager = get_daemon_manager()
    rows, health = manager.status_document()["daemons"], manager.get_all_daemon_health()
    recent = manager.get_recent_restarts()
    return {
        daemon_type: DaemonMetrics(
            daemon_type=daemon_type,
            state=row["state"],
            healthy=health[daemon_type]["healthy"],
            message=health[daemon_type]["message"],
            uptime_s=row["uptime_seconds"] if row["state"] == DaemonState.RUNNING else None,
            restarts=row["restart_count"],
            restarts_recent=recent.get(daemon_type, 0),
            last_error=row["last_error"] or "",
            permanently_failed=manager.is_permanently_failed(daemon_type),
        )
        for daemon_type in health
        # Two questions: a daemon that is registered between them has health and no row yet.
        if (row := rows.get(daemon_type.value)) is not None
    }
