"""A hint of what each node holds: a Bloom filter of its digests that it publishes now and then.

Whoever sends puts first what the receiver surely lacks. The receiver itself says what it has; a filter that
is old, wrong or absent costs time and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from ringrift.data.artifacts import Artifact
from ringrift.data.transfer.bloom import BloomFilter
from ringrift.engine.ports import Blobs, KeyValue
from ringrift.errors import Corrupt

log = structlog.get_logger()

PREFIX = "data/holdings/"
KEPT_S = 86_400.0
DIGESTS_MAX = 500_000  # their filter fits a value of the key-value port
RATE = 0.01


class Holdings:
    """Publishes this node's filter, and reads those of others."""

    def __init__(self, kv: KeyValue, blobs: Blobs) -> None:
        self._kv, self._blobs = kv, blobs

    async def publish(self, node: str) -> BloomFilter:
        """Say what this node holds now."""
        summary = await asyncio.to_thread(_summary, await self._blobs.digests())
        await self._kv.put(PREFIX + node, summary.to_bytes(), ttl_s=KEPT_S)
        return summary

    async def of(self, node: str) -> BloomFilter | None:
        entry = await self._kv.get(PREFIX + node)
        if entry is None:
            return None
        try:
            return BloomFilter.from_bytes(entry.value)
        except Corrupt as error:
            log.warning("transfer.hint_unreadable", node=node, error=str(error))
            return None

    async def lacking_first(self, node: str, artifacts: Sequence[Artifact]) -> list[Artifact]:
        """Return all of *artifacts*, those that *node* surely lacks first."""
        hint = await self.of(node)
        return list(artifacts) if hint is None else sorted(artifacts, key=lambda card: card.digest in hint)


def _summary(digests: Sequence[str]) -> BloomFilter:
    summary = BloomFilter.for_items(max(1, min(len(digests), DIGESTS_MAX)), RATE)
    summary.add_many(digests)
    return summary
