"""The receiver's command: `python -m ringrift.data.receive_main ACTION --data-dir … --node … --peer …`.

Another node runs it over ssh. It reads one JSON request from stdin and answers with one JSON line, after
which the caller knows what this node has and has verified. Actions: `look` (what is there, how far
unfinished files are), `seal` (files that rsync brought), `take` and `give` (parts of files), `keep` and
`release` (promises to keep files).
"""

from __future__ import annotations

import argparse
import base64
import binascii
import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec

from ringrift.clock import wall_s
from ringrift.data.artifacts import Receipt
from ringrift.data.config import DataNode
from ringrift.data.protection.promises import KeepAnswer, KeepRequest, ReleaseRequest, open_holder
from ringrift.data.transfer.chunks import ChunkIndex
from ringrift.data.transfer.contract import Moved
from ringrift.data.transfer.receiving import CHUNK_INDEX, Intake, Landing, Piece
from ringrift.decoding import decode_as
from ringrift.engine.encoding import check_digest
from ringrift.engine.sqlite.blobs import BlobFolder
from ringrift.engine.sqlite.faults import from_os
from ringrift.errors import RingRiftError, StorageFull
from ringrift.files import make_private_folder, private_umask
from ringrift.runtime import system_runtime
from ringrift.settings import load_settings

# What other nodes call, older and newer ones too: this module keeps its name and its place.
MODULE = "ringrift.data.receive_main"
BLOBS = "blobs"  # in a data folder
REQUEST_BYTES_MAX = 32 << 20
REFUSED, FULL = 3, 4  # exit codes; the reason goes to stderr


Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]  # bytes


class WirePiece(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a file as text."""

    digest: str
    size: Count
    offset: Count
    sha256: str
    data: str  # base64

    @classmethod
    def pack(cls, digest: str, size: int, offset: int, content: bytes) -> WirePiece:
        return cls(
            digest=digest,
            size=size,
            offset=offset,
            sha256=hashlib.sha256(content).hexdigest(),
            data=base64.b64encode(content).decode(),
        )

    def unpack(self) -> Piece:
        """Text that is no base64 any more comes out as a part with a wrong hash."""
        try:
            content = base64.b64decode(self.data, validate=True)
        except binascii.Error:
            content = b""
        return Piece(digest=self.digest, size=self.size, offset=self.offset, sha256=self.sha256, data=content)


class ReceiveRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a caller may ask; each action reads its own field."""

    sizes: dict[str, Count] = {}  # look, seal: digest to size
    pieces: tuple[WirePiece, ...] = ()  # take
    wants: tuple[tuple[str, Count], ...] = ()  # give: digest and offset
    cards: tuple[msgspec.Raw, ...] = ()  # seal, take: what the sender says of its files
    bytes_max: Count = 0  # give: parts of up to so many bytes together
    read_again: bool = False  # look: hash what is there
    keep: KeepRequest | None = None
    release: ReleaseRequest | None = None


class ReceiveReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What this node has now: a `Moved` under the names that other versions know, and what was asked for."""

    receipts: tuple[Receipt, ...] = ()
    failed: dict[str, str] = {}
    corrupted: frozenset[str] = frozenset()
    offsets: dict[str, int] = {}
    pieces: tuple[WirePiece, ...] = ()
    kept: KeepAnswer | None = None

    @classmethod
    def of(cls, moved: Moved) -> ReceiveReply:
        return cls(
            receipts=moved.receipts,
            failed=dict(moved.failed),
            corrupted=moved.corrupted,
            offsets=moved.offsets,
        )

    @property
    def moved(self) -> Moved:
        return Moved(
            receipts=self.receipts,
            failed=tuple(self.failed.items()),
            corrupted=self.corrupted,
            offsets=self.offsets,
        )


def look(landing: Landing, request: ReceiveRequest, peer: str) -> ReceiveReply:
    landing.rsync_folder(peer)
    return ReceiveReply.of(landing.look(request.sizes, read_again=request.read_again))


def seal(landing: Landing, request: ReceiveRequest, peer: str) -> ReceiveReply:
    return _landed(landing.seal(landing.rsync_folder(peer), request.sizes), landing, request, peer)


def take(landing: Landing, request: ReceiveRequest, peer: str) -> ReceiveReply:
    return _landed(landing.take(piece.unpack() for piece in request.pieces), landing, request, peer)


def _landed(moved: Moved, landing: Landing, request: ReceiveRequest, peer: str) -> ReceiveReply:
    landing.intake.cards.put(request.cards, moved.receipts, sender=peer)
    return ReceiveReply.of(moved)


def give(landing: Landing, request: ReceiveRequest, peer: str) -> ReceiveReply:  # noqa: ARG001
    left = min(request.bytes_max, REQUEST_BYTES_MAX // 2)
    pieces: list[WirePiece] = []
    failed: dict[str, str] = {}
    for digest, offset in request.wants:
        check_digest(digest)
        try:
            piece = _part(landing.intake.folder.place(digest), digest, offset, left)
        except FileNotFoundError:
            failed[digest] = "the other node does not have it"
            continue
        pieces.append(piece)
        left -= min(left, piece.size - offset)
        if not left:
            break
    return ReceiveReply(pieces=tuple(pieces), failed=failed)


def _part(path: Path, digest: str, offset: int, bytes_max: int) -> WirePiece:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(offset)
        return WirePiece.pack(digest, size, offset, file.read(bytes_max))


def keep(options: argparse.Namespace, request: ReceiveRequest) -> ReceiveReply:
    """Answer for the files of this folder, without landing any."""
    settings = load_settings({"RINGRIFT_DATA_DIR": str(options.data_dir.expanduser())}).settings
    holder = open_holder(settings, system_runtime(), node=DataNode(name=options.node))
    try:
        if request.release is not None:
            holder.release(request.release)
        return ReceiveReply(kept=None if request.keep is None else holder.keep(request.keep))
    finally:
        holder.promises.close()


Action = Callable[[Landing, ReceiveRequest, str], ReceiveReply]
ACTIONS: dict[str, Action] = {"look": look, "seal": seal, "take": take, "give": give}
KEEPING = ("keep", "release")


def read_request(source: BinaryIO) -> ReceiveRequest:
    raw = source.read(REQUEST_BYTES_MAX + 1)
    if len(raw) > REQUEST_BYTES_MAX:
        raise msgspec.ValidationError(f"the request is larger than {REQUEST_BYTES_MAX} bytes")
    return decode_as(raw, ReceiveRequest)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=MODULE, description="Receives files of other nodes.")
    parser.add_argument("action", choices=(*ACTIONS, *KEEPING))
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--node", required=True, help="the name of this node")
    parser.add_argument("--peer", required=True, help="the name of the node that asks")
    parser.add_argument("--by", default="ssh", help="how the files come, for the receipt")
    options = parser.parse_args(arguments)
    try:
        reply = _act(options)
    except StorageFull as error:
        return _refuse(error.what, FULL)
    except (RingRiftError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return _refuse(str(error), REFUSED)
    sys.stdout.buffer.write(msgspec.json.encode(reply) + b"\n")
    return 0


def _act(options: argparse.Namespace) -> ReceiveReply:
    request = read_request(sys.stdin.buffer)
    os.umask(private_umask(options.data_dir.expanduser()))
    if options.action in KEEPING:
        return keep(options, request)
    make_private_folder(options.data_dir.expanduser())
    folder = BlobFolder(options.data_dir.expanduser() / BLOBS, system_runtime().new_id)
    index = ChunkIndex(folder.folder / CHUNK_INDEX)
    intake = Intake(folder, index, node=options.node, now_s=wall_s)
    landing = Landing(intake, verifier=options.by, now_s=wall_s)
    try:
        return ACTIONS[options.action](landing, request, options.peer)
    except OSError as error:
        raise from_os(error, folder.folder) from error
    finally:
        intake.close()
        index.close()


def _refuse(why: str, code: int) -> int:
    sys.stderr.write(f"{why}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
