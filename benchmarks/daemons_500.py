"""500 daemons: how long until all run, and what they cost while nothing happens.

Each is an object with a start hook and a health check; every tenth needs another one. The loop-lag watchdog
runs too, as it does in production.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import structlog

from benchmark import command
from ringrift.coordination.daemon_manager import DaemonManager
from ringrift.daemons.types import DaemonManagerConfig, DaemonType
from ringrift.status import HealthCheckResult

DAEMONS = 500
START_LIMIT_S = 2.0
IDLE_LIMIT_PERCENT = 3.0


class IdleDaemon:
    """Starts, waits, and says that it is well."""

    async def run(self, *, on_ready: Callable[[], None]) -> None:
        await asyncio.sleep(0)
        on_ready()
        await asyncio.get_running_loop().create_future()

    def health_check(self) -> HealthCheckResult:
        return HealthCheckResult.ok()


async def measure(idle_s: float) -> dict[str, Any]:
    # No grace period, so that the health checks are part of what is measured.
    manager = DaemonManager(DaemonManagerConfig(default_startup_grace_period=0.0))
    types = [DaemonType.register(f"BENCHMARK_{index}") for index in range(DAEMONS)]
    for index, daemon_type in enumerate(types):
        needs = [types[index - 1]] if index % 10 == 1 else []
        manager.register_factory(daemon_type, IdleDaemon, depends_on=needs, health_check_interval=30.0)
    began_s = time.perf_counter()
    result = await manager.start_all(types)
    start_s = time.perf_counter() - began_s
    await asyncio.sleep(0.5)
    cpu_s, began_s = time.process_time(), time.perf_counter()
    await asyncio.sleep(idle_s)
    idle_percent = 100 * (time.process_time() - cpu_s) / (time.perf_counter() - began_s)
    threads = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0
    began_s = time.perf_counter()
    await manager.shutdown()
    return {
        "daemons": sum(result.values()),
        "start_s": start_s,
        "idle_percent": idle_percent,
        "threads": threads,
        "shutdown_s": time.perf_counter() - began_s,
    }


def run(quick: bool = False) -> dict[str, Any]:
    """Start, idle, stop; return the numbers and whether the limits hold."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    result = asyncio.run(measure(idle_s=3.0 if quick else 15.0))
    result["start_limit_s"], result["idle_limit_percent"] = START_LIMIT_S, IDLE_LIMIT_PERCENT
    result["met"] = (
        result["daemons"] == DAEMONS
        and result["start_s"] < START_LIMIT_S
        and result["idle_percent"] < IDLE_LIMIT_PERCENT
    )
    return result


def table(result: dict[str, Any]) -> str:
    """Return the numbers for people."""
    return "\n".join(
        [
            f"{result['daemons']} daemons, {result['threads']} threads",
            f"start     {result['start_s']:>8.3f} s   (limit {START_LIMIT_S:g} s)",
            f"idle      {result['idle_percent']:>8.2f} %   (limit {IDLE_LIMIT_PERCENT:g} % of a core)",
            f"shutdown  {result['shutdown_s']:>8.3f} s",
            "limits met" if result["met"] else "limits MISSED",
        ]
    )


if __name__ == "__main__":
    sys.exit(command(run, table, __doc__))
