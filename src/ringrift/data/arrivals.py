"""Files that other nodes brought, entered into this node's manifest with what their senders said of them."""

from __future__ import annotations

import asyncio

import msgspec

from ringrift.data.artifacts import Artifact
from ringrift.data.plane import DataPlane
from ringrift.data.transfer.card_box import ArrivedFile, CardBox
from ringrift.engine.sqlite.blob_folder import BlobFolder
from ringrift.engine.sqlite.faults import told_in_our_words


async def take_over_arrivals(plane: DataPlane) -> list[Artifact]:
    """Register what waits for this node; return what was new.

    Doing it twice, or in two processes, is harmless. What was received under another name stays for the node
    of that name: it shares this folder, or a command was started without it.
    """
    folder = plane.settings.blob_dir
    box, taken = CardBox(BlobFolder(folder, plane.runtime.new_id)), list[Artifact]()
    with told_in_our_words(folder):
        for path, arrived in await asyncio.to_thread(lambda: list(box.lists())):
            if any(file.receipt.node != plane.this.name for file in arrived):
                continue
            for file in arrived:
                if await _enter(plane, file):
                    taken.append(file.card)
            await asyncio.to_thread(path.unlink, missing_ok=True)
    return taken


async def _enter(plane: DataPlane, file: ArrivedFile) -> bool:
    """Enter one file that is still here; whether the manifest did not know it."""
    digest, this = file.card.digest, plane.this.name
    if await plane.blobs.size(digest) != file.card.size:
        return False
    new = await plane.manifest.register([file.card]) > 0
    stone = (await plane.tombstones()).get(digest)
    given_up = stone is not None and this in stone.nodes  # the orphans' rules decide about its copy
    if not given_up and all(copy.node != this for copy in await plane.manifest.copies(digest)):
        await plane.manifest.add_receipts([file.receipt])
    if file.sender in plane.nodes and file.sender != this:
        await _know_sender(plane, file)
    return new


async def _know_sender(plane: DataPlane, file: ArrivedFile) -> None:
    """What arrived whole was read whole from the sender's disk: it has a copy, too."""
    copies = await plane.manifest.copies(file.card.digest)
    if all(copy.node != file.sender for copy in copies):
        sent = msgspec.structs.replace(file.receipt, node=file.sender, verifier="sent")
        await plane.manifest.add_receipts([sent])
