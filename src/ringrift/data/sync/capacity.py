"""Telling how full this node's disk is where nobody else does, so that others know what it can take."""

from __future__ import annotations

import asyncio

from ringrift.data.capacity import DiskState, DiskStates
from ringrift.data.disk_usage import FULL_PERCENT, disk_usage
from ringrift.data.plane import DataPlane

TOLD_AGE_S_MAX = 300.0


async def tell_disk(plane: DataPlane, *, anew: bool = False) -> DiskState:
    """Return what is known of this node's disk; measure and tell it if that is old, or *anew*."""
    states, now_s = DiskStates(plane.kv), plane.runtime.now_s()
    known = await states.of(plane.this.name)
    if known is not None and not anew and 0 <= now_s - known.at_s < TOLD_AGE_S_MAX:
        return known
    usage = await asyncio.to_thread(disk_usage, plane.settings.data_dir)
    found = DiskState(
        node=plane.this.name,
        used_percent=usage.percent,
        free_bytes=usage.free_bytes,
        total_bytes=usage.total_bytes,
        level="" if known is None else known.level,
        writes_blocked=usage.percent >= FULL_PERCENT,
        at_s=now_s,
    )
    await states.tell(found)
    return found
