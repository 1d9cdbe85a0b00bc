"""What only real time and real threads show: who blocks the loop, and who must not be able to."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil

from ringrift.coordination.daemon_manager import DaemonManager
from ringrift.daemons.child_process import OrphanGuard
from ringrift.daemons.types import DaemonManagerConfig, DaemonType
from ringrift.events.unified_router import UnifiedEventRouter


async def eventually(condition: Callable[[], object], *, within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.01)


def make_manager(**arguments: Any) -> DaemonManager:
    return DaemonManager(memory_percent=lambda: 1.0, **arguments)


async def test_12_the_manager_names_the_daemon_that_blocked_the_loop_and_tells() -> None:
    router = UnifiedEventRouter(enable_cross_process_polling=False)
    alerts: list[dict[str, Any]] = []

    def hear(event: Any) -> None:  # on a busy machine others may hold up the loop too
        if event.payload["details"]["daemon"] == "loop_eater":
            alerts.append(dict(event.payload))

    router.subscribe("HEALTH_ALERT", hear)
    manager = make_manager(bus=router)
    eater = DaemonType.register("LOOP_EATER")

    async def eats() -> None:
        while True:
            await asyncio.sleep(0.2)
            time.sleep(0.8)

    manager.register_factory(eater, eats)
    await manager.start(eater)
    await eventually(lambda: alerts)
    assert alerts[0]["alert_type"] == "event_loop_blocked"
    assert "eats" in alerts[0]["details"]["where"]
    await eventually(lambda: manager.get_status()["loop"]["last_culprit"] == "loop_eater")
    assert manager.get_status()["loop"]["worst_s"] > 0.5
    await manager.shutdown()
    await router.stop()


async def test_12_a_health_check_that_blocks_holds_up_neither_loop_nor_exit() -> None:
    manager = make_manager(config=DaemonManagerConfig(default_startup_grace_period=0.0))
    mine = DaemonType.register("BLOCKING_CHECK")

    end_of_test = threading.Event()

    class Blocking:
        asked = False

        async def run(self) -> None:
            await asyncio.Event().wait()

        def health_check(self) -> bool:
            Blocking.asked = True
            end_of_test.wait(100.0)
            return True

    manager.register_factory(mine, Blocking, health_check_interval=0.1)
    await manager.start(mine)
    await eventually(lambda: Blocking.asked)
    longest_s = 0.0
    for _ in range(20):
        began_s = time.monotonic()
        await asyncio.sleep(0.01)
        longest_s = max(longest_s, time.monotonic() - began_s)
    assert longest_s < 20.0
    began_s = time.monotonic()
    await manager.shutdown()
    assert time.monotonic() - began_s < 40.0
    end_of_test.set()


async def test_16_a_guard_that_was_killed_is_replaced_and_knows_the_groups() -> None:
    sleeper = [sys.executable, "-c", "import time; time.sleep(1000)"]
    first = subprocess.Popen(sleeper, start_new_session=True)
    second = subprocess.Popen(sleeper, start_new_session=True)
    try:
        guard = OrphanGuard()
        guard.add(first.pid)
        assert guard.pid is not None
        os.kill(guard.pid, signal.SIGKILL)
        await eventually(lambda killed=guard.pid: psutil.Process(killed).status() == psutil.STATUS_ZOMBIE)
        guard.add(second.pid)
        guard.remove(second.pid)
        del guard  # its pipe ends, as with the end of the process
        await eventually(lambda: first.poll() is not None)
        assert second.poll() is None
    finally:
        for process in (first, second):
            process.kill()
            process.wait(timeout=10)
