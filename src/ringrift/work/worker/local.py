"""The workers of this machine, as child processes of the control process that are kept alive.

One has a slot for each job that may compute at a time. Another, with few slots, only checks and exports
games, beside the others: that takes a second now and then, and no game has to yield for it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import structlog

from ringrift.daemons.child_process import keep_log_small, process_guard
from ringrift.files import make_folders
from ringrift.runtime import Child, Command, Runtime, back_off_s, result_before
from ringrift.work.shares import PREPARING

RESTART_S_MIN, RESTART_S_MAX = 0.5, 30.0
HEALTHY_AFTER_S = 30.0
STOP_EXTRA_S = 15.0
LOG_BYTES_MAX = 5_000_000
LOG_LOOK_S = 60.0
SLOTS_PER_PREPARING = 16  # games are checked and exported in a few percent of the time that they take

log = structlog.get_logger()


class LocalWorker:
    """Starts a worker process, starts it again when it dies, and ends it with its jobs sealed."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        name: str,
        slots: int,
        log_path: Path,
        grace_s: float,
        options: Sequence[str] = (),
        may_write: Callable[[], bool] = lambda: True,
        folder: str = "",
    ) -> None:
        """*options* are more of its command line.

        *folder* is the identity of the data folder: a worker does not begin in another one.
        """
        self._runtime, self._name, self._slots, self._options = runtime, name, slots, options
        self._folder = folder
        self._log_path, self._grace_s, self._may_write = log_path, grace_s, may_write
        self.restarts = 0
        # Only a runtime of this very process starts real children.
        self._is_real = runtime.pid == os.getpid()

    async def run(self) -> None:
        """Keep the worker alive until cancelled, then stop it."""
        short_lives = 0  # in a row
        while True:
            started_s = self._runtime.monotonic_s()
            how = await self._live()
            lived_s = self._runtime.monotonic_s() - started_s
            short_lives = 0 if lived_s >= HEALTHY_AFTER_S else short_lives + 1
            delay_s = back_off_s(short_lives + 1, first_s=RESTART_S_MIN, longest_s=RESTART_S_MAX)
            self.restarts += 1
            log.warning(
                "workers.died", name=self._name, how=how, lived_s=round(lived_s, 1), again_in_s=delay_s
            )
            await self._runtime.sleep(delay_s)

    async def _live(self) -> str:
        """Start it and wait for its end; return how it ended."""
        if not await asyncio.to_thread(self._may_write):
            return "it was not started: it would work for another run"
        try:
            child = await self._start()
        except OSError as error:  # no room for another process, or for its log
            return f"it could not be started: {error}"
        try:
            return f"code {await self._end_of(child)}"
        except asyncio.CancelledError:
            await self._stop(child)
            raise
        finally:
            if self._is_real:
                process_guard().remove(child.pid)

    async def _end_of(self, child: Child) -> int:
        code = await result_before(child.wait(), self._look_after_log())
        assert code is not None
        return code

    async def _look_after_log(self) -> NoReturn:
        while True:
            await self._runtime.sleep(LOG_LOOK_S)
            await self._keep_log_small()

    async def _keep_log_small(self) -> None:
        try:
            await asyncio.to_thread(keep_log_small, self._log_path, bytes_max=LOG_BYTES_MAX)
        except OSError as error:  # a full disk is no reason to end the worker
            log.warning("workers.log_not_kept_small", path=str(self._log_path), error=str(error))

    async def _start(self) -> Child:
        await asyncio.to_thread(make_folders, self._log_path.parent)
        argv = [sys.executable, "-m", "ringrift.work.worker.main", "--slots", str(self._slots)]
        argv += ["--name", self._name]
        argv += self._options
        if self._folder:
            argv += ["--folder", self._folder]
        argv += ["--parent", str(self._runtime.pid)]
        child = await self._runtime.spawn(Command(argv=argv, output=self._log_path))
        if self._is_real:
            process_guard().add(child.pid)
        log.info("workers.started", name=self._name, pid=child.pid, slots=self._slots)
        return child

    async def _stop(self, child: Child) -> None:
        """The worker passes the request on to its jobs, which seal what they have."""
        if not await asyncio.to_thread(self._may_write):
            # Its files would go by path into the folder of somebody else. Its guard kills its jobs.
            child.signal_group(signal.SIGKILL)
            await child.wait()
            return
        child.signal_group(signal.SIGTERM)
        try:
            async with asyncio.timeout(self._grace_s + STOP_EXTRA_S):
                await child.wait()
        except TimeoutError:
            log.error("workers.killed", name=self._name, after_s=self._grace_s + STOP_EXTRA_S)
            child.signal_group(signal.SIGKILL)
            await child.wait()


def local_workers(
    runtime: Runtime,
    *,
    slots: int,
    log_dir: Path,
    grace_s: float,
    may_write: Callable[[], bool] = lambda: True,
    folder: str = "",
) -> list[LocalWorker]:
    """The workers that a run on one machine has. Where they may not write any more they are killed."""
    host = runtime.hostname
    return [
        LocalWorker(
            runtime,
            name=f"{host}-1",
            slots=slots,
            options=("--left-to-others", *PREPARING),
            log_path=log_dir / "worker.log",
            grace_s=grace_s,
            may_write=may_write,
            folder=folder,
        ),
        LocalWorker(
            runtime,
            name=f"{host}-prepare",
            slots=max(1, slots // SLOTS_PER_PREPARING),
            options=("--kinds", *PREPARING),
            log_path=log_dir / "worker-prepare.log",
            grace_s=grace_s,
            may_write=may_write,
            folder=folder,
        ),
    ]
