"""What an archive says of itself: its cards, who put what there, and whether the bytes are still right."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from ringrift.data.archive_format import (
    CARDS,
    MANIFEST,
    NODES,
    ArchiveCard,
    ArchiveManifest,
    NodeInventory,
    card_key,
    decode,
    digest_of_key,
    encode,
    inventory_key,
    read_card,
)
from ringrift.data.archive_objects import ArchiveObjects
from ringrift.data.archive_reading import ReadBack, read_back
from ringrift.engine.digests import is_digest

T = TypeVar("T")

READS_AT_ONCE = 16


class ArchiveIndex:
    """Reads an archive's cards and lists, and writes the lists."""

    def __init__(self, objects: ArchiveObjects) -> None:
        self.objects = objects

    async def card(self, digest: str) -> ArchiveCard | None:
        content = await self.objects.read(card_key(digest))
        return None if content is None else read_card(digest, content)

    async def digests(self) -> list[str]:
        found = (digest_of_key(key) for key in await self.objects.keys(CARDS))
        return [digest for digest in found if is_digest(digest)]

    async def cards(self) -> list[ArchiveCard]:
        """All files of the archive: those of the manifest without a further look, and the newer ones."""
        manifest = await self.manifest()
        known = {} if manifest is None else {card.artifact.digest: card for card in manifest.cards}
        newer = [digest for digest in await self.digests() if digest not in known]
        turns = asyncio.Semaphore(READS_AT_ONCE)

        async def read(digest: str) -> ArchiveCard | None:
            async with turns:
                return await self.card(digest)

        found = await asyncio.gather(*(read(digest) for digest in newer))
        return [*known.values(), *(card for card in found if card is not None)]

    async def manifest(self) -> ArchiveManifest | None:
        return await self._read(MANIFEST, ArchiveManifest)

    async def write_manifest(self, manifest: ArchiveManifest) -> None:
        """Written after everything that it names."""
        await self.objects.replace(MANIFEST, encode(manifest))

    async def inventory(self, node: str) -> NodeInventory | None:
        return await self._read(inventory_key(node), NodeInventory)

    async def inventories(self) -> list[NodeInventory]:
        found = [await self._read(key, NodeInventory) for key in await self.objects.keys(NODES)]
        return [each for each in found if each is not None]

    async def grow_inventory(self, node: str, digests: Sequence[str], *, now_s: float) -> NodeInventory:
        """Add to what a node put here. Nothing is ever taken out, whatever the node lost since."""
        before = await self.inventory(node)
        known = () if before is None else before.digests
        grown = NodeInventory(node=node, at_s=now_s, digests=tuple(sorted({*known, *digests})))
        if before is None or grown.digests != before.digests:
            await self.objects.replace(inventory_key(node), encode(grown))
        return grown

    async def lacks_parts(self, card: ArchiveCard) -> list[str]:
        """Return the parts that are absent or cut short, without reading them."""
        sizes = [await self.objects.size(part.key) for part in card.parts]
        return [part.key for part, size in zip(card.parts, sizes, strict=True) if size != part.size]

    async def read_back(self, card: ArchiveCard, source: Path | None) -> ReadBack:
        """Read all of a file; mend wrong parts from *source*, a copy of it, if there is one."""
        return await read_back(self.objects, card.artifact.digest, card.parts, source)

    async def _read(self, key: str, kind: type[T]) -> T | None:
        content = await self.objects.read(key)
        return None if content is None else decode(key, content, kind)


def merged(
    before: ArchiveManifest | None,
    cards: Sequence[ArchiveCard],
    inventories: Sequence[NodeInventory],
    *,
    now_s: float,
) -> ArchiveManifest:
    """Join what is known. Whatever an earlier manifest named stays in."""
    known = {} if before is None else {card.artifact.digest: card for card in before.cards}
    known |= {card.artifact.digest: card for card in cards}
    nodes = {} if before is None else dict(before.nodes)
    for inventory in inventories:
        nodes[inventory.node] = tuple(sorted({*nodes.get(inventory.node, ()), *inventory.digests}))
    return ArchiveManifest(at_s=now_s, cards=tuple(known[digest] for digest in sorted(known)), nodes=nodes)


def same_content(first: ArchiveManifest | None, second: ArchiveManifest) -> bool:
    return first is not None and msgspec.structs.replace(first, at_s=second.at_s) == second
