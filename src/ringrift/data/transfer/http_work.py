"""What sending and fetching have in common: the fate of requests that break off or bring wrong bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque

from ringrift.data.transfer.contract import Terms
from ringrift.data.transfer.http_crew import TRIES, Desk
from ringrift.data.transfer.http_line import LineBroken
from ringrift.data.transfer.http_pieces import ChunkSegment, LargeFile, LineSpeed, SmallFiles, cut
from ringrift.data.transfer.http_tally import TransferTally
from ringrift.data.transfer.incoming import ChunksLacking
from ringrift.data.transfer.receiving import Intake, Taken
from ringrift.errors import RingRiftError


class CameWrong(LineBroken):
    """The receiver got other bytes than were announced."""


class Work(ABC):
    """The pieces of one call, and how each is done."""

    def __init__(self, intake: Intake, tally: TransferTally, terms: Terms, speed: LineSpeed) -> None:
        self.intake, self.tally, self.terms, self._speed = intake, tally, terms, speed
        self.pieces: deque[SmallFiles | ChunkSegment] = deque(cut(tally.open_files()))

    @abstractmethod
    async def move_small(self, piece: SmallFiles, desk: Desk) -> Taken:
        """Move small files in one request."""

    @abstractmethod
    async def move_segment(self, piece: ChunkSegment, desk: Desk) -> None:
        """Move those chunks of a segment that the receiver lacks."""

    @abstractmethod
    async def seal(self, large: LargeFile, desk: Desk) -> Taken:
        """Have a large file verified and published; `ChunksLacking` if its receiver was started anew."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what is open."""

    async def act(self, piece: SmallFiles | ChunkSegment, desk: Desk) -> None:
        if isinstance(piece, SmallFiles):
            self.pieces.extendleft(reversed(piece.cut_down(self._speed.bytes_at_once)))
            if piece.artifacts:
                with self._speed.measured(piece.size):
                    await self._move_small(piece, desk)
            return
        if piece.of.lost:
            return
        if not piece.moved:  # else only the sealing after it broke off
            await self.move_segment(piece, desk)
            piece.moved = True
            piece.of.segments_left -= 1
        if piece.of.segments_left == 0:
            await self._seal(piece.of, desk)

    def give_up(self, piece: SmallFiles | ChunkSegment, why: RingRiftError) -> None:
        if isinstance(piece, ChunkSegment):
            piece.of.lost = True
            self.tally.fail(piece.of.artifact.digest, why, corrupted=isinstance(why, CameWrong))
            return
        for artifact in piece.artifacts:
            self.tally.fail(artifact.digest, why)

    async def _move_small(self, piece: SmallFiles, desk: Desk) -> None:
        try:
            taken = await self.move_small(piece, desk)
        except LineBroken:
            if len(piece.artifacts) > 1:  # a line that breaks early may carry half of it
                self.pieces.extendleft(piece.halves())
                piece.artifacts = ()
            raise
        self.tally.took(Taken(receipts=taken.receipts))
        wrong = [artifact for artifact in piece.artifacts if artifact.digest in taken.corrupted]
        if wrong and piece.tries + 1 < TRIES:
            self.pieces.append(SmallFiles(wrong, tries=piece.tries + 1))
        else:
            self.tally.took(taken)

    async def _seal(self, large: LargeFile, desk: Desk) -> None:
        try:
            taken = await self.seal(large, desk)
        except ChunksLacking as error:  # it must look again at the chunks that it has
            large.rounds += 1
            if large.rounds < TRIES:
                self.pieces.extendleft(reversed(large.segments()))
            else:
                self.tally.fail(large.artifact.digest, error)
            return
        self.tally.took(taken)
