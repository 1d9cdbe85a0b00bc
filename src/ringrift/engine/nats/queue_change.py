"""What has not ended of a queue on JetStream, and a change of it that is stored as one batch.

The rules of the queue are here: what a claim, an end or a cancellation means for an item and for those that
wait for it.
"""

from __future__ import annotations

import asyncio
import copy
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
import structlog

from ringrift.engine.nats.kv import NatsKeyValue
from ringrift.engine.nats.stream import GONE, PAGE, TTL, Stream, Write
from ringrift.engine.nats.work_items import Item, QueueHead, WorkPlaces, decoded, settle_by_needs
from ringrift.engine.ports import Entry, WorkState, WriteGuard
from ringrift.engine.waiting import ENDS, QUEUE
from ringrift.engine.work_rules import (
    ENDED,
    HOLDS,
    LEASE_RAN_OUT,
    WORK_LEASES,
    HeldWork,
    lost_because,
    why_dependents_die,
)
from ringrift.errors import Corrupt, LeaseLost, RingRiftError
from ringrift.runtime import Runtime

T = TypeVar("T")

GONE_KEPT_S = 3_600.0  # a copy that was not renewed for half of it is read anew
RENEWED_S = GONE_KEPT_S / 2

log = structlog.get_logger()


class QueueCopy:
    """What has not ended, as of the head with the number *head_seq*."""

    def __init__(self, stream: Stream, kv: NatsKeyValue, runtime: Runtime, places: WorkPlaces) -> None:
        self._stream, self._kv, self._runtime, self.places = stream, kv, runtime, places
        self.items: dict[str, Item] = {}
        self._ids: dict[str, str] = {}  # by subject
        self.head = QueueHead()
        self.head_seq = 0
        self.seq = 0  # up to which changes of items are known
        self.holds: list[Entry] = []
        self.holds_seq = -1
        self.is_renewed = True  # something may have been stored in parts, of which the last were not
        self._read_s = -math.inf
        self.lock = (
            asyncio.Lock()
        )  # from reading to deciding, and from deciding to storing, nobody else reads

    def put(self, subject: str, item: Item | None) -> None:
        """What stands under *subject* by now; None: it ended."""
        if item is not None:
            self.items[item.id], self._ids[subject] = item, item.id
        elif (item_id := self._ids.pop(subject, None)) is not None:
            self.items.pop(item_id, None)

    def held_work(self, now_s: float) -> HeldWork:
        """What is not to be handed out."""
        alive = [each for each in self.holds if each.expires_s is None or each.expires_s > now_s]
        return HeldWork.by(entry.key for entry in alive)

    def next_due_s(self, now_s: float) -> float | None:
        """When a lease, a delay or a hold ends by itself."""
        items = self.items.values()
        leases = [item.lease_until_s for item in items if item.lease_until_s is not None]
        delays = [
            item.not_before_s for item in items if item.state is WorkState.READY and item.not_before_s > now_s
        ]
        holds = [entry.expires_s for entry in self.holds if entry.expires_s and entry.expires_s > now_s]
        return min([*leases, *delays, *holds], default=None)

    async def item_of_key(self, key: str) -> str | None:
        stored = await self._stream.get(self.places.key(key))
        return None if stored is None or stored.is_gone else stored.data.decode()

    async def sync(self) -> bool:
        """Bring the copy up to date; return whether it had not been. Whoever calls it has the lock."""
        moved, now_s = False, self._runtime.boot_s()  # which goes on while the machine sleeps
        if now_s - self._read_s > RENEWED_S:
            self.renew()
        while True:
            head, holds = await asyncio.gather(
                self._stream.get(self.places.head), self._stream.get(self.places.holds)
            )
            head_seq, holds_seq = 0 if head is None else head.seq, 0 if holds is None else holds.seq
            if holds_seq != self.holds_seq:
                self.holds = await self._kv.read(HOLDS, WORK_LEASES)
                self.holds_seq, moved = holds_seq, True
            if head_seq == self.head_seq:
                self._read_s = now_s
                return moved
            await self._read_items()
            self.head, self.head_seq = QueueHead() if head is None else decoded(head, QueueHead), head_seq
            moved = True

    def renew(self) -> None:
        """Have everything read anew: what is known may lack the end of an item."""
        self.items, self._ids, self.seq, self.head_seq = {}, {}, 0, -1
        self._read_s = self._runtime.boot_s()  # what is read from here on is not older
        self.is_renewed = True

    def stored(self, head: QueueHead, head_seq: int, last: int) -> None:
        """A batch of ours up to number *last* was stored, and nobody's else before it."""
        self.head, self.head_seq, self.seq, self._read_s = head, head_seq, last, self._runtime.boot_s()

    async def _read_items(self) -> None:
        complete = False
        while not complete:
            page = await self._stream.page(self.places.unended, after=self.seq, limit=PAGE)
            for stored in page.messages:
                try:
                    self.put(stored.subject, None if stored.is_gone else decoded(stored, Item))
                except Corrupt as error:  # it must not keep all others from being handed out
                    log.critical("engine.nats.item_damaged", error=str(error))
                    self.put(stored.subject, None)
            self.seq, complete = max(self.seq, page.seq), page.complete

    async def ended_item(self, item_id: str) -> Item | None:
        page = await self._stream.page(self.places.ended(item_id=item_id), after=0, limit=9)
        newest = {stored.subject: stored for stored in page.messages}
        found = [decoded(stored, Item) for stored in newest.values() if not stored.is_gone]
        return found[-1] if found else None


class QueueChange:
    """What some calls together change; nothing of a call that raises remains."""

    def __init__(self, copied: QueueCopy, now_s: float) -> None:
        self._copy = copied
        self.now_s = now_s
        self.head = copy.deepcopy(copied.head)
        self.changed: dict[str, Item] = {}
        self.before: dict[str, WorkState | None] = {}  # of what changed: its state so far; None: it is new
        self.apart: dict[str, bytes] = {}  # subject: large content
        self.keys: dict[str, str] = {}  # idempotency key: item, of new ones
        self.dropped: list[Item] = []
        self.guards: list[WriteGuard] = []
        self.asks_holds = False
        self.topics: set[str] = set()
        self.expired = 0
        self._own: set[str] = set()
        self._looked: dict[str, Item | None] = {}  # ended items

    async def attempt(self, operation: Operation[T]) -> T | RingRiftError:
        """The result, or the error of a call that was refused."""
        before = (
            copy.deepcopy(self.head),
            dict(self.changed),
            dict(self.before),
            dict(self.apart),
            dict(self.keys),
            list(self.dropped),
        )
        self._own = set()
        try:
            return await operation(self)
        except RingRiftError as error:
            # Its guard stays a condition: who lost a role is to hear that, and nothing else.
            self.head, self.changed, self.before, self.apart, self.keys, self.dropped = before
            return error

    # --- what there is --------------------------------------------------------------------------------------

    def unended(self) -> list[Item]:
        found = self._copy.items | self.changed if self.changed else self._copy.items
        return [item for item in found.values() if item.state not in ENDED]

    async def find(self, item_id: str) -> Item | None:
        """An item, ended or not."""
        if any(item.id == item_id for item in self.dropped):
            return None
        found = self.changed.get(item_id) or self._copy.items.get(item_id)
        if found is None:
            if item_id not in self._looked:
                self._looked[item_id] = await self._copy.ended_item(item_id)
            found = self._looked[item_id]
        return found

    async def item_of_key(self, key: str) -> str | None:
        if key in self.keys:
            return self.keys[key]
        if any(item.key == key for item in self.dropped):
            return None
        return await self._copy.item_of_key(key)

    async def held(self, item_id: str, token: int) -> Item:
        item = await self.find(item_id)
        if item is None or item.state is not WorkState.CLAIMED or item.token != token:
            found = None if item is None else (item.state, item.token)
            raise LeaseLost(item_id, token=token, reason=lost_because(token, found))
        return self.edit(item)

    # --- changing it ----------------------------------------------------------------------------------------

    def edit(self, item: Item) -> Item:
        """The copy of *item* that this call may change."""
        if item.id in self._own:
            return self.changed[item.id]
        self._own.add(item.id)
        self.before.setdefault(item.id, item.state)
        self.changed[item.id] = copy.copy(item)
        return self.changed[item.id]

    def add(self, item: Item) -> None:
        self._own.add(item.id)
        self.before[item.id] = None
        self.changed[item.id] = item
        self.topics.add(QUEUE)
        if item.key is not None:
            self.keys[item.key] = item.id
        if item.state in ENDED:
            self.topics.add(ENDS)

    def move(self, item: Item, state: WorkState) -> None:
        item.state, item.changed_s = state, self.now_s
        if state in ENDED:
            self.changed[item.id] = self.changed.pop(item.id)  # ends are stored in their order
            self.topics.add(ENDS)

    def end_claim(self, item: Item, state: WorkState) -> None:
        item.holder, item.lease_until_s = None, None
        self.move(item, state)

    def end_attempt(self, item: Item, *, final: bool = False) -> None:
        spent = final or item.attempts >= item.attempts_max
        self.end_claim(item, WorkState.DEAD if spent else WorkState.READY)
        if spent:
            self.kill_dependents(item)
        self.topics.add(QUEUE)

    def _dependents(self, item_id: str) -> list[Item]:
        return [
            each for each in self.unended() if each.state is WorkState.BLOCKED and item_id in each.waits_for
        ]

    def free_dependents(self, done: Item) -> None:
        for other in map(self.edit, self._dependents(done.id)):
            other.waits_for = tuple(name for name in other.waits_for if name != done.id)
            other.changed_s = self.now_s
            if not other.waits_for:
                other.state = WorkState.READY
            self.topics.add(QUEUE)

    def kill_dependents(self, ended: Item) -> None:
        # A list and no recursion: a chain of needs may be long.
        doomed = [ended]
        while doomed:
            needed = doomed.pop()
            for other in map(self.edit, self._dependents(needed.id)):
                other.error = why_dependents_die(needed.id, needed.state)
                self.move(other, WorkState.DEAD)
                doomed.append(other)

    async def settle_left(self) -> None:
        """Free, or end, what waits for something whose end was stored without it."""
        items = self.unended()
        there = {item.id for item in items}
        for left in items:
            if left.state is not WorkState.BLOCKED or there.issuperset(left.waits_for):
                continue
            needs = [need for name in left.after if (need := await self.find(name)) is not None]
            item = self.edit(left)
            item.changed_s = self.now_s
            settle_by_needs(item, needs)
            if item.state is WorkState.DEAD:
                self.move(item, WorkState.DEAD)
                self.kill_dependents(item)
            self.topics.add(QUEUE)

    def expire(self) -> None:
        """End the leases that ran out, before anybody asks for anything."""
        due = [
            item
            for item in self.unended()
            if item.lease_until_s is not None and item.lease_until_s <= self.now_s
        ]
        for item in map(self.edit, due):
            item.error = LEASE_RAN_OUT
            self.end_attempt(item)
        self.expired = len(due)

    # --- writing it down ------------------------------------------------------------------------------------

    def groups(self) -> list[WriteGroup]:
        """What is to be stored behind the head; what belongs to one item is stored together."""
        places, found = self._copy.places, []
        gone = {GONE: "moved", TTL: f"{math.ceil(GONE_KEPT_S)}s"}
        for item in self.changed.values():
            was, group = self.before[item.id], WriteGroup(item)
            large = [place for place in places.apart(item) if place in self.apart]
            group.writes += [Write(place, self.apart[place]) for place in large]
            if was is not None and (was in ENDED or item.state in ENDED):
                group.writes.append(Write(places.item(item.id, was), b"", gone))
            group.ended = int(item.state in ENDED)
            if was is not None and was in ENDED:
                group.revived = was
            if item.key is not None and self.keys.get(item.key) == item.id:
                group.writes.append(Write(places.key(item.key), item.id.encode()))
            group.writes.append(Write(places.item(item.id, item.state), msgspec.json.encode(item)))
            found.append(group)
        for item in self.dropped:
            group = WriteGroup(item, ended=-1)
            group.writes.append(Write(places.item(item.id, item.state), b"", gone))
            if item.key is not None:
                group.writes.append(Write(places.key(item.key), b"", gone))
            group.writes += [Write(place, b"", gone) for place in places.apart(item)]
            found.append(group)
        return found


@dataclass(slots=True)
class WriteGroup:
    """The messages of one item, and how it changes the numbers of ended ones."""

    item: Item
    ended: int = 0  # 1: it ends; -1: it is dropped
    revived: WorkState | None = None  # the end that it had
    writes: list[Write] = field(default_factory=list)

    def count(self, head: QueueHead) -> None:
        if self.revived is not None:
            _add_to(head, self.item.kind, self.revived, -1)
        if self.ended:
            _add_to(head, self.item.kind, self.item.state, self.ended)


def _add_to(head: QueueHead, kind: str, state: WorkState, more: int) -> None:
    by_state = head.ended.setdefault(kind, {})
    by_state[state] = by_state.get(state, 0) + more
    if not by_state[state]:
        del by_state[state]


Operation = Callable[[QueueChange], Awaitable[T]]
