"""How full each node's disk is, as the node itself last said."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ringrift.data.kv_records import KvRecords
from ringrift.data.plane import DataPlane
from ringrift.engine.ports import KeyValue

VALID_S = 300.0
_PREFIX = "data/capacity/"


class NodeCapacity(msgspec.Struct, frozen=True, kw_only=True):
    """The disk under a node's data folder."""

    node: str
    total_bytes: int
    free_bytes: int
    at_s: float

    @property
    def used_percent(self) -> float:
        return 100.0 * (1.0 - self.free_bytes / self.total_bytes) if self.total_bytes else 0.0


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.resolve().parents) if folder.exists())


async def publish_capacity(plane: DataPlane) -> NodeCapacity:
    """Measure this node's disk and tell the others; the word is good for a few minutes."""
    usage = await asyncio.to_thread(lambda: shutil.disk_usage(_existing(plane.settings.data_dir)))
    found = NodeCapacity(
        node=plane.this.name, total_bytes=usage.total, free_bytes=usage.free, at_s=plane.runtime.now_s()
    )
    await KvRecords(plane.kv, _PREFIX, NodeCapacity).put(found.node, found, ttl_s=VALID_S)
    return found


async def capacities(kv: KeyValue) -> Mapping[str, NodeCapacity]:
    """Return what is known; a node that said nothing lately is not among them."""
    return {each.node: each for each in await KvRecords(kv, _PREFIX, NodeCapacity).all()}
