"""How long, how silently and how large a job may be, and what is wrong with one that is beyond that."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import psutil

from ringrift.errors import ConfigError
from ringrift.setting_kinds import JobSettings
from ringrift.work.job_orders import JobOrder
from ringrift.work.job_talk import JobTalk

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
    limits: JobLimits, talk: JobTalk, usage: Usage, *, started_s: float, now_s: float
) -> tuple[EndReason, str] | None:
    """Why this job must be ended now, in words; None if it may go on."""
    if now_s - started_s > limits.timeout_s:
        return EndReason.TIMEOUT, f"it ran longer than {limits.timeout_s:.0f} s"
    if usage.memory_mb > limits.memory_mb:
        return EndReason.MEMORY, f"it took {usage.memory_mb:.0f} MB of memory; {limits.memory_mb} are allowed"
    if talk.bytes_heard > limits.output_bytes:
        return EndReason.OUTPUT, f"it wrote more than {limits.output_bytes} bytes to stdout"
    if now_s - talk.heard_s > limits.silence_s:
        return EndReason.STUCK, f"it said nothing for {limits.silence_s:.0f} s"
    if now_s - talk.moved_s > limits.idle_s:
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
