"""The champions as files that people and other programs can open.

`models/canonical_<config>.safetensors` with its card beside it, and the link
`models/ringrift_best_<config>.safetensors`, are written from the blobs whenever the champion changed. They
are a view: nothing in the product reads them, and a file that was damaged or removed is written again. The
champion before stays beside them as `.previous`. Students lie there as `distillation_<config>` and
`small_net_<config>`.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path
from typing import BinaryIO

import structlog

from ringrift.engine.ports import Blobs
from ringrift.errors import Corrupt, DigestMismatch
from ringrift.held_folder import (
    create_file,
    link_file,
    link_symbolically,
    make_folders,
    remove_file,
    rename_file,
    sync_folder,
)
from ringrift.learning.records import Model, ModelState
from ringrift.learning.state import ConfigState

log = structlog.get_logger()

SUFFIX, CARD_SUFFIX = ".safetensors", ".json"
PREVIOUS, PART = ".previous", ".part"
_CHUNK_BYTES = 1 << 20


class ChampionFiles:
    """Keeps the files of one folder in step with the champions."""

    def __init__(self, folder: Path, blobs: Blobs) -> None:
        self.folder, self._blobs = folder, blobs

    def path_of(self, config: str) -> Path:
        return self.folder / f"canonical_{_plain(config)}{SUFFIX}"

    def link_of(self, config: str) -> Path:
        return self.folder / f"ringrift_best_{_plain(config)}{SUFFIX}"

    async def publish(self, state: ConfigState) -> bool:
        """Write the champion's files if they are not there yet; True if something was written.

        Each file is replaced at once. The weights come first and the card, which names their hash, last: a
        crash between leaves a pair that says of itself that it is not whole, and the next call mends it.
        Raises `Corrupt` if the blob is missing or damaged.
        """
        if state.champion is None:
            return False
        path = self.path_of(state.config)
        written = await self._publish(state, state.models[state.champion], path)
        await asyncio.to_thread(_link, self.link_of(state.config), path)
        for student in state.students.values():
            if student.state is ModelState.PRODUCTION:
                named = f"{student.purpose}_{_plain(state.config)}{SUFFIX}"
                written |= await self._publish(state, student, self.folder / named)
        return written

    async def _publish(self, state: ConfigState, model: Model, path: Path) -> bool:
        card_path = path.with_suffix(CARD_SUFFIX)
        wanted = {path: model.digest, card_path: model.card}
        if await asyncio.to_thread(_holds, wanted):
            return False
        sources = {place: (digest, await self._open(digest)) for place, digest in wanted.items()}
        await asyncio.to_thread(self._write, sources)
        log.info("models.published", config=state.config, model=model.digest, path=str(path))
        return True

    async def _open(self, digest: str) -> BinaryIO:
        try:
            return await self._blobs.open(digest)
        except KeyError:
            advice = "Restore it from a backup or roll the promotion back"
            raise Corrupt(f"blob {digest}", found="it is not there", advice=advice) from None

    def _write(self, sources: dict[Path, tuple[str, BinaryIO]]) -> None:
        make_folders(self.folder)
        parts = {path: path.with_name(path.name + PART) for path in sources}
        try:
            for path, (digest, source) in sources.items():
                with source:
                    _copy(source, parts[path], digest)
            for path, part in parts.items():
                _keep_previous(path)
                rename_file(part, path)
            sync_folder(self.folder)
        finally:
            for part in parts.values():
                remove_file(part)


def _plain(config: str) -> str:
    """The config as a part of a file's name."""
    return "".join(c if c.isalnum() or c in "_-" else "-" for c in config)


def _holds(wanted: dict[Path, str]) -> bool:
    return all(path.is_file() and _digest(path) == digest for path, digest in wanted.items())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _copy(source: BinaryIO, target: Path, digest: str) -> None:
    found = hashlib.sha256()
    with create_file(target) as file:
        while chunk := source.read(_CHUNK_BYTES):
            found.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    if found.hexdigest() != digest:
        advice = "Restore it from a backup or roll the promotion back"
        raise DigestMismatch(f"blob {digest}", found="the content has another hash", advice=advice)


def _keep_previous(path: Path) -> None:
    if path.is_file():
        kept = path.with_name(path.name + PREVIOUS)
        part = kept.with_name(kept.name + PART)
        remove_file(part)
        link_file(path, part)
        rename_file(part, kept)


def _link(link: Path, target: Path) -> None:
    """Point *link* and its card's link at *target*; a card is found beside the weights under their name."""
    for suffix in (SUFFIX, CARD_SUFFIX):
        name, wanted = link.with_suffix(suffix), target.with_suffix(suffix).name
        if name.is_symlink() and os.readlink(name) == wanted:
            continue
        part = name.with_name(name.name + PART)
        remove_file(part)
        link_symbolically(part, wanted)
        rename_file(part, name)
