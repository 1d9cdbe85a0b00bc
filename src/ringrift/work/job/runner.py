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
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import psutil
import structlog

from ringrift.daemons.child_process import OrphanGuard, keep_log_small, log_tail, process_guard
from ringrift.errors import ConfigError, Unavailable, storable_text
from ringrift.runtime import Child, Command, Runtime, back_off_s, first_error
from ringrift.setting_kinds import JobSettings
from ringrift.work.job.host import HostedChild, JobHost
from ringrift.work.job.protocol import JobOrder, JobOutput, number

# How long, how silently and how large a job may be, and what is wrong with one that is beyond that.


HOUR_S = 3600.0
TIMEOUT_S = {"selfplay": 6 * HOUR_S, "validate": HOUR_S, "export": 2 * HOUR_S, "train": 24 * HOUR_S}
TIMEOUT_OTHERS_S = 12 * HOUR_S
SILENCE_S = 120.0  # our own jobs say something every ten seconds
SILENCE_FOREIGN_S = 900.0
IDLE_S = 1800.0  # alive, but without a step that is worth a line
OUTPUT_BYTES_MAX = 256 * 2**20
MEMORY_SHARE = 0.85  # of the machine, where nobody set a limit
_MEGABYTE = 2**20


class EndReason(StrEnum):
    """Why the runner ended a job that would have gone on."""

    STOP = "stop"  # the worker stops; the item goes back
    YIELD = "yield"  # shorter work waits; the job ends well with what it has
    LEASE_LOST = "lease_lost"
    TIMEOUT = "timeout"
    STUCK = "stuck"
    MEMORY = "memory"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLimits:
    """The bounds of one run."""

    timeout_s: float
    silence_s: float
    idle_s: float
    memory_mb: int
    output_bytes: int = OUTPUT_BYTES_MAX
    nice: int = 0
    cpus: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("timeout_s", "silence_s", "idle_s", "memory_mb", "output_bytes"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be above 0")


@dataclass(frozen=True, slots=True)
class Usage:
    """What a job and everything it started took so far."""

    memory_mb: float = 0.0
    memory_mb_peak: float = 0.0
    cpu_s: float = 0.0

    def then(self, memory_mb: float, cpu_s: float) -> Usage:
        return Usage(memory_mb, max(self.memory_mb_peak, memory_mb), max(self.cpu_s, cpu_s))


def limits_for(
    kind: str, order: JobOrder, said: JobSettings, *, measured_timeout_s: float | None = None
) -> JobLimits:
    """The order has the first word, then the user, then what was measured, then the defaults."""
    timeouts = (order.timeout_s, said.timeout_s, measured_timeout_s, TIMEOUT_S.get(kind), TIMEOUT_OTHERS_S)
    silence_s = SILENCE_FOREIGN_S if said.command else SILENCE_S
    machine_mb = int(psutil.virtual_memory().total * MEMORY_SHARE) // _MEGABYTE
    return JobLimits(
        timeout_s=next(each for each in timeouts if each is not None),
        silence_s=said.silence_s or silence_s,
        idle_s=max(IDLE_S, said.silence_s or 0.0),
        memory_mb=order.memory_mb or said.memory_mb or machine_mb,
        nice=said.nice,
        cpus=said.cpus,
    )


def what_is_wrong(
    limits: JobLimits, job_output: JobOutput, usage: Usage, *, started_s: float, now_s: float
) -> tuple[EndReason, str] | None:
    """Why this job must be ended now, in words; None if it may go on."""
    if now_s - started_s > limits.timeout_s:
        return EndReason.TIMEOUT, f"it ran longer than {limits.timeout_s:.0f} s"
    if usage.memory_mb > limits.memory_mb:
        return EndReason.MEMORY, f"it took {usage.memory_mb:.0f} MB of memory; {limits.memory_mb} are allowed"
    if job_output.bytes_heard > limits.output_bytes:
        return EndReason.OUTPUT, f"it wrote more than {limits.output_bytes} bytes to stdout"
    if now_s - job_output.heard_s > limits.silence_s:
        return EndReason.STUCK, f"it said nothing for {limits.silence_s:.0f} s"
    if now_s - job_output.moved_s > limits.idle_s:
        return EndReason.STUCK, f"it lives, but did nothing for {limits.idle_s:.0f} s"
    return None


def measure(pid: int, before: Usage, *, alone: bool = False) -> Usage:
    """Look at a process and all it started; blocking, some milliseconds: all processes are looked through.

    One that works *alone*, as all jobs of our own do, has started nothing, and is looked at by itself.
    """
    memory_bytes, cpu_s = 0, 0.0
    try:
        leader = psutil.Process(pid)
        family = [leader] if alone else [leader, *leader.children(recursive=True)]
    except psutil.Error:
        return before
    for process in family:
        try:
            with process.oneshot():
                memory, times = process.memory_info(), process.cpu_times()
        except psutil.Error:
            continue  # ended since it was listed
        # Pages that children share with others are counted with the leader.
        memory_bytes += memory.rss if process is leader else memory.rss - getattr(memory, "shared", 0)
        cpu_s += times.user + times.system
        if process is leader:
            cpu_s += times.children_user + times.children_system
    return before.then(memory_bytes / _MEGABYTE, cpu_s)


# What becomes of a work item after its job ended: completed, given back, or failed.


# The exit codes of jobs, see docs/jobs.md. A worker never imports the jobs themselves.
DONE, WRONG_INPUT, STOPPED, DATA_REFUSED, UNAVAILABLE = 0, 2, 3, 4, 5

_BY_ITSELF = {STOPPED: "stopped_by_itself"}

RETRY_S, RETRY_S_MAX = 5.0, 300.0
UNAVAILABLE_S = 60.0
ERROR_CHARS_MAX = 2000
CORES = os.cpu_count() or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnd:
    """How a job's process ended."""

    exit_code: int  # negative: the number of the signal
    job_output: JobOutput
    wall_s: float
    usage: Usage
    ending: EndReason | None = None  # None: it ended by itself
    why: str = ""
    log_tail: Sequence[str] = ()

    @property
    def cpu_s(self) -> float:
        """What was measured; what the job says of itself counts as far as the machine could have given it."""
        return max(self.usage.cpu_s, min(self.job_output.cpu_s, self.wall_s * CORES))


class Fate(StrEnum):
    """What the worker tells the queue."""

    COMPLETE = "complete"
    RELEASE = "release"  # costs no attempt
    FAIL = "fail"
    DROP = "drop"  # another has the item, or nobody: say nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class JobVerdict:
    """The fate of the item, and the words for it."""

    fate: Fate
    status: str = ""
    error: str = ""
    retry_after_s: float = 0.0
    final: bool = False


def judge(end: JobEnd, *, attempt: int) -> JobVerdict:
    """Decide by how the job ended; what it said counts only for the words."""
    if end.ending is EndReason.LEASE_LOST:
        return JobVerdict(fate=Fate.DROP, error=end.why)
    if end.exit_code in (DONE, DATA_REFUSED) and end.job_output.result is not None:
        return JobVerdict(fate=Fate.COMPLETE, status="done" if end.exit_code == DONE else "data_refused")
    if end.ending in (EndReason.STOP, EndReason.YIELD):
        return JobVerdict(fate=Fate.RELEASE, status="stopped")
    error = _error(end)
    if end.ending is None and end.exit_code == WRONG_INPUT:
        return JobVerdict(fate=Fate.FAIL, status="wrong_input", error=error, final=True)
    if end.ending is None and end.exit_code == UNAVAILABLE:
        after_s = _retry_after_s(end.job_output)
        return JobVerdict(fate=Fate.FAIL, status="unavailable", error=error, retry_after_s=after_s)
    after_s = back_off_s(attempt, first_s=RETRY_S, longest_s=RETRY_S_MAX)
    status = end.ending.value if end.ending is not None else _BY_ITSELF.get(end.exit_code, "crashed")
    return JobVerdict(fate=Fate.FAIL, status=status, error=error, retry_after_s=after_s)


def _retry_after_s(job_output: JobOutput) -> float:
    said = (job_output.result or {}).get("retry_after_s")
    try:
        after_s = number(float(said)) if isinstance(said, str) else number(said)
    except ValueError:
        after_s = None
    return min(max(after_s or UNAVAILABLE_S, 1.0), RETRY_S_MAX)


def _error(end: JobEnd) -> str:
    said = (end.job_output.result or {}).get("error")
    parts = [end.why or _how(end.exit_code)]
    if end.exit_code == STOPPED and not end.why:
        parts = ["it stopped although the worker did not ask for it"]
    if end.exit_code == DONE and end.job_output.result is None and not end.why:
        parts = ["it ended without a result line"]
        if end.job_output.lines_refused:
            parts.append(f"{end.job_output.lines_refused} of its lines could not be read")
    if said:
        parts.append(str(said))
    elif end.log_tail:
        parts.append(f"its last words: {' | '.join(end.log_tail)}")
    return storable_text("; ".join(parts), chars_max=ERROR_CHARS_MAX)


def _how(code: int) -> str:
    if code >= 0:
        return f"the job exited with code {code}"
    known = {int(each): each.name for each in signal.Signals}
    return f"the job was killed by {known.get(-code, f'signal {-code}')}"


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
        self.job_output = JobOutput(now_s=self._begun_s)
        self.usage = Usage()
        self.pid: int | None = None
        self._woken = asyncio.Event()  # it ended, or was asked to
        self._ending: EndReason | None = None
        self._why = ""
        # Only a runtime of this very process starts real children.
        self._is_real = runtime.pid == os.getpid()

    @property
    def elapsed_s(self) -> float:
        return self._runtime.monotonic_s() - self._begun_s

    def ask_to_end(self, ending: EndReason, why: str) -> None:
        """End the job for a reason from outside; a lost lease overrules a request to stop."""
        if self._ending is None or ending is EndReason.LEASE_LOST:
            self._ending, self._why = ending, why
        self._woken.set()

    async def run(self) -> JobEnd:
        """Run it to its end.

        Raises `ConfigError` if there is no such program, and `Unavailable` if the machine has no room for it.
        """
        child = await self._start()
        guard = process_guard() if self._is_real else None
        if guard is not None:
            guard.add(child.pid)
        with first_error():  # such as one in hearing it, which is not the job's
            async with asyncio.TaskGroup() as group:
                hearing, exiting = group.create_task(self._hear(child)), group.create_task(child.wait())
                exiting.add_done_callback(lambda _: self._woken.set())
                try:
                    await self._watch(exiting)
                    await self._end_gently(child, exiting)
                finally:
                    await self._end_surely(child, exiting, hearing, guard)
        if isinstance(child, HostedChild):
            self.usage = self.usage.then(self.usage.memory_mb, child.cpu_s)
        code = exiting.result() if exiting.done() and not exiting.cancelled() else -int(signal.SIGKILL)
        return JobEnd(
            exit_code=code,
            job_output=self.job_output,
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
            self.job_output.hear(chunk, now_s=self._runtime.monotonic_s())

    async def _watch(self, exiting: asyncio.Future[int]) -> None:
        """Return when the job ended, or must be ended."""
        looks = 0
        while not exiting.done() and self._ending is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._woken.wait()
            looks += 1
            if not self._woken.is_set():
                await self._look(full=looks % MEASURE_EVERY == 0)

    async def _look(self, *, full: bool) -> None:
        if full and self._is_real and self.pid is not None:
            self.usage = await asyncio.to_thread(self._measure, self.pid)
        wrong = what_is_wrong(
            self._task.limits,
            self.job_output,
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
