"""The workers of this machine, as one child process of the control process that is kept alive."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import structlog

from ringrift.daemons.orphan_guard import process_guard
from ringrift.runtime import Child, Command, Runtime

RESTART_S_MIN, RESTART_S_MAX = 0.5, 30.0
HEALTHY_AFTER_S = 30.0
STOP_EXTRA_S = 15.0

log = structlog.get_logger()


class LocalWorkers:
    """Starts the worker process, starts it again when it dies, and ends it with its jobs sealed."""

    def __init__(self, runtime: Runtime, *, slots: int, log_path: Path, grace_s: float) -> None:
        self._runtime, self._slots, self._log_path, self._grace_s = runtime, slots, log_path, grace_s
        self.restarts = 0

    async def run(self) -> None:
        """Keep the workers alive until cancelled, then stop them."""
        delay_s = RESTART_S_MIN
        while True:
            started_s = self._runtime.monotonic_s()
            child = await self._start()
            try:
                code = await child.wait()
            except asyncio.CancelledError:
                await self._stop(child)
                raise
            finally:
                process_guard().remove(child.pid)
            lived_s = self._runtime.monotonic_s() - started_s
            delay_s = RESTART_S_MIN if lived_s >= HEALTHY_AFTER_S else min(delay_s * 2, RESTART_S_MAX)
            self.restarts += 1
            log.warning("workers.died", code=code, lived_s=round(lived_s, 1), again_in_s=delay_s)
            await self._runtime.sleep(delay_s)

    async def _start(self) -> Child:
        await asyncio.to_thread(self._log_path.parent.mkdir, parents=True, exist_ok=True)
        argv = [sys.executable, "-m", "ringrift.work.worker_main", "--slots", str(self._slots)]
        child = await self._runtime.spawn(Command(argv=argv, output=self._log_path))
        process_guard().add(child.pid)
        log.info("workers.started", pid=child.pid, slots=self._slots)
        return child

    async def _stop(self, child: Child) -> None:
        """The worker passes the wish on to its jobs, which seal what they have."""
        child.signal_group(signal.SIGTERM)
        try:
            async with asyncio.timeout(self._grace_s + STOP_EXTRA_S):
                await child.wait()
        except TimeoutError:
            log.error("workers.killed", after_s=self._grace_s + STOP_EXTRA_S)
            child.signal_group(signal.SIGKILL)
            await child.wait()
