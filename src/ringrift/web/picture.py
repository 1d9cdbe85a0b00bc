"""Taking the picture that the probes and the live page show; done on the control loop."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import metadata
from typing import Any

from ringrift.daemons.reader import DaemonReader
from ringrift.daemons.types import DaemonState
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.learning.run_status import RunStatus
from ringrift.runtime import Runtime
from ringrift.web.snapshot import ProbeSnapshot

EVENTS_SHOWN, EVENTS_SEEN = 30, 300
FIELDS_SHOWN = 5
ABOUT_CHARS_MAX = 160
SINCE_STEP_S = 5.0  # coarse, so that a row does not count as new only because a second went by


def take_picture(
    manager: DaemonReader,
    router: UnifiedEventRouter,
    runtime: Runtime,
    *,
    run: RunStatus | None = None,
    engine_failure: str = "",
) -> ProbeSnapshot:
    """Collect what the probes and the page show. Without its engine a process is dead, whatever runs."""
    alive, ready = manager.liveness_probe(), manager.readiness_probe()
    summary = manager.health_summary()
    status = manager.status_document()
    counts: dict[str, int] = {}
    for row in status["daemons"].values():
        state = "unavailable" if row["unavailable_reason"] else row["state"]
        counts[state] = counts.get(state, 0) + 1
    down = ", ".join(alive["down"])
    return ProbeSnapshot(
        taken_s=runtime.monotonic_s(),
        node_id=runtime.hostname,
        alive=bool(alive) and not engine_failure,
        ready=bool(ready) and not engine_failure,
        reason=engine_failure or (f"critical daemons are down: {down}" if down else ready["reason"]),
        uptime_s=alive["uptime_seconds"],
        health_score=summary["score"],
        daemon_counts=counts,
        status=status,
        events_routed=router.get_stats()["events_routed"],
        version=_version(),
        run=run,
        daemons=_daemons(status["daemons"], now_s=runtime.now_s()),
        events=_events(router),
    )


@cache  # it is read from a file
def _version() -> str:
    return metadata.version("ringrift")


def _daemons(rows: Mapping[str, Mapping[str, Any]], *, now_s: float) -> list[dict[str, Any]]:
    """Those that run or ought to; the rest of the 89 types would only hide them."""
    return [
        {
            "name": name,
            "state": "paused" if row["paused"] else row["state"],
            "category": row["category"],
            "since_s": _coarse(now_s - row["uptime_seconds"]) if row["uptime_seconds"] else None,
            "restarts": row["restart_count"],
            "error": row["last_error"] or "",
        }
        for name, row in rows.items()
        if not row["unavailable_reason"] and (row["wanted"] or row["state"] != DaemonState.STOPPED.value)
    ]


def _events(router: UnifiedEventRouter) -> list[dict[str, Any]]:
    """Newest first; the same said again and again is one row that counts."""
    rows: list[dict[str, Any]] = []
    for event in reversed(router.get_history(limit=EVENTS_SEEN)):
        if rows and (rows[-1]["type"], rows[-1]["source"]) == (event.event_type, event.source):
            rows[-1]["times"] += 1
            continue
        if len(rows) == EVENTS_SHOWN:
            break
        rows.append(
            {
                "id": event.event_id,
                "at_s": event.timestamp,
                "type": event.event_type,
                "source": event.source,
                "about": _about(event.payload),
                "times": 1,
            }
        )
    return rows


def _about(payload: Mapping[str, Any]) -> str:
    told = [
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in payload.items()
        if isinstance(value, str | int | float) and value != ""
    ]
    text = ", ".join(told[:FIELDS_SHOWN])
    return text if len(text) <= ABOUT_CHARS_MAX else f"{text[: ABOUT_CHARS_MAX - 1]}…"


def _coarse(moment_s: float) -> float:
    return round(moment_s / SINCE_STEP_S) * SINCE_STEP_S
