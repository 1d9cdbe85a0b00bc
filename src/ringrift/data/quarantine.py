"""Bad files are set aside, with a note why. Nothing empties their folder to make room."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog

from ringrift.data.artifacts import Receipt
from ringrift.data.decisions import DecisionLog
from ringrift.data.kv_records import KvRecords
from ringrift.engine.sqlite.blob_folder import move_damaged
from ringrift.engine.sqlite.faults import told_in_our_words
from ringrift.errors import Corrupt, Unavailable
from ringrift.held_folder import write_file

if TYPE_CHECKING:
    from ringrift.data.plane import DataPlane

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
        receipts = await self._own_receipts(digest)
        # Before the file is read: a receipt of what comes after that is not dropped.
        await plane.manifest.drop_copy(digest, plane.this.name)
        moved = await self._move(digest)
        if moved is None:
            if await plane.blobs.has(digest):
                await plane.manifest.add_receipts(receipts)
            return None
        note = self._note(digest, reason, moved)
        await self.marks.put(f"{digest}/{plane.this.name}", note)
        decisions = DecisionLog(plane.kv, plane.runtime, node=plane.this.name)
        await decisions.record(part, "set_aside", reason, digest=digest)
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

    async def _own_receipts(self, digest: str) -> list[Receipt]:
        try:
            copies = await self._plane.manifest.copies(digest)
        except Corrupt:  # the record, that is: an orphan gets a new one
            return []
        return [each for each in copies if each.node == self._plane.this.name]

    async def _move(self, digest: str) -> str | None:
        """Where the bad bytes are now (empty: nowhere); None if there are none."""
        blobs = self._plane.blobs
        if (source := await blobs.path(digest)) is not None:
            target = self.folder / f"{digest}.{self._plane.runtime.new_id()}"

            def work() -> bool:
                with told_in_our_words(target):
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
            with told_in_our_words(path):
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
