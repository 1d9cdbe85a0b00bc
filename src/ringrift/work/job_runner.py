"""One job as a process of its own: started, heard, watched and ended.

The job leads its own session, so that a signal reaches everything it started. Whatever happens here, when
`run` returns or is cancelled, nothing of the job is left: SIGTERM, a grace period in which it seals what it
has, then SIGKILL for the whole group. A guard process does the same when this process is killed.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from ringrift.daemons.child_logs import keep_log_small, log_tail
from ringrift.daemons.orphan_guard import OrphanGuard, process_guard
from ringrift.errors import ConfigError, Unavailable
from ringrift.runtime import Child, Command, Runtime
from ringrift.work.job_host import HostedChild, JobHost
from ringrift.work.job_limits import EndReason, JobLimits, Usage, measure, what_is_wrong
from ringrift.work.job_talk import JobTalk
from ringrift.work.job_verdicts import UNAVAILABLE_S, JobEnd

log = structlog.get_logger()

LOOK_S = 1.0  # between two looks at a running job
MEASURE_EVERY = 3  # looks
CHUNK_BYTES = 2**16
REAP_S = 5.0
LOG_BYTES_MAX = 2_000_000
# Of processes, memory or descriptors: no fault of the program, and over when others have ended.
SHORTAGES = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTask:
    """What to run, and within which bounds."""

    argv: Sequence[str]
    env: dict[str, str]
    folder: Path  # where it runs
    params: Path
    log: Path
    limits: JobLimits
    grace_s: float


class RunningJob:
    """One run of one job. `ask_to_end` may be called at any time while it runs."""

    def __init__(self, task: JobTask, *, runtime: Runtime, host: JobHost | None = None) -> None:
        """With a *host* the process is forked from it, without one the program is started."""
        self._task, self._runtime, self._host = task, runtime, host
        self.started_s = runtime.now_s()
        self._begun_s = runtime.monotonic_s()
        self.talk = JobTalk(now_s=self._begun_s)
        self.usage = Usage()
        self.pid: int | None = None
        self._asked = asyncio.Event()
        self._ending: EndReason | None = None
        self._why = ""
        # Only a runtime of this very process starts real children.
        self._is_real = runtime.pid == os.getpid()

    @property
    def elapsed_s(self) -> float:
        return self._runtime.monotonic_s() - self._begun_s

    def ask_to_end(self, ending: EndReason, why: str) -> None:
        """End the job for a reason from outside; a lost lease overrules a wish to stop."""
        if self._ending is None or ending is EndReason.LEASE_LOST:
            self._ending, self._why = ending, why
        self._asked.set()

    async def run(self) -> JobEnd:
        """Run it to its end.

        Raises `ConfigError` if there is no such program, and `Unavailable` if the machine has no room for it.
        """
        child = await self._start()
        guard = process_guard() if self._is_real else None
        if guard is not None:
            guard.add(child.pid)
        hearing = asyncio.ensure_future(self._hear(child))
        exiting = asyncio.ensure_future(child.wait())
        try:
            await self._watch(exiting)
            await self._end_gently(child, exiting)
        finally:
            await self._end_surely(child, exiting, hearing, guard)
        if isinstance(child, HostedChild):
            self.usage = self.usage.then(self.usage.memory_mb, child.cpu_s)
        if hearing.done() and not hearing.cancelled():
            hearing.result()  # a fault in here is not the job's
        code = exiting.result() if exiting.done() and not exiting.cancelled() else -int(signal.SIGKILL)
        return JobEnd(
            exit_code=code,
            talk=self.talk,
            wall_s=self.elapsed_s,
            usage=self.usage,
            ending=self._ending,
            why=self._why,
            log_tail=await asyncio.to_thread(log_tail, self._task.log),
        )

    async def _start(self) -> Child:
        task = self._task
        command = Command(
            argv=task.argv, env=task.env, cwd=task.folder, input=task.params, output=task.log, piped=True
        )
        try:
            child = await (self._runtime if self._host is None else self._host).spawn(command)
        except OSError as error:
            what = f"{task.argv[0]!r} cannot be started: {error.strerror}"
            if error.errno in SHORTAGES:
                raise Unavailable(what, retry_after_s=UNAVAILABLE_S) from None
            raise ConfigError(what) from None
        self.pid = child.pid
        if self._is_real:
            self._give_way(child.pid)
        return child

    def _give_way(self, pid: int) -> None:
        """Set priority and cores at once: threads that the job starts later inherit both."""
        limits = self._task.limits
        try:
            if limits.nice:
                os.setpriority(os.PRIO_PGRP, pid, limits.nice)
            if limits.cpus and hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(pid, limits.cpus)
        except (ProcessLookupError, PermissionError):
            return
        except OSError as error:
            # None of the cores is ours here: the settings may have been made for a larger machine.
            log.warning("job.cores_not_bound", pid=pid, cpus=limits.cpus, error=error.strerror)

    async def _hear(self, child: Child) -> None:
        while chunk := await child.read(CHUNK_BYTES):
            self.talk.hear(chunk, now_s=self._runtime.monotonic_s())

    async def _watch(self, exiting: asyncio.Future[int]) -> None:
        """Return when the job ended, or must be ended."""
        asked = asyncio.ensure_future(self._asked.wait())
        either: set[asyncio.Future[Any]] = {exiting, asked}
        looks = 0
        try:
            while not exiting.done() and not asked.done():
                await asyncio.wait(either, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                looks += 1
                if not exiting.done() and not asked.done():
                    await self._look(full=looks % MEASURE_EVERY == 0)
        finally:
            asked.cancel()

    async def _look(self, *, full: bool) -> None:
        if full and self._is_real and self.pid is not None:
            self.usage = await asyncio.to_thread(self._measure, self.pid)
        wrong = what_is_wrong(
            self._task.limits,
            self.talk,
            self.usage,
            started_s=self._begun_s,
            now_s=self._runtime.monotonic_s(),
        )
        if wrong is not None:
            self.ask_to_end(*wrong)

    def _measure(self, pid: int) -> Usage:
        keep_log_small(self._task.log, bytes_max=LOG_BYTES_MAX)
        return measure(pid, self.usage, alone=self._host is not None)

    def _is_lost(self) -> bool:
        return self._ending is EndReason.LEASE_LOST

    async def _end_gently(self, child: Child, exiting: asyncio.Future[int]) -> None:
        """Give a job that must end the time to seal what it has; one that is not ours any more gets none."""
        if exiting.done() or self._is_lost():
            return
        log.info("job.ending", pid=child.pid, reason=self._ending, why=self._why)
        child.signal_group(signal.SIGTERM)
        child.signal_group(signal.SIGCONT)
        until_s = self._runtime.monotonic_s() + self._task.grace_s
        while not exiting.done() and not self._is_lost():
            left_s = until_s - self._runtime.monotonic_s()
            if left_s <= 0:
                return
            await asyncio.wait({exiting}, timeout=min(left_s, LOOK_S))

    async def _end_surely(
        self,
        child: Child,
        exiting: asyncio.Future[int],
        hearing: asyncio.Future[None],
        guard: OrphanGuard | None,
    ) -> None:
        # The leader may be gone and leave members of its group behind.
        child.signal_group(signal.SIGKILL)
        both: set[asyncio.Future[Any]] = {exiting, hearing}
        try:
            await asyncio.wait(both, timeout=REAP_S)
        finally:
            hearing.cancel()
            exiting.cancel()
            child.stop_reading()
            if guard is not None:
                guard.remove(child.pid)
