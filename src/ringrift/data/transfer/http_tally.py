"""What one call over HTTP has brought about so far."""

from __future__ import annotations

from collections.abc import Iterable

from ringrift.data.artifacts import Artifact, Receipt
from ringrift.data.transfer.contract import Moved, Terms, TransferProgress
from ringrift.data.transfer.receiving import Taken
from ringrift.errors import RingRiftError, Unavailable
from ringrift.runtime import Runtime

_PROGRESS_S = 0.1


class TransferTally:
    """What one call has brought about so far, told to whoever watches."""

    def __init__(self, artifacts: Iterable[Artifact], terms: Terms, runtime: Runtime) -> None:
        self.artifacts = {artifact.digest: artifact for artifact in artifacts}
        self._terms, self._runtime = terms, runtime
        self._receipts: dict[str, Receipt] = {}
        self._already: dict[str, Receipt] = {}
        self._failed: dict[str, str] = {}
        self._corrupted: set[str] = set()
        self._lacking: set[str] = set()
        self._told_s = float("-inf")
        self.bytes_sent = self._bytes_done = 0

    def already_there(self, receipts: Iterable[Receipt]) -> None:
        for receipt in receipts:
            if receipt.digest in self.artifacts:
                self._already[receipt.digest] = receipt
                self._bytes_done += receipt.size

    def lacks(self, digests: Iterable[str]) -> None:
        """The other node said that it does not have these."""
        self._lacking.update(digests)

    def took(self, taken: Taken) -> None:
        for receipt in taken.receipts:
            if receipt.digest in self.artifacts:
                self._receipts[receipt.digest] = receipt
                self._failed.pop(receipt.digest, None)
        for digest, why in taken.failed:
            self.fail(digest, why, corrupted=digest in taken.corrupted)

    def fail(self, digest: str, why: str | RingRiftError, *, corrupted: bool = False) -> None:
        if digest not in self._receipts:
            self._failed[digest] = why.what if isinstance(why, Unavailable) else str(why)
            if corrupted:
                self._corrupted.add(digest)

    def open_files(self) -> list[Artifact]:
        """Those of which nothing is settled."""
        settled = self._receipts.keys() | self._already.keys() | self._failed.keys()
        return [artifact for digest, artifact in self.artifacts.items() if digest not in settled]

    async def count(self, crossed: int, *, known: int = 0) -> None:
        """Note bytes that crossed the line, and others that the receiver has without them."""
        self.bytes_sent += crossed
        self._bytes_done += crossed + known
        now_s = self._runtime.monotonic_s()
        if now_s - self._told_s >= _PROGRESS_S:
            self._told_s = now_s
            await self.tell()

    async def tell(self) -> None:
        total = sum(artifact.size for artifact in self.artifacts.values())
        await self._terms.on_progress(
            TransferProgress(
                bytes_done=min(self._bytes_done, total),
                bytes_total=total,
                files_done=len(self._receipts) + len(self._already),
                files_total=len(self.artifacts),
            )
        )

    def moved(self) -> Moved:
        corrupted = frozenset(self._corrupted & self._failed.keys())
        return Moved(
            receipts=tuple(self._receipts.values()),
            already_there=tuple(self._already.values()),
            failed=tuple(self._failed.items()),
            corrupted=corrupted,
            lacking=frozenset(self._lacking & self._failed.keys()),
            bytes_sent=self.bytes_sent,
        )
