"""Sealed files of this node that the manifest does not know: they are read, and registered."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from ringrift.data.artifacts import Artifact, ArtifactKind, Receipt
from ringrift.data.deletion import Deleter
from ringrift.data.deletion_records import GivingUp, Tombstone
from ringrift.data.file_facts import FileFacts, read_facts
from ringrift.data.manifest_index import games_in
from ringrift.data.plane import DataPlane
from ringrift.errors import Corrupt
from ringrift.held_folder import make_folders, rename_file

YOUNG_S = 600.0  # a file this new may still be on its way into the manifest
KNOWN_KINDS = frozenset({ArtifactKind.GAMES, ArtifactKind.SAMPLES, ArtifactKind.MODEL})
VERIFIER = "orphans"
TAKEN = "taken"
TAKEN_DIGEST_CHARS = 12  # of the digest, before the name


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphans:
    """What one look found."""

    found: tuple[str, ...] = ()
    registered: tuple[Artifact, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()  # (digest, why)

    @property
    def games(self) -> int:
        return games_in(self.registered)


async def register_orphans(plane: DataPlane, *, young_s: float = YOUNG_S) -> Orphans:
    """Register sealed files of this node that have no card or no receipt, after reading all of each."""
    await Deleter(plane).finish()  # what was being deleted is no orphan
    stones = await plane.tombstones()
    manifest = await plane.view()
    known, here = manifest.artifacts, manifest.receipts_at(plane.this.name)
    found, registered, refused = [], [], []
    for digest in await plane.blobs.digests():
        if digest in known and digest in here:
            continue
        if _is_going(stones.get(digest), plane.this.name) or not await _is_settled(plane, digest, young_s):
            continue
        facts = await _facts(plane, digest)
        if facts.kind not in KNOWN_KINDS and digest not in known:
            continue  # notes and results that nobody asked to keep
        found.append(digest)
        try:
            registered.append(await _register(plane, digest, facts))
        except (Corrupt, KeyError) as error:
            refused.append((digest, str(error)))
    return Orphans(found=tuple(found), registered=tuple(registered), refused=tuple(refused))


def _is_going(stone: Tombstone | None, node: str) -> bool:
    own = None if stone is None else stone.nodes.get(node)
    return own is not None and own.state is GivingUp.DELETING


async def _is_settled(plane: DataPlane, digest: str, young_s: float) -> bool:
    path = await plane.blobs.path(digest)
    if path is None:
        return True
    try:
        changed_s = (await asyncio.to_thread(path.stat)).st_mtime
    except FileNotFoundError:
        return False
    return plane.runtime.wall_s() - changed_s >= young_s


async def _facts(plane: DataPlane, digest: str) -> FileFacts:
    path = await plane.blobs.path(digest)
    if path is None:
        return FileFacts(kind=ArtifactKind.OTHER)
    return await asyncio.to_thread(read_facts, path)


async def _register(plane: DataPlane, digest: str, facts: FileFacts) -> Artifact:
    """Raises `Corrupt` if the file is not what it seems to be."""
    now_s, path = plane.runtime.now_s(), await plane.blobs.path(digest)
    await plane.blobs.verify(digest)
    if facts.problem:
        raise Corrupt(digest, found=facts.problem, advice="Look at it with `ringrift data show`")
    made_s = now_s if path is None else (await asyncio.to_thread(path.stat)).st_mtime
    size = await plane.blobs.size(digest) or 0
    artifact = Artifact(
        digest=digest,
        size=size,
        kind=facts.kind,
        name=f"orphan-{digest[:12]}",
        config=facts.config,
        node=plane.this.name,
        games=facts.games,
        rows=facts.rows,
        created_s=made_s,
    )
    await plane.manifest.register([artifact])
    receipt = Receipt(digest=digest, node=plane.this.name, size=size, verified_s=now_s, verifier=VERIFIER)
    await plane.manifest.add_receipts([receipt])
    return artifact


async def take_in_strays(plane: DataPlane, folder: Path) -> list[Path]:
    """Put sealed files that lie in *folder* into the blobs; they are registered as orphans then.

    What was taken in is moved into a folder of its own there, so that it is read once.
    """
    taken = []
    for path in await asyncio.to_thread(_sealed_files, folder):
        facts = await asyncio.to_thread(read_facts, path)
        if facts.kind in KNOWN_KINDS and not facts.problem:
            digest = await plane.blobs.put(path)
            name = f"{digest[:TAKEN_DIGEST_CHARS]}-{path.name}"
            taken.append(await asyncio.to_thread(_move, path, folder / TAKEN / name))
    return taken


def _sealed_files(folder: Path) -> list[Path]:
    """By their endings; databases that are being written have others. A link may lead anywhere: it stays."""
    endings = ("*.shard.db", "*.npz", "*.safetensors")
    found = (path for ending in endings for path in folder.rglob(ending))
    plain = (path for path in found if path.is_file() and not path.is_symlink())
    return sorted(path for path in plain if folder / TAKEN not in path.parents)


def _move(path: Path, target: Path) -> Path:
    make_folders(target.parent)
    rename_file(path, target)
    return target
