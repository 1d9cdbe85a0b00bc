"""What is really there: this node's files read again in turn, and other nodes asked what they find.

What the manifest says is compared with it: a copy that is gone, or damaged, is struck; one that was read
since gets a newer receipt, and one that came without the manifest's knowledge, its first. Of a node that does
not answer nothing is known: its copies are neither there nor gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from msgspec.structs import replace

from ringrift.data.artifacts import Artifact, Receipt, in_batches
from ringrift.data.config import DataNode
from ringrift.data.kv_records import for_each
from ringrift.data.manifest.store import is_given_up
from ringrift.data.plane import DataPlane
from ringrift.data.protection.promises import KeepAnswer, KeepRequest, KeptFile
from ringrift.data.protection.records import PART, set_damaged_aside
from ringrift.data.protection.retention import read_champions
from ringrift.data.transfer.contract import ASKED_AT_ONCE
from ringrift.data.transfer.http.wire import File
from ringrift.errors import Corrupt, RingRiftError
from ringrift.files import file_sha256
from ringrift.work.job.folder import damaged_inputs, forget_damaged

# Reading this node's files again, in turn, so that damage is found before the copy is needed.


log = structlog.get_logger()

MODELS = "models"  # folder of the data folder where champions lie for people to open
SCRUB_EVERY_S = 7 * 86_400.0
SCRUB_BYTES_PER_CYCLE = 2 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrubbed:
    """What one round read."""

    verified: int = 0
    bytes: int = 0
    damaged: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


async def scrub(
    plane: DataPlane,
    *,
    older_than_s: float = SCRUB_EVERY_S,
    bytes_max: int = SCRUB_BYTES_PER_CYCLE,
    digests: frozenset[str] | None = None,
    on_read: Callable[[Receipt], None] | None = None,
) -> Scrubbed:
    """Read this node's files again, the longest unread first, or just *digests*; good ones get a new receipt.

    A damaged file is set aside and a missing one is struck from the manifest: neither is a copy.
    """
    verified = read = 0
    damaged, missing = [], []
    for receipt in await _select_due(plane, older_than_s, digests):
        if read and read + receipt.size > bytes_max:
            break
        read += receipt.size
        found = await _read(plane, receipt)
        if found is None:
            verified += 1
        elif found:
            damaged.append(receipt.digest)
        else:
            missing.append(receipt.digest)
        if on_read is not None:
            on_read(receipt)
    return Scrubbed(verified=verified, bytes=read, damaged=tuple(damaged), missing=tuple(missing))


async def read_unregistered(plane: DataPlane) -> Scrubbed:
    """Read files of this node that its manifest does not have: others may have receipts of them."""
    here, read = (await plane.view()).receipts_at(plane.this.name), 0
    verified, damaged = 0, []
    for digest in await plane.blobs.digests():
        if digest in here:
            continue
        size = await plane.blobs.size(digest) or 0
        try:
            await plane.blobs.verify(digest)
        except KeyError:
            continue  # it went meanwhile, and nobody here counted on it
        except Corrupt as error:
            if await set_damaged_aside(plane, digest, error.found):
                damaged.append(digest)
        else:
            verified += 1
        read += size
    return Scrubbed(verified=verified, bytes=read, damaged=tuple(damaged))


async def examine_damaged_inputs(plane: DataPlane) -> list[str]:
    """Read the files that workers of this node found damaged; return those that were set aside.

    A bad one is set aside. If the same content lies among the published models it is taken from there; if it
    is on another node, what brings inputs to waiting work brings it.
    """
    aside = []
    for found in await damaged_inputs(plane.kv):
        if found.node not in (plane.this.name, plane.runtime.hostname):
            continue
        try:
            await plane.blobs.verify(found.digest)
        except KeyError:
            pass  # it is aside already
        except Corrupt as error:
            if await set_damaged_aside(plane, found.digest, error.found):
                aside.append(found.digest)
        else:
            await forget_damaged(plane.kv, found)
            continue
        if await _take_from_models(plane, found.digest):
            await forget_damaged(plane.kv, found)
    return aside


async def bring_back_champions(plane: DataPlane) -> None:
    """Take champions that are not here, whoever lost or set them aside, from among the published models."""
    for digest in await read_champions(plane.kv):
        if not await plane.blobs.has(digest):
            await _take_from_models(plane, digest)


async def _take_from_models(plane: DataPlane, digest: str) -> bool:
    """Whether the content was found among the files for people, and is in the blobs again."""
    for path in await asyncio.to_thread(lambda: sorted((plane.settings.data_dir / MODELS).glob("*"))):
        if path.is_symlink() or not await asyncio.to_thread(_has_content, path, digest):
            continue
        if await plane.blobs.put(path) == digest:
            await plane.note_copy(digest, MODELS)
            await plane.decisions.record(PART, "brought_again", f"from {path.name}", digest=digest)
            log.info("integrity.brought_again", digest=digest[:12], path=str(path))
            return True
    return False


def _has_content(path: Path, digest: str) -> bool:
    return path.is_file() and file_sha256(path) == digest


async def _select_due(plane: DataPlane, older_than_s: float, digests: frozenset[str] | None) -> list[Receipt]:
    own = (await plane.view()).receipts_at(plane.this.name).values()
    now_s = plane.runtime.now_s()
    if digests is not None:
        due = [each for each in own if each.digest in digests]
    else:  # a receipt from the future tells that the clock jumped, not when the file was read
        due = [each for each in own if not now_s - older_than_s < each.verified_s <= now_s]
    return sorted(due, key=lambda each: each.verified_s)


async def _read(plane: DataPlane, receipt: Receipt) -> str | None:
    """None if the file is good, what is wrong with it if it is damaged, and nothing if it is gone."""
    digest, begun_s = receipt.digest, plane.runtime.now_s()
    look = await asyncio.to_thread(plane.holder.look, digest)
    try:
        await plane.blobs.verify(digest)
    except KeyError:
        await plane.manifest.drop_copy(digest, plane.this.name)
        await plane.decisions.record(PART, "struck", "the file is gone", digest=digest)
        return ""
    except Corrupt as error:
        await set_damaged_aside(plane, digest, error.found)
        return error.found
    if look is not None:
        await asyncio.to_thread(plane.promises.note_read, digest, look, sound=True)
    # As of when reading began: a deletion that was decided meanwhile is newer than this receipt.
    renewed = replace(receipt, verified_s=begun_s, verifier="scrub")
    await plane.manifest.add_receipts([renewed])
    return None


# Copies as they are seen now, on this node and on the others.


INVENTORY = "inventory"
LOST_FILES_MIN = 3  # so many, and none that is left: that was no deletion, the disk is gone
DECISIONS_MAX = 100  # of one look
_RENEWED_S = 1.0  # a receipt that is younger by less says the same


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLook:
    """What became of the files that this node was known to have."""

    missing: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    disk_lost: bool = False  # all of them are gone at once

    @property
    def message(self) -> str:
        if self.disk_lost:
            return f"all {len(self.missing)} files of this node are gone: is its disk lost, or not mounted?"
        return f"{len(self.missing)} files are gone from this node's disk" if self.missing else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """One look everywhere."""

    here: LocalLook = LocalLook()
    silent: Mapping[str, str] = field(default_factory=dict)  # nodes that did not answer, and why
    answered: frozenset[str] = frozenset()


async def look_everywhere(plane: DataPlane, artifacts: Sequence[Artifact]) -> Inventory:
    """Look at this node's disk and ask the others about *artifacts*. Archives are read by `data check`."""
    here = await look_here(plane)
    others = [node for node in plane.nodes.others() if node.active and not node.is_archive]
    whys = await for_each(others, lambda node: _ask(plane, node, artifacts))
    silent = {node.name: why for node, why in zip(others, whys, strict=True) if why}
    answered = frozenset(node.name for node in others) - silent.keys()
    return Inventory(here=here, silent=silent, answered=answered)


async def look_here(plane: DataPlane) -> LocalLook:
    """Compare the manifest with this node's disk. Damaged files are read again and set aside."""
    view = await plane.view()
    own = view.receipts_at(plane.this.name)
    sizes = {card.digest: card.size for card in view.cards}
    sizes |= {receipt.digest: receipt.size for receipt in own.values()}
    began_s, there = plane.runtime.now_s(), 0
    missing, damaged = [], []
    asked = [File(digest, size) for digest, size in sizes.items()]
    for files in in_batches(asked, files_max=ASKED_AT_ONCE):
        batch_began_s = plane.runtime.now_s()
        request = KeepRequest(asker=plane.this.name, files=tuple(files))
        answer = await asyncio.to_thread(plane.holder.keep, request)
        await _enter_own(plane, [file for file in answer.files if file.digest not in own], batch_began_s)
        for file in answer.files:
            if file.digest not in own:
                continue
            there += not file.missing
            if file.missing:
                missing.append(file.digest)
            elif file.damaged:
                damaged.append(file.digest)
    found = LocalLook(
        missing=tuple(missing),
        damaged=tuple(damaged),
        disk_lost=len(missing) >= LOST_FILES_MIN and not there,
    )
    struck = [
        digest
        for digest in missing
        if await plane.manifest.drop_copy_read_before(began_s, digest, plane.this.name)
    ]
    if found.disk_lost:
        log.error("inventory.disk_lost", files=len(missing), folder=str(plane.settings.blob_dir))
        await plane.decisions.record(INVENTORY, "disk_lost", found.message)
    else:
        for digest in struck[:DECISIONS_MAX]:
            log.error("inventory.file_gone", digest=digest)
            await plane.decisions.record(INVENTORY, "struck", "the file is gone", digest=digest)
    if damaged:
        await scrub(plane, digests=frozenset(damaged))
    return found


async def _enter_own(plane: DataPlane, files: Sequence[KeptFile], began_s: float) -> None:
    """Enter copies of this node that its manifest does not have.

    A file that was deleted here and brought back by another node's repair is one: it counts at once, as it
    does for those who ask this node.
    """
    found = [file for file in files if not file.refusal and file.read_age_s is not None]
    if not found:
        return
    stones, begun = await plane.tombstones(), await asyncio.to_thread(plane.promises.begun)
    for file in found:
        seen = _seen(file, plane.this.name, began_s)
        if file.digest in begun:
            continue
        if is_given_up(seen, stones.get(file.digest), plane.nodes):
            # It was read before it was deleted, if the record can be believed: the next look reads it anew.
            await asyncio.to_thread(plane.promises.forget_reads, file.digest)
            continue
        await plane.manifest.add_receipts([seen])


async def _ask(plane: DataPlane, node: DataNode, artifacts: Sequence[Artifact]) -> str:
    """Ask one node about all files; return why it did not answer, if so."""
    for some in in_batches(artifacts, files_max=ASKED_AT_ONCE):
        began_s = plane.runtime.now_s()
        files = tuple(File(each.digest, each.size) for each in some)
        try:
            answer = await plane.holders.keep(node, KeepRequest(asker=plane.this.name, files=files))
        except RingRiftError as error:
            return str(error)
        await learn_from_answer(plane, answer, began_s=began_s)
    return ""


async def learn_from_answer(plane: DataPlane, answer: KeepAnswer, *, began_s: float) -> None:
    """Bring the manifest up to what *answer*, asked for at *began_s*, says of that node's files."""
    known = (await plane.view()).receipts_at(answer.node)
    recorded = 0
    for file in answer.files:
        receipt = known.get(file.digest)
        if file.missing or file.damaged:
            # Another process may have brought it there since.
            struck = receipt is not None and await plane.manifest.drop_copy_read_before(
                began_s, file.digest, answer.node
            )
            if struck:
                log.warning("inventory.copy_gone", node=answer.node, digest=file.digest, why=file.refusal)
                recorded += 1
            if struck and recorded <= DECISIONS_MAX:
                await plane.decisions.record(
                    INVENTORY, "struck", f"{answer.node}: {file.refusal}", digest=file.digest
                )
        elif not file.refusal and file.read_age_s is not None:
            seen = _seen(file, answer.node, began_s)
            if receipt is None or receipt.verified_s < seen.verified_s - _RENEWED_S:
                await plane.manifest.add_receipts([seen])


def _seen(file: KeptFile, node: str, began_s: float) -> Receipt:
    """As of when the look began: a deletion that was decided meanwhile is newer than this receipt."""
    assert file.read_age_s is not None, "it was read"
    read_s = began_s - file.read_age_s
    return Receipt(digest=file.digest, node=node, size=file.size, verified_s=read_s, verifier=INVENTORY)
