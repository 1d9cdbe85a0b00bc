"""What is written down about files: deletions, and files set aside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog
from msgspec.structs import replace

from ringrift.data.artifacts import Receipt
from ringrift.data.kv_records import KvMirror, RecordsMirror
from ringrift.engine.encoding import check_digest
from ringrift.engine.ports import KeyValue
from ringrift.engine.records import KvRecords
from ringrift.engine.sqlite.blobs import move_damaged
from ringrift.engine.sqlite.faults import translated_errors
from ringrift.errors import Corrupt, Unavailable
from ringrift.files import write_file
from ringrift.runtime import Runtime

if TYPE_CHECKING:
    from ringrift.data.plane import DataPlane


# What is written down about deletions: who gave up which copy and why, and what lives on in another file.
#
# The tombstone of an artifact is one key, changed by compare-and-swap. A node enters itself before it deletes
# its copy; from then on nobody counts that copy. Two nodes cannot both give up a copy because of the other's:
# the second finds the key changed and has to look again.


TOMBSTONES, SUCCESSORS = "data/tombstones/", "data/heirs/"
_ADVICE = "Nothing of this artifact is deleted until the key is restored or removed by hand"


class GivingUp(StrEnum):
    """How far a deletion is."""

    DELETING = "deleting"  # decided; the file may still be there
    DELETED = "deleted"


class GivenUp(msgspec.Struct, frozen=True, kw_only=True):
    """One node's copy, and why it went."""

    state: GivingUp
    at_s: float  # by the clock of that node; not before its last receipt
    reason: str
    by: str  # the part of the program, or the person, that asked for it
    copies_left: int
    bytes: int = 0


class Tombstone(msgspec.Struct, frozen=True, kw_only=True):
    """All copies of one artifact that were given up. Kept for good: it is the record of the deletion."""

    digest: str
    name: str = ""
    kind: str = ""
    config: str = ""
    nodes: dict[str, GivenUp] = {}

    def is_deciding(self, node: str) -> bool:
        """Whether *node* decided to give its copy up, and is about to."""
        own = self.nodes.get(node)
        return own is not None and own.state is GivingUp.DELETING

    def covers(self, receipt: Receipt, *, given_up_by: str | None = None) -> bool:
        """Whether the receipt is of a copy that was given up, and not of a later one.

        *given_up_by* is a node that has the same file, if not the receipt's own.
        """
        gone = self.nodes.get(given_up_by or receipt.node)
        if gone is None:
            return False
        return gone.state is GivingUp.DELETING or receipt.verified_s <= gone.at_s


class Successor(msgspec.Struct, frozen=True, kw_only=True, rename={"successor": "heir"}):
    """Everything that is in an artifact is in another one, too. Stored under the first version's names."""

    digest: str
    successor: str
    reason: str
    at_s: float


class DeletionRecords:
    """Tombstones and successors in the key-value port."""

    def __init__(self, kv: KeyValue) -> None:
        self._tombstones = KvRecords(kv, TOMBSTONES, Tombstone, advice=_ADVICE)
        self._successors = KvRecords(kv, SUCCESSORS, Successor, advice=_ADVICE)

    async def tombstone(self, digest: str) -> Tombstone | None:
        check_digest(digest)
        return await self._tombstones.get(digest)

    async def change(
        self, digest: str, edit: Callable[[Tombstone], Tombstone], *, plain: Tombstone | None = None
    ) -> None:
        """Change a tombstone, whatever others change meanwhile: one that is there, or else *plain*."""
        check_digest(digest)

        def step(found: Tombstone | None) -> Tombstone | None:
            before = found or plain
            return None if before is None else edit(before)

        await self._tombstones.change(digest, step)

    async def name_successor(self, named: Successor) -> None:
        """Note that one artifact holds everything of another. The first one named stays."""
        check_digest(named.successor)
        await self._successors.create(named.digest, named)

    async def successor(self, digest: str) -> Successor | None:
        return await self._successors.get(digest)


def mirror_tombstones(kv: KeyValue, runtime: Runtime) -> KvMirror[Mapping[str, Tombstone]]:
    """All tombstones by digest. They are kept for good, so nobody should read all of them twice."""
    return KvMirror(kv, runtime, (TOMBSTONES,), lambda: RecordsMirror(TOMBSTONES, Tombstone, advice=_ADVICE))


def mirror_successors(kv: KeyValue, runtime: Runtime) -> KvMirror[Mapping[str, Successor]]:
    """All successors, by the digest of what they inherited."""
    return KvMirror(kv, runtime, (SUCCESSORS,), lambda: RecordsMirror(SUCCESSORS, Successor, advice=_ADVICE))


def with_node(tombstone: Tombstone, node: str, entry: GivenUp | None) -> Tombstone:
    """The tombstone with this node's entry replaced, or taken out."""
    others = {name: each for name, each in tombstone.nodes.items() if name != node}
    if entry is not None:
        others[node] = entry
    return replace(tombstone, nodes=others)


# Bad files are set aside, with a note why. Nothing empties their folder to make room.


log = structlog.get_logger()

PART = "integrity"
MARKS = "data/quarantined/"
NOTE_SUFFIX = ".why.json"


class QuarantineNote(msgspec.Struct, frozen=True, kw_only=True):
    """Why a file was set aside, or why nobody should learn from it: the key says which (`Quarantine`)."""

    digest: str
    node: str
    reason: str
    at_s: float
    path: str = ""  # where the bytes lie that were set aside


class Quarantine:
    """Sets files of this node aside.

    The note of a file that was set aside is kept under its digest and its node; a warning of sound bytes
    under the digest alone, as it holds on every node.
    """

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self.folder = plane.settings.data_dir / "quarantine"
        self.marks = KvRecords(plane.kv, MARKS, QuarantineNote)

    async def set_aside(self, digest: str, reason: str, *, part: str = PART) -> QuarantineNote | None:
        """Move a bad file out of the blobs; this node has no copy from then on.

        None, and nothing is noted, if it is sound by now, or gone: another was faster.
        """
        plane = self._plane
        receipt = await self._own_receipt(digest)
        # Before the file is read: a receipt of what comes after that is not dropped.
        await plane.manifest.drop_copy(digest, plane.this.name)
        moved = await self._move(digest)
        if moved is None:
            if receipt is not None and await plane.blobs.has(digest):
                await plane.manifest.add_receipts([receipt])
            return None
        note = self._note(digest, reason, moved)
        await self.marks.put(f"{digest}/{plane.this.name}", note)
        await plane.decisions.record(part, "set_aside", reason, digest=digest)
        await asyncio.to_thread(plane.promises.forget_reads, digest)
        if moved:
            await self._write_beside(note)
        return note

    async def mark(self, digest: str, reason: str) -> QuarantineNote:
        """Warn of sound bytes that nobody should learn from."""
        note = self._note(digest, reason, "")
        await self.marks.put(f"{digest}/", note)
        return note

    async def marked(self) -> dict[str, QuarantineNote]:
        """The files that nobody should learn from."""
        entries = await self._plane.kv.entries(MARKS)
        notes = [self.marks.read(entry) for entry in entries if entry.key.endswith("/")]
        return {note.digest: note for note in notes}

    async def _own_receipt(self, digest: str) -> Receipt | None:
        try:
            return await self._plane.manifest.copy_at(digest, self._plane.this.name)
        except Corrupt:  # the record, that is: an orphan gets a new one
            return None

    async def _move(self, digest: str) -> str | None:
        """Where the bad bytes are now (empty: nowhere); None if there are none."""
        blobs = self._plane.blobs
        if (source := await blobs.path(digest)) is not None:
            target = self.folder / f"{digest}.{self._plane.runtime.new_id()}"

            def work() -> bool:
                with translated_errors(target):
                    return move_damaged(source, digest, target)

            return str(target) if await asyncio.to_thread(work) else None
        try:
            await blobs.verify(digest)
        except KeyError:
            return None
        except Corrupt:
            await blobs.delete(digest)  # of an engine without files
            return ""
        return None

    async def _write_beside(self, note: QuarantineNote) -> None:
        """For people who look into the folder; what counts is recorded already."""
        path = Path(note.path + NOTE_SUFFIX)

        def work() -> None:
            with translated_errors(path):
                write_file(path, msgspec.json.encode(note))

        try:
            await asyncio.to_thread(work)
        except Unavailable as error:
            log.warning("integrity.note_not_written", path=str(path), error=str(error))

    def _note(self, digest: str, reason: str, path: str) -> QuarantineNote:
        plane = self._plane
        return QuarantineNote(
            digest=digest, node=plane.this.name, reason=reason, at_s=plane.runtime.now_s(), path=path
        )


async def set_damaged_aside(plane: DataPlane, digest: str, found: str) -> bool:
    """Do what is done about a file of this node whose content is not that of its name, whoever found it.

    It is a copy no more, so that what counts copies has a sound one brought here or elsewhere. Returns False
    if there is nothing to be done any more.
    """
    if await Quarantine(plane).set_aside(digest, found) is None:
        log.info("integrity.damage_gone", digest=digest[:12], found=found)
        return False
    log.error("integrity.damaged", digest=digest[:12], found=found)
    return True
