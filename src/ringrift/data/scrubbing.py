"""Reading this node's files again, in turn, so that damage is found before the copy is needed."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from ringrift.data.artifacts import Receipt
from ringrift.data.decisions import DecisionLog
from ringrift.data.plane import DataPlane
from ringrift.data.quarantine import PART, set_damaged_aside
from ringrift.data.retention import read_champions
from ringrift.errors import Corrupt
from ringrift.work.job_inputs import damaged_inputs, forget_damaged

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
    for receipt in await _due(plane, older_than_s, digests):
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
            size, now_s = await plane.blobs.size(digest) or 0, plane.runtime.now_s()
            receipt = Receipt(
                digest=digest, node=plane.this.name, size=size, verified_s=now_s, verifier=MODELS
            )
            await plane.manifest.add_receipts([receipt])
            decisions = DecisionLog(plane.kv, plane.runtime, node=plane.this.name)
            await decisions.record(PART, "brought_again", f"from {path.name}", digest=digest)
            log.info("integrity.brought_again", digest=digest[:12], path=str(path))
            return True
    return False


def _has_content(path: Path, digest: str) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == digest


async def _due(plane: DataPlane, older_than_s: float, digests: frozenset[str] | None) -> list[Receipt]:
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
    decisions = DecisionLog(plane.kv, plane.runtime, node=plane.this.name)
    look = await asyncio.to_thread(plane.holder.look, digest)
    try:
        await plane.blobs.verify(digest)
    except KeyError:
        await plane.manifest.drop_copy(digest, plane.this.name)
        await decisions.record(PART, "struck", "the file is gone", digest=digest)
        return ""
    except Corrupt as error:
        await set_damaged_aside(plane, digest, error.found)
        return error.found
    if look is not None:
        await asyncio.to_thread(plane.promises.note_read, digest, look, sound=True)
    # As of when reading began: a deletion that was decided meanwhile is newer than this receipt.
    renewed = msgspec.structs.replace(receipt, verified_s=begun_s, verifier="scrub")
    await plane.manifest.add_receipts([renewed])
    return None
