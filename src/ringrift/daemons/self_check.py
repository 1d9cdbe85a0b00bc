"""What a working supervisor never shows. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from ringrift.daemons.planning import Phase
from ringrift.daemons.types import DaemonState
from ringrift.daemons.unit import Unit

OVERDUE_S = 5.0


def findings(units: Iterable[Unit], *, now_s: float, rounds_alive: bool) -> list[str]:
    """Return every broken promise of the supervisor, in words."""
    found = [] if rounds_alive else ["the health rounds have ended"]
    for unit in units:
        found.extend(_of_unit(unit, now_s=now_s))
    return found


def _of_unit(unit: Unit, *, now_s: float) -> list[str]:
    name, run, found = unit.daemon_type.value, unit.run, []
    if unit.phase is Phase.UP and (run is None or run.task is None or run.task.done()):
        found.append(f"{name} counts as up but nothing runs")
    if (unit.info.state is DaemonState.RUNNING) != (unit.phase is Phase.UP):
        found.append(f"{name} is shown as {unit.info.state} but is {unit.phase}")
    overdue = unit.restart_at_s is not None and now_s - unit.restart_at_s > OVERDUE_S
    if overdue and unit.wanted and not unit.holds and unit.phase is Phase.ABSENT:
        found.append(f"{name} should have been restarted")
    if unit.phase in (Phase.STARTING, Phase.UP) and not unit.wanted:
        found.append(f"{name} runs although nobody wants it")
    return found
