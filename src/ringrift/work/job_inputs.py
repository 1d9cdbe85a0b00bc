"""The inputs of a job: read whole before the job may see them, so that what is damaged is named as that.

Whoever finds one damaged writes that down. The node's integrity check sets the file aside and brings another
copy; until one is there the job's error says what became of its input.
"""

from __future__ import annotations

import asyncio

import msgspec

from ringrift.decoding import decode_as
from ringrift.engine.encoding import UNREADABLE
from ringrift.engine.ports import Blobs, Entry, KeyValue
from ringrift.errors import Corrupt, DigestMismatch, Unavailable
from ringrift.work.job_folders import JobFolder
from ringrift.work.job_orders import JobOrder

DAMAGED = "data/damaged/"
MISSING_S = 30.0  # an input may still be on its way
_ROLES = {
    "champion": "the champion's file",
    "candidate": "the candidate's file",
    "parent": "the parent's file",
    "opponent": "the opponent's file",
    "samples": "the file of samples",
}


class DamagedInput(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a node that a worker found damaged."""

    digest: str
    node: str
    name: str
    item_id: str
    config: str
    at_s: float


async def lay_out(folder: JobFolder, order: JobOrder, blobs: Blobs) -> None:
    """Fill the folder as *order* says.

    `Unavailable` if an input is not here, `DigestMismatch` if one does not have the content of its name.
    """
    await asyncio.to_thread(folder.prepare)
    await asyncio.to_thread(folder.drop_other_inputs, order.inputs)
    for name, digest in order.inputs.items():
        try:
            await blobs.verify(digest)
        except KeyError:
            raise Unavailable(f"{role_of(name)} ({digest}) is not here", retry_after_s=MISSING_S) from None
        except Corrupt as error:
            raise DigestMismatch(
                error.path,
                found=f"{role_of(name)} ({digest}) does not have the content of its name: it is damaged",
                advice="It is set aside, and brought again if there is another copy",
            ) from None
        source = await blobs.path(digest)
        if source is not None:
            await asyncio.to_thread(folder.link_input, name, source)
            continue
        with await blobs.open(digest) as file:
            await asyncio.to_thread(folder.copy_input, name, file)
    await asyncio.to_thread(folder.write_params, order)


def role_of(name: str) -> str:
    """What an input is, as a person would say it."""
    stem = name.partition(".")[0].partition("-")[0]
    return _ROLES.get(stem, f"the input {name}")


async def damaged_inputs(kv: KeyValue) -> list[DamagedInput]:
    """The files that are known to be damaged and have not come back, of all nodes."""
    return [_read(entry) for entry in await kv.entries(DAMAGED)]


async def note_damaged(kv: KeyValue, found: DamagedInput) -> None:
    await kv.put(_key(found.digest, found.node), msgspec.json.encode(found))


async def forget_damaged(kv: KeyValue, found: DamagedInput) -> None:
    """There is a good copy again."""
    await kv.delete(_key(found.digest, found.node))


async def was_damaged(kv: KeyValue, digest: str, node: str) -> bool:
    return await kv.get(_key(digest, node)) is not None


def _key(digest: str, node: str) -> str:
    return f"{DAMAGED}{digest}/{node}"


def _read(entry: Entry) -> DamagedInput:
    try:
        return decode_as(entry.value, DamagedInput)
    except UNREADABLE as error:
        raise Corrupt(
            entry.key, found=f"no record of a damaged file ({error})", advice="Delete the key"
        ) from None
