"""Files to and from an archive, which has no program of its own: the sender reads back what it wrote.

A file goes as parts named by their own hashes, so that a broken transfer goes on at the part where it
stopped. Its card is created last, after all parts were read back and their whole had the right digest.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from ringrift.data.archive_format import PART_BYTES, ArchiveCard, ArchivePart, card_key, decode, encode
from ringrift.data.archive_objects import ArchiveObjects
from ringrift.data.artifacts import Artifact
from ringrift.data.nodes import DataNode
from ringrift.data.transfer.calls import TransferCall
from ringrift.data.transfer.contract import Moved, Terms, TransferFailed
from ringrift.data.transfer.landing import Landed, Landing, Piece
from ringrift.errors import Corrupt, Unavailable
from ringrift.runtime import Runtime

FILES_AT_ONCE = 4  # each holds one part in memory
_DAMAGED_HERE = "the copy here is damaged"


class ArchiveTransport:
    """See `Transport`. *open_objects* is asked once per node."""

    def __init__(
        self,
        name: str,
        *,
        reaches: Callable[[DataNode], bool],
        open_objects: Callable[[DataNode], ArchiveObjects],
        landing: Landing,
        runtime: Runtime,
    ) -> None:
        self.name, self._reaches, self._open_objects = name, reaches, open_objects
        self._landing, self._runtime = landing, runtime
        self._opened: dict[DataNode, ArchiveObjects] = {}

    def reaches(self, node: DataNode) -> bool:
        return self._reaches(node)

    def objects(self, node: DataNode) -> ArchiveObjects:
        if node not in self._opened:
            self._opened[node] = self._open_objects(node)
        return self._opened[node]

    async def send(self, node: DataNode, artifacts: Sequence[Artifact], terms: Terms) -> Moved:
        objects = self.objects(node)
        call = TransferCall(artifacts, terms)
        way = _Way(objects, node, call)
        await way.check(to_write=True)
        await self._each(call, lambda card: self._send_one(way, card))
        return call.moved()

    async def fetch(self, node: DataNode, artifacts: Sequence[Artifact], terms: Terms) -> Moved:
        call = TransferCall(artifacts, terms)
        call.found((await asyncio.to_thread(self._landing.look, call.sizes())).receipts)
        if not call.open:
            return call.moved()
        way = _Way(self.objects(node), node, call)
        await way.check(to_write=False)
        await self._each(call, lambda card: self._fetch_one(way, card))
        return call.moved()

    async def _each(self, call: TransferCall, work: Callable[[Artifact], Awaitable[None]]) -> None:
        """Work on a few files at a time. A damaged one is closed; a store that fails ends the call."""
        waiting = iter(list(call.open.values()))
        ended: list[Unavailable] = []

        async def lane() -> None:
            for card in waiting:
                try:
                    await work(card)
                except Corrupt as error:
                    call.fail({card.digest: str(error)}, corrupted=[card.digest])
                except Unavailable as error:
                    ended.append(error)
                if ended:
                    return
                await call.show()

        async with asyncio.TaskGroup() as lanes:
            for _ in range(FILES_AT_ONCE):
                lanes.create_task(lane())
        if ended:
            call.fail_rest(ended[0])

    # --- there ----------------------------------------------------------------------------------------

    async def _send_one(self, way: _Way, card: Artifact) -> None:
        if (known := await way.card(card.digest)) is not None:
            way.call.found([known.receipt(way.node.name, self.name)])
            return
        path = self._landing.intake.folder.place(card.digest)
        if not await asyncio.to_thread(path.is_file):
            way.call.fail({card.digest: "this node does not have it"})
            return
        parts = await self._send_parts(way, card, path)
        if not await self._read_back(way, card, parts, path):
            return
        new = ArchiveCard(
            artifact=card,
            parts=parts,
            verified_s=self._runtime.now_s(),
            verified_by=self._landing.intake.node,
        )
        if not await way.objects.create(new.key, encode(new)):
            new = await way.card(card.digest) or new  # another node was first
        way.call.arrived([new.receipt(way.node.name, self.name)])

    async def _send_parts(self, way: _Way, card: Artifact, path: Path) -> tuple[ArchivePart, ...]:
        parts = []
        for offset in range(0, max(1, card.size), PART_BYTES):
            content = await asyncio.to_thread(_read_part, path, offset)
            part = ArchivePart(sha256=await asyncio.to_thread(_hash, content), size=len(content))
            parts.append(part)
            if await way.objects.size(part.key) != part.size:
                await way.put(part, content)
            await way.call.reached(card.digest, (offset + part.size) // 2)  # reading back is the other half
        return tuple(parts)

    async def _read_back(self, way: _Way, card: Artifact, parts: Sequence[ArchivePart], path: Path) -> bool:
        """Read the whole file from the archive; a part with wrong bytes is written once more."""
        whole = hashlib.sha256()
        for number, part in enumerate(parts):
            content = await way.objects.read(part.key)
            if content is None or await asyncio.to_thread(_hash, content) != part.sha256:
                await way.put(part, await asyncio.to_thread(_read_part, path, number * PART_BYTES), anew=True)
                content = await way.objects.read(part.key)
                if content is None or await asyncio.to_thread(_hash, content) != part.sha256:
                    way.call.fail(
                        {card.digest: "the archive gives back other bytes"}, corrupted=[card.digest]
                    )
                    return False
            await asyncio.to_thread(whole.update, content)
            await way.call.reached(card.digest, (card.size + number * PART_BYTES + part.size) // 2)
        if whole.hexdigest() != card.digest:
            way.call.fail({card.digest: _DAMAGED_HERE}, corrupted=[card.digest])
            return False
        return True

    # --- back -----------------------------------------------------------------------------------------

    async def _fetch_one(self, way: _Way, card: Artifact) -> None:
        known = await way.card(card.digest)
        if known is None:
            way.call.fail({card.digest: "the archive does not have it"})
            return
        look = await asyncio.to_thread(self._landing.look, {card.digest: card.size})
        have, start = look.offsets.get(card.digest, 0), 0
        landed = Landed()
        for part in known.parts:
            begin, start = start, start + part.size
            if start <= have and start != card.size:
                continue  # here since an earlier attempt; the whole is verified at the end
            skip = min(max(0, have - begin), part.size)
            content = b"" if skip == part.size else await way.objects.read(part.key, offset=skip)
            if content is None:
                way.call.fail({card.digest: f"the archive lost {part.key}"}, corrupted=[card.digest])
                return
            await way.spend(len(content))
            landed = await self._land(known, part, begin + skip, content)
            if landed.failed:
                break
            await way.call.reached(card.digest, start)
        if landed.corrupted and have:
            await self._fetch_one(way, card)  # what an earlier attempt left was wrong, and is gone
            return
        way.call.arrived(landed.receipts)
        way.call.fail(landed.failed, corrupted=landed.corrupted)

    async def _land(self, known: ArchiveCard, part: ArchivePart, offset: int, content: bytes) -> Landed:
        def work() -> Landed:
            landed = Landed()
            expected = part.sha256 if len(content) == part.size else _hash(content)
            piece = Piece(
                digest=known.artifact.digest,
                size=known.artifact.size,
                offset=offset,
                sha256=expected,
                data=content,
            )
            self._landing.take(piece, landed)
            return landed

        return await asyncio.to_thread(work)


class _Way:
    """One call's way to one archive, paced and counted."""

    def __init__(self, objects: ArchiveObjects, node: DataNode, call: TransferCall) -> None:
        self.objects, self.node, self.call = objects, node, call

    async def check(self, *, to_write: bool) -> None:
        """Raise `TransferFailed` if the archive does not answer."""
        try:
            async with asyncio.timeout(self.call.terms.timeout_s):
                await self.objects.ready(to_write=to_write)
        except TimeoutError:
            raise TransferFailed(f"{self.objects.place} does not answer", retry_after_s=30.0) from None

    async def card(self, digest: str) -> ArchiveCard | None:
        key = card_key(digest)
        content = await self.objects.read(key)
        return None if content is None else decode(key, content, ArchiveCard)

    async def put(self, part: ArchivePart, content: bytes, *, anew: bool = False) -> None:
        await self.spend(len(content))
        if anew:
            await self.objects.replace(part.key, content)
        else:
            await self.objects.create(part.key, content)

    async def spend(self, count: int) -> None:
        await self.call.terms.pace.spend(count)
        self.call.bytes_sent += count


def _read_part(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(PART_BYTES)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
