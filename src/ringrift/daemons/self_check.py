"""What a working supervisor never shows. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from ringrift.daemons.planning import DaemonView, Phase, plan
from ringrift.daemons.types import DaemonState, DaemonType
from ringrift.daemons.unit import Unit

OVERDUE_S = 5.0


def findings(
    units: Mapping[DaemonType, Unit],
    views: Mapping[DaemonType, DaemonView],
    *,
    now_s: float,
    rounds_alive: bool,
) -> list[str]:
    """Return every broken promise of the supervisor, in words."""
    found = [] if rounds_alive else ["the health rounds have ended"]
    for daemon_type, unit in units.items():
        run = unit.run
        if unit.phase is Phase.UP and (run is None or run.task is None or run.task.done()):
            found.append(f"{daemon_type} counts as up but nothing runs")
        if (unit.info.state is DaemonState.RUNNING) != (unit.phase is Phase.UP):
            found.append(f"{daemon_type} is shown as {unit.info.state} but is {unit.phase}")
    overdue = plan(views, now_s=now_s - OVERDUE_S).actions
    found += [f"{action.daemon_type} waits for its {action.do} ({action.reason})" for action in overdue]
    return found
