"""What the data plane decided and why, newest last, for a person who asks later.

A bounded history: entries leave after a month, or sooner when there are very many. Deletions have a record
of their own that never leaves (`deletion_records`).
"""

from __future__ import annotations

from typing import Any

import msgspec

from ringrift.engine.encoding import decode_entry
from ringrift.engine.ports import KeyValue
from ringrift.runtime import Runtime

PREFIX = "data/decisions/"
KEPT_S = 30 * 86_400.0
DECISIONS_MAX = 10_000
_TRIM_EVERY = 500


class DataDecision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One decision."""

    at_s: float
    node: str
    part: str  # deletion, replication, integrity, …
    action: str
    reason: str
    digest: str = ""
    facts: dict[str, Any] = {}


class DecisionLog:
    """Writes decisions of one node and reads those of all."""

    def __init__(self, kv: KeyValue, runtime: Runtime, *, node: str) -> None:
        self._kv, self._runtime, self._node = kv, runtime, node
        self._written = 0

    async def record(
        self, part: str, action: str, reason: str, *, digest: str = "", **facts: Any
    ) -> DataDecision:
        decision = DataDecision(
            at_s=self._runtime.now_s(),
            node=self._node,
            part=part,
            action=action,
            reason=reason,
            digest=digest,
            facts=facts,
        )
        key = f"{PREFIX}{round(decision.at_s * 1e6):017d}-{self._runtime.new_id()}"
        await self._kv.put(key, msgspec.json.encode(decision, enc_hook=str), ttl_s=KEPT_S)
        self._written += 1
        if self._written % _TRIM_EVERY == 0:
            await self._trim()
        return decision

    async def recent(self, *, part: str = "", digest: str = "", limit: int = 100) -> list[DataDecision]:
        """The newest decisions, newest last."""
        found = [decode_entry(entry, DataDecision) for entry in await self._kv.entries(PREFIX)]
        fitting = [each for each in found if part in ("", each.part) and digest in ("", each.digest)]
        return fitting[-limit:]

    async def _trim(self) -> None:
        entries = await self._kv.entries(PREFIX)
        for entry in entries[: max(0, len(entries) - DECISIONS_MAX)]:
            await self._kv.delete(entry.key)
