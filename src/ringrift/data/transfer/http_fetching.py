"""Fetching files from another node's data server."""

from __future__ import annotations

from ringrift.data.transfer.chunks import SpareBuffers, chunk_length
from ringrift.data.transfer.contract import Terms
from ringrift.data.transfer.http_crew import Desk
from ringrift.data.transfer.http_line import LineBroken
from ringrift.data.transfer.http_pieces import ChunkSegment, LargeFile, LineSpeed, SmallFiles
from ringrift.data.transfer.http_tally import TransferTally
from ringrift.data.transfer.http_work import CameWrong, Work
from ringrift.data.transfer.incoming import Incoming
from ringrift.data.transfer.messages import Chunks, Files, Positions, split_hashes
from ringrift.data.transfer.receiving import Batch, Intake, Taken
from ringrift.errors import DigestMismatch, Unavailable

VERIFIER = "http"
_NOT_THERE = "the other node has no such file"


class Fetching(Work):
    """Does the pieces of one call to `fetch`."""

    def __init__(self, intake: Intake, tally: TransferTally, terms: Terms, speed: LineSpeed) -> None:
        super().__init__(intake, tally, terms, speed)
        self._incoming: dict[str, Incoming] = {}
        self._buffers = SpareBuffers()

    def close(self) -> None:
        """Leave unfinished files to whoever continues them."""
        for incoming in self._incoming.values():
            self.intake.let_go(incoming)

    # --- small files ----------------------------------------------------------------------------------

    async def move_small(self, piece: SmallFiles, desk: Desk) -> Taken:
        answer: Files = await desk.off_loop(desk.line.ask, "fetch_batch", Files(piece.files), Files)
        coming = [file for file in answer.files if file in piece.files]
        for file in set(piece.files) - set(coming):
            self.tally.lacks([file.digest])
            self.tally.fail(file.digest, _NOT_THERE)
        with self.intake.batch(VERIFIER) as batch:
            for file in coming:
                await desk.paced(self.tally, self.terms.pace, file.size)
                await desk.watched(self.tally, self._take_one, batch, file.digest, file.size, desk)
            await desk.all_moved(self.tally, sum(file.size for file in coming))
            return await desk.off_loop(batch.seal)

    def _take_one(self, batch: Batch, digest: str, size: int, desk: Desk) -> None:
        with self._buffers.borrow() as buffer:
            desk.line.read_into(buffer[:size])
            batch.add(digest, buffer[:size])

    # --- large files ----------------------------------------------------------------------------------

    async def move_segment(self, piece: ChunkSegment, desk: Desk) -> None:
        large = piece.of
        asked = Positions(large.file, tuple(piece.positions))
        listed: Chunks = await desk.off_loop(desk.line.ask, "fetch_hashes", asked, Chunks)
        hashes = split_hashes(listed.hashes)
        if len(hashes) != len(piece.positions):
            self.tally.lacks([large.artifact.digest])
            raise Unavailable(_NOT_THERE)
        incoming = await desk.off_loop(self._opened, large)
        missing = await desk.off_loop(incoming.missing, piece.positions.start, hashes)
        begun = incoming.begun(missing)
        lengths = sum(chunk_length(large.artifact.size, position) for position in missing)
        piece.found_missing(lengths - sum(begun))
        if missing:
            wanted = Positions(large.file, tuple(missing), begun if any(begun) else ())
            await self._take_chunks(wanted, incoming, desk)
        present = set(piece.positions) - set(missing)
        size = large.artifact.size
        await self.tally.count(0, known=sum(chunk_length(size, position) for position in present))

    async def _take_chunks(self, wanted: Positions, incoming: Incoming, desk: Desk) -> None:
        chunks: Chunks = await desk.off_loop(desk.line.ask, "fetch_chunks", wanted, Chunks)
        if chunks.positions != wanted.positions:
            raise Unavailable("the other node no longer has the file")
        wrong, size = 0, 0
        begun = chunks.begun or (0,) * len(chunks.positions)
        for position, expected, done in zip(
            chunks.positions, split_hashes(chunks.hashes), begun, strict=True
        ):
            length = chunk_length(incoming.size, position) - done
            await desk.paced(self.tally, self.terms.pace, length)
            wrong += not await desk.watched(
                self.tally, self._take_chunk, incoming, position, expected, done, desk
            )
            size += length
        await desk.all_moved(self.tally, size)
        await self.tally.count(0, known=sum(begun))
        if wrong:
            raise CameWrong(f"{wrong} chunks came wrong")

    def _take_chunk(self, incoming: Incoming, position: int, expected: bytes, done: int, desk: Desk) -> bool:
        with self._buffers.borrow() as buffer:
            piece = buffer[: chunk_length(incoming.size, position)]
            if done:
                incoming.beginning(position, piece[:done])
            try:
                desk.line.read_into(piece[done:])
            except LineBroken as error:
                incoming.keep_begun(position, piece[: done + error.came])
                raise
            try:
                incoming.write(position, expected, piece)
            except DigestMismatch:
                return False
        return True

    async def seal(self, large: LargeFile, desk: Desk) -> Taken:
        digest = large.artifact.digest
        try:
            receipt = await desk.off_loop(self.intake.seal, self._incoming[digest], VERIFIER)
        except DigestMismatch as error:
            return Taken(failed=((digest, error.found),), corrupted=frozenset({digest}))
        return Taken(receipts=(receipt,))

    def _opened(self, large: LargeFile) -> Incoming:
        incoming = self.intake.incoming(large.artifact.digest, large.artifact.size)
        self._incoming[incoming.digest] = incoming
        return incoming
