"""Telling how full this node's disk is where nobody else does, so that others know what it can take."""

from __future__ import annotations

import asyncio

from ringrift.data.capacity import DiskState, DiskStates, space_under
from ringrift.data.plane import DataPlane

TOLD_AGE_S_MAX = 300.0


async def tell_disk(plane: DataPlane, *, anew: bool = False) -> DiskState:
    """Return what is known of this node's disk; measure and tell it if that is old, or *anew*."""
    states, now_s = DiskStates(plane.kv), plane.runtime.now_s()
    known = await states.of(plane.this.name)
    if known is not None and not anew and 0 <= now_s - known.at_s < TOLD_AGE_S_MAX:
        return known
    space = await asyncio.to_thread(space_under, plane.settings.data_dir)
    found = DiskState(
        node=plane.this.name,
        used_percent=100.0 * space.used_bytes / max(1, space.total_bytes),
        free_bytes=space.total_bytes - space.used_bytes,
        total_bytes=space.total_bytes,
        level="" if known is None else known.level,
        writes_blocked=known is not None and known.writes_blocked,
        at_s=now_s,
    )
    await states.tell(found)
    return found
