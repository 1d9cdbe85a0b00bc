"""Stopping many daemons: dependents first, each level at once, all under one deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from ringrift.daemons.graph import levels
from ringrift.daemons.planning import Phase
from ringrift.daemons.registry import Registry
from ringrift.daemons.supervisor import Supervisor
from ringrift.daemons.types import DaemonType
from ringrift.daemons.unit import Unit


async def stop_in_order(
    supervisor: Supervisor,
    registry: Registry,
    types: Collection[DaemonType],
    *,
    timeout_s: float,
    forced_s: float,
    ordered: bool = True,
) -> dict[DaemonType, bool]:
    """Stop *types*; return which of them are really gone. Takes at most both limits together.

    A level that does not end in its share of the time does not keep the next one waiting.
    """
    runtime = supervisor.runtime
    deadline_s = runtime.monotonic_s() + timeout_s
    for daemon_type in types:
        supervisor.units[daemon_type].wanted = False
    groups = list(reversed(levels(registry, types))) if ordered else [list(types)]
    for index, group in enumerate(groups):
        left_s = max(deadline_s - runtime.monotonic_s(), 0.0)
        units = [supervisor.units[daemon_type] for daemon_type in group]
        for unit in units:
            supervisor.end(unit, "stopped", limits_s=(left_s, forced_s))
        await _wait_until_gone(units, timeout_s=left_s / (len(groups) - index))
    everything = [supervisor.units[daemon_type] for daemon_type in types]
    rest_s = max(deadline_s - runtime.monotonic_s(), 0.0) + forced_s
    await _wait_until_gone(everything, timeout_s=rest_s + 0.05)
    return {unit.daemon_type: is_gone(unit) for unit in everything}


def is_gone(unit: Unit) -> bool:
    """Return whether nothing of the daemon runs any more."""
    return unit.phase is Phase.ABSENT and not unit.leaked_runs


async def _wait_until_gone(units: Collection[Unit], *, timeout_s: float) -> None:
    waits = {
        asyncio.ensure_future(unit.run.over.wait())
        for unit in units
        if unit.run is not None and unit.phase is Phase.STOPPING
    }
    if not waits:
        return
    try:
        await asyncio.wait(waits, timeout=timeout_s)
    finally:
        for wait in waits:
            wait.cancel()
