"""Files to and from an archive, which has no program of its own: the sender reads back what it wrote.

A file goes as parts named by their own hashes, so that a broken transfer goes on at the part where it
stopped. Its card is created last, after all parts were read back and their whole had the right digest.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from ringrift.data.artifacts import Artifact
from ringrift.data.backup.archive import (
    PART_BYTES,
    ArchivedFile,
    ArchiveObjects,
    ArchivePart,
    DriveObjects,
    card_key,
    encode,
    hash_of_part,
    read_back,
    read_card,
    read_part,
)
from ringrift.data.config import DataNode, has_bucket, has_drive
from ringrift.data.transfer.contract import Moved, Terms, TransferCall, TransferFailed
from ringrift.data.transfer.receiving import Landing, Piece
from ringrift.errors import ConfigError, Corrupt, Unavailable
from ringrift.runtime import Runtime

FILES_AT_ONCE = 4  # each holds one part in memory
_QUICK_S = 2.0


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
        part_first: int = PART_BYTES,
    ) -> None:
        self._part_first = part_first
        self._part_bytes: dict[str, int] = {}  # by node: as much as its line brings quickly
        self.name, self.reaches, self._open_objects = name, reaches, open_objects
        self._landing, self._runtime = landing, runtime
        self._opened: dict[DataNode, ArchiveObjects] = {}

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
        held = await asyncio.to_thread(self._landing.look, call.sizes(), read_again=terms.read_again)
        call.found(held.receipts)
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
        path = self._landing.intake.folder.place(card.digest)
        known = await way.card(card.digest)
        if known is not None:
            # Whoever sends it has no receipt, or gave one back because the bytes were wrong.
            if await self._read_back(way, card, known.parts, path):
                way.call.found([self._verified_now(known).receipt(way.node.name, self.name)])
            return
        if not await asyncio.to_thread(path.is_file):
            way.call.fail({card.digest: "this node does not have it"})
            return
        parts = await self._send_parts(way, card, path)
        if not await self._read_back(way, card, parts, path):
            return
        new = self._verified_now(ArchivedFile(artifact=card, parts=parts, verified_s=0.0, verified_by=""))
        await way.objects.create(new.key, encode(new))  # or another node was first, with the same
        way.call.arrived([new.receipt(way.node.name, self.name)])

    async def _send_parts(self, way: _Way, card: Artifact, path: Path) -> tuple[ArchivePart, ...]:
        parts = await self._begun_parts(way, card, path)
        offset = sum(part.size for part in parts)
        while offset < card.size or not parts:
            part_bytes = self._part_bytes.get(way.node.name, self._part_first)
            content = await asyncio.to_thread(read_part, path, offset, part_bytes)
            if not content and card.size:
                raise Unavailable(f"{path.name[:12]} went away while it was sent")
            content = content or b""
            part = ArchivePart(sha256=await asyncio.to_thread(hash_of_part, content), size=len(content))
            parts.append(part)
            if await way.objects.size(part.key) != part.size:
                await way.spend(part.size)
                begun_s = self._runtime.monotonic_s()
                await way.objects.create(part.key, content)
                if len(content) == part_bytes and self._runtime.monotonic_s() - begun_s < _QUICK_S:
                    self._part_bytes[way.node.name] = min(PART_BYTES, part_bytes * 2)
            offset += part.size
            await way.call.reached(card.digest, offset // 2)  # reading back is the other half
        return tuple(parts)

    async def _begun_parts(self, way: _Way, card: Artifact, path: Path) -> list[ArchivePart]:
        """Return the parts that a transfer which broke off has left there, in whatever sizes it cut them.

        The size of parts follows the line, so a later call would cut elsewhere and find nothing of them.
        """
        sizes = [self._part_first]
        while sizes[-1] < PART_BYTES:
            sizes.append(min(PART_BYTES, sizes[-1] * 2))
        parts: list[ArchivePart] = []
        offset = 0
        while offset < card.size:
            content = await asyncio.to_thread(read_part, path, offset, PART_BYTES) or b""
            for length in sorted({min(size, len(content)) for size in sizes}, reverse=True):
                digest = await asyncio.to_thread(hash_of_part, content[:length])
                part = ArchivePart(sha256=digest, size=length)
                if length and await way.objects.size(part.key) == length:
                    break
            else:
                break
            parts.append(part)
            offset += part.size
            await way.call.reached(card.digest, offset // 2)
        return parts

    async def _read_back(self, way: _Way, card: Artifact, parts: Sequence[ArchivePart], path: Path) -> bool:
        async def on_progress(done: int) -> None:
            await way.call.reached(card.digest, (card.size + done) // 2)

        read = await read_back(way.objects, card.digest, parts, path, on_progress)
        way.call.bytes_sent += read.mended_bytes
        if not read.sound:
            way.call.fail({card.digest: read.why}, corrupted=[card.digest])
        return read.sound

    def _verified_now(self, card: ArchivedFile) -> ArchivedFile:
        node, now_s = self._landing.intake.node, self._runtime.now_s()
        return replace(card, verified_s=now_s, verified_by=node)

    # --- back -----------------------------------------------------------------------------------------

    async def _fetch_one(self, way: _Way, card: Artifact) -> None:
        known = await way.card(card.digest)
        if known is None:
            way.call.fail({card.digest: "the archive does not have it"})
            return
        look = await asyncio.to_thread(self._landing.look, {card.digest: card.size})
        have, start = look.offsets.get(card.digest, 0), 0
        landed = Moved()
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
            landed = await way.call.shown_while(self._land(known, part, begin + skip, content))
            if landed.failed:
                break
            await way.call.reached(card.digest, start)
        if landed.corrupted and have:
            await self._fetch_one(way, card)  # what an earlier attempt left was wrong, and is gone
            return
        way.call.took(landed)

    async def _land(self, known: ArchivedFile, part: ArchivePart, offset: int, content: bytes) -> Moved:
        def work() -> Moved:
            expected = part.sha256 if len(content) == part.size else hash_of_part(content)
            piece = Piece(
                digest=known.artifact.digest,
                size=known.artifact.size,
                offset=offset,
                sha256=expected,
                data=content,
            )
            return self._landing.take([piece])

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

    async def card(self, digest: str) -> ArchivedFile | None:
        content = await self.objects.read(card_key(digest))
        return None if content is None else read_card(digest, content)

    async def spend(self, count: int) -> None:
        await self.call.terms.pace.spend(count)
        self.call.bytes_sent += count


# The transports to archives: buckets and drives. The S3 client is loaded only where a node has a bucket.


S3, DRIVE = "s3", "drive"
_FIRST_OVER_A_LINE = 1 << 18  # 20 s at 100 kbit/s; parts grow while the line brings them quickly
_S3_MODULE = "ringrift.data.backup.s3"
_S3_CLIENT = "obstore"


def open_archive(node: DataNode, runtime: Runtime) -> ArchiveObjects:
    """Return the objects of an archive node; `ConfigError` if it is none, or its client is not installed."""
    if node.s3_url:
        return _open_bucket(node)
    if node.drive_path:
        return DriveObjects(Path(node.drive_path).expanduser(), runtime.new_id)
    raise ConfigError(f"node {node.name!r} is no archive: it has neither s3_url nor drive_path")


def _open_bucket(node: DataNode) -> ArchiveObjects:
    try:
        module = importlib.import_module(_S3_MODULE)
    except ModuleNotFoundError as error:
        if error.name != _S3_CLIENT:
            raise
        raise ConfigError(
            f"node {node.name!r} has an s3_url, and no S3 client is installed: pip install 'ringrift[s3]'"
        ) from None
    open_bucket: Callable[[DataNode], ArchiveObjects] = module.open_s3
    return open_bucket(node)


def archive_transports(landing: Landing, runtime: Runtime) -> tuple[ArchiveTransport, ArchiveTransport]:
    """Return the transports to buckets and to drives."""

    def open_objects(node: DataNode) -> ArchiveObjects:
        return open_archive(node, runtime)

    def transport(name: str, reaches: Callable[[DataNode], bool], part_first: int) -> ArchiveTransport:
        return ArchiveTransport(
            name,
            reaches=reaches,
            open_objects=open_objects,
            landing=landing,
            runtime=runtime,
            part_first=part_first,
        )

    return (
        transport(S3, has_bucket, _FIRST_OVER_A_LINE),
        transport(DRIVE, has_drive, PART_BYTES),
    )
