"""What this machine has left: processor, memory and disk, as measured now."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import psutil

GIB = 1024.0**3


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResources:
    """One look at a machine."""

    cpu_percent: float
    memory_percent: float
    disk_percent: float
    disk_free_gb: float
    load: float  # programs that run or want to
    cores: int


def look_at_this_machine(folder: Path) -> NodeResources:
    """Measure. The disk is the one that holds *folder*, or the nearest parent that exists."""
    disk = psutil.disk_usage(str(_existing(folder)))
    return NodeResources(
        cpu_percent=psutil.cpu_percent(),  # since the last call
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
