"""Files between nodes over HTTP, to and from the data server of the other node.

One round trip asks what is missing. Small files travel many in one request, large ones in hashed chunks over
several connections, so that hashing, sending and writing overlap. The bytes are signed for; they are
encrypted where the entry of the node names the fingerprint of its key.
"""

from __future__ import annotations

import asyncio
import math
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from ringrift.data.artifacts import Artifact, in_batches
from ringrift.data.config import DataNode, has_data_server
from ringrift.data.protection.promises import KeepAnswer, KeepRequest, Released, ReleaseRequest
from ringrift.data.transfer.chunks import Buffers, ChunkedFile, ChunksLacking, Incoming, chunk_length
from ringrift.data.transfer.contract import (
    ASKED_AT_ONCE,
    CHUNK_BYTES,
    READ_AT_ONCE,
    Moved,
    Terms,
    TransferFailed,
)
from ringrift.data.transfer.http.connection import (
    TRIES,
    HttpLine,
    LineBroken,
    PiecePool,
    ServerTime,
    TransferCounts,
    Unreachable,
    WorkerResources,
    connect,
    pause_s,
    stride_of,
)
from ringrift.data.transfer.http.wire import (
    FILES_AT_ONCE,
    ChunkRange,
    Chunks,
    ChunkSegment,
    File,
    Files,
    FileToSeal,
    Hello,
    LargeFile,
    LineSpeed,
    NotSigned,
    Positions,
    Signer,
    SmallFiles,
    cut,
    encode,
    split_hashes,
)
from ringrift.data.transfer.receiving import Batch, Intake, packed_cards
from ringrift.engine.sqlite.faults import translated_errors
from ringrift.errors import DigestMismatch, RingRiftError, Unavailable
from ringrift.runtime import Runtime

# What sending and fetching have in common: the fate of requests that break off or bring wrong bytes.


class CameWrong(LineBroken):
    """The receiver got other bytes than were announced."""


class Work(ABC):
    """The pieces of one call, and how each is done."""

    def __init__(self, intake: Intake, tally: TransferCounts, terms: Terms, speed: LineSpeed) -> None:
        self.intake, self.tally, self.terms, self._speed = intake, tally, terms, speed
        self.pieces: deque[SmallFiles | ChunkSegment] = deque(cut(tally.open.values()))

    @abstractmethod
    async def move_small(self, piece: SmallFiles, resources: WorkerResources) -> Moved:
        """Move small files in one request."""

    @abstractmethod
    async def move_segment(self, piece: ChunkSegment, resources: WorkerResources) -> None:
        """Move those chunks of a segment that the receiver lacks."""

    @abstractmethod
    async def seal(self, large: LargeFile, resources: WorkerResources) -> Moved:
        """Have a large file verified and published; `ChunksLacking` if its receiver was started anew."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what is open."""

    async def act(self, piece: SmallFiles | ChunkSegment, resources: WorkerResources) -> None:
        if isinstance(piece, SmallFiles):
            self.pieces.extendleft(reversed(piece.cut_down(self._speed.bytes_at_once)))
            if piece.artifacts:
                with self._speed.measured(piece.size):
                    await self._move_small(piece, resources)
            return
        if piece.of.lost:
            return
        if not piece.moved:  # else only the sealing after it broke off
            await self.move_segment(piece, resources)
            piece.moved = True
            piece.of.segments_left -= 1
        if piece.of.segments_left == 0:
            await self._seal(piece.of, resources)

    def give_up(self, piece: SmallFiles | ChunkSegment, why: RingRiftError) -> None:
        reason, wrong = why.what if isinstance(why, Unavailable) else str(why), list[str]()
        if isinstance(piece, SmallFiles):
            digests = [artifact.digest for artifact in piece.artifacts]
        else:
            piece.of.lost, digests = True, [piece.of.artifact.digest]
            wrong = digests if isinstance(why, CameWrong) else []
        self.tally.fail(dict.fromkeys(digests, reason), corrupted=wrong)

    async def _move_small(self, piece: SmallFiles, resources: WorkerResources) -> None:
        try:
            taken = await self.move_small(piece, resources)
        except LineBroken:
            if len(piece.artifacts) > 1:  # a line that breaks early may carry half of it
                self.pieces.extendleft(piece.halves())
                piece.artifacts = ()
            raise
        self.tally.took(Moved(receipts=taken.receipts))
        wrong = [artifact for artifact in piece.artifacts if artifact.digest in taken.corrupted]
        if wrong and piece.tries + 1 < TRIES:
            self.pieces.append(SmallFiles(wrong, tries=piece.tries + 1))
        else:
            self.tally.took(taken)

    async def _seal(self, large: LargeFile, resources: WorkerResources) -> None:
        try:
            taken = await self.seal(large, resources)
        except ChunksLacking as error:  # it must look again at the chunks that it has
            large.rounds += 1
            if large.rounds < TRIES:
                self.pieces.extendleft(reversed(large.segments()))
            else:
                self.tally.fail({large.artifact.digest: error.what})
            return
        self.tally.took(taken)


# Sending files to another node's data server.


_STRIDE_BYTES = 1 << 20  # of small files between two looks at the pace


class Sending(Work):
    """Does the pieces of one call to `send`."""

    def __init__(self, intake: Intake, tally: TransferCounts, terms: Terms, speed: LineSpeed) -> None:
        super().__init__(intake, tally, terms, speed)
        self._sources: dict[str, ChunkedFile] = {}
        self._opening = threading.Lock()
        self._buffers = Buffers()

    def close(self) -> None:
        for source in self._sources.values():
            source.close()

    def _path(self, artifact: Artifact) -> Path:
        return self.intake.folder.place(artifact.digest)

    # --- small files ----------------------------------------------------------------------------------

    async def move_small(self, piece: SmallFiles, resources: WorkerResources) -> Moved:
        size = sum(artifact.size for artifact in piece.artifacts)
        sent = Files(piece.files, packed_cards(piece.artifacts))
        await resources.off_loop(resources.line.begin, "batch", encode(sent), size)
        for stride in in_batches(piece.artifacts, files_max=FILES_AT_ONCE, bytes_max=_STRIDE_BYTES):
            await resources.paced(self.tally, self.terms.pace, sum(artifact.size for artifact in stride))
            await resources.watched(self.tally, self._send_stride, stride, resources)
        taken = await resources.watched(self.tally, resources.line.finish, Moved)
        await resources.all_moved(self.tally, size)
        return taken

    def _send_stride(self, stride: Sequence[Artifact], resources: WorkerResources) -> None:
        for artifact in stride:
            path = self._path(artifact)
            with translated_errors(path), path.open("rb", buffering=0) as file:
                resources.line.send_part(file, 0, artifact.size)

    # --- large files ----------------------------------------------------------------------------------

    async def move_segment(self, piece: ChunkSegment, resources: WorkerResources) -> None:
        source = await resources.off_loop(self._source, piece.of.artifact)
        hashes = await resources.off_loop(self._hashes, source, piece.positions)
        asked = ChunkRange(piece.of.file, piece.positions.start, b"".join(hashes))
        answer: Positions = await resources.off_loop(resources.line.ask, "missing", asked, Positions)
        missing = [position for position in answer.positions if position in piece.positions]
        lengths = sum(source.length(position) for position in missing)
        piece.found_missing(lengths - sum(answer.begun))
        if missing:
            announced = [hashes[position - piece.positions.start] for position in missing]
            has = dict(zip(answer.positions, answer.begun, strict=False))
            begun = tuple(has.get(position, 0) for position in missing) if answer.begun else ()
            sent = Chunks(piece.of.file, tuple(missing), b"".join(announced), begun)
            await self._send_chunks(sent, source, resources)
            await self.tally.count(0, known=sum(begun))
        present = set(piece.positions) - set(missing)
        await self.tally.count(0, known=sum(source.length(position) for position in present))

    async def _send_chunks(self, sent: Chunks, source: ChunkedFile, resources: WorkerResources) -> None:
        begun = sent.begun or (0,) * len(sent.positions)
        size = sum(source.length(position) for position in sent.positions) - sum(begun)
        await resources.off_loop(resources.line.begin, "chunks", encode(sent), size)
        for position, done in zip(sent.positions, begun, strict=True):
            length = source.length(position)
            while done < length:
                stride = min(stride_of(self.terms.pace), length - done)
                await resources.paced(self.tally, self.terms.pace, stride)
                offset = position * CHUNK_BYTES + done
                await resources.watched(self.tally, resources.line.send_part, source.file, offset, stride)
                done += stride
        answer: Positions = await resources.watched(self.tally, resources.line.finish, Positions)
        await resources.all_moved(self.tally, size)
        if answer.positions:
            raise CameWrong(f"{len(answer.positions)} chunks came wrong at the receiver")

    async def seal(self, large: LargeFile, resources: WorkerResources) -> Moved:
        file, cards = large.file, packed_cards([large.artifact])
        return await resources.off_loop(
            resources.line.ask, "seal", FileToSeal(file.digest, file.size, cards), Moved
        )

    def _source(self, artifact: Artifact) -> ChunkedFile:
        with self._opening, translated_errors(self._path(artifact)):
            source = self._sources.get(artifact.digest)
            if source is None:
                source = ChunkedFile(self._path(artifact), artifact.digest, self.intake.index)
                self._sources[artifact.digest] = source
            return source

    def _hashes(self, source: ChunkedFile, positions: Sequence[int]) -> list[bytes]:
        with self._buffers.borrow() as buffer, translated_errors(self.intake.folder.folder):
            return source.hashes(positions, buffer)


# Fetching files from another node's data server.


VERIFIER = "http"
_NOT_THERE = "the other node has no such file"


class Fetching(Work):
    """Does the pieces of one call to `fetch`."""

    def __init__(self, intake: Intake, tally: TransferCounts, terms: Terms, speed: LineSpeed) -> None:
        super().__init__(intake, tally, terms, speed)
        self._incoming: dict[str, Incoming] = {}
        self._buffers = Buffers()

    def close(self) -> None:
        """Leave unfinished files to whoever continues them."""
        for incoming in self._incoming.values():
            self.intake.let_go(incoming)

    # --- small files ----------------------------------------------------------------------------------

    async def move_small(self, piece: SmallFiles, resources: WorkerResources) -> Moved:
        answer: Files = await resources.off_loop(resources.line.ask, "fetch_batch", Files(piece.files), Files)
        coming = [file for file in answer.files if file in piece.files]
        for file in set(piece.files) - set(coming):
            self.tally.lacks([file.digest])
            self.tally.fail({file.digest: _NOT_THERE})
        with self.intake.batch(VERIFIER) as batch:
            for file in coming:
                await resources.paced(self.tally, self.terms.pace, file.size)
                await resources.watched(self.tally, self._take_one, batch, file.digest, file.size, resources)
            await resources.all_moved(self.tally, sum(file.size for file in coming))
            return await resources.off_loop(batch.seal)

    def _take_one(self, batch: Batch, digest: str, size: int, resources: WorkerResources) -> None:
        with self._buffers.borrow() as buffer:
            resources.line.read_into(buffer[:size])
            batch.add(digest, buffer[:size])

    # --- large files ----------------------------------------------------------------------------------

    async def move_segment(self, piece: ChunkSegment, resources: WorkerResources) -> None:
        large = piece.of
        asked = Positions(large.file, tuple(piece.positions))
        listed: Chunks = await resources.off_loop(resources.line.ask, "fetch_hashes", asked, Chunks)
        hashes = split_hashes(listed.hashes)
        if len(hashes) != len(piece.positions):
            self.tally.lacks([large.artifact.digest])
            raise Unavailable(_NOT_THERE)
        incoming = await resources.off_loop(self._opened, large)
        missing = await resources.off_loop(incoming.missing, piece.positions.start, hashes)
        begun = incoming.begun(missing)
        lengths = sum(chunk_length(large.artifact.size, position) for position in missing)
        piece.found_missing(lengths - sum(begun))
        if missing:
            wanted = Positions(large.file, tuple(missing), begun if any(begun) else ())
            await self._take_chunks(wanted, incoming, resources)
        present = set(piece.positions) - set(missing)
        size = large.artifact.size
        await self.tally.count(0, known=sum(chunk_length(size, position) for position in present))

    async def _take_chunks(self, wanted: Positions, incoming: Incoming, resources: WorkerResources) -> None:
        chunks: Chunks = await resources.off_loop(resources.line.ask, "fetch_chunks", wanted, Chunks)
        if chunks.positions != wanted.positions:
            raise Unavailable("the other node no longer has the file")
        wrong, size = 0, 0
        begun = chunks.begun or (0,) * len(chunks.positions)
        for position, expected, done in zip(
            chunks.positions, split_hashes(chunks.hashes), begun, strict=True
        ):
            length = chunk_length(incoming.size, position) - done
            await resources.paced(self.tally, self.terms.pace, length)
            wrong += not await resources.watched(
                self.tally, self._take_chunk, incoming, position, expected, done, resources
            )
            size += length
        await resources.all_moved(self.tally, size)
        await self.tally.count(0, known=sum(begun))
        if wrong:
            raise CameWrong(f"{wrong} chunks came wrong")

    def _take_chunk(
        self, incoming: Incoming, position: int, expected: bytes, done: int, resources: WorkerResources
    ) -> bool:
        with self._buffers.borrow() as buffer:
            piece = buffer[: chunk_length(incoming.size, position)]
            if done:
                incoming.beginning(position, piece[:done])
            try:
                resources.line.read_into(piece[done:])
            except LineBroken as error:
                incoming.keep_begun(position, piece[: done + error.came])
                raise
            try:
                incoming.write(position, expected, piece)
            except DigestMismatch:
                return False
        return True

    async def seal(self, large: LargeFile, resources: WorkerResources) -> Moved:
        digest = large.artifact.digest
        try:
            receipt = await resources.off_loop(self.intake.seal, self._incoming[digest], VERIFIER)
        except DigestMismatch as error:
            return Moved.wrong(digest, error.found)
        return Moved(receipts=(receipt,))

    def _opened(self, large: LargeFile) -> Incoming:
        incoming = self.intake.incoming(large.artifact.digest, large.artifact.size)
        self._incoming[incoming.digest] = incoming
        return incoming


# The transport.


T = TypeVar("T")

CONNECTIONS = 3


class HttpTransport:
    """See `Transport`."""

    name = "http"
    reaches = staticmethod(has_data_server)

    def __init__(
        self, intake: Intake, *, secret: bytes, runtime: Runtime, connections: int = CONNECTIONS
    ) -> None:
        self._intake, self._signer, self._runtime = intake, Signer(secret), runtime
        self._connections = connections
        self._speeds: dict[str, LineSpeed] = {}  # by node

    async def send(self, node: DataNode, artifacts: Sequence[Artifact], terms: Terms) -> Moved:
        tally = TransferCounts(artifacts, terms, self._runtime)
        await asyncio.to_thread(self._check_here, tally)
        open_line = self._opener(node, terms)
        await self._ask_what_is_held(tally, open_line, read_again=terms.read_again)
        return await self._work(Sending(self._intake, tally, terms, self._speed(node)), open_line)

    async def fetch(self, node: DataNode, artifacts: Sequence[Artifact], terms: Terms) -> Moved:
        tally = TransferCounts(artifacts, terms, self._runtime)
        open_line = self._opener(node, terms)
        look = partial(self._intake.look, tally.sizes(), read_again=terms.read_again)
        tally.found(await asyncio.to_thread(look))
        if tally.open:
            await self._first_word(_hello, open_line)
        return await self._work(Fetching(self._intake, tally, terms, self._speed(node)), open_line)

    async def ask(
        self, node: DataNode, verb: str, message: msgspec.Struct, answer: type[T], *, timeout_s: float
    ) -> T:
        """Ask one thing that moves no file; `Unavailable` if there is no answer, or a refusal."""

        def say(line: HttpLine) -> T:
            return line.ask(verb, message, answer)

        return await self._first_word(say, self._opener(node, Terms(timeout_s=timeout_s)))

    async def keep(self, node: DataNode, request: KeepRequest, *, timeout_s: float) -> KeepAnswer:
        return await self.ask(node, "keep", request, KeepAnswer, timeout_s=timeout_s)

    async def release(self, node: DataNode, request: ReleaseRequest, *, timeout_s: float) -> Released:
        return await self.ask(node, "release", request, Released, timeout_s=timeout_s)

    async def _work(self, work: Work, open_line: Callable[[], HttpLine]) -> Moved:
        pool = PiecePool(
            open_line=open_line,
            act=work.act,
            give_up=work.give_up,
            runtime=self._runtime,
            size=self._connections,
            pieces=work.pieces,
        )
        try:
            await pool.work()
        finally:
            await asyncio.shield(asyncio.to_thread(work.close))
        await work.tally.tell()
        return work.tally.moved()

    def _speed(self, node: DataNode) -> LineSpeed:
        return self._speeds.setdefault(node.name, LineSpeed(self._runtime))

    def _opener(self, node: DataNode, terms: Terms) -> Callable[[], HttpLine]:
        if not self.reaches(node):
            raise TransferFailed(f"{node.name} has no data server in its entry", retry_after_s=300.0)
        server_time = ServerTime(self._runtime)

        def open_line() -> HttpLine:
            sock, host = connect(
                node.addresses, node.data_port, timeout_s=terms.timeout_s, pin=node.data_tls_sha256
            )
            return HttpLine(
                sock,
                host=host,
                signer=self._signer,
                node=self._intake.node,
                runtime=self._runtime,
                server_time=server_time,
            )

        return open_line

    # --- what is where --------------------------------------------------------------------------------

    def _check_here(self, tally: TransferCounts) -> None:
        absent = [digest for digest, size in tally.sizes().items() if self._intake.held(digest, size) is None]
        tally.fail(dict.fromkeys(absent, "it is not whole in this node's store"))

    async def _ask_what_is_held(
        self, tally: TransferCounts, open_line: Callable[[], HttpLine], *, read_again: bool
    ) -> None:
        files = [File(digest, size) for digest, size in tally.sizes().items()]
        # In short questions where the files are read for the answer.
        bytes_max = READ_AT_ONCE if read_again else math.inf
        for some in in_batches(files, files_max=ASKED_AT_ONCE, bytes_max=bytes_max):
            asked = Files(tuple(some), read_again=read_again)
            taken = await self._first_word(partial(_held, asked), open_line)
            tally.found(taken.receipts)
            tally.lacks({file.digest for file in asked.files} - {each.digest for each in taken.receipts})
            await tally.tell()

    async def _first_word(self, say: Callable[[HttpLine], T], open_line: Callable[[], HttpLine]) -> T:
        """Ask over a connection of its own; `TransferFailed` if the node cannot be reached."""

        def once() -> T:
            line = open_line()
            try:
                return say(line)
            finally:
                line.close()

        for attempt in range(TRIES):
            try:
                return await asyncio.to_thread(once)
            except Unreachable as error:
                raise TransferFailed(error.what, retry_after_s=error.retry_after_s) from error
            except (LineBroken, NotSigned) as error:
                why = str(error)
                if attempt + 1 < TRIES:
                    await self._runtime.sleep(pause_s(attempt + 1))
        raise TransferFailed(why, retry_after_s=5.0)


def _held(asked: Files, line: HttpLine) -> Moved:
    return line.ask("held", asked, Moved)


def _hello(line: HttpLine) -> Hello:
    return line.ask("hello", Files(()), Hello)
