"""The bookkeeping of one call to a transport: which files are open, which arrived, and who watches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from ringrift.data.artifacts import Artifact, Receipt
from ringrift.data.transfer.contract import Moved, Terms, TransferProgress
from ringrift.errors import Unavailable

T = TypeVar("T")

BATCH_FILES_MAX = 2_000
BATCH_BYTES_MAX = 2 << 30
READ_BYTES_PER_S = 20e6  # of a slow disk that a receiver hashes a file from
_STILL_HERE_S = 5.0


class TransferCall:
    """Each file is open until a receipt or a reason closes it."""

    def __init__(self, artifacts: Sequence[Artifact], terms: Terms) -> None:
        self.terms = terms
        self.open = {card.digest: card for card in artifacts}
        self.bytes_sent = 0
        self._files_total = len(self.open)
        self._bytes_total = sum(card.size for card in self.open.values())
        self._bytes_closed = self._shown = 0
        self._reached: dict[str, int] = {}  # bytes of open files
        self._receipts: list[Receipt] = []
        self._already: list[Receipt] = []
        self._failed: dict[str, str] = {}
        self._corrupted: set[str] = set()
        self._lacking: set[str] = set()

    def sizes(self) -> dict[str, int]:
        return {digest: card.size for digest, card in self.open.items()}

    def found(self, receipts: Iterable[Receipt]) -> None:
        """These were there before."""
        self._already += self._closed(receipts)

    def lacks(self, digests: Iterable[str]) -> None:
        """The other node said that it does not have these."""
        self._lacking |= set(digests)

    def arrived(self, receipts: Iterable[Receipt]) -> None:
        self._receipts += self._closed(receipts)

    def fail(self, whys: Mapping[str, str], *, corrupted: Iterable[str] = ()) -> None:
        """Close files that did not arrive; of some the bytes came, and were wrong."""
        for digest, why in whys.items():
            if (card := self.open.pop(digest, None)) is not None:
                self._failed[digest] = why
                self._bytes_closed += card.size
        self._corrupted |= set(corrupted) & set(self._failed)

    def fail_rest(self, error: Unavailable) -> None:
        """The line broke: raise if nothing at all came of the call, else close what is open."""
        if not self._receipts and not self._already:
            raise error
        self.fail(dict.fromkeys(self.open, error.what))

    def batches(self) -> Iterator[list[Artifact]]:
        """Cut what is open into parts that are sealed one after the other."""
        batch: list[Artifact] = []
        size = 0
        for card in list(self.open.values()):
            if batch and (len(batch) == BATCH_FILES_MAX or size + card.size > BATCH_BYTES_MAX):
                yield batch
                batch, size = [], 0
            batch.append(card)
            size += card.size
        if batch:
            yield batch

    async def reached(self, digest: str, bytes_done: int) -> None:
        """An open file has come so far."""
        self._reached[digest] = bytes_done
        await self.show()

    async def show(self, *, in_flight: int | None = None, in_transit: bool = False) -> None:
        """Tell who watches. *in_flight* are bytes of open files, if only their sum is known."""
        if in_flight is None:
            in_flight = sum(done for digest, done in self._reached.items() if digest in self.open)
        # A file that begins anew takes nothing back from who watches.
        self._shown = max(self._shown, min(self._bytes_total, self._bytes_closed + in_flight))
        await self.terms.on_progress(
            TransferProgress(
                bytes_done=self._shown,
                bytes_total=self._bytes_total,
                files_done=self._files_total - len(self.open),
                files_total=self._files_total,
                in_transit=in_transit,
            )
        )

    async def shown_while(self, work: Awaitable[T], *, in_transit: bool = False) -> T:
        """Wait for work that moves no bytes, such as hashing a large file, and let who watches know.

        *in_transit*: it moves bytes that only the program it waits for could count.
        """
        task = asyncio.ensure_future(work)
        look_s = min(_STILL_HERE_S, self.terms.timeout_s / 4)
        try:
            while not (await asyncio.wait({task}, timeout=look_s))[0]:
                await self.show(in_transit=in_transit)
        finally:
            task.cancel()
            await asyncio.wait({task})
        return task.result()

    def moved(self) -> Moved:
        return Moved(
            receipts=tuple(self._receipts),
            already_there=tuple(self._already),
            failed=tuple(self._failed.items()),
            corrupted=frozenset(self._corrupted),
            lacking=frozenset(self._lacking & self._failed.keys()),
            bytes_sent=self.bytes_sent,
        )

    def _closed(self, receipts: Iterable[Receipt]) -> list[Receipt]:
        kept = []
        for receipt in receipts:
            if (card := self.open.pop(receipt.digest, None)) is not None:
                self._bytes_closed += card.size
                kept.append(receipt)
        return kept
