"""What this machine has left: processor, memory and disk, as measured now."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from pathlib import Path

import psutil

from ringrift.process import process_scope
from ringrift.runtime import system_runtime

GIB = 1024.0**3
CPU_LOOK_S = 0.1  # the first look of a process takes so long: there is nothing to compare with
CPU_SPAN_S = 1.0  # a shorter time says little of how busy the processors are


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResources:
    """One look at a machine."""

    cpu_percent: float
    memory_percent: float
    disk_percent: float
    disk_free_gb: float
    load: float  # programs that run or want to
    cores: int


class ProcessorMeter:
    """How busy the processors were between two looks of this process, whoever looked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._percent = 0.0
        self._at_s: float | None = None

    def percent(self) -> float:
        """Measured over the time since the last look, never over no time, which would give 0. Blocks."""
        with self._lock:
            runtime, first = system_runtime(), self._at_s is None
            if self._at_s is None or runtime.monotonic_s() - self._at_s >= CPU_SPAN_S:
                self._percent = psutil.cpu_percent(interval=CPU_LOOK_S if first else None)
                self._at_s = runtime.monotonic_s()
            return self._percent


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
