"""Moving artifacts to and from other nodes, whatever lies between.

One call takes its turn at the gates and its share of the line, tries the transports that reach the node
from the healthiest to the last resort, and writes the receipts that come back into the manifest. What it
returns is what receivers verified: a file without a receipt is among the failed, with the reason.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Unpack

import structlog

from ringrift.data.artifacts import Artifact, Receipt, in_batches
from ringrift.data.config import DataNode, DataNodes
from ringrift.data.kv_records import DecisionLog, for_each
from ringrift.data.manifest.store import ManifestStore
from ringrift.data.transfer.contract import (
    Attempt,
    CallCounts,
    Moved,
    MoveOptions,
    MoveOrder,
    NodeUnreachable,
    Pace,
    TransferRefused,
    Transport,
    Way,
)
from ringrift.data.transfer.deliveries import DeliveryLedger
from ringrift.data.transfer.limits import BandwidthManager, BothPaces, GateLimits, RatePace, TransferGates
from ringrift.data.transfer.peers import Holdings, SyncStallHandler, TransferHealth
from ringrift.data.transfer.ssh import ProgramMissing
from ringrift.engine.ports import Blobs, KeyValue
from ringrift.errors import ConfigError, Corrupt, RingRiftError, StorageFull, Unavailable
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.runtime import Runtime

log = structlog.get_logger()

NAME = "transfer"
DELIVERIES_OPENED_MAX = 100
BATCH_FILES = 1_000
BATCH_BYTES = 1 << 30
_BYTES_PER_MB = 1_000_000

# For a file of this node that is damaged, and what was found; False if it is sound by now, or gone.
SetAside = Callable[[str, str], Awaitable[bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferConfig:
    """Times in seconds."""

    stall_s: float = 60.0  # without progress, after which the next transport has its turn
    timeout_s_min: float = 120.0  # of one call in all, unless the caller says how long
    timeout_s_per_mb: float = 200.0  # 40 kbit/s; a line that brings nothing is given up long before
    gates: GateLimits = field(default_factory=GateLimits)

    def __post_init__(self) -> None:
        if self.stall_s <= 0 or self.timeout_s_min <= 0 or self.timeout_s_per_mb < 0:
            raise ConfigError("the time limits of a transfer must be above 0")

    def timeout_s(self, size: int, bytes_per_s: float | None) -> float:
        """How long a transfer of that size may take, at a rate that the caller holds it to."""
        at_least_s = self.timeout_s_min / 2 + self.timeout_s_per_mb * size / _BYTES_PER_MB
        held_s = 2 * size / bytes_per_s if bytes_per_s else 0.0
        return max(self.timeout_s_min, at_least_s, held_s)


class TransferService:
    """See the module. One per node and process."""

    capability = "transfer"
    emits = ("SYNC_NODE_UNREACHABLE", "SYNC_STALLED", "SYNC_CHECKSUM_FAILED")

    def __init__(
        self,
        transports: Sequence[Transport],
        nodes: DataNodes,
        blobs: Blobs,
        kv: KeyValue,
        runtime: Runtime,
        *,
        set_aside: SetAside,
        router: UnifiedEventRouter,
        config: TransferConfig | None = None,
    ) -> None:
        self._set_aside = set_aside
        self._transports = {transport.name: transport for transport in transports}
        self._nodes, self._blobs, self._manifest = nodes, blobs, ManifestStore(kv)
        self._runtime, self._router = runtime, router
        self._closing: list[Callable[[], Awaitable[None]]] = []
        self._missing_programs: set[tuple[str, str]] = set()  # (program, where), each said once
        self.config = config or TransferConfig()
        self.health = TransferHealth()
        self.gates = TransferGates(self.config.gates)
        self.bandwidth = BandwidthManager(kv=kv, runtime=runtime, nodes=nodes)
        self.holdings = Holdings(kv, blobs)
        self.ledger = DeliveryLedger(kv=kv, runtime=runtime)
        self.stalls = SyncStallHandler(kv=kv, runtime=runtime)
        self._instance = runtime.new_id()
        self._stalled: set[str] = set()  # nodes that have a record there, as far as this process has seen
        self._decisions = DecisionLog(kv, runtime, node=nodes.this.name)

    async def send(
        self, node: DataNode | str, artifacts: Sequence[Artifact | str], **how: Unpack[MoveOptions]
    ) -> Moved:
        """Bring artifacts of this node (or their digests) to another one.

        What has not arrived at the time-out is among the failed. Raises `ConfigError` (no such node, no way
        to it), `TransferRefused` (not begun), `NodeUnreachable` (no transport got through) or `StorageFull`.
        """
        return await self._move(Way.SEND, node, artifacts, MoveOrder(**how))

    async def fetch(
        self, node: DataNode | str, artifacts: Sequence[Artifact | str], **how: Unpack[MoveOptions]
    ) -> Moved:
        """Bring artifacts of another node here; as `send`. The receipts are this node's own."""
        return await self._move(Way.FETCH, node, artifacts, MoveOrder(**how))

    async def close(self) -> None:
        """End connections that would outlive the process. The next call makes them anew."""
        for close in self._closing:
            await close()
        await self.stalls.forget_async(self._instance)

    def closes(self, close: Callable[[], Awaitable[None]]) -> None:
        """Have *close*, of something that the transports share, called at the end."""
        self._closing.append(close)

    # --- one call -------------------------------------------------------------------------------------

    async def _move(
        self, way: Way, node: DataNode | str, artifacts: Sequence[Artifact | str], order: MoveOrder
    ) -> Moved:
        found, begun_s = self._checked(node), self._runtime.now_s()
        cards, failed = await self._cards(artifacts, way)
        receiver = found.name if way is Way.SEND else self._nodes.this.name
        tally = CallCounts(cards, failed, receiver=receiver, on_progress=order.terms.on_progress)
        if not cards:
            return tally.moved()
        timeout_s = order.timeout_s or self.config.timeout_s(tally.bytes_total, order.limit_bytes_per_s)
        tally.deadline_s = self._runtime.monotonic_s() + timeout_s
        try:
            async with self._admitted(found, tally, order) as pace:
                await self._open_deliveries(way, found, tally)
                try:
                    await self._move_all(way, found, tally, order, pace)
                    await self._learn_from_failures(way, found, tally, begun_s)
                finally:
                    await self._close_deliveries(way, found, tally)
        finally:
            self._announce(found, tally)
        if tally.unreachable:
            wait_s = self.health.track(found.name).wait_s(self._runtime.monotonic_s())
            raise NodeUnreachable(found.name, attempts=tuple(tally.attempts), retry_after_s=max(1.0, wait_s))
        return tally.moved()

    @asynccontextmanager
    async def _admitted(self, node: DataNode, tally: CallCounts, order: MoveOrder) -> AsyncIterator[Pace]:
        """Hold a slot, a share of the line and the right to try, for the length of the block."""
        await self._check_set_aside(node.name)
        async with self.gates.entered(node.name, priority=order.urgency, wait_s=self._left_s(tally)):
            await self._check_set_aside(node.name)  # those before us may have found out
            got = await self.bandwidth.request_async(
                node.name,
                tally.bytes_total / _BYTES_PER_MB,
                order.urgency.value,
                limit_bytes_per_s=order.limit_bytes_per_s,
                wait_s=self._left_s(tally),
            )
            if not got.granted:
                raise TransferRefused(node.name, reason=got.reason, retry_after_s=30.0)
            begun_s = self._runtime.monotonic_s()
            self.health.begins(node.name, now_s=begun_s, for_s=self._left_s(tally))
            try:
                yield BothPaces(RatePace(got.bytes_per_s, self._runtime), order.terms.pace)
            finally:
                self.health.ended(node.name)
                seconds = self._runtime.monotonic_s() - begun_s
                await self.bandwidth.release_async(got.allocation_id, tally.bytes_sent, seconds)

    async def _move_all(
        self, way: Way, node: DataNode, tally: CallCounts, order: MoveOrder, pace: Pace
    ) -> None:
        # In parts, so that what has arrived is written down before all is there.
        ordered = await self._ordered(way, node, list(tally.cards.values()))
        for batch in in_batches(ordered, files_max=BATCH_FILES, bytes_max=BATCH_BYTES):
            if self._left_s(tally) <= 0:
                break
            if not await self._move_batch(way, node, tally, batch, order, pace):
                break  # the node is gone; what is left would only wait for the same
        over = self._left_s(tally) <= 0
        tally.give_up("no time was left" if over else "the node could not be reached")

    async def _move_batch(
        self, way: Way, node: DataNode, tally: CallCounts, batch: list[Artifact], order: MoveOrder, pace: Pace
    ) -> bool:
        """Try the transports in turn; return whether any of them got through to the node."""
        reached, now_s = False, self._runtime.monotonic_s()
        for name in self.health.ranked(node.name, self._reaching(node), now_s=now_s, avoid=order.avoid):
            left = [card for card in batch if card.digest in tally.open]
            if not left or self._left_s(tally) <= 0:
                break
            attempt = Attempt(
                self._transports[name],
                way,
                node,
                tally,
                stall_s=min(self.config.stall_s, order.terms.timeout_s),
                read_again=order.terms.read_again,
            )
            reached = await self._attempted(attempt, left, pace) or reached
            await self._keep_receipts(tally)
        if reached:
            self.health.succeeded(node.name)
            if node.name in self._stalled:
                self._stalled.discard(node.name)
                await self.stalls.record_recovery_async(node.name)
        else:
            tally.node_failed = True
            await self._node_failed(node.name)
        if reached and self._left_s(tally) > 0:
            tally.give_up("no transport brought it there", batch)
        return reached

    async def _attempted(self, attempt: Attempt, left: list[Artifact], pace: Pace) -> bool:
        """Try one transport and note how it did; return whether it got through to the node."""
        node, name, tally = attempt.node.name, attempt.transport.name, attempt.tally
        begun_s, sent = self._runtime.monotonic_s(), tally.bytes_sent
        self.health.begins(node, name, now_s=begun_s, for_s=self._left_s(tally))
        try:
            arrived = await attempt.run(left, pace=pace, left_s=self._left_s(tally))
        except (StorageFull, ConfigError):
            self.health.ended(node, name)  # the way is good; the disk there, or the request, is not
            raise
        except (Unavailable, Corrupt, TimeoutError) as error:
            return self._attempt_failed(attempt, error)
        except BaseException:
            self.health.ended(node, name)
            raise
        now_s = self._runtime.monotonic_s()
        if arrived:
            self.health.succeeded(node, name, bytes_moved=tally.bytes_sent - sent, seconds=now_s - begun_s)
        else:
            self.health.failed(node, name, now_s=now_s)
        return True

    def _attempt_failed(self, attempt: Attempt, error: Exception) -> bool:
        node, name, tally = attempt.node.name, attempt.transport.name, attempt.tally
        why = str(error) or "no time was left"
        tally.attempts.append((name, why))
        self._say_failure(node, name, error, why)
        if attempt.progressed and self._left_s(tally) <= 0:
            self.health.ended(node, name)  # it did its work; the caller had no more time
        else:
            self.health.failed(node, name, now_s=self._runtime.monotonic_s())
        return attempt.progressed

    def _say_failure(self, node: str, transport: str, error: Exception, why: str) -> None:
        if isinstance(error, ProgramMissing):
            if (error.program, error.where) in self._missing_programs:
                return  # it is as missing as it was
            self._missing_programs.add((error.program, error.where))
        log.warning("transfer.attempt_failed", node=node, transport=transport, error=why)

    # --- what it needs --------------------------------------------------------------------------------

    def _left_s(self, tally: CallCounts) -> float:
        return tally.deadline_s - self._runtime.monotonic_s()

    def _checked(self, node: DataNode | str) -> DataNode:
        found = self._nodes[node] if isinstance(node, str) else node
        if found.name == self._nodes.this.name:
            raise ConfigError(f"{found.name} is this node; nothing needs to move")
        if not found.active:
            raise ConfigError(f"node {found.name} is {found.status}: nothing moves to or from it")
        if not self._reaching(found):
            ways = ", ".join(self._transports) or "none"
            raise ConfigError(f"no transport reaches node {found.name} (there are: {ways}); see its entry")
        return found

    def _reaching(self, node: DataNode) -> list[str]:
        return [name for name, transport in self._transports.items() if transport.reaches(node)]

    async def _check_set_aside(self, node: str) -> None:
        """Raise while the node is left alone; afterwards one call at a time finds out whether it is back."""
        stall, now_s = await self.stalls.get_async(node), self._runtime.now_s()
        if stall is not None and not stall.is_over:
            self._stalled.add(node)
            if left_s := stall.left_s(now_s):
                raise TransferRefused(node, reason=stall.reason_now(now_s), retry_after_s=max(1.0, left_s))
        trial_s = self.health.track(node).trial_until_s - self._runtime.monotonic_s()
        if trial_s > 0:
            why = "another transfer finds out whether it is back"
            raise TransferRefused(node, reason=why, retry_after_s=max(1.0, trial_s))

    async def _node_failed(self, node: str) -> None:
        """Count that no transport got through; after several in a row the node is left alone for a while."""
        now_s = self._runtime.monotonic_s()
        if self.health.failed(node, now_s=now_s):
            track = self.health.track(node)
            why = f"it failed {track.breaker.failures} times in a row"
            self._stalled.add(node)
            await self.stalls.record_stall_async(node, why, track.wait_s(now_s), by=self._instance)

    async def _cards(
        self, artifacts: Sequence[Artifact | str], way: Way
    ) -> tuple[list[Artifact], dict[str, str]]:
        """Return the cards of what can go, and why the rest cannot."""
        cards: dict[str, Artifact] = {}
        failed: dict[str, str] = {}
        for item in artifacts:
            digest = item if isinstance(item, str) else item.digest
            card = await self._manifest.artifact(digest) if isinstance(item, str) else item
            if card is None:
                failed[digest] = "the manifest does not know it"
            elif way is Way.SEND and not await self._blobs.has(digest):
                failed[digest] = "this node does not have it"
            else:
                cards[digest] = card
        return list(cards.values()), failed

    async def _ordered(self, way: Way, node: DataNode, cards: list[Artifact]) -> list[Artifact]:
        """Put first what the receiver surely lacks. A hint decides the order, never whether a file goes."""
        if way is Way.FETCH or len(cards) < 2:
            return cards
        return await self.holdings.lacking_first(node.name, cards)

    async def _keep_receipts(self, tally: CallCounts) -> None:
        """Write what arrived into the manifest: the card first, so that no copy is of something unknown."""
        new, unknown = tally.take_receipts(), list[Artifact]()

        async def look(receipt: Receipt) -> None:
            if await self._manifest.artifact(receipt.digest) is None:
                unknown.append(tally.cards[receipt.digest])

        await for_each(new, look)
        await for_each(unknown, lambda card: self._manifest.register([card]))
        await for_each(new, lambda receipt: self._manifest.add_receipts([receipt]))

    async def _learn_from_failures(self, way: Way, node: DataNode, tally: CallCounts, begun_s: float) -> None:
        """Strike copies that are not there, and look at our own where other bytes than expected arrived.

        What cannot be learned now is learned at the next failure; it never takes the place of the result.
        """
        try:
            gone = f"{node.name} said that it does not have it"
            await self._strike(node, tally, tally.not_there(), gone, begun_s)
            if way is Way.SEND:
                await self._look_at_own(tally)
            else:
                wrong = f"other bytes came from {node.name}"
                await self._strike(node, tally, tally.came_wrong(), wrong, begun_s)
        except (Corrupt, Unavailable) as error:
            log.warning("transfer.nothing_learned", node=node.name, error=str(error))

    async def _strike(
        self, node: DataNode, tally: CallCounts, digests: Iterable[str], why: str, begun_s: float
    ) -> None:
        for digest in digests:
            if self._left_s(tally) <= 0:
                return
            # Another process may have brought it there while this call ran.
            if await self._manifest.drop_copy_read_before(begun_s, digest, node.name):
                log.warning("transfer.copy_gone", node=node.name, digest=digest, why=why)
                await self._decisions.record(NAME, "struck", why, digest=digest)

    async def _look_at_own(self, tally: CallCounts) -> None:
        for digest in await self._perhaps_damaged(tally):
            if self._left_s(tally) <= 0:
                return
            try:
                await self._blobs.verify(digest)
            except Corrupt as error:
                if await self._set_aside(digest, f"found damaged while it was sent: {error.found}"):
                    tally.explain(digest, "the file here is damaged, and was set aside")
            except KeyError:
                tally.explain(digest, "this node does not have it any more")

    async def _perhaps_damaged(self, tally: CallCounts) -> list[str]:
        """Return what came wrong, and what failed in any way and has another length than its card says."""
        suspects = set(tally.came_wrong())
        for card in tally.failed():
            if await self._blobs.size(card.digest) not in (None, card.size):
                suspects.add(card.digest)
        return sorted(suspects)

    async def _open_deliveries(self, way: Way, node: DataNode, tally: CallCounts) -> None:
        # Of a long list only the ends are written down: one write a file instead of two.
        if way is Way.SEND and len(tally.cards) <= DELIVERIES_OPENED_MAX:
            await for_each(
                tally.cards.values(),
                lambda card: self.ledger.record_delivery_started(
                    card.kind.value,
                    card.digest,
                    node.name,
                    checksum=card.digest,
                    size=card.size,
                    source_node=self._nodes.this.name,
                ),
            )

    async def _close_deliveries(self, way: Way, node: DataNode, tally: CallCounts) -> None:
        if way is Way.SEND:
            tally.give_up("the transfer was broken off")
            this = self._nodes.this.name
            try:
                await for_each(
                    list(tally.results()),
                    lambda ended: self.ledger.end(*ended, source_node=this, target_node=tally.receiver),
                )
            except Unavailable as error:  # what was moved is worth more than the note of it
                log.warning("transfer.deliveries_not_noted", node=node.name, error=str(error))

    def _announce(self, node: DataNode, tally: CallCounts) -> None:
        for event, payload in tally.reports(self._nodes.this.name, node.name):
            try:
                # Not waited for: whoever hears it may ask for the next transfer, which waits for this one.
                self._router.publish_sync(event, payload, NAME)
            except RingRiftError as error:
                log.error("transfer.announcement_lost", transfer_event=event, error=str(error))
