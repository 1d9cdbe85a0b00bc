"""How full each node's disk is, as the nodes say themselves."""

from __future__ import annotations

import msgspec

from ringrift.data.kv_records import KvRecords
from ringrift.engine.ports import KeyValue

PREFIX = "data/disks/"
KEPT_S = 3_600.0  # what a node has not said for an hour is not known


class DiskState(msgspec.Struct, frozen=True, kw_only=True):
    """One node's disk."""

    node: str
    used_percent: float
    free_bytes: int
    total_bytes: int
    level: str
    writes_blocked: bool
    at_s: float


class DiskStates:
    """The disks of all nodes."""

    def __init__(self, kv: KeyValue) -> None:
        self._records = KvRecords(kv, PREFIX, DiskState)

    async def tell(self, state: DiskState) -> None:
        await self._records.put(state.node, state, ttl_s=KEPT_S)

    async def of(self, node: str) -> DiskState | None:
        return await self._records.get(node)

    async def used_percent(self) -> dict[str, float]:
        return {state.node: state.used_percent for state in await self._records.all()}

    async def all(self) -> dict[str, DiskState]:
        return {state.node: state for state in await self._records.all()}
