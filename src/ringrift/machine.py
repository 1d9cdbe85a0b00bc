"""This machine: of what kind it is, what it has left, and for how long this process has had its GPU."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import os
import platform
import threading
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from ringrift import clock
from ringrift.process import process_scope
from ringrift.runtime import system_runtime

# The kind of this machine, as far as the bits of a search depend on it: processor, libraries, code.
#
# Two processes on machines of the same kind find the same bits, unless a GPU computes. A worker measures it
# for the games that its jobs bring: a job that could name its own kind would choose how its games are
# compared.


# what computes a search; the rest of the source may differ
PLAYING_PACKAGES = ("games", "search", "network", "players")
LIBRARIES = ("ringrift", "numpy", "numba", "torch")


# Every job asks, and hashing the sources takes longer than all the rest of it.
@functools.cache
def machine_kind() -> str:
    """Return it in words. What is installed is read once: it is that of the processes that start now."""
    info = _processor_facts()
    libraries = " ".join(f"{name} {_version(name)}" for name in LIBRARIES)
    processor = f"{platform.machine()} {info.get('model name', '?')}"
    flags = hashlib.sha256(info.get("flags", info.get("Features", "")).encode()).hexdigest()[:12]
    compiled_for = f"compiled for {os.environ.get('NUMBA_CPU_NAME') or 'this processor'}"
    libc = " ".join(platform.libc_ver())
    parts = (processor, f"flags {flags}", libc, libraries, f"code {_code_digest()}", compiled_for)
    return "; ".join(part.strip() for part in parts)


def _code_digest() -> str:
    """Of what plays: two versions of the source may carry the same number."""
    digest, root = hashlib.sha256(), Path(__file__).parent
    for package in PLAYING_PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def _processor_facts() -> dict[str, str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").split("\n\n")[0]
    except OSError:  # not Linux
        return {"model name": platform.processor()}
    pairs = (line.partition(":") for line in lines.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "none"


# What this machine has left: processor, memory and disk, as measured now.


GIB = 1024.0**3
CPU_LOOK_S = 0.1  # the first look of a process takes so long: there is nothing to compare with
CPU_SPAN_S = 1.0  # a shorter time says little of how busy the processors are


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResources:
    """One look at a machine."""

    cpu_percent: float | None  # None: not known yet
    memory_percent: float
    disk_percent: float
    disk_free_gb: float
    load: float  # programs that run or want to
    cores: int


class ProcessorMeter:
    """How busy the processors were between two looks of this process, whoever looked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Kept here: psutil keeps its own for each thread, and a thread's first look gives 0.
        self._times: Any = None
        self._at_s = 0.0
        self._percent: float | None = None

    def percent(self) -> float | None:
        """Measured over the time since the last look; None where none was counted. The first look blocks."""
        with self._lock:
            runtime = system_runtime()
            if self._times is None:
                self._times = psutil.cpu_times()
                threading.Event().wait(CPU_LOOK_S)
            elif runtime.monotonic_s() - self._at_s < CPU_SPAN_S:
                return self._percent
            before, self._times, self._at_s = self._times, psutil.cpu_times(), runtime.monotonic_s()
            self._percent = _busy_percent(before, self._times)
            return self._percent


def _busy_percent(before: Any, now: Any) -> float | None:
    """The busy share of all time that was counted between; a count that went back says nothing."""
    total = sum(max(0.0, after - earlier) for earlier, after in zip(before, now, strict=True))
    spent = {
        name: max(0.0, getattr(now, name, 0.0) - getattr(before, name, 0.0))
        for name in ("idle", "iowait", "guest", "guest_nice")
    }
    total -= spent["guest"] + spent["guest_nice"]  # which is in the time of users, too
    idle = spent["idle"] + spent["iowait"]
    return 100.0 * (total - idle) / total if total > 0 else None


def look_at_this_machine(folder: Path) -> NodeResources:
    """Measure. The disk is the one that holds *folder*, or the nearest parent that exists."""
    disk = psutil.disk_usage(str(_existing(folder)))
    return NodeResources(
        cpu_percent=process_scope().get(ProcessorMeter, ProcessorMeter).percent(),
        memory_percent=psutil.virtual_memory().percent,
        disk_percent=disk.percent,
        disk_free_gb=disk.free / GIB,
        load=psutil.getloadavg()[0],
        cores=psutil.cpu_count() or 1,
    )


async def read_resources(folder: Path) -> NodeResources:
    """Measure off the loop: a disk may take its time to answer."""
    return await asyncio.to_thread(look_at_this_machine, folder)


def _existing(folder: Path) -> Path:
    path = folder.absolute()
    while not path.exists():
        path = path.parent
    return path


# The GPU of this process: what it costs, not how busy it is.


class GpuUse:
    """For how long this process has had a GPU, to itself or with others.

    Begins with the first network that goes to a GPU, and ends with the process that holds its memory.
    """

    def __init__(self) -> None:
        self.began_s: float | None = None  # by the clock that never goes back

    def begin(self) -> None:
        if self.began_s is None:
            self.began_s = clock.monotonic_s()

    def seconds(self) -> float:
        return 0.0 if self.began_s is None else clock.monotonic_s() - self.began_s


def gpu_use() -> GpuUse:
    """That of this process."""
    return process_scope().get(GpuUse, GpuUse)
