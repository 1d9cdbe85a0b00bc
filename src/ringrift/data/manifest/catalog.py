"""What the manifest is told of: what jobs sealed here, and what arrived from other nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import structlog
from msgspec.structs import replace

from ringrift.data.artifacts import Artifact, ArtifactKind, Receipt
from ringrift.data.config import DataNode
from ringrift.data.manifest.store import games_in
from ringrift.data.plane import DataPlane
from ringrift.data.transfer.receiving import ArrivedFile, MetadataFolder
from ringrift.engine.ports import EndedWork, WorkState
from ringrift.engine.records import KvRecords
from ringrift.engine.sqlite.blobs import BlobFolder
from ringrift.engine.sqlite.faults import translated_errors
from ringrift.errors import ConfigError, Corrupt
from ringrift.work.job.protocol import (
    SEALED_JOB,
    JobArtifact,
    JobReport,
    SealedJob,
    read_job_record,
    read_report,
)


def receivers_of(data_type: str, holder: str, nodes: Iterable[DataNode]) -> list[DataNode]:
    """Return the other nodes that may be given data of this type, which *holder* has."""
    known = {node.name: node for node in nodes}
    share = known[holder].nfs if holder in known else ""
    return [
        node
        for node in known.values()
        if node.name != holder and node.accepts(data_type) and not (share and node.nfs == share)
    ]


# Registers in the manifest what jobs sealed: the bytes came first, this comes last.
#
# Level-triggered: it goes through the ends of work items by their numbers, so a lost event or a crash costs
# time and nothing else. A card is written once, a receipt says the same each time; doing it again is
# harmless.


log = structlog.get_logger()

BATCH = 200
VERIFIER = "cataloguer"
_CURSOR = "data/cataloguer/"
_KINDS = {kind.value: kind for kind in ArtifactKind}


class CatalogCursor(msgspec.Struct, frozen=True):
    """The number of the last end that was looked at."""

    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cataloged:
    """What one round found."""

    registered: int = 0  # cards that were new
    copies: int = 0  # receipts of this node
    games: int = 0  # in files that were new


class Cataloger:
    """This node's reader of ended work."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        advice = "Delete the key: all ends are read anew"
        self._cursors = KvRecords(plane.kv, _CURSOR, CatalogCursor, advice=advice)

    async def catalog(self, *, rounds_max: int = 100) -> Cataloged:
        """Register everything that ended since the last time, at most *rounds_max* batches of it."""
        this, total = self._plane.this.name, Cataloged()
        number = (await self._cursors.get(this) or CatalogCursor()).number
        for _ in range(rounds_max):
            ended = await self._plane.queue.ended(after=number, limit=BATCH)
            if not ended:
                break
            total = _sum(total, await self._take(ended))
            number = ended[-1].number
            await self._cursors.put(this, CatalogCursor(number))
        return total

    async def catalog_job_records(self) -> int:
        """Register records of jobs that no result of work names; return how many.

        Nothing else tells of them after a rebuild, and without them the next one would find less.
        """
        plane, found = self._plane, 0
        known = (await plane.view()).artifacts
        for digest in await plane.blobs.digests():
            path = None if digest in known else await plane.blobs.path(digest)
            try:
                job = None if path is None else await asyncio.to_thread(read_job_record, path)
                if job is None:
                    continue
                await plane.blobs.verify(digest)
            except (OSError, KeyError, Corrupt):
                continue  # a look at the whole store finds damage
            this, size = plane.this.name, await plane.blobs.size(digest) or 0
            await plane.manifest.register([card_of_record(job, digest, size, node=this)])
            await plane.note_copy(digest, VERIFIER)
            found += 1
        return found

    async def _take(self, ended: Sequence[EndedWork]) -> Cataloged:
        made = [
            (artifact, str(end.item.payload.get("config", "")), report, end.item.changed_s)
            for end in ended
            if (report := _report_of(end)) is not None
            for artifact in report.artifacts
        ]
        return await self._register(made)

    async def _register(self, made: Iterable[tuple[JobArtifact, str, JobReport, float]]) -> Cataloged:
        """Note what jobs *made*, of which config, by their reports and when; all with few writes."""
        plane, cards, receipts = self._plane, dict[str, Artifact](), dict[str, Receipt]()
        here = {plane.this.name, plane.runtime.hostname}
        for artifact, config, report, ended_s in made:
            maker = plane.this.name if report.node in here else report.node
            held = await plane.blobs.has(artifact.digest)
            if not held and maker == plane.this.name:
                log.warning("cataloger.file_missing", digest=artifact.digest, name=artifact.name)
                continue
            digest = artifact.digest
            cards.setdefault(digest, card_of(artifact, config=config, node=maker, created_s=ended_s))
            if held:
                # Taking a file into the store read all of it and named it by what was read.
                receipts.setdefault(
                    digest,
                    Receipt(
                        digest=digest,
                        node=plane.this.name,
                        size=artifact.size_bytes,
                        verified_s=ended_s,
                        verifier=report.worker,
                    ),
                )
        new = await plane.manifest.register_new(cards.values())
        missing = [
            receipt
            for digest, receipt in receipts.items()
            if digest in new or await plane.manifest.copy_at(digest, plane.this.name) is None
        ]
        await plane.manifest.add_receipts(missing)
        games = games_in(cards[digest] for digest in new)
        return Cataloged(registered=len(new), copies=len(missing), games=games)


def _report_of(end: EndedWork) -> JobReport | None:
    item = end.item
    if item.state is not WorkState.DONE or item.result is None:
        return None
    try:
        return read_report(item.result)
    except ConfigError:
        return None  # work of another sort than jobs leaves no files


def _sum(first: Cataloged, second: Cataloged) -> Cataloged:
    return Cataloged(
        registered=first.registered + second.registered,
        copies=first.copies + second.copies,
        games=first.games + second.games,
    )


def card_of(made: JobArtifact, *, config: str, node: str, created_s: float) -> Artifact:
    counts = made.counts
    quality = counts.get("quality")
    return Artifact(
        digest=made.digest,
        size=made.size_bytes,
        kind=_KINDS.get(made.kind, ArtifactKind.OTHER),
        name=made.name,
        config=str(counts.get("config", config)),
        node=node,
        games=_count(counts.get("games")),
        rows=_count(counts.get("rows")),
        created_s=created_s,
        quality=float(quality) if isinstance(quality, int | float) else None,
    )


def card_of_record(job: SealedJob, digest: str, size: int, *, node: str) -> Artifact:
    """The card that the record of a job gets, as the worker names it."""
    made = JobArtifact(name=f"{job.item_id}.job.json", kind=SEALED_JOB, digest=digest, size_bytes=size)
    return card_of(made, config=job.order.config, node=node, created_s=job.ended_s)


def _count(value: object) -> int:
    return value if isinstance(value, int) and value >= 0 else 0


# Files that other nodes brought, entered into this node's manifest with what their senders said of them.


async def take_over_arrivals(plane: DataPlane) -> list[Artifact]:
    """Register what waits for this node; return what was new.

    Doing it twice, or in two processes, is harmless. What was received under another name stays for the node
    of that name: it shares this folder, or a command was started without it.
    """
    folder = plane.settings.blob_dir
    box, taken = MetadataFolder(BlobFolder(folder, plane.runtime.new_id)), list[Artifact]()
    with translated_errors(folder):
        for path, arrived in await asyncio.to_thread(lambda: list(box.lists())):
            if any(file.receipt.node != plane.this.name for file in arrived):
                continue
            for file in arrived:
                if await _enter(plane, file):
                    taken.append(file.card)
            await asyncio.to_thread(path.unlink, missing_ok=True)
    return taken


async def _enter(plane: DataPlane, file: ArrivedFile) -> bool:
    """Enter one file that is still here; whether the manifest did not know it."""
    digest, this = file.card.digest, plane.this.name
    if await plane.blobs.size(digest) != file.card.size:
        return False
    new = await plane.manifest.register([file.card]) > 0
    stone = (await plane.tombstones()).get(digest)
    given_up = stone is not None and this in stone.nodes  # the orphans' rules decide about its copy
    if not given_up and await plane.manifest.copy_at(digest, this) is None:
        await plane.manifest.add_receipts([file.receipt])
    if file.sender in plane.nodes and file.sender != this:
        await _know_sender(plane, file)
    return new


async def _know_sender(plane: DataPlane, file: ArrivedFile) -> None:
    """What arrived whole was read whole from the sender's disk: it has a copy, too."""
    if await plane.manifest.copy_at(file.card.digest, file.sender) is None:
        sent = replace(file.receipt, node=file.sender, verifier="sent")
        await plane.manifest.add_receipts([sent])
