"""All daemons of the run in a few numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ringrift.coordination.daemon_manager import get_daemon_manager

__all__ = ["DaemonStats", "collect_daemon_stats", "get_daemon_stats"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonStats:
    """How many are how, None where nobody tells; uptimes are of those that run, None when none does."""

    total: int | None
    running: int | None
    failed: int | None
    stopped: int | None
    unavailable: int | None
    restarts: int | None
    most_restarts: str | None
    manager_uptime_s: float | None
    uptime_s_mean: float | None
    uptime_s_max: float | None


def collect_daemon_stats() -> DaemonStats:
    manager = get_daemon_manager()
    status, life = manager.get_status(), manager.get_lifecycle_summary()
    counts, runs = status["summary"], status["running"]
    up = bool(counts["running"])
    return DaemonStats(
        total=counts["total"],
        running=counts["running"],
        failed=counts["failed"],
        stopped=counts["stopped"],
        unavailable=counts["unavailable"],
        restarts=life["total_restarts"],
        most_restarts=life["most_restarts_daemon"],
        manager_uptime_s=life["manager_uptime_seconds"] if runs else None,
        uptime_s_mean=life["average_uptime_seconds"] if up else None,
        uptime_s_max=life["max_uptime_seconds"] if up else None,
    )


def get_daemon_stats() -> dict[str, Any]:
    return asdict(collect_daemon_stats())
