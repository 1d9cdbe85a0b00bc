"""Carrying out a plan of the sync: transfers side by side, their progress, and what others are told of them.

What is counted are the receipts that receivers wrote, and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import structlog

from ringrift.data.artifacts import Artifact, Receipt, in_batches
from ringrift.data.config import FILES_PER_TRIP, SyncStrategy
from ringrift.data.kv_records import for_each
from ringrift.data.manifest.store import games_in
from ringrift.data.plane import DataPlane
from ringrift.data.sync.cluster_view import SyncHistory, SyncRecord
from ringrift.data.sync.mutex import SyncLock
from ringrift.data.sync.plan import CyclePlan, NodeTransfer, SyncPlan
from ringrift.data.sync.requests import SyncRequest, SyncResponse
from ringrift.data.transfer.contract import AT_REST, Moved, NodeUnreachable, Terms, TransferProgress
from ringrift.errors import Conflict, LeaseLost, RingRiftError, Unavailable
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.runtime import Runtime

# How far a sync is: files and bytes of all its transfers together, and when it will probably be done.


@dataclass(slots=True)
class _NodeTransferProgress:
    """One transfer: what its ended calls moved, and how far the present one is."""

    files: int = 0
    bytes: int = 0
    now: TransferProgress | None = None

    @property
    def files_done(self) -> int:
        return self.files + (0 if self.now is None else self.now.files_done)

    @property
    def bytes_done(self) -> int:
        return self.bytes + (0 if self.now is None else self.now.bytes_done)


@dataclass(slots=True)
class SyncProgress:
    """The progress of one plan that is being carried out, or of the last one."""

    runtime: Runtime
    phase: str = "idle"
    files_total: int = 0
    bytes_total: int = 0
    started_s: float | None = None
    last_update_s: float | None = None
    error: str = ""
    _transfers: dict[tuple[str, bool], _NodeTransferProgress] = field(default_factory=dict)

    def begin(self, plan: SyncPlan) -> None:
        """Start anew with what *plan* moves."""
        self.phase, self.error, self._transfers = "transfer", "", {}
        self.files_total = sum(len(transfer.artifacts) for transfer in plan.transfers)
        self.bytes_total = sum(each.size for transfer in plan.transfers for each in transfer.artifacts)
        self.started_s = self.last_update_s = self.runtime.now_s()

    def show(self, transfer: NodeTransfer, now: TransferProgress) -> None:
        """Take in how far the present call of a transfer is."""
        self._progress_of(transfer).now = now
        self.last_update_s = self.runtime.now_s()

    def call_ended(self, transfer: NodeTransfer, *, files: int, size: int, error: str = "") -> None:
        """A call is over; *files* of *size* bytes in all were asked for, whatever became of them."""
        known = self._progress_of(transfer)
        known.files, known.bytes, known.now = known.files + files, known.bytes + size, None
        self.last_update_s, self.error = self.runtime.now_s(), error or self.error

    def end(self) -> None:
        self.phase = "idle"

    def _progress_of(self, transfer: NodeTransfer) -> _NodeTransferProgress:
        return self._transfers.setdefault((transfer.node, transfer.fetch), _NodeTransferProgress())

    @property
    def files_done(self) -> int:
        return sum(each.files_done for each in self._transfers.values())

    @property
    def bytes_done(self) -> int:
        return sum(each.bytes_done for each in self._transfers.values())

    @property
    def percent(self) -> float:
        """By bytes, which say more of the time than files do; 100 if there was nothing to do."""
        done, total = self.bytes_done, self.bytes_total
        if not total:
            done, total = self.files_done, self.files_total
        return 100.0 if not total else min(100.0, 100.0 * done / total)

    @property
    def estimated_completion_s(self) -> float | None:
        """At the mean pace so far; None before anything moved, and when nothing is under way."""
        if self.phase == "idle" or self.started_s is None or not self.bytes_done:
            return None
        now_s = self.runtime.now_s()
        left = max(0, self.bytes_total - self.bytes_done)
        return now_s + max(0.0, now_s - self.started_s) * left / self.bytes_done

    def to_dict(self) -> dict[str, Any]:
        return {
            "is_active": self.phase != "idle",
            "current_phase": self.phase,
            "current_nodes": sorted(
                node for (node, _), progress in self._transfers.items() if progress.now is not None
            ),
            "files_done": self.files_done,
            "files_total": self.files_total,
            "bytes_done": self.bytes_done,
            "bytes_total": self.bytes_total,
            "percent": self.percent,
            "started_s": self.started_s,
            "last_update_s": self.last_update_s,
            "estimated_completion_s": self.estimated_completion_s,
            "error": self.error,
        }


# The transfers of a plan, side by side.


log = structlog.get_logger()

_UNREAD = "not confirmed: it is there, and was not read again"
LOCK_S = 10.0  # after which the lock of a process that died is free; a living one renews it


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTransferResult:
    """What became of one transfer, over all its calls."""

    transfer: NodeTransfer
    moved: Moved = Moved()
    broken_off: str = ""  # by an error that further files would meet, too
    unreachable: bool = False  # no transport got through to the node
    seconds: float = 0.0

    @property
    def errors(self) -> tuple[str, ...]:
        node, failed = self.transfer.node, self.moved.failed
        whys = [f"{node}: {digest[:12]}: {why}" for digest, why in failed]
        return (*whys, f"{node}: {self.broken_off}") if self.broken_off else tuple(whys)

    @property
    def complete(self) -> bool:
        asked = (each.digest for each in self.transfer.artifacts)
        return not self.broken_off and not self.moved.failed and not self.moved.missing(asked)

    @property
    def files_moved(self) -> list[Artifact]:
        """Those that arrived now."""
        now = {receipt.digest for receipt in self.moved.receipts}
        return [each for each in self.transfer.artifacts if each.digest in now]


@dataclass(frozen=True, slots=True)
class SyncResult:
    """What the transfers of a plan came to, or those of several plans, the latest last."""

    transfers: tuple[NodeTransferResult, ...] = ()

    def __add__(self, other: SyncResult) -> SyncResult:
        return SyncResult(self.transfers + other.transfers)

    @property
    def errors(self) -> list[str]:
        return [error for each in self.transfers for error in each.errors]

    @property
    def bytes_sent(self) -> int:
        return sum(each.moved.bytes_sent for each in self.transfers)

    @property
    def moved(self) -> frozenset[tuple[str, str]]:
        """Which files came to which nodes now: (node, digest), once each however often it was told."""
        return _places(receipt for each in self.transfers for receipt in each.moved.receipts)

    @property
    def confirmed(self) -> frozenset[tuple[str, str]]:
        """Those, and those that were found there."""
        there = _places(receipt for each in self.transfers for receipt in each.moved.already_there)
        return self.moved | there

    @property
    def games(self) -> int:
        """The games of the files that moved, of a file that went to several nodes once."""
        cards = {card.digest: card for each in self.transfers for card in each.files_moved}
        return games_in(cards.values())

    def complete(self, *, fetched: bool) -> frozenset[str]:
        """Nodes that everything went to, or came from, at the last attempt."""
        last = {
            each.transfer.node: each.complete for each in self.transfers if each.transfer.fetch is fetched
        }
        return frozenset(node for node, complete in last.items() if complete)


def _places(receipts: Iterable[Receipt]) -> frozenset[tuple[str, str]]:
    return frozenset((receipt.node, receipt.digest) for receipt in receipts)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncPace:
    """How fast and how urgently a plan is carried out."""

    priority: str = "normal"
    bytes_per_s: float | None = None  # for all transfers together
    data_type: str = "all"
    read_again: bool = False  # receivers hash what they have already
    lock_wait_s: float = 5.0  # for a host that another syncs just now
    avoid: frozenset[str] = frozenset()  # transports that are tried last


class HostLocked(Conflict):
    """Another holds the sync lock of the host, or as many hosts are synced as may be at once."""


class SyncExecutor:
    """Carries out plans on one node."""

    def __init__(self, plane: DataPlane, progress: SyncProgress | None = None) -> None:
        self._plane = plane
        self.progress = progress or SyncProgress(plane.runtime)
        self.history = SyncHistory(plane.kv, plane.runtime)
        self._ends: list[NodeTransferResult] = []

    @property
    def result(self) -> SyncResult:
        """What the plan came to so far, also when the caller's time ran out."""
        return SyncResult(tuple(self._ends))

    async def carry_out(self, plan: SyncPlan, pace: SyncPace) -> SyncResult:
        """Fetch, then send."""
        self._ends = []
        self.progress.begin(plan)
        try:
            await self._all(plan.fetches, plan.width, pace)
            lacking = _not_arrived(self._ends)
            sends = [_without(transfer, lacking) for transfer in plan.sends]
            await self._all([transfer for transfer in sends if transfer.artifacts], plan.width, pace)
        finally:
            self.progress.end()
        return self.result

    async def _all(self, transfers: Sequence[NodeTransfer], width: int, pace: SyncPace) -> None:
        if not transfers:
            return
        side_by_side = min(width, len(transfers))
        share = None if pace.bytes_per_s is None else pace.bytes_per_s / side_by_side
        await for_each(transfers, lambda each: self._one(each, pace, share), at_once=side_by_side)

    async def _one(self, transfer: NodeTransfer, pace: SyncPace, bytes_per_s: float | None) -> None:
        runtime, number = self._plane.runtime, len(self._ends)
        started_s, since_s = runtime.now_s(), runtime.monotonic_s()
        end = NodeTransferResult(transfer=transfer)
        self._ends.append(end)
        for batch in in_batches(transfer.artifacts, files_max=FILES_PER_TRIP):
            end = self._ends[number] = await self._batch(end, batch, pace, bytes_per_s)
            if end.broken_off:
                break
        end = self._ends[number] = replace(end, seconds=runtime.monotonic_s() - since_s)
        await self.note(end, pace, started_s)

    async def _batch(
        self, end: NodeTransferResult, batch: Sequence[Artifact], pace: SyncPace, bytes_per_s: float | None
    ) -> NodeTransferResult:
        transfer, ways = end.transfer, self._plane.transfers
        move = ways.fetch if transfer.fetch else ways.send
        node, size = self._plane.nodes[transfer.node], sum(each.size for each in batch)

        async def show(now: TransferProgress) -> None:
            self.progress.show(transfer, now)

        terms = Terms(on_progress=show, read_again=pace.read_again)
        try:
            async with self._locked(transfer.node, pace):
                moved = await move(
                    node,
                    batch,
                    priority=pace.priority,
                    terms=terms,
                    limit_bytes_per_s=bytes_per_s,
                    avoid=pace.avoid,
                )
        except RingRiftError as error:
            self.progress.call_ended(transfer, files=len(batch), size=size, error=str(error))
            log.warning("sync.trip_failed", node=transfer.node, fetch=transfer.fetch, error=str(error))
            return replace(end, broken_off=str(error), unreachable=isinstance(error, NodeUnreachable))
        self.progress.call_ended(transfer, files=len(batch), size=size)
        receiver = self._plane.this.name if transfer.fetch else transfer.node
        judged = _judged(moved, batch, receiver=receiver, read_again=pace.read_again)
        return replace(end, moved=end.moved + judged)

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

    async def note(self, end: NodeTransferResult, pace: SyncPace, started_s: float) -> None:
        """Keep what became of a transfer."""
        record = SyncRecord(
            host=end.transfer.node,
            by=self._plane.this.name,
            started_s=started_s,
            completed_s=self._plane.runtime.now_s(),
            success=end.complete,
            data_type=pace.data_type,
            files=len(end.moved.receipts),
            games=games_in(end.files_moved),
            bytes_transferred=end.moved.bytes_sent,
            error="; ".join(end.errors)[:500],
        )
        await self.history.add(record, at_s=record.completed_s)


def _judged(moved: Moved, batch: Sequence[Artifact], *, receiver: str, read_again: bool) -> Moved:
    """What one call proves of its files. A receipt of another node than the receiver's proves nothing here.

    Where files were to be read again, the word that one lies there does not confirm it.
    """
    asked = {each.digest for each in batch}
    now = {each.digest: each for each in moved.receipts if each.node == receiver and each.digest in asked}
    there = [
        each for each in moved.already_there if each.node == receiver and each.digest in asked - now.keys()
    ]
    unread = {each.digest for each in there if read_again and each.verifier == AT_REST}
    found = Moved(
        receipts=tuple(now.values()),
        already_there=tuple(each for each in there if each.digest not in unread),
        failed=tuple((dict.fromkeys(unread, _UNREAD) | dict(moved.failed)).items()),
        bytes_sent=moved.bytes_sent,
    )
    return msgspec.structs.replace(found, failed=tuple(found.missing(sorted(asked)).items()))


def _not_arrived(ends: Iterable[NodeTransferResult]) -> frozenset[str]:
    """Files that were to be fetched and are still not here."""
    here = frozenset(digest for end in ends for digest in end.moved.arrived)
    return frozenset(each.digest for end in ends for each in end.transfer.artifacts) - here


def _without(transfer: NodeTransfer, digests: frozenset[str]) -> NodeTransfer:
    kept = tuple(each for each in transfer.artifacts if each.digest not in digests)
    return replace(transfer, artifacts=kept)


async def record_result(plane: DataPlane, part: str, result: SyncResult, **facts: Any) -> None:
    """Write down what was decided, and what came of it."""
    for end in result.transfers:
        await plane.decisions.record(
            part,
            "fetch" if end.transfer.fetch else "send",
            end.transfer.reason,
            peer=end.transfer.node,
            files=len(end.transfer.artifacts),
            arrived=len(end.moved.receipts),
            errors=list(end.errors[:3]),
            **facts,
        )


# What others are told of a sync: counts come from the receipts of the response.


class SyncAnnouncer:
    """Publishes under the name of one component."""

    def __init__(self, source: str, *, router: Callable[[], UnifiedEventRouter]) -> None:
        self._source, self._router = source, router

    async def publish(self, event: str, payload: dict[str, Any]) -> None:
        await self._router().publish(event, payload=payload, source=self._source)

    async def started(
        self, plane: DataPlane, plan: SyncPlan, *, by: str, data_type: str = "all", reason: str = ""
    ) -> None:
        payload = {
            "node_id": plane.this.name,
            "sync_type": by,
            "data_type": data_type,
            "targets": plan.nodes,
        }
        if reason:
            payload["reason"] = reason
        await self.publish("DATA_SYNC_STARTED", payload)

    async def ended(self, plane: DataPlane, request: SyncRequest, response: SyncResponse) -> None:
        payload: dict[str, Any] = {
            "node_id": plane.this.name,
            "config_key": request.config_key,
            "targets": list(response.details["nodes"]),
        }
        if not response.success:
            error = "; ".join(response.errors[:5]) or "nothing was brought"
            await self.publish("DATA_SYNC_FAILED", {**payload, "error": error})
            return
        payload |= {
            "sync_type": response.backend_used.value,
            "games_synced": response.details["games_synced"],
            "files_synced": response.details["files_moved"],
            "bytes_transferred": response.bytes_transferred,
            "duration_seconds": response.duration_seconds,
        }
        await self.publish("DATA_SYNC_COMPLETED", payload)

    async def priority(self, response: SyncResponse, *, node: str, config_key: str) -> None:
        payload: dict[str, Any] = {"config_key": config_key, "source_node": node}
        if response.success:
            games = response.details["games_synced"]
            await self.publish("PRIORITY_SYNC_COMPLETED", {**payload, "games_synced": games})
        else:
            await self.publish("PRIORITY_SYNC_FAILED", {**payload, "errors": list(response.errors)})

    async def orphans(self, response: SyncResponse, *, node: str) -> None:
        """Files that nobody else had are in safety; they are counted by their receipts."""
        payload = {
            "node_id": node,
            "registered_count": response.details["files_moved"],
            "registered_paths": list(response.details["digests_moved"]),
            "games_recovered": response.details["games_synced"],
        }
        await self.publish("ORPHAN_GAMES_REGISTERED", payload)


async def tell_cycle(
    announcer: SyncAnnouncer, plane: DataPlane, cycle: CyclePlan, result: SyncResult
) -> None:
    """Tell what a cycle brought where. A cycle that failed in part did bring the rest."""
    ends, errors = result.transfers, result.errors
    sent = [end for end in ends if not end.transfer.fetch and end.moved.receipts]
    nodes = [end.transfer.node for end in ends]
    if files := len(result.moved):
        payload = {
            "node_id": plane.this.name,
            "sync_type": str(cycle.strategy),
            "games_synced": result.games,
            "files_synced": files,
            "bytes_transferred": result.bytes_sent,
            "duration_seconds": max((end.seconds for end in ends), default=0.0),
            "targets": nodes,
        }
        await announcer.publish("DATA_SYNC_COMPLETED", payload)
    if errors:
        payload = {"node_id": plane.this.name, "error": "; ".join(errors[:5]), "targets": nodes}
        await announcer.publish("DATA_SYNC_FAILED", payload)
    if sent and cycle.strategy is SyncStrategy.EPHEMERAL:
        payload = {
            "node_id": plane.this.name,
            "games_pushed": sum(games_in(end.files_moved) for end in sent),
            "target_nodes": [end.transfer.node for end in sent],
            "is_ephemeral": plane.this.ephemeral,
        }
        await announcer.publish("GAME_SYNCED", payload)
    await _tell_landed(announcer, plane, ends)


async def _tell_landed(
    announcer: SyncAnnouncer, plane: DataPlane, ends: Sequence[NodeTransferResult]
) -> None:
    """Games that came to this node are new here."""
    landed: Counter[str] = Counter()
    for end in ends:
        if end.transfer.fetch:
            for artifact in end.files_moved:
                landed[artifact.config] += games_in([artifact])
    for config, games in sorted(landed.items()):
        if games and config:
            payload = {"config_key": config, "node_id": plane.this.name, "new_games": games}
            await announcer.publish("NEW_GAMES_AVAILABLE", payload)
