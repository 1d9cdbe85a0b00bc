"""Files that an event names by their path: taken in only from folders that the settings name, once each.

An event may come from anybody who can publish one, so a path in it must not become a read of any file of this
machine. What lies in `RINGRIFT_INTAKE_FOLDERS` is read, checked and sealed under its hash; the same file
offered again, under whatever name, is the same artifact and changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import BinaryIO

import structlog

from ringrift.data.artifacts import Artifact, ArtifactKind, Receipt
from ringrift.data.files import FileMissing, FileUnreadable, compute_file_checksum
from ringrift.data.manifest.file_facts import FileFacts, read_facts
from ringrift.data.plane import DataPlane
from ringrift.errors import Corrupt
from ringrift.foreign_files.paths import check_name, open_offered

log = structlog.get_logger()

VERIFIER = "intake"


async def take_offered(
    plane: DataPlane, path: Path | str, *, kind: ArtifactKind, config: str = ""
) -> Artifact:
    """Seal and register the file at *path*; return its card, which is the one there was if it is known.

    `ConfigError` for a path outside of the folders that the settings name, of which nothing is read;
    `Corrupt` for a file that is not of *kind*; `FileMissing` or `FileUnreadable`.
    """
    if config:
        check_name("config", config)
    given, folders = Path(path), plane.settings.intake_folders
    async with _opened(given, folders) as file:
        # Through the descriptor: whatever the path leads to by now, this is the file that was looked at.
        inside = Path(f"/proc/self/fd/{file.fileno()}")
        was_here, digest = await _sealed(plane, inside)
        facts = await asyncio.to_thread(read_facts, await plane.blobs.path(digest) or inside)
    if facts.problem or facts.kind is not kind:
        if not was_here:
            await plane.blobs.delete(digest)
        found = facts.problem or f"this is {_what(facts)}, not {kind.value}"
        raise Corrupt(given, found=found, advice="Name a sealed file of that kind")
    return await _registered(plane, given.name, digest, facts, config=config)


@asynccontextmanager
async def _opened(path: Path, folders: tuple[Path, ...]) -> AsyncIterator[BinaryIO]:
    with ExitStack() as held:
        try:
            file, _ = await asyncio.to_thread(held.enter_context, open_offered(path, folders))
        except FileNotFoundError as error:
            raise FileMissing(path, error) from error
        except OSError as error:
            raise FileUnreadable(path, error) from error
        yield file


async def _sealed(plane: DataPlane, inside: Path) -> tuple[bool, str]:
    """Put the content into the store; return whether it was there before, and its digest."""
    read = await asyncio.to_thread(compute_file_checksum, inside)
    before = await plane.blobs.has(read)
    digest = await plane.blobs.put(inside)
    return before and digest == read, digest


def _what(facts: FileFacts) -> str:
    return "no file of a run" if facts.kind is ArtifactKind.OTHER else facts.kind.value


async def _registered(plane: DataPlane, name: str, digest: str, facts: FileFacts, *, config: str) -> Artifact:
    if (known := await plane.manifest.artifact(digest)) is not None:
        return known
    now_s, size, this = plane.runtime.now_s(), await plane.blobs.size(digest) or 0, plane.this.name
    card = Artifact(
        digest=digest,
        size=size,
        kind=facts.kind,
        name=name,
        config=facts.config or config,
        node=this,
        games=facts.games,
        rows=facts.rows,
        created_s=now_s,
    )
    await plane.manifest.register([card])
    receipt = Receipt(digest=digest, node=this, size=size, verified_s=now_s, verifier=VERIFIER)
    await plane.manifest.add_receipts([receipt])
    log.info("intake.taken", name=name, digest=digest, kind=facts.kind.value, config=card.config)
    return card
