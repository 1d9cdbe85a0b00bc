"""An archive, in a bucket or on a drive: which objects it has, where they lie, and what it says of itself.

    ringrift-archive.json        says that this is an archive, and of which format
    parts/ab/<sha256>            bytes named by their own hash; a small file is one part
    cards/<digest>.json          one file: its card, its parts, who verified it when; written last
    nodes/<node>.json            which files a node put here; it only grows
    manifest.json                all cards at one time, so that a restore needs one read
    states/<run>/<node>/…        the states of runs, see `run_states`; the only objects that are ever removed

A file is in the archive when its card is. The card is created once, after every part was read back.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol, TypeVar

import msgspec

from ringrift.data.artifacts import Artifact, Receipt, check_words
from ringrift.data.transfer.contract import CHUNK_BYTES, TransferFailed
from ringrift.decoding import decode_as
from ringrift.engine.encoding import check_digest, is_digest, record_hash
from ringrift.engine.sqlite.faults import translated_errors
from ringrift.errors import ConfigError, Corrupt, SchemaTooNew
from ringrift.files import close_to_others, is_shared, make_private_folder, sync_folder
from ringrift.foreign_files.paths import open_regular

# What the objects hold, the same in a bucket and on a drive, under the same keys.


T = TypeVar("T")

FORMAT = 1
PART_BYTES = 2 * CHUNK_BYTES
CARD_BYTES_MAX = 16 << 20  # a file of some hundred gigabytes
LIST_BYTES_MAX = 512 << 20  # the manifest of a million files
MARKER = "ringrift-archive.json"
MANIFEST = "manifest.json"
CARDS = "cards/"
NODES = "nodes/"
STATES = "states/"
_JSON = ".json"
_HASH_FIELD = b',"hash":"%s"'
_HASHED = re.compile(rb'(.*),"hash":"([0-9a-f]{32})"(\})', re.DOTALL)
_OBJECT_ADVICE = "Delete the object and run `ringrift data backup` on a node that has the file"


class ArchivePart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a file, in order."""

    sha256: str
    size: int

    def __post_init__(self) -> None:
        check_digest(self.sha256)  # it becomes a path
        if not 0 <= self.size <= PART_BYTES:
            raise ConfigError(f"part {self.sha256[:12]} has the size {self.size}")

    @property
    def key(self) -> str:
        return f"parts/{self.sha256[:2]}/{self.sha256}"


class ArchivedFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of the archive."""

    artifact: Artifact
    parts: tuple[ArchivePart, ...]
    verified_s: float
    verified_by: str  # the node that read it back

    def __post_init__(self) -> None:
        check_words(self.artifact)
        if sum(part.size for part in self.parts) != self.artifact.size:
            raise ConfigError(f"the parts of {self.artifact.digest[:12]} do not add up to its size")

    @property
    def key(self) -> str:
        return card_key(self.artifact.digest)

    def receipt(self, archive: str, verifier: str, *, verified_s: float | None = None) -> Receipt:
        """The archive's receipt: it was read whole when its card was written, or at *verified_s*."""
        return Receipt(
            digest=self.artifact.digest,
            node=archive,
            size=self.artifact.size,
            verified_s=self.verified_s if verified_s is None else verified_s,
            verifier=verifier,
        )


class NodeInventory(msgspec.Struct, frozen=True, kw_only=True):
    """What one node put into the archive. A file that the node lost stays listed."""

    node: str
    at_s: float
    digests: tuple[str, ...]

    def __post_init__(self) -> None:
        for digest in self.digests:
            check_digest(digest)


class ArchiveManifest(msgspec.Struct, frozen=True, kw_only=True):
    """All cards at one time."""

    at_s: float
    cards: tuple[ArchivedFile, ...]
    nodes: dict[str, tuple[str, ...]] = {}  # which node put which files there


class ArchiveMarker(msgspec.Struct, frozen=True, kw_only=True):
    """The first object of an archive."""

    format: int = FORMAT
    about: str = "An archive of RingRift. See docs/data-ssh-and-archives.md; delete nothing by hand."


def card_key(digest: str) -> str:
    return f"{CARDS}{digest}{_JSON}"


def inventory_key(node: str) -> str:
    return f"{NODES}{node.replace('/', '_')}{_JSON}"


def bytes_max_of(key: str) -> int:
    """The most that an object of this key may have; more is not read."""
    if key.startswith("parts/"):
        return PART_BYTES
    return CARD_BYTES_MAX if key.startswith(CARDS) else LIST_BYTES_MAX


def digest_of_key(key: str) -> str:
    return key.removeprefix(CARDS).removesuffix(_JSON)


def encode(thing: msgspec.Struct) -> bytes:
    """As JSON whose last field is the hash of all before it. A part is checked by its name instead."""
    content = msgspec.json.encode(thing)
    return content[:-1] + _HASH_FIELD % record_hash(content).encode() + content[-1:]


def decode(key: str, content: bytes, kind: type[T]) -> T:
    """Raises `Corrupt`, which names the object. One without a hash is of an earlier version."""
    found = _HASHED.fullmatch(content)
    if found is not None and record_hash(found[1] + found[3]) != found[2].decode():
        raise Corrupt(key, found="its bytes are not those that were stored", advice=_OBJECT_ADVICE)
    try:
        return decode_as(content, kind)
    except (msgspec.MsgspecError, ValueError, ConfigError, RecursionError) as error:
        raise Corrupt(
            key,
            found=f"this object of the archive cannot be read ({error})",
            advice=_OBJECT_ADVICE,
        ) from None


def read_card(digest: str, content: bytes) -> ArchivedFile:
    """The card that lies under the key of *digest*; raises `Corrupt`, also if it is another file's."""
    card = decode(card_key(digest), content, ArchivedFile)
    if card.artifact.digest != digest:
        raise Corrupt(
            card_key(digest),
            found=f"it is the card of {card.artifact.digest[:12]}",
            advice=_OBJECT_ADVICE,
        )
    return card


def check_marker(place: str, content: bytes) -> None:
    """Refuse an archive that a newer version wrote."""
    found = decode(f"{place}/{MARKER}", content, ArchiveMarker)
    if found.format > FORMAT:
        raise SchemaTooNew(
            f"{place}/{MARKER}",
            found=f"the archive has format {found.format}, this version reads {FORMAT}",
            advice="Update ringrift; if no newer version wrote this archive, the file is damaged",
        )


# Where an archive's objects lie: the little that a bucket and a mounted drive have in common.


_UNFINISHED = ".unfinished-"


class ArchiveObjects(Protocol):
    """Objects under keys. Files only grow: nothing but states, of which there are many, can be removed.

    Errors of the store are `TransferFailed`; a full drive is `StorageFull`.
    """

    @property
    def place(self) -> str:
        """For people: where it is."""
        ...

    async def ready(self, *, to_write: bool) -> None:
        """Check that an archive of ours is there; an empty bucket becomes one when it is written to."""
        ...

    async def size(self, key: str) -> int | None: ...

    async def read(self, key: str, *, offset: int = 0) -> bytes | None:
        """Return the whole object, which is never larger than a part or a manifest; None if absent."""
        ...

    async def create(self, key: str, content: bytes) -> bool:
        """Store a new object; False, and nothing changes, if the key is there."""
        ...

    async def replace(self, key: str, content: bytes) -> None:
        """Store whatever was there before, in one step."""
        ...

    async def keys(self, prefix: str) -> list[str]: ...

    async def remove(self, key: str) -> None:
        """Remove an object of a state; `ConfigError` for any other."""
        ...


def check_removable(key: str) -> None:
    if not key.startswith(STATES):
        raise ConfigError(f"{key} is no object of a state; nothing else is ever removed from an archive")


def check_size(place: str, key: str, size: int) -> None:
    """Refuse an object that is larger than any of its kind, before it is read."""
    if size > bytes_max_of(key):
        problem = f"it has {size} bytes, and {bytes_max_of(key)} are the most of such an object"
        raise Corrupt(f"{place}/{key}", found=problem, advice="Look who put it there")


class DriveObjects:
    """Objects as files of a mounted drive. See `ArchiveObjects`."""

    def __init__(self, folder: Path, new_id: Callable[[], str]) -> None:
        self._folder, self._new_id = folder, new_id

    @property
    def place(self) -> str:
        return str(self._folder)

    async def ready(self, *, to_write: bool) -> None:
        marker = await self.read(MARKER)
        if marker is None:
            raise TransferFailed(
                f"there is no archive at {self.place}; is the drive mounted? A new drive is prepared with "
                f"`ringrift data backup --prepare`",
                retry_after_s=60.0,
            )
        check_marker(self.place, marker)
        if to_write:
            await asyncio.to_thread(self._close_to_others)

    async def prepare(self) -> bool:
        """Make the folder an archive; False if it is one. An empty mount point is for its owner to tell."""
        if not await asyncio.to_thread(self._folder.is_dir):
            raise ConfigError(f"{self._folder} is not a folder; mount the drive there, or make the folder")
        return await self.create(MARKER, encode(ArchiveMarker()))

    async def size(self, key: str) -> int | None:
        def work() -> int | None:
            try:
                return self._at(key).stat().st_size
            except FileNotFoundError:
                return None

        return await self._run(work)

    async def read(self, key: str, *, offset: int = 0) -> bytes | None:
        def work() -> bytes | None:
            try:
                with open_regular(self._at(key), follow=False) as file:
                    check_size(self.place, key, os.fstat(file.fileno()).st_size)
                    file.seek(offset)
                    return file.read(bytes_max_of(key))
            except FileNotFoundError:
                return None

        return await self._run(work)

    async def create(self, key: str, content: bytes) -> bool:
        def work() -> bool:
            place = self._at(key)
            if place.exists():
                return False
            unfinished = self._written(place, content)
            try:
                os.link(unfinished, place)
            except FileExistsError:
                return False
            except OSError:
                # The drive knows no links. Whoever else creates this key writes the same: the last may win.
                os.replace(unfinished, place)
            finally:
                unfinished.unlink(missing_ok=True)
            sync_folder(place.parent)
            return True

        return await self._run(work)

    async def replace(self, key: str, content: bytes) -> None:
        def work() -> None:
            place = self._at(key)
            os.replace(self._written(place, content), place)
            sync_folder(place.parent)

        await self._run(work)

    async def keys(self, prefix: str) -> list[str]:
        def work() -> list[str]:
            files = self._at(prefix).rglob("*")
            plain = (file for file in files if file.is_file() and not file.is_symlink())
            names = (file.relative_to(self._folder).as_posix() for file in plain)
            return sorted(name for name in names if _UNFINISHED not in name)

        return await self._run(work)

    async def remove(self, key: str) -> None:
        check_removable(key)

        def work() -> None:
            place = self._at(key)
            place.unlink(missing_ok=True)
            with suppress(OSError):  # other objects are in it
                place.parent.rmdir()

        await self._run(work)

    def _at(self, key: str) -> Path:
        """The place of an object. Whoever wrote on the drive may have left links; none is followed."""
        place = self._folder
        for part in PurePosixPath(key).parts:
            place /= part
            if part in ("..", "/") or place.is_symlink():
                problem = "a link, or a way out of the archive"
                raise Corrupt(place, found=problem, advice="Look who put it there")
        return place

    def _close_to_others(self) -> None:
        """Close what an older version wrote. The folder itself is its owner's; FAT has no modes."""
        for path in self._folder.iterdir():
            with suppress(OSError, ConfigError):
                close_to_others((path,))

    def _written(self, place: Path, content: bytes) -> Path:
        """For its owner alone: an archive holds the state of the engine, too.

        Not by `ringrift.files.replacing`: a drive need not know modes or locks.
        """
        make_private_folder(place.parent)
        unfinished = place.parent / f"{_UNFINISHED}{self._new_id()}"
        try:
            with os.fdopen(_open_new(unfinished), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise
        return unfinished

    async def _run(self, work: Callable[[], T]) -> T:
        def guarded() -> T:
            with translated_errors(self._folder):
                return work()

        return await asyncio.to_thread(guarded)


def _open_new(path: Path) -> int:
    """Without a change of modes afterwards, which a file system that has none refuses."""
    return os.open(
        path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o660 if is_shared(path.parent) else 0o600
    )


# Reading a whole archived file, and mending what turns out wrong from a sound copy of it.


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBack:
    """What reading brought to light."""

    sound: bool
    mended_bytes: int = 0  # of parts that were wrong and are right again
    why: str = ""


async def _nobody_looks(_done: int) -> None:
    """Nobody asked for the progress."""


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


# What an archive says of itself: its cards, who put what there, and whether the bytes are still right.


READS_AT_ONCE = 16


class ArchiveIndex:
    """Reads an archive's cards and lists, and writes the lists."""

    def __init__(self, objects: ArchiveObjects) -> None:
        self.objects = objects

    async def card(self, digest: str) -> ArchivedFile | None:
        content = await self.objects.read(card_key(digest))
        return None if content is None else read_card(digest, content)

    async def digests(self) -> list[str]:
        found = (digest_of_key(key) for key in await self.objects.keys(CARDS))
        return [digest for digest in found if is_digest(digest)]

    async def cards(self) -> list[ArchivedFile]:
        """All files of the archive: those of the manifest without a further look, and the newer ones."""
        manifest = await self.manifest()
        known = {} if manifest is None else {card.artifact.digest: card for card in manifest.cards}
        newer = [digest for digest in await self.digests() if digest not in known]
        turns = asyncio.Semaphore(READS_AT_ONCE)

        async def read(digest: str) -> ArchivedFile | None:
            async with turns:
                return await self.card(digest)

        found = await asyncio.gather(*(read(digest) for digest in newer))
        return [*known.values(), *(card for card in found if card is not None)]

    async def manifest(self) -> ArchiveManifest | None:
        return await self._read(MANIFEST, ArchiveManifest)

    async def write_manifest(self, manifest: ArchiveManifest) -> None:
        """Written after everything that it names."""
        await self.objects.replace(MANIFEST, encode(manifest))

    async def inventory(self, node: str) -> NodeInventory | None:
        return await self._read(inventory_key(node), NodeInventory)

    async def inventories(self) -> list[NodeInventory]:
        found = [await self._read(key, NodeInventory) for key in await self.objects.keys(NODES)]
        return [each for each in found if each is not None]

    async def grow_inventory(self, node: str, digests: Sequence[str], *, now_s: float) -> NodeInventory:
        """Add to what a node put here. Nothing is ever taken out, whatever the node lost since."""
        before = await self.inventory(node)
        known = () if before is None else before.digests
        grown = NodeInventory(node=node, at_s=now_s, digests=tuple(sorted({*known, *digests})))
        if before is None or grown.digests != before.digests:
            await self.objects.replace(inventory_key(node), encode(grown))
        return grown

    async def lacks_parts(self, card: ArchivedFile) -> list[str]:
        """Return the parts that are absent or cut short, without reading them."""
        sizes = [await self.objects.size(part.key) for part in card.parts]
        return [part.key for part, size in zip(card.parts, sizes, strict=True) if size != part.size]

    async def read_back(self, card: ArchivedFile, source: Path | None) -> ReadBack:
        """Read all of a file; mend wrong parts from *source*, a copy of it, if there is one."""
        return await read_back(self.objects, card.artifact.digest, card.parts, source)

    async def _read(self, key: str, kind: type[T]) -> T | None:
        content = await self.objects.read(key)
        return None if content is None else decode(key, content, kind)


def merged(
    before: ArchiveManifest | None,
    cards: Sequence[ArchivedFile],
    inventories: Sequence[NodeInventory],
    *,
    now_s: float,
) -> ArchiveManifest:
    """Join what is known. Whatever an earlier manifest named stays in."""
    known = {} if before is None else {card.artifact.digest: card for card in before.cards}
    known |= {card.artifact.digest: card for card in cards}
    nodes = {} if before is None else dict(before.nodes)
    for inventory in inventories:
        nodes[inventory.node] = tuple(sorted({*nodes.get(inventory.node, ()), *inventory.digests}))
    return ArchiveManifest(at_s=now_s, cards=tuple(known[digest] for digest in sorted(known)), nodes=nodes)


def same_content(first: ArchiveManifest | None, second: ArchiveManifest) -> bool:
    return first is not None and msgspec.structs.replace(first, at_s=second.at_s) == second
