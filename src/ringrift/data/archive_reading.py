"""Reading a whole archived file, and mending what turns out wrong from a sound copy of it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ringrift.data.archive_format import ArchivePart
from ringrift.data.archive_objects import ArchiveObjects


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBack:
    """What reading brought to light."""

    sound: bool
    mended_bytes: int = 0  # of parts that were wrong and are right again
    why: str = ""


async def _nobody_looks(_done: int) -> None:
    """TransferProgress that nobody asked for."""


async def read_back(
    objects: ArchiveObjects,
    digest: str,
    parts: Sequence[ArchivePart],
    source: Path | None,
    on_progress: Callable[[int], Awaitable[None]] = _nobody_looks,
) -> ReadBack:
    """Read all parts. One with wrong bytes is written once more from *source*, if that has the right ones."""
    whole, mended, offset = hashlib.sha256(), 0, 0
    for part in parts:
        content = await objects.read(part.key)
        if content is None or not await _is(part, content):
            fresh = None if source is None else await asyncio.to_thread(read_part, source, offset, part.size)
            if fresh is None or not await _is(part, fresh):
                return ReadBack(sound=False, mended_bytes=mended, why=f"{part.key} has wrong bytes")
            await objects.replace(part.key, fresh)
            mended += part.size
            content = await objects.read(part.key)
            if content is None or not await _is(part, content):
                return ReadBack(sound=False, mended_bytes=mended, why=f"{part.key} stays wrong when written")
        await asyncio.to_thread(whole.update, content)
        offset += part.size
        await on_progress(offset)
    if whole.hexdigest() != digest:
        return ReadBack(sound=False, mended_bytes=mended, why="its parts do not make the file")
    return ReadBack(sound=True, mended_bytes=mended)


def read_part(path: Path, offset: int, size: int) -> bytes | None:
    """Return some bytes of a file; None if it is not there."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(size)
    except FileNotFoundError:
        return None


def hash_of_part(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def _is(part: ArchivePart, content: bytes) -> bool:
    return len(content) == part.size and await asyncio.to_thread(hash_of_part, content) == part.sha256
