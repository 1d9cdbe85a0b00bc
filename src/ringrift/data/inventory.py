"""Copies as they are seen now: what the manifest says is compared with what nodes find when they look.

A copy that is gone, or damaged, is struck from the manifest; one that was read since gets a newer receipt,
and one that came without the manifest's knowledge, its first.
Of a node that does not answer nothing is known: its copies are neither there nor gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from ringrift.data.artifacts import Artifact, Receipt
from ringrift.data.copies import is_given_up
from ringrift.data.decisions import DecisionLog
from ringrift.data.nodes import DataNode
from ringrift.data.plane import DataPlane
from ringrift.data.promises import KeepAnswer, KeepRequest, KeptFile
from ringrift.data.scrubbing import scrub
from ringrift.data.transfer.archives import is_archive
from ringrift.data.transfer.messages import ASKED_AT_ONCE, File
from ringrift.errors import RingRiftError

log = structlog.get_logger()

PART = "inventory"
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
    def told(self) -> str:
        if self.disk_lost:
            return f"all {len(self.missing)} files of this node are gone: is its disk lost, or not mounted?"
        return f"{len(self.missing)} files are gone from this node's disk" if self.missing else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """One look everywhere."""

    here: LocalLook = LocalLook()
    silent: Mapping[str, str] = field(default_factory=dict)  # nodes that did not answer, and why


async def look_everywhere(plane: DataPlane, artifacts: Sequence[Artifact]) -> Inventory:
    """Look at this node's disk and ask the others about *artifacts*. Archives are read by `data check`."""
    here = await look_here(plane)
    others = [node for node in plane.nodes.others() if node.active and not is_archive(node)]
    whys = await asyncio.gather(*(_ask(plane, node, artifacts) for node in others))
    return Inventory(
        here=here, silent={node.name: why for node, why in zip(others, whys, strict=True) if why}
    )


async def look_here(plane: DataPlane) -> LocalLook:
    """Compare the manifest with this node's disk. Damaged files are read again and set aside."""
    view = await plane.view()
    own = view.receipts_at(plane.this.name)
    sizes = {card.digest: card.size for card in view.cards}
    sizes |= {receipt.digest: receipt.size for receipt in own.values()}
    began_s, there = plane.runtime.now_s(), 0
    missing, damaged = [], []
    for files in _batches([File(digest, size) for digest, size in sizes.items()]):
        batch_began_s = plane.runtime.now_s()
        request = KeepRequest(asker=plane.this.name, files=files)
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
    decisions = DecisionLog(plane.kv, plane.runtime, node=plane.this.name)
    if found.disk_lost:
        log.error("inventory.disk_lost", files=len(missing), folder=str(plane.settings.blob_dir))
        await decisions.record(PART, "disk_lost", found.told)
    else:
        for digest in struck[:DECISIONS_MAX]:
            log.error("inventory.file_gone", digest=digest)
            await decisions.record(PART, "struck", "the file is gone", digest=digest)
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
        assert file.read_age_s is not None
        seen = Receipt(
            digest=file.digest,
            node=plane.this.name,
            size=file.size,
            # As of when the look began: a deletion that was decided meanwhile is newer than this receipt.
            verified_s=began_s - file.read_age_s,
            verifier=PART,
        )
        if file.digest in begun:
            continue
        if is_given_up(seen, stones.get(file.digest), plane.nodes):
            # It was read before it was deleted, if the record can be believed: the next look reads it anew.
            await asyncio.to_thread(plane.promises.forget_reads, file.digest)
            continue
        await plane.manifest.add_receipts([seen])


async def _ask(plane: DataPlane, node: DataNode, artifacts: Sequence[Artifact]) -> str:
    """Ask one node about all files; return why it did not answer, if so."""
    for files in _batches([File(each.digest, each.size) for each in artifacts]):
        began_s = plane.runtime.now_s()
        try:
            answer = await plane.holders.keep(node, KeepRequest(asker=plane.this.name, files=files))
        except RingRiftError as error:
            return str(error)
        await learn_from_answer(plane, answer, began_s=began_s)
    return ""


async def learn_from_answer(plane: DataPlane, answer: KeepAnswer, *, began_s: float) -> None:
    """Bring the manifest up to what *answer*, asked for at *began_s*, says of that node's files."""
    known = (await plane.view()).receipts_at(answer.node)
    decisions, told = DecisionLog(plane.kv, plane.runtime, node=plane.this.name), 0
    for file in answer.files:
        receipt = known.get(file.digest)
        if file.missing or file.damaged:
            # Another process may have brought it there since.
            struck = receipt is not None and await plane.manifest.drop_copy_read_before(
                began_s, file.digest, answer.node
            )
            if struck:
                log.warning("inventory.copy_gone", node=answer.node, digest=file.digest, why=file.refusal)
                told += 1
            if struck and told <= DECISIONS_MAX:
                await decisions.record(PART, "struck", f"{answer.node}: {file.refusal}", digest=file.digest)
        elif not file.refusal and file.read_age_s is not None:
            read_s = began_s - file.read_age_s  # it may have been deleted since it answered
            if receipt is None or receipt.verified_s < read_s - _RENEWED_S:
                seen = Receipt(
                    digest=file.digest, node=answer.node, size=file.size, verified_s=read_s, verifier=PART
                )
                await plane.manifest.add_receipts([seen])


def _batches(files: Sequence[File]) -> Iterator[tuple[File, ...]]:
    for start in range(0, len(files), ASKED_AT_ONCE):
        yield tuple(files[start : start + ASKED_AT_ONCE])
