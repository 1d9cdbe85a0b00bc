"""Carrying out a plan: trips side by side, counted by the receipts that receivers wrote, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import structlog

from ringrift.data.artifacts import Artifact, Receipt
from ringrift.data.manifest_index import games_in
from ringrift.data.plane import DataPlane
from ringrift.data.sync.constants import FILES_PER_TRIP
from ringrift.data.sync.history import SyncHistory, SyncRecord
from ringrift.data.sync.plans import SyncPlan, Trip
from ringrift.data.sync.progress import SyncProgress
from ringrift.data.transfer.contract import AT_REST, Moved, Terms, TransferProgress
from ringrift.data.transfer.refusals import NodeUnreachable
from ringrift.data.transfer.sync_locks import SyncLock
from ringrift.errors import Conflict, LeaseLost, RingRiftError, Unavailable

log = structlog.get_logger()

LOCK_S = 10.0  # after which the lock of a process that died is free; a living one renews it


@dataclass(frozen=True, slots=True, kw_only=True)
class TripEnd:
    """What became of one trip."""

    trip: Trip
    moved: tuple[Receipt, ...] = ()  # arrived now
    confirmed: tuple[Receipt, ...] = ()  # were there; the receiver read them before
    bytes_sent: int = 0
    errors: tuple[str, ...] = ()
    broken_off: bool = False  # after an error that further files would meet, too
    unreachable: bool = False  # no transport got through to the node
    seconds: float = 0.0

    @property
    def arrived(self) -> frozenset[str]:
        return frozenset(receipt.digest for receipt in (*self.moved, *self.confirmed))

    @property
    def complete(self) -> bool:
        return not self.errors and all(each.digest in self.arrived for each in self.trip.artifacts)

    @property
    def games_moved(self) -> int:
        now = {receipt.digest for receipt in self.moved}
        return games_in(each for each in self.trip.artifacts if each.digest in now)


@dataclass(slots=True)
class SyncTally:
    """What a request has brought about so far, over all its attempts. A receipt counts once."""

    receipts: dict[tuple[str, str], Receipt] = field(default_factory=dict)  # by (node, digest)
    moved: set[tuple[str, str]] = field(default_factory=set)
    bytes_sent: int = 0
    games: dict[str, int] = field(default_factory=dict)  # by digest, of what moved
    trips: dict[tuple[str, bool], bool] = field(default_factory=dict)  # by (node, fetched): complete at last

    def add(self, end: TripEnd, bytes_sent: int) -> None:
        """Take in what is known of a trip so far; *bytes_sent* are those since the last time."""
        self.bytes_sent += bytes_sent
        for receipt in (*end.moved, *end.confirmed):
            self.receipts[receipt.node, receipt.digest] = receipt
        self.moved |= {(receipt.node, receipt.digest) for receipt in end.moved}
        now = {receipt.digest for receipt in end.moved}
        self.games |= {each.digest: games_in([each]) for each in end.trip.artifacts if each.digest in now}
        self.trips[end.trip.node, end.trip.fetch] = end.complete

    def complete(self, *, fetched: bool) -> frozenset[str]:
        """Nodes that everything went to, or came from."""
        return frozenset(node for (node, fetch), done in self.trips.items() if done and fetch is fetched)

    @property
    def confirmed(self) -> frozenset[tuple[str, str]]:
        return frozenset(self.receipts)

    @property
    def files(self) -> int:
        return len(self.moved)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncPace:
    """How fast and how urgently a plan is carried out."""

    priority: str = "normal"
    bytes_per_s: float | None = None  # for all trips together
    data_type: str = "all"
    read_again: bool = False  # receivers hash what they have already
    lock_wait_s: float = 5.0  # for a host that another syncs just now
    avoid: frozenset[str] = frozenset()  # transports that are tried last


class HostLocked(Conflict):
    """Another holds the sync lock of the host, or as many hosts are synced as may be at once."""


class Courier:
    """Carries out plans on one node."""

    def __init__(self, plane: DataPlane, progress: SyncProgress | None = None) -> None:
        self._plane = plane
        self.progress = progress or SyncProgress(plane.runtime)
        self.history = SyncHistory(plane.kv, plane.runtime)

    async def carry_out(self, plan: SyncPlan, pace: SyncPace, tally: SyncTally) -> list[TripEnd]:
        """Fetch, then send; *tally* grows with every trip, also when the caller's time runs out."""
        self.progress.begin(plan)
        try:
            fetched = await self._all(plan.fetches, plan.width, pace, tally)
            lacking = _not_arrived(fetched)
            sends = [_without(trip, lacking) for trip in plan.sends]
            sent = await self._all([trip for trip in sends if trip.artifacts], plan.width, pace, tally)
        finally:
            self.progress.end()
        return [*fetched, *sent]

    async def _all(
        self, trips: Sequence[Trip], width: int, pace: SyncPace, tally: SyncTally
    ) -> list[TripEnd]:
        if not trips:
            return []
        side_by_side = min(width, len(trips))
        share = None if pace.bytes_per_s is None else pace.bytes_per_s / side_by_side
        gate, ends = asyncio.Semaphore(side_by_side), []

        async def one(trip: Trip) -> None:
            async with gate:
                ends.append(await self._one(trip, pace, share, tally))

        try:
            async with asyncio.TaskGroup() as group:
                for trip in trips:
                    group.create_task(one(trip), name=f"sync:{trip.node}")
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return ends

    async def _one(self, trip: Trip, pace: SyncPace, bytes_per_s: float | None, tally: SyncTally) -> TripEnd:
        runtime = self._plane.runtime
        started_s, since_s = runtime.now_s(), runtime.monotonic_s()
        end = TripEnd(trip=trip)
        for start in range(0, len(trip.artifacts), FILES_PER_TRIP):
            batch = trip.artifacts[start : start + FILES_PER_TRIP]
            before = end.bytes_sent
            end = await self._batch(end, batch, pace, bytes_per_s)
            tally.add(end, end.bytes_sent - before)
            if end.broken_off:
                break
        end = replace(end, seconds=runtime.monotonic_s() - since_s)
        await self.note(end, pace, started_s)
        return end

    async def _batch(
        self, end: TripEnd, batch: Sequence[Artifact], pace: SyncPace, bytes_per_s: float | None
    ) -> TripEnd:
        trip, transfers = end.trip, self._plane.transfers
        move = transfers.fetch if trip.fetch else transfers.send
        node, size = self._plane.nodes[trip.node], sum(each.size for each in batch)

        async def show(now: TransferProgress) -> None:
            self.progress.show(trip, now)

        terms = Terms(on_progress=show, read_again=pace.read_again)
        try:
            async with self._locked(trip.node, pace):
                moved = await move(
                    node,
                    batch,
                    priority=pace.priority,
                    terms=terms,
                    limit_bytes_per_s=bytes_per_s,
                    avoid=pace.avoid,
                )
        except RingRiftError as error:
            self.progress.call_ended(trip, files=len(batch), size=size, error=str(error))
            log.warning("sync.trip_failed", node=trip.node, fetch=trip.fetch, error=str(error))
            told = (*end.errors, f"{trip.node}: {error}")
            unreachable = isinstance(error, NodeUnreachable)
            return replace(end, errors=told, broken_off=True, unreachable=unreachable)
        self.progress.call_ended(trip, files=len(batch), size=size)
        receiver = self._plane.this.name if trip.fetch else trip.node
        return _grown(end, batch, moved, receiver=receiver, read_again=pace.read_again)

    @asynccontextmanager
    async def _locked(self, host: str, pace: SyncPace) -> AsyncIterator[None]:
        """Hold the sync lock of a host for one call; `HostLocked` if another holds on to it.

        A lock that is lost on the way undoes nothing: what arrived arrived, and another may send the same.
        """
        mutex = self._plane.mutex
        lock = SyncLock(mutex, host, "sync", timeout=LOCK_S, wait_s=pace.lock_wait_s)
        if not await lock.__aenter__():
            raise HostLocked(await mutex.why_not_async(host))
        try:
            yield
        finally:
            try:
                await lock.__aexit__(None, None, None)
            except (LeaseLost, Unavailable) as error:  # one that could not be given back runs out by itself
                log.warning("sync.lock_lost", node=host, error=str(error))

    async def note(self, end: TripEnd, pace: SyncPace, started_s: float) -> None:
        """Keep what became of a trip."""
        record = SyncRecord(
            host=end.trip.node,
            by=self._plane.this.name,
            started_s=started_s,
            completed_s=self._plane.runtime.now_s(),
            success=end.complete,
            data_type=pace.data_type,
            files=len(end.moved),
            games=end.games_moved,
            bytes_transferred=end.bytes_sent,
            error="; ".join(end.errors)[:500],
        )
        await self.history.add(record)


def _grown(
    end: TripEnd, batch: Sequence[Artifact], moved: Moved, *, receiver: str, read_again: bool
) -> TripEnd:
    """Add what one call brought. A receipt of another node than the receiver's proves nothing here.

    Where files were to be read again, the word that one lies there does not confirm it.
    """
    asked = {each.digest for each in batch}
    fitting = {each.digest for each in moved.receipts if each.node == receiver} & asked
    there = {each.digest: each for each in moved.already_there if each.node == receiver}
    unread = {digest for digest, each in there.items() if read_again and each.verifier == AT_REST}
    known = (there.keys() & asked) - fitting - unread
    failed = {
        **dict.fromkeys(unread, "not confirmed: it is there, and was not read again"),
        **dict(moved.failed),
    }
    why = [
        f"{end.trip.node}: {digest[:12]}: {failed.get(digest, 'no receipt came back')}"
        for digest in sorted(asked - fitting - known)
    ]
    return replace(
        end,
        moved=(*end.moved, *(each for each in moved.receipts if each.digest in fitting)),
        confirmed=(*end.confirmed, *(each for each in moved.already_there if each.digest in known)),
        bytes_sent=end.bytes_sent + moved.bytes_sent,
        errors=(*end.errors, *why),
    )


def _not_arrived(ends: Iterable[TripEnd]) -> frozenset[str]:
    """Files that were to be fetched and are still not here."""
    here = frozenset(digest for end in ends for digest in end.arrived)
    return frozenset(each.digest for end in ends for each in end.trip.artifacts) - here


def _without(trip: Trip, digests: frozenset[str]) -> Trip:
    kept = tuple(each for each in trip.artifacts if each.digest not in digests)
    return Trip(node=trip.node, artifacts=kept, fetch=trip.fetch, reason=trip.reason)
