"""What every transport promises, and one call of it.

A transport moves sealed files between this node and one other. Each file travels in chunks that are hashed
one by one, goes on where a broken transfer stopped, and becomes visible at the receiver only after the
receiver has read the whole of it and found its digest right. What it returns are receipts, written by the
receiver; a file without one did not arrive, whatever the transport thinks. Memory is bounded by a few
chunks, whatever the size of the file.

The bookkeeping of a call stands below: which files are open, which arrived, and one try of one transport.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any, Protocol, TypedDict, TypeVar

import msgspec

from ringrift.data.artifacts import Artifact, Receipt, data_type_of, in_batches
from ringrift.data.config import DataNode
from ringrift.errors import ConfigError, Corrupt, Unavailable

CHUNK_BYTES = 2 << 20
BYTES_PER_S_MIN = 5_000.0  # of the slowest line that is waited for: 40 kbit/s
NO_RECEIPT = "no receipt came back"
AT_REST = "found at rest"  # the verifier of a receipt for a file that was there and was not read again


class TransferFailed(Unavailable):
    """A transfer broke; what arrived is kept, and the next attempt goes on from there."""


class Pace(Protocol):
    """Holds a transfer to its share of the line. Bytes, not bits."""

    async def spend(self, count: int) -> None:
        """Wait until *count* more bytes may go."""
        ...

    @property
    def bytes_per_s(self) -> float | None:
        """The present rate, for programs that pace themselves; None without a limit."""
        ...


class Unpaced:
    """No limit."""

    bytes_per_s: float | None = None

    async def spend(self, count: int) -> None:
        """Go at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferProgress:
    """How far one call has come."""

    bytes_done: int
    bytes_total: int
    files_done: int
    files_total: int
    in_transit: bool = False  # bytes are on a line that somebody else watches; it is not known how many came


OnProgress = Callable[[TransferProgress], Awaitable[None]]


async def nobody_looks(progress: TransferProgress) -> None:
    """Nobody asked for the progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The terms of one call: pace, time and who watches."""

    pace: Pace = field(default_factory=Unpaced)
    timeout_s: float = 600.0  # without any progress, not in all
    on_progress: OnProgress = nobody_looks
    read_again: bool = False  # the receiver hashes what it has already, now, before it says so


class Moved(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of some files. Those that failed are named with the reason; the others arrived.

    A receiver says one of what it took in, over HTTP as it is; a transport and the transfer service return
    one for each call, and whoever makes several calls adds them up.
    """

    receipts: tuple[Receipt, ...] = ()
    already_there: tuple[Receipt, ...] = ()  # verified there before; no byte of them went
    failed: tuple[tuple[str, str], ...] = ()  # (digest, why)
    corrupted: frozenset[str] = frozenset()  # of the failed: those whose bytes arrived, and were wrong
    lacking: frozenset[str] = frozenset()  # of the failed: those that the other node said it does not have
    bytes_sent: int = 0  # that crossed the line, without those of chunks the receiver had
    offsets: dict[str, int] = {}  # how far files have come of which the receiver has the beginning

    @classmethod
    def wrong(cls, digest: str, why: str) -> Moved:
        """One file, whose bytes came and were wrong."""
        return cls(failed=((digest, why),), corrupted=frozenset({digest}))

    @property
    def arrived(self) -> frozenset[str]:
        """What the receiver has verified, now or before."""
        return frozenset(receipt.digest for receipt in (*self.receipts, *self.already_there))

    def missing(self, asked: Iterable[str]) -> dict[str, str]:
        """Those of *asked* that did not arrive, each with the reason."""
        arrived, whys = self.arrived, dict(self.failed)
        return {digest: whys.get(digest, NO_RECEIPT) for digest in asked if digest not in arrived}

    def __add__(self, other: Moved) -> Moved:
        """Both, one after the other: what *other* says of a file replaces how far it had come before."""
        ended = other.arrived.union(digest for digest, _ in other.failed) if self.offsets else ()
        begun = {digest: offset for digest, offset in self.offsets.items() if digest not in ended}
        return Moved(
            receipts=self.receipts + other.receipts,
            already_there=self.already_there + other.already_there,
            failed=self.failed + other.failed,
            corrupted=self.corrupted | other.corrupted,
            lacking=self.lacking | other.lacking,
            bytes_sent=self.bytes_sent + other.bytes_sent,
            offsets=begun | other.offsets,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileResult:
    """What became of one file on its way to one node. With that node's receipt it arrived, without not."""

    receipt: Receipt | None = None
    was_there: bool = False  # verified there before; no byte of it went
    why: str = ""  # it did not arrive
    wrong: str = ""  # what was wrong with bytes that came, if that was so at least once
    lacking: bool = False  # the other node said that it does not have it
    method: str = ""  # the transport that brought it, or found it there


class Transport(Protocol):
    """One way to move files."""

    @property
    def name(self) -> str: ...

    def reaches(self, node: DataNode) -> bool:
        """Whether the node's entry has what this transport needs."""
        ...

    async def send(self, node: DataNode, artifacts: Sequence[Artifact], terms: Terms) -> Moved:
        """Bring files of this node's store into *node*'s. `TransferFailed` if it cannot be reached at all."""
        ...

    async def fetch(self, node: DataNode, artifacts: Sequence[Artifact], terms: Terms) -> Moved:
        """Bring files of *node*'s store into this node's; the receipts are this node's own."""
        ...


# Why a transfer did not begin, or ended with nothing moved. Both may pass.


class TransferRefused(Unavailable):
    """It was not begun: the node is left alone after failures, or no slot or bandwidth came free in time."""

    def __init__(self, node: str, *, reason: str, retry_after_s: float) -> None:
        super().__init__(f"nothing moves to or from {node} now: {reason}", retry_after_s=retry_after_s)
        self.node, self.reason = node, reason


class NodeUnreachable(TransferFailed):
    """No transport reached the node."""

    def __init__(self, node: str, *, attempts: tuple[tuple[str, str], ...], retry_after_s: float) -> None:
        reasons = "; ".join(f"{transport}: {why}" for transport, why in attempts)
        reasons = reasons or "every way to it failed not long ago"
        super().__init__(f"{node} cannot be reached ({reasons})", retry_after_s=retry_after_s)
        self.node, self.attempts = node, attempts


# How urgent a transfer is: one scale for slots, bandwidth and order.


class TransferPriority(StrEnum):
    """From whenever to at once."""

    BACKGROUND = "background"
    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        return list(TransferPriority).index(self)

    @property
    def share(self) -> float:
        """Multiplies what a transfer of normal priority would get of the line."""
        return _SHARES[self]


_SHARES = {
    TransferPriority.BACKGROUND: 0.25,
    TransferPriority.LOW: 0.5,
    TransferPriority.NORMAL: 1.0,
    TransferPriority.HIGH: 1.5,
    TransferPriority.CRITICAL: 2.0,
}


def priority_of(name: str) -> TransferPriority:
    try:
        return TransferPriority(str(name).lower())
    except ValueError:
        allowed = ", ".join(item.value for item in TransferPriority)
        raise ConfigError(f"priority is {name!r}; it must be one of {allowed}") from None


# Inside a transport: which files are open, which arrived, and who watches.


T = TypeVar("T")

BATCH_FILES_MAX = 2_000
BATCH_BYTES_MAX = 2 << 30
READ_BYTES_PER_S = 20e6  # of a slow disk that a receiver hashes a file from
READ_AT_ONCE = 256 << 20  # that it hashes for one answer
ASKED_AT_ONCE = 10_000  # files, of which it says what it has
_STILL_HERE_S = 5.0


async def watched(work: Awaitable[T], look: Callable[[], Awaitable[None]], *, every_s: float) -> T:
    """Wait for *work*, and *look* whenever it has taken *every_s* longer; an error of either ends both."""

    async def done() -> T:
        return await work

    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(done())
            while not (await asyncio.wait({task}, timeout=every_s))[0]:
                await look()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return task.result()


class TransferCall:
    """What one call has brought about so far. Each file is open until a receipt or a reason closes it."""

    def __init__(self, artifacts: Iterable[Artifact], terms: Terms) -> None:
        self.terms = terms
        self.cards = {card.digest: card for card in artifacts}
        self.open = dict(self.cards)
        self.bytes_total = sum(card.size for card in self.open.values())
        self.bytes_sent = 0
        self._bytes_closed = self._bytes_shown = self._files_shown = 0
        self._reached: dict[str, int] = {}  # bytes of open files
        self._results: dict[str, FileResult] = {}  # of an open file: what is known of it so far

    def sizes(self) -> dict[str, int]:
        return {digest: card.size for digest, card in self.open.items()}

    def found(self, receipts: Iterable[Receipt]) -> None:
        """These were there before."""
        self._came(receipts, was_there=True)

    def arrived(self, receipts: Iterable[Receipt]) -> None:
        self._came(receipts)

    def lacks(self, digests: Iterable[str]) -> None:
        """The other node said that it does not have these."""
        for digest in digests:
            self._note(digest, lacking=True)

    def fail(self, whys: Mapping[str, str], *, corrupted: Iterable[str] = ()) -> None:
        """Close files that did not arrive; of some the bytes came, and were wrong."""
        for digest, why in whys.items():
            if digest in self.open:
                self._close(digest, why=why)
        for digest in whys.keys() & set(corrupted):
            self._note(digest, wrong=whys[digest])

    def took(self, answer: Moved) -> None:
        """A receiver said what it took in, and what not."""
        self.arrived(answer.receipts)
        self.fail(dict(answer.failed), corrupted=answer.corrupted)

    def fail_rest(self, error: Unavailable) -> None:
        """The line broke: raise if nothing at all came of the call, else close what is open."""
        if not self.files_there:
            raise error
        self.fail(dict.fromkeys(self.open, error.what))

    @property
    def files_there(self) -> int:
        """How many files the receiver has by now."""
        return sum(result.receipt is not None for result in self._results.values())

    def batches(self) -> list[list[Artifact]]:
        """Cut what is open into parts that are sealed one after the other."""
        return list(in_batches(self.open.values(), files_max=BATCH_FILES_MAX, bytes_max=BATCH_BYTES_MAX))

    async def reached(self, digest: str, bytes_done: int) -> None:
        """An open file has come so far."""
        self._reached[digest] = bytes_done
        await self.show()

    async def show(self, *, in_flight: int | None = None, in_transit: bool = False) -> None:
        """Tell who watches. *in_flight* are bytes of open files, if only their sum is known."""
        if in_flight is None:
            in_flight = sum(done for digest, done in self._reached.items() if digest in self.open)
        bytes_closed, files_closed = self.settled()
        await self._show(bytes_closed + in_flight, files_closed, in_transit=in_transit)

    async def _show(self, bytes_done: int, files_done: int, *, in_transit: bool = False) -> None:
        # A file that begins anew takes nothing back from who watches.
        self._bytes_shown = max(self._bytes_shown, min(self.bytes_total, bytes_done))
        self._files_shown = max(self._files_shown, min(len(self.cards), files_done))
        await self.terms.on_progress(
            TransferProgress(
                bytes_done=self._bytes_shown,
                bytes_total=self.bytes_total,
                files_done=self._files_shown,
                files_total=len(self.cards),
                in_transit=in_transit,
            )
        )

    def settled(self) -> tuple[int, int]:
        """Return the bytes and the files that are no longer open."""
        return self._bytes_closed, len(self.cards) - len(self.open)

    async def shown_while(self, work: Awaitable[T], *, in_transit: bool = False) -> T:
        """Wait for work that moves no bytes, such as hashing a large file, and let who watches know.

        *in_transit*: it moves bytes that only the program it waits for could count.
        """
        look_s = min(_STILL_HERE_S, self.terms.timeout_s / 4)
        return await watched(work, partial(self.show, in_transit=in_transit), every_s=look_s)

    def moved(self) -> Moved:
        ended = [result for digest, result in self._results.items() if digest not in self.open]
        came = [(result.receipt, result.was_there) for result in ended if result.receipt is not None]
        failed = self._failures()
        return Moved(
            receipts=tuple(receipt for receipt, was_there in came if not was_there),
            already_there=tuple(receipt for receipt, was_there in came if was_there),
            failed=tuple((digest, result.why) for digest, result in failed.items()),
            corrupted=frozenset(digest for digest, result in failed.items() if result.wrong),
            lacking=frozenset(digest for digest, result in failed.items() if result.lacking),
            bytes_sent=self.bytes_sent,
        )

    def _failures(self) -> dict[str, FileResult]:
        return {
            digest: result
            for digest, result in self._results.items()
            if result.receipt is None and digest not in self.open
        }

    def _came(self, receipts: Iterable[Receipt], *, was_there: bool = False, method: str = "") -> None:
        for receipt in receipts:
            if receipt.digest in self.open:
                self._close(receipt.digest, receipt=receipt, was_there=was_there, method=method, why="")

    def _close(self, digest: str, **changes: Any) -> None:
        self._bytes_closed += self.open.pop(digest).size
        self._results[digest] = replace(self._results.pop(digest, FileResult()), **changes)

    def _note(self, digest: str, **changes: Any) -> None:
        """Note what is found of a file that was asked for, open or not."""
        if digest in self.cards:
            self._results[digest] = replace(self._results.get(digest, FileResult()), **changes)


# Around the transports: what is still open after each of them, and one try of one.


class Way(StrEnum):
    """From here or to here."""

    SEND = "send"
    FETCH = "fetch"


class MoveOptions(TypedDict, total=False):
    """What a caller may ask for beside what moves and where; see `MoveOrder`."""

    priority: str
    terms: Terms
    limit_bytes_per_s: float | None
    timeout_s: float | None
    avoid: Collection[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveOrder:
    """What the caller asked for."""

    priority: str = "normal"
    terms: Terms = field(default_factory=Terms)
    limit_bytes_per_s: float | None = None  # below what its node and the line would allow
    timeout_s: float | None = None  # in all; by default by size
    avoid: Collection[str] = ()  # transports that are tried last

    def __post_init__(self) -> None:
        priority_of(self.priority)
        if self.timeout_s is not None and self.timeout_s <= 0:
            raise ConfigError(f"timeout_s is {self.timeout_s:g}; it must be above 0")
        if self.limit_bytes_per_s is not None and self.limit_bytes_per_s <= 0:
            raise ConfigError(f"a limit of {self.limit_bytes_per_s:g} bytes/s moves nothing")

    @property
    def urgency(self) -> TransferPriority:
        return priority_of(self.priority)


class Stalled(TimeoutError):
    """A transport moved nothing for too long."""


class CallCounts(TransferCall):
    """One call over several transports: what one of them fails at stays open for the next."""

    def __init__(
        self,
        cards: Sequence[Artifact],
        failed: Mapping[str, str],
        *,
        receiver: str,
        on_progress: OnProgress,
    ) -> None:
        super().__init__(cards, Terms(on_progress=on_progress))
        self.receiver = receiver
        self.deadline_s = 0.0
        self.attempts: list[tuple[str, str]] = []
        self.stalls: list[tuple[str, float]] = []  # the transport, and how long it was waited for
        self.node_failed = False
        self._results |= {digest: FileResult(why=why) for digest, why in failed.items()}
        self._unwritten: list[Receipt] = []

    @property
    def unreachable(self) -> bool:
        """Whether no transport got through and nothing moved."""
        return self.node_failed and not self.files_there

    def take(self, moved: Moved, *, method: str) -> int:
        """Note what a transport brought about; return how many files arrived by it, or were there."""
        self.bytes_sent += moved.bytes_sent
        self.lacks(moved.lacking)
        came = self._take_in_receipts(moved.receipts, method)
        came += self._take_in_receipts(moved.already_there, method, was_there=True)
        for digest, why in moved.failed:
            if digest in self.open:
                self._note(digest, why=f"{method}: {why}")
            if digest in moved.corrupted:
                self._note(digest, wrong=why)
        return came

    def _take_in_receipts(self, receipts: Iterable[Receipt], method: str, *, was_there: bool = False) -> int:
        """Take in receipts of the receiver for what was asked for; return how many those were."""
        fitting: dict[str, Receipt] = {}
        for receipt in receipts:
            card = self.open.get(receipt.digest)
            if card is None or receipt.node != self.receiver:
                continue  # nobody asked for it, or it is told twice
            if receipt.size != card.size:
                why = f"{method}: {receipt.size} bytes arrived of {card.size}"
                self._note(card.digest, why=why, wrong="its size is wrong")
                continue
            fitting.setdefault(receipt.digest, receipt)
        self._came(fitting.values(), was_there=was_there, method=method)
        self._unwritten += fitting.values()
        return len(fitting)

    def take_receipts(self) -> list[Receipt]:
        """Return the receipts that are not yet written down."""
        taken, self._unwritten = self._unwritten, []
        return taken

    def explain(self, digest: str, why: str) -> None:
        """A better reason than a transport could know."""
        self._note(digest, why=why)

    def give_up(self, why: str, cards: Iterable[Artifact] | None = None) -> None:
        """Count those of *cards* (all, by default) that are still open as failed."""
        left = self.open if cards is None else [card.digest for card in cards]
        known = {digest: self._results.get(digest, FileResult()).why for digest in left}
        self.fail({digest: reason or why for digest, reason in known.items()})

    def not_there(self) -> list[str]:
        """What the other node said it does not have, and nothing brought there or here since."""
        return sorted(digest for digest, result in self._failures().items() if result.lacking)

    def came_wrong(self) -> list[str]:
        """What failed because wrong bytes arrived."""
        return sorted(digest for digest, result in self._failures().items() if result.wrong)

    def failed(self) -> list[Artifact]:
        """What did not arrive, for whatever reason."""
        return [self.cards[digest] for digest in self._failures() if digest in self.cards]

    def results(self) -> Iterator[tuple[Artifact, FileResult]]:
        """Yield what became of each file that was there to be moved."""
        for digest, card in self.cards.items():
            if digest not in self.open:
                yield card, self._results[digest]

    async def show_attempt(self, progress: TransferProgress, *, before: tuple[int, int]) -> None:
        """Tell the caller how far the whole call is; it never goes back, though a transport may."""
        await self._show(before[0] + progress.bytes_done, before[1] + progress.files_done)

    def reports(self, here: str, node: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield what others should hear."""
        types = {data_type_of(card.kind) for card in self.cards.values()}
        for transport, seconds in self.stalls:
            stalled = {
                "source_node": here if self.receiver == node else node,
                "target_node": self.receiver,
                "data_type": types.copy().pop() if len(types) == 1 else "all",
                "timeout_seconds": seconds,
                "transport": transport,
            }
            yield "SYNC_STALLED", stalled
        for digest, result in self._results.items():
            if result.wrong:
                paths = {"source_path": digest, "dest_path": digest, "target_node": self.receiver}
                yield "SYNC_CHECKSUM_FAILED", {**paths, "error": result.wrong}
        if self.node_failed:
            transport, why = self.attempts[-1] if self.attempts else ("", "every transport is held back")
            yield "SYNC_NODE_UNREACHABLE", {"node_id": node, "transport": transport, "error": why}


class Attempt:
    """One try of one transport at some of a call's files."""

    def __init__(
        self,
        transport: Transport,
        way: Way,
        node: DataNode,
        tally: CallCounts,
        *,
        stall_s: float,
        read_again: bool = False,
    ) -> None:
        self.transport, self.node, self.tally = transport, node, tally
        self.progressed = False
        self._stall_s, self._read_again = stall_s, read_again
        self._call = transport.send if way is Way.SEND else transport.fetch

    async def run(self, cards: Sequence[Artifact], *, pace: Pace, left_s: float) -> int:
        """Return how many files arrived. `TimeoutError` when no time is left, `Stalled` before that."""
        now_s = asyncio.get_running_loop().time
        ends_s, before, seen = now_s() + left_s, self.tally.settled(), -1
        limit = asyncio.timeout_at(min(ends_s, now_s() + self._stall_s))

        async def on_progress(progress: TransferProgress) -> None:
            nonlocal seen
            if progress.in_transit and not limit.expired():
                limit.reschedule(min(ends_s, now_s() + self._stall_s))
            if progress.bytes_done + progress.files_done > seen and not limit.expired():
                self.progressed = self.progressed or seen >= 0 or progress.bytes_done > 0
                seen = progress.bytes_done + progress.files_done
                limit.reschedule(min(ends_s, now_s() + self._stall_s))
            await self.tally.show_attempt(progress, before=before)

        try:
            async with limit:
                terms = Terms(
                    pace=pace,
                    timeout_s=self._stall_s,
                    on_progress=on_progress,
                    read_again=self._read_again,
                )
                moved = await self._call(self.node, cards, terms)
        except TimeoutError:
            if not limit.expired() or now_s() >= ends_s:
                raise
            self.tally.stalls.append((self.transport.name, self._stall_s))
            raise Stalled(f"nothing moved for {self._stall_s:g} s") from None
        except Corrupt as error:
            self.tally.take(_all_wrong(cards, str(error)), method=self.transport.name)
            raise
        return self.tally.take(moved, method=self.transport.name)


def _all_wrong(cards: Sequence[Artifact], why: str) -> Moved:
    """A transport that broke off over wrong bytes; if there was one file, it is known which."""
    return Moved.wrong(cards[0].digest, why) if len(cards) == 1 else Moved()
