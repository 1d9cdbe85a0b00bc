"""Several connections to one node, each with a worker that takes the next piece of work.

A connection that breaks is replaced and its work goes on; work that breaks again and again without getting
any further is given up, alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, ParamSpec, Protocol, TypeVar

from ringrift.data.transfer.contract import CHUNK_BYTES, Pace
from ringrift.data.transfer.http_line import HttpLine, LineBroken
from ringrift.data.transfer.http_tally import TransferTally
from ringrift.data.transfer.signing import NotSigned
from ringrift.errors import RingRiftError
from ringrift.runtime import Runtime

T = TypeVar("T")
A = ParamSpec("A")

TRIES = 4  # without getting any further
STRIDE_MIN = 1 << 14
WATCHED_S = 0.5  # between two looks at how far a request is
PAUSE_S = 0.1  # before the second try; each later one waits twice as long


class CrewPiece(Protocol):
    """Some work that one request does."""

    tries: int


P = TypeVar("P", bound=CrewPiece)


def stride_of(pace: Pace) -> int:
    """How many bytes go between two looks at the pace: all of a chunk, or what may go in a second."""
    return (
        CHUNK_BYTES if pace.bytes_per_s is None else min(CHUNK_BYTES, max(STRIDE_MIN, int(pace.bytes_per_s)))
    )


@dataclass
class Desk:
    """What a worker works with: its connection and the threads for whatever blocks."""

    line: HttpLine
    pool: ThreadPoolExecutor

    _moved = 0  # of the line, when last looked at
    _counted = 0  # of the present payload

    async def watched(
        self, tally: TransferTally, work: Callable[A, T], *args: A.args, **kwargs: A.kwargs
    ) -> T:
        """Do work that moves bytes, and count those that crossed the line while they do."""
        return await self._watched(tally, self.off_loop(work, *args, **kwargs))

    async def paced(self, tally: TransferTally, pace: Pace, size: int) -> None:
        """Wait until so many bytes may go. What went before may still be on its way: it is counted."""
        await self._watched(tally, pace.spend(size))

    async def _watched(self, tally: TransferTally, work: Awaitable[T]) -> T:
        task = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait({task}, timeout=WATCHED_S))[0]:
                await self._count(tally, self.line.moved() - self._moved)
        finally:
            task.cancel()
            await asyncio.wait({task})
        await self._count(tally, self.line.moved() - self._moved)
        return task.result()

    async def all_moved(self, tally: TransferTally, size: int) -> None:
        """The other side has the whole payload, or we do: count what was not seen on its way."""
        await self._count(tally, size - self._counted)
        self._moved, self._counted = self.line.moved(), 0

    async def _count(self, tally: TransferTally, moved: int) -> None:
        if moved > 0:
            self._moved += moved
            self._counted += moved
            await tally.count(moved)

    async def off_loop(self, work: Callable[A, T], *args: A.args, **kwargs: A.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.pool, partial(work, *args, **kwargs))


@dataclass(slots=True)
class Crew(Generic[P]):
    """Workers that share the pieces of one call."""

    open_line: Callable[[], HttpLine]
    act: Callable[[P, Desk], Awaitable[None]]
    give_up: Callable[[P, RingRiftError], None]
    runtime: Runtime
    size: int
    pieces: deque[P] = field(default_factory=deque)
    _lines: list[HttpLine] = field(default_factory=list)

    async def work(self) -> None:
        """Do all pieces, and those that are added meanwhile."""
        pool = ThreadPoolExecutor(self.size, thread_name_prefix="ringrift-http")
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self.size, len(self.pieces))):
                    group.create_task(self._worker(pool))
        except BaseExceptionGroup as group:
            # What a caller's own pace or watcher raised reaches the caller as it was.
            raise group.exceptions[0] from None
        finally:
            # A thread that still waits for the network wakes when its connection ends.
            for line in self._lines:
                line.abort()
            await asyncio.shield(asyncio.to_thread(self._end, pool))

    def _end(self, pool: ThreadPoolExecutor) -> None:
        pool.shutdown(wait=True, cancel_futures=True)
        for line in self._lines:
            line.close()

    async def _worker(self, pool: ThreadPoolExecutor) -> None:
        desk: Desk | None = None
        loop = asyncio.get_running_loop()
        while self.pieces:
            piece = self.pieces.popleft()
            try:
                if desk is None:
                    line = await loop.run_in_executor(pool, self.open_line)
                    self._lines.append(line)
                    desk = Desk(line, pool)
                await self.act(piece, desk)
            except RingRiftError as error:
                if desk is not None:  # what the server still says belongs to this piece
                    self._lines.remove(desk.line)
                    desk.line.close()
                    desk = None
                await self._broke_off(piece, error)

    async def _broke_off(self, piece: P, error: RingRiftError) -> None:
        piece.tries += 1
        may_pass = isinstance(error, LineBroken | NotSigned)  # a flipped bit spoils a signature, too
        if not may_pass or piece.tries >= TRIES:
            self.give_up(piece, error)
            return
        self.pieces.appendleft(piece)
        await self.runtime.sleep(PAUSE_S * 2**piece.tries)
