"""The shapes in which the manager tells how its daemons are."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast, overload

from ringrift.daemons.planning import Ended, Phase
from ringrift.daemons.types import DaemonInfo, DaemonState, DaemonType
from ringrift.daemons.unit import Unit

DOWN_FOR_GOOD = (DaemonState.FAILED, DaemonState.IMPORT_FAILED)


class DaemonStatus(dict[DaemonType, DaemonInfo]):
    """One answer in both documented shapes.

    It is a dict from each `DaemonType` to its `DaemonInfo`; beyond that the keys "running", "daemons",
    "summary", "circuit_breaker" and "loop" give the plain document, without being counted or iterated.
    """

    def __init__(self, infos: Mapping[DaemonType, DaemonInfo], document: Mapping[str, Any]) -> None:
        super().__init__(infos)
        self._document = dict(document)

    @overload
    def __getitem__(self, key: DaemonType) -> DaemonInfo: ...

    @overload
    def __getitem__(self, key: str) -> Any: ...

    def __getitem__(self, key: str) -> Any:
        return self._document[key] if key in self._document else super().__getitem__(cast("DaemonType", key))

    def __contains__(self, key: object) -> bool:
        return key in self._document or super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        if key in self._document:
            return self._document[key]
        return super().get(cast("DaemonType", key), default)

    def to_dict(self) -> dict[str, Any]:
        """Return the plain document."""
        return dict(self._document)


class ProbeReport(dict[str, Any]):
    """A probe's answer: indexable, and true only when the probe passes."""

    def __init__(self, passed_key: str, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self._passed_key = passed_key

    def __bool__(self) -> bool:
        return bool(self[self._passed_key])


def expected(unit: Unit) -> bool:
    """Return whether the daemon ought to be up now."""
    return unit.wanted and not unit.kept_down and unit.ended is not Ended.COMPLETED


def is_down(unit: Unit) -> bool:
    """Return whether a daemon that ought to be up is not, nor on its first way there."""
    if unit.phase is Phase.UP:
        return False
    return not (unit.phase is Phase.STARTING and unit.ended is Ended.NEVER_RAN)


def status_document(
    units: Mapping[DaemonType, Unit], *, running: bool, uptimes: Mapping[DaemonType, float]
) -> dict[str, Any]:
    """Return the plain status of all daemons."""
    states = [unit.info.state for unit in units.values()]
    up, failed = states.count(DaemonState.RUNNING), sum(states.count(state) for state in DOWN_FOR_GOOD)
    return {
        "running": running,
        "daemons": {
            daemon_type.value: daemon_row(unit, uptime_s=uptimes[daemon_type])
            for daemon_type, unit in units.items()
        },
        "summary": {
            "total": len(states),
            "running": up,
            "failed": failed,
            "stopped": len(states) - up - failed,
            "unavailable": sum(1 for unit in units.values() if unit.info.unavailable_reason),
        },
    }


def daemon_row(unit: Unit, *, uptime_s: float) -> dict[str, Any]:
    """Return what the status shows of one daemon."""
    info = unit.info
    return {
        "state": info.state.value,
        "uptime_seconds": uptime_s,
        "restart_count": info.restart_count,
        "last_error": info.last_error,
        "auto_restart": info.auto_restart,
        "category": unit.spec.category.value,
        "wanted": unit.wanted,
        "held": sorted(unit.kept_down),
        "paused": info.paused,
        "leaked": info.leaked,
        "unavailable_reason": info.unavailable_reason,
    }


def daemon_health(unit: Unit, *, why_down: str) -> dict[str, Any]:
    """Return the health of one daemon. A daemon that nobody wants is not unhealthy."""
    info = unit.info
    well, message = unit.health
    down = expected(unit) and is_down(unit)
    return {
        "healthy": well and not down and not info.leaked and info.state not in DOWN_FOR_GOOD,
        "state": info.state.value,
        "message": message or (info.last_error or why_down if down else ""),
        "available": not info.unavailable_reason,
        "reason": info.unavailable_reason,
        "restart_count": info.restart_count,
        "critical": unit.spec.critical,
        "paused": info.paused,
    }


def copies(units: Mapping[DaemonType, Unit]) -> dict[DaemonType, DaemonInfo]:
    """Return the infos as they are now; later changes do not reach them."""
    return {daemon_type: copy.copy(unit.info) for daemon_type, unit in units.items()}


def as_told(
    infos: Mapping[DaemonType, DaemonInfo], rows: Mapping[str, Mapping[str, Any]], now_s: float
) -> dict[DaemonType, DaemonInfo]:
    """Return *infos* with what the *rows* of another process say, and none that they know nothing of."""
    known = {t: row for t in infos if (row := rows.get(t.value)) and row["state"] in set(DaemonState)}
    return {
        t: replace(
            infos[t],
            state=DaemonState(row["state"]),
            start_time=now_s - row["uptime_seconds"] if row["uptime_seconds"] else 0.0,
            restart_count=row["restart_count"],
            last_error=row["last_error"],
            paused=row["paused"],
            leaked=row["leaked"],
        )
        for t, row in known.items()
    }


def lifecycle_summary(
    units: Mapping[DaemonType, Unit], uptimes: Mapping[DaemonType, float], *, uptime_s: float, restarts: int
) -> dict[str, Any]:
    """Return the uptimes and restarts of all daemons in a few numbers."""
    live = [seconds for seconds in uptimes.values() if seconds > 0]
    worst = max(units.values(), key=lambda unit: unit.info.restart_count, default=None)
    most = 0 if worst is None else worst.info.restart_count
    return {
        "manager_uptime_seconds": uptime_s,
        "total_restarts": restarts,
        "average_uptime_seconds": sum(live) / len(live) if live else 0.0,
        "max_uptime_seconds": max(live, default=0.0),
        "min_uptime_seconds": min(live, default=0.0),
        "most_restarts_daemon": worst.daemon_type.value if worst is not None and most else None,
        "most_restarts_count": most,
    }
