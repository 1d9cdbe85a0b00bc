"""Bad files are set aside, with a note why. Nothing empties their folder to make room."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog

from ringrift.data.decisions import DecisionLog
from ringrift.data.kv_records import KvRecords
from ringrift.held_folder import make_folders, rename_file, write_file

if TYPE_CHECKING:
    from ringrift.data.plane import DataPlane

log = structlog.get_logger()

PART = "integrity"
MARKS = "data/quarantined/"
NOTE_SUFFIX = ".why.json"


class QuarantineNote(msgspec.Struct, frozen=True, kw_only=True):
    """Why a file was set aside."""

    digest: str
    node: str
    reason: str
    at_s: float
    path: str = ""  # empty: the bytes are sound and stay where they are, but nobody should learn from them


class Quarantine:
    """Sets files of this node aside."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self.folder = plane.settings.data_dir / "quarantine"
        self.marks = KvRecords(plane.kv, MARKS, QuarantineNote)

    async def set_aside(self, digest: str, reason: str) -> QuarantineNote:
        """Move a bad file out of the blobs; this node has no copy from then on."""
        plane = self._plane
        await plane.manifest.drop_copy(digest, plane.this.name)
        source, moved = await plane.blobs.path(digest), ""
        if source is not None:
            target = self.folder / f"{digest}.{plane.runtime.new_id()}"
            moved = await asyncio.to_thread(_move, source, target)
        else:
            await plane.blobs.delete(digest)
        note = self._note(digest, reason, moved)
        if moved:
            await asyncio.to_thread(write_file, Path(moved + NOTE_SUFFIX), msgspec.json.encode(note))
        await self.marks.put(f"{digest}/{plane.this.name}", note)
        return note

    async def mark(self, digest: str, reason: str) -> QuarantineNote:
        """Warn of sound bytes that nobody should learn from."""
        note = self._note(digest, reason, "")
        await self.marks.put(f"{digest}/", note)
        return note

    async def marked(self) -> dict[str, QuarantineNote]:
        return {note.digest: note for note in await self.marks.all() if not note.path}

    def _note(self, digest: str, reason: str, path: str) -> QuarantineNote:
        plane = self._plane
        return QuarantineNote(
            digest=digest, node=plane.this.name, reason=reason, at_s=plane.runtime.now_s(), path=path
        )


async def set_damaged_aside(plane: DataPlane, digest: str, found: str) -> None:
    """Do what is done about a file of this node whose content is not that of its name, whoever found it.

    It is a copy no more, so that what counts copies has a sound one brought here or elsewhere.
    """
    await Quarantine(plane).set_aside(digest, found)
    await asyncio.to_thread(plane.promises.forget_reads, digest)
    await DecisionLog(plane.kv, plane.runtime, node=plane.this.name).record(
        PART, "set_aside", found, digest=digest
    )
    log.error("integrity.damaged", digest=digest[:12], found=found)


def _move(source: Path, target: Path) -> str:
    make_folders(target.parent)
    try:
        rename_file(source, target)
    except FileNotFoundError:
        return ""
    return str(target)
