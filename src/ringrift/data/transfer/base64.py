"""Files as text over ssh, at most 2 MB per command: slow, and it gets through where nothing else does.

Every part is a connection's whole work, so that lines which break after seconds still move files. Parts begin
small and are as large as the line brings in some seconds. No more than one is in memory, whatever the size of
the file.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from ringrift.data.artifacts import Artifact
from ringrift.data.nodes import DataNode
from ringrift.data.receive_main import ReceiveReply, ReceiveRequest, WirePiece
from ringrift.data.transfer.calls import READ_BYTES_PER_S, TransferCall
from ringrift.data.transfer.card_box import packed_cards
from ringrift.data.transfer.contract import BYTES_PER_S_MIN, CHUNK_BYTES, Moved, Terms, TransferFailed
from ringrift.data.transfer.landing import Landed, Landing
from ringrift.data.transfer.ssh import SshLine
from ringrift.data.transfer.ssh_store import SshStores, has_ssh

NAME = "base64"
PIECES_MAX = 500  # small files in one command
TRIES = 3  # of a part that does not get through
PART_MIN, PART_FIRST = 1 << 14, 1 << 16
PART_S = 5.0  # that a command should take


class Base64Transport:
    """See `Transport`."""

    name = NAME

    def __init__(self, stores: SshStores, landing: Landing) -> None:
        self._stores, self._landing = stores, landing

    def reaches(self, node: DataNode) -> bool:
        return has_ssh(node)

    async def send(self, node: DataNode, artifacts: Sequence[Artifact], terms: Terms) -> Moved:
        call = TransferCall(artifacts, terms)
        line = await self._stores.ssh.line(node)
        look = await self._stores.look(line, call, by=NAME)
        call.found(look.receipts)
        call.lacks(call.open)
        course = _Course(look.offsets)
        while call.open:
            pieces = await asyncio.to_thread(self._next_pieces, call, course)
            if not pieces:
                break
            await terms.pace.spend(sum(len(piece.data) for piece in pieces))
            try:
                line = await self._stores.ssh.line(node)
                # The last part of a file has the receiver read the whole of it.
                reading_s = sum(piece.size for piece in pieces) / READ_BYTES_PER_S
                cards = packed_cards(call.open[piece.digest] for piece in pieces)
                request = ReceiveRequest(pieces=tuple(pieces), cards=cards)
                on_its_way_s = sum(len(piece.data) for piece in pieces) / BYTES_PER_S_MIN
                asking = self._ask(line, "take", request, terms, reading_s=reading_s + on_its_way_s)
                with course.timed(sum(len(piece.data) for piece in pieces)):
                    reply = await call.shown_while(asking, in_transit=True)
            except TransferFailed as error:
                if not course.may_connect_again():
                    call.fail_rest(error)
                    break
                continue
            call.bytes_sent += sum(len(piece.data) for piece in pieces)
            call.arrived(reply.receipts)
            course.go_on(call, reply.offsets, reply.failed, reply.corrupted)
            await call.show(in_flight=sum(course.offset(digest) for digest in call.open))
        return call.moved()

    async def fetch(self, node: DataNode, artifacts: Sequence[Artifact], terms: Terms) -> Moved:
        call = TransferCall(artifacts, terms)
        look = await asyncio.to_thread(self._landing.look, call.sizes(), read_again=terms.read_again)
        call.found(look.receipts)
        course = _Course(look.offsets)
        while call.open:
            wants = tuple((digest, course.offset(digest)) for digest in list(call.open)[:PIECES_MAX])
            request = ReceiveRequest(wants=wants, bytes_max=course.part_bytes)
            try:
                line = await self._stores.ssh.line(node)
                on_its_way_s = course.part_bytes / BYTES_PER_S_MIN
                asking = self._ask(line, "give", request, terms, reading_s=on_its_way_s)
                with course.timed(course.part_bytes):
                    reply = await call.shown_while(asking, in_transit=True)
            except TransferFailed as error:
                if not course.may_connect_again():
                    call.fail_rest(error)
                    break
                continue
            call.lacks(reply.failed)
            call.fail(reply.failed)
            received = sum(len(piece.data) for piece in reply.pieces)
            call.bytes_sent += received
            await terms.pace.spend(received)
            landed = await call.shown_while(asyncio.to_thread(self._take, reply.pieces))
            call.arrived(landed.receipts)
            course.go_on(call, landed.offsets, landed.failed, landed.corrupted)
            await call.show(in_flight=sum(course.offset(digest) for digest in call.open))
        return call.moved()

    async def _ask(
        self, line: SshLine, action: str, request: ReceiveRequest, terms: Terms, *, reading_s: float = 0.0
    ) -> ReceiveReply:
        quiet_s = terms.timeout_s + reading_s
        return await self._stores.ask(line, action, request, by=NAME, quiet_s=quiet_s)

    def _next_pieces(self, call: TransferCall, course: _Course) -> list[WirePiece]:
        """Read the next parts of open files, for one command. Files that are not here are closed."""
        pieces: list[WirePiece] = []
        left = course.part_bytes
        for digest, card in list(call.open.items())[:PIECES_MAX]:
            offset = course.offset(digest)
            try:
                with self._landing.intake.folder.place(digest).open("rb") as file:
                    file.seek(offset)
                    content = file.read(left)
            except FileNotFoundError:
                call.fail({digest: "this node does not have it"})
                continue
            pieces.append(WirePiece.pack(digest, card.size, offset, content))
            left -= len(content)
            if not left:
                break
        return pieces

    def _take(self, pieces: Sequence[WirePiece]) -> Landed:
        landed = Landed()
        for piece in pieces:
            self._landing.take(piece.unpack(), landed)
        return landed


class _Course:
    """How far each file has come, and how often something failed since it moved on."""

    def __init__(self, offsets: Mapping[str, int]) -> None:
        self._offsets = dict(offsets)
        self._broken_lines = 0
        self._damaged_parts: Counter[str] = Counter()
        self._wrong_files: Counter[str] = Counter()
        self.part_bytes = PART_FIRST  # in the next command

    @contextmanager
    def timed(self, size: int) -> Iterator[None]:
        """Make the next part as large as the line brings in some seconds; smaller after one that broke."""
        now_s = asyncio.get_running_loop().time
        begun_s, wanted = now_s(), self.part_bytes // 4
        try:
            yield
            wanted = min(int(size / max(1e-3, now_s() - begun_s) * PART_S), self.part_bytes * 4)
        finally:
            self.part_bytes = min(CHUNK_BYTES, max(PART_MIN, wanted))

    def offset(self, digest: str) -> int:
        return self._offsets.get(digest, 0)

    def may_connect_again(self) -> bool:
        self._broken_lines += 1
        return self._broken_lines < TRIES

    def go_on(
        self,
        call: TransferCall,
        reached: Mapping[str, int],
        failed: Mapping[str, str],
        corrupted: Collection[str],
    ) -> None:
        """Go on where the receiver is. A file that does not move on after some tries is closed."""
        self._broken_lines = 0
        for digest, offset in reached.items():
            if offset > self.offset(digest):
                del self._damaged_parts[digest]
            self._offsets[digest] = offset
        for digest, why in failed.items():
            # Without an offset the whole came, was wrong and is gone; that is not the line's fault twice.
            tries = self._damaged_parts if digest in reached else self._wrong_files
            tries[digest] += 1
            if digest not in reached:
                self._offsets.pop(digest, None)
            if tries[digest] >= TRIES:
                call.fail({digest: why}, corrupted=corrupted)
