"""Files over ssh: by rsync, and as text where nothing else gets through."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import structlog

from ringrift.data.artifacts import Artifact
from ringrift.data.config import DataNode, has_ssh
from ringrift.data.receive_main import BLOBS, ReceiveReply, ReceiveRequest, WirePiece
from ringrift.data.transfer.contract import (
    BYTES_PER_S_MIN,
    CHUNK_BYTES,
    READ_BYTES_PER_S,
    Moved,
    Terms,
    TransferCall,
    TransferFailed,
)
from ringrift.data.transfer.receiving import Landing, packed_cards, rsync_place
from ringrift.data.transfer.ssh import (
    BUFFERED_BYTES,
    SSH_FAILED,
    ProgramEnd,
    ProgramMissing,
    Programs,
    SshLine,
    SshStores,
    data_folder,
)
from ringrift.errors import StorageFull

# rsync over ssh: into a folder of unfinished files, where the receiver verifies and seals them.
#
# rsync goes on with what a broken transfer left, comparing it block by block. What it says of its success is
# not believed: a file arrived when the receiver has read it.


log = structlog.get_logger()

RSYNC = "rsync"
_KIB = 1024  # rsync counts its limit in these
_FULL = "No space left on device"
_PROGRESS = re.compile(rb"\s(\d+)\s+\d+%")
_LITERAL = re.compile(rb"Literal data: (\d+) bytes")
_MISSING_THERE = re.compile(r"rsync: (command )?not found|command not found: rsync|rsync: No such file")
_TAIL_BYTES = 4096


class RsyncTransport:
    """See `Transport`."""

    name = RSYNC
    reaches = staticmethod(has_ssh)

    def __init__(self, stores: SshStores, programs: Programs, landing: Landing) -> None:
        self._stores, self._programs, self._landing = stores, programs, landing

    async def send(self, node: DataNode, artifacts: Sequence[Artifact], terms: Terms) -> Moved:
        call = TransferCall(artifacts, terms)
        here = await asyncio.to_thread(self._here, call)
        line = await self._stores.ssh.line(node)
        quiet_s = terms.timeout_s
        await self._stores.look(line, call, by=RSYNC)
        for batch in call.batches():
            target = f"{data_folder(node)}/{BLOBS}/{rsync_place(self._stores.this)}/"
            paths = [str(here[card.digest]).lstrip("/") for card in batch]
            ends = ["/", f"{line.rsync_target}:{target}"]
            try:
                outcome = await self._copy(line, paths, ends, call)
                sizes = {card.digest: card.size for card in batch}
                seal = ReceiveRequest(sizes=sizes, cards=packed_cards(batch))
                reading_s = sum(card.size for card in batch) / READ_BYTES_PER_S
                asking = self._stores.ask(line, "seal", seal, by=RSYNC, quiet_s=quiet_s + reading_s)
                reply = await call.shown_while(asking)
            except TransferFailed as error:
                call.fail_rest(error)
                break
            self._took(call, reply.moved, outcome, node.name)
            await call.show()
        return call.moved()

    async def fetch(self, node: DataNode, artifacts: Sequence[Artifact], terms: Terms) -> Moved:
        call = TransferCall(artifacts, terms)
        held = await asyncio.to_thread(self._landing.look, call.sizes(), read_again=terms.read_again)
        call.found(held.receipts)
        if not call.open:
            return call.moved()
        line = await self._stores.ssh.line(node)
        folder = await asyncio.to_thread(self._landing.rsync_folder, node.name)
        for batch in call.batches():
            paths = [f"{card.digest[:2]}/{card.digest}" for card in batch]
            ends = [f"{line.rsync_target}:{data_folder(node)}/{BLOBS}/", f"{folder}/"]
            try:
                outcome = await self._copy(line, paths, ends, call)
            except TransferFailed as error:
                call.fail_rest(error)
                break
            sizes = {card.digest: card.size for card in batch}
            sealed = await call.shown_while(asyncio.to_thread(self._landing.seal, folder, sizes))
            self._took(call, sealed, outcome, node.name)
            await call.show()
        return call.moved()

    async def _copy(
        self, line: SshLine, paths: Sequence[str], ends: Sequence[str], call: TransferCall
    ) -> ProgramEnd:
        """Run rsync for these files. A line that broke shows in the outcome; some may have arrived."""
        meter = _Meter(call)
        names = b"".join(path.encode() + b"\0" for path in paths)
        async with self._programs.scratch.file(names) as listed:
            argv = [*_command(line, call.terms, listed), "--", *ends]
            # ssh takes megabytes off its hands and brings them in its own time; it notices itself when the
            # line is dead.
            running = self._programs.run(argv, quiet_s=_quiet_s(call.terms), hear=meter.hear)
            outcome = await call.shown_while(running, in_transit=True)
        call.bytes_sent += meter.bytes_sent
        if outcome.code:
            log.warning("rsync.failed", node=line.node.name, code=outcome.code, error=outcome.complaint)
        if outcome.code and _MISSING_THERE.search(outcome.complaint):
            raise ProgramMissing(RSYNC, where=line.node.name)
        if outcome.code == SSH_FAILED:
            self._stores.ssh.forget(line)
            raise TransferFailed(f"rsync to {line.node.name} cannot connect: {outcome.complaint}")
        return outcome

    def _here(self, call: TransferCall) -> dict[str, Path]:
        """Where the files are; those that are not here are closed."""
        folder = self._landing.intake.folder
        paths = {digest: folder.place(digest).resolve() for digest in call.open}
        missing = [digest for digest, path in paths.items() if not path.is_file()]
        call.fail(dict.fromkeys(missing, "this node does not have it"))
        return paths

    def _took(self, call: TransferCall, sealed: Moved, outcome: ProgramEnd, node: str) -> None:
        """Note what the receiver sealed; where rsync had its reasons, they say more than missing bytes."""
        failed = dict(sealed.failed)
        call.arrived(sealed.receipts)
        if _FULL in outcome.complaint and failed:
            why = f"no space left ({node}, rsync: {outcome.complaint})"
            if not call.moved().receipts:
                raise StorageFull(why, retry_after_s=60.0)
            failed = dict.fromkeys(failed, why)
        elif outcome.code:
            failed = {digest: f"{why} (rsync: {outcome.complaint})" for digest, why in failed.items()}
        call.fail(failed, corrupted=sealed.corrupted)


class _Meter:
    """Reads rsync's progress: how many bytes are done, and at the end how many of them went."""

    def __init__(self, call: TransferCall) -> None:
        self._call, self._tail, self._done = call, b"", 0
        self._literal: int | None = None

    @property
    def bytes_sent(self) -> int:
        return self._done if self._literal is None else self._literal

    async def hear(self, piece: bytes) -> None:
        self._tail = (self._tail + piece)[-_TAIL_BYTES:]
        if literal := _LITERAL.search(self._tail):
            self._literal = int(literal.group(1))
        found = _PROGRESS.findall(self._tail)
        if found and (done := int(found[-1])) > self._done:
            self._done = done
            await self._call.show(in_flight=done)


def _quiet_s(terms: Terms) -> float:
    return terms.timeout_s + BUFFERED_BYTES / BYTES_PER_S_MIN


def _command(line: SshLine, terms: Terms, listed: Path) -> list[str]:
    rate = terms.pace.bytes_per_s
    limit = () if rate is None else (f"--bwlimit={max(1, int(rate / _KIB))}",)
    return [
        "rsync",
        "-s",  # the shell there does not read the paths
        "--inplace",
        "--ignore-times",
        "--from0",
        f"--files-from={listed}",
        "--no-relative",
        "--info=progress2",
        "--stats",
        "--no-human-readable",
        "--outbuf=N",
        f"--timeout={max(1, round(_quiet_s(terms)))}",
        *limit,
        "-e",
        line.remote_shell,
    ]


# Files as text over ssh, at most 2 MB per command: slow, and it gets through where nothing else does.
#
# Every part is a connection's whole work, so that lines which break after seconds still move files. Parts
# begin small and are as large as the line brings in some seconds. No more than one is in memory, whatever the
# size of the file.


BASE64 = "base64"
PIECES_MAX = 500  # small files in one command
TRIES = 3  # of a part that does not get through
PART_MIN, PART_FIRST = 1 << 14, 1 << 16
PART_S = 5.0  # that a command should take


class Base64Transport:
    """See `Transport`."""

    name = BASE64
    reaches = staticmethod(has_ssh)

    def __init__(self, stores: SshStores, landing: Landing) -> None:
        self._stores, self._landing = stores, landing

    async def send(self, node: DataNode, artifacts: Sequence[Artifact], terms: Terms) -> Moved:
        call = TransferCall(artifacts, terms)
        line = await self._stores.ssh.line(node)
        course = _Course(await self._stores.look(line, call, by=BASE64))
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
            course.go_on(call, reply.moved)
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
            pieces = [piece.unpack() for piece in reply.pieces]
            course.go_on(call, await call.shown_while(asyncio.to_thread(self._landing.take, pieces)))
            await call.show(in_flight=sum(course.offset(digest) for digest in call.open))
        return call.moved()

    async def _ask(
        self, line: SshLine, action: str, request: ReceiveRequest, terms: Terms, *, reading_s: float = 0.0
    ) -> ReceiveReply:
        quiet_s = terms.timeout_s + reading_s
        return await self._stores.ask(line, action, request, by=BASE64, quiet_s=quiet_s)

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

    def go_on(self, call: TransferCall, moved: Moved) -> None:
        """Go on where the receiver is. A file that does not move on after some tries is closed."""
        self._broken_lines = 0
        call.arrived(moved.receipts)
        for digest, offset in moved.offsets.items():
            if offset > self.offset(digest):
                del self._damaged_parts[digest]
            self._offsets[digest] = offset
        for digest, why in dict(moved.failed).items():
            # Without an offset the whole came, was wrong and is gone; that is not the line's fault twice.
            tries = self._damaged_parts if digest in moved.offsets else self._wrong_files
            tries[digest] += 1
            if digest not in moved.offsets:
                self._offsets.pop(digest, None)
            if tries[digest] >= TRIES:
                call.fail({digest: why}, corrupted=moved.corrupted)
