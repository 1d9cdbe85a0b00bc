"""Sending files to another node's data server."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from ringrift.data.artifacts import Artifact
from ringrift.data.transfer.card_box import packed_cards
from ringrift.data.transfer.chunks import ChunkedFile, SpareBuffers
from ringrift.data.transfer.contract import CHUNK_BYTES, Terms
from ringrift.data.transfer.http_crew import Desk, stride_of
from ringrift.data.transfer.http_pieces import ChunkSegment, LargeFile, LineSpeed, SmallFiles
from ringrift.data.transfer.http_tally import TransferTally
from ringrift.data.transfer.http_work import CameWrong, Work
from ringrift.data.transfer.messages import ChunkRange, Chunks, Files, FileToSeal, Positions, encode
from ringrift.data.transfer.receiving import Intake, Taken
from ringrift.engine.sqlite.faults import told_in_our_words

_STRIDE_BYTES = 1 << 20  # of small files between two looks at the pace


class Sending(Work):
    """Does the pieces of one call to `send`."""

    def __init__(self, intake: Intake, tally: TransferTally, terms: Terms, speed: LineSpeed) -> None:
        super().__init__(intake, tally, terms, speed)
        self._sources: dict[str, ChunkedFile] = {}
        self._opening = threading.Lock()
        self._buffers = SpareBuffers()

    def close(self) -> None:
        for source in self._sources.values():
            source.close()

    def _path(self, artifact: Artifact) -> Path:
        return self.intake.folder.place(artifact.digest)

    # --- small files ----------------------------------------------------------------------------------

    async def move_small(self, piece: SmallFiles, desk: Desk) -> Taken:
        size = sum(artifact.size for artifact in piece.artifacts)
        sent = Files(piece.files, packed_cards(piece.artifacts))
        await desk.off_loop(desk.line.begin, "batch", encode(sent), size)
        for stride in _strides(piece.artifacts):
            await desk.paced(self.tally, self.terms.pace, sum(artifact.size for artifact in stride))
            await desk.watched(self.tally, self._send_stride, stride, desk)
        taken = await desk.watched(self.tally, desk.line.finish, Taken)
        await desk.all_moved(self.tally, size)
        return taken

    def _send_stride(self, stride: Sequence[Artifact], desk: Desk) -> None:
        for artifact in stride:
            path = self._path(artifact)
            with told_in_our_words(path), path.open("rb", buffering=0) as file:
                desk.line.send_part(file, 0, artifact.size)

    # --- large files ----------------------------------------------------------------------------------

    async def move_segment(self, piece: ChunkSegment, desk: Desk) -> None:
        source = await desk.off_loop(self._source, piece.of.artifact)
        hashes = await desk.off_loop(self._hashes, source, piece.positions)
        asked = ChunkRange(piece.of.file, piece.positions.start, b"".join(hashes))
        answer: Positions = await desk.off_loop(desk.line.ask, "missing", asked, Positions)
        missing = [position for position in answer.positions if position in piece.positions]
        lengths = sum(source.length(position) for position in missing)
        piece.found_missing(lengths - sum(answer.begun))
        if missing:
            announced = [hashes[position - piece.positions.start] for position in missing]
            has = dict(zip(answer.positions, answer.begun, strict=False))
            begun = tuple(has.get(position, 0) for position in missing) if answer.begun else ()
            sent = Chunks(piece.of.file, tuple(missing), b"".join(announced), begun)
            await self._send_chunks(sent, source, desk)
            await self.tally.count(0, known=sum(begun))
        present = set(piece.positions) - set(missing)
        await self.tally.count(0, known=sum(source.length(position) for position in present))

    async def _send_chunks(self, sent: Chunks, source: ChunkedFile, desk: Desk) -> None:
        begun = sent.begun or (0,) * len(sent.positions)
        size = sum(source.length(position) for position in sent.positions) - sum(begun)
        await desk.off_loop(desk.line.begin, "chunks", encode(sent), size)
        for position, done in zip(sent.positions, begun, strict=True):
            length = source.length(position)
            while done < length:
                stride = min(stride_of(self.terms.pace), length - done)
                await desk.paced(self.tally, self.terms.pace, stride)
                offset = position * CHUNK_BYTES + done
                await desk.watched(self.tally, desk.line.send_part, source.file, offset, stride)
                done += stride
        answer: Positions = await desk.watched(self.tally, desk.line.finish, Positions)
        await desk.all_moved(self.tally, size)
        if answer.positions:
            raise CameWrong(f"{len(answer.positions)} chunks came wrong at the receiver")

    async def seal(self, large: LargeFile, desk: Desk) -> Taken:
        file, cards = large.file, packed_cards([large.artifact])
        return await desk.off_loop(desk.line.ask, "seal", FileToSeal(file.digest, file.size, cards), Taken)

    def _source(self, artifact: Artifact) -> ChunkedFile:
        with self._opening, told_in_our_words(self._path(artifact)):
            source = self._sources.get(artifact.digest)
            if source is None:
                source = ChunkedFile(self._path(artifact), artifact.digest, self.intake.index)
                self._sources[artifact.digest] = source
            return source

    def _hashes(self, source: ChunkedFile, positions: Sequence[int]) -> list[bytes]:
        with self._buffers.borrow() as buffer, told_in_our_words(self.intake.folder.folder):
            return source.hashes(positions, buffer)


def _strides(artifacts: Sequence[Artifact]) -> Iterator[list[Artifact]]:
    stride: list[Artifact] = []
    size = 0
    for artifact in artifacts:
        stride.append(artifact)
        size += artifact.size
        if size >= _STRIDE_BYTES:
            yield stride
            stride, size = [], 0
    if stride:
        yield stride
