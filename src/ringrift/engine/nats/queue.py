"""The work queue on JetStream: the rules run here, on a copy of what has not ended; the server decides who
was first.

Each change is a batch that the server stores whole or not at all, and only if nobody changed the queue since
the copy was read: every batch replaces the head, whose number it names. So whoever decided by an old copy
reads what is new and decides again. Calls of one process that come together share a batch.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, TypeVar

import msgspec

from ringrift.engine import arguments as check
from ringrift.engine.encoding import decode_json, encode_json, encode_trace
from ringrift.engine.nats.kv import NatsKeyValue, NatsStore
from ringrift.engine.nats.link import CLOSED
from ringrift.engine.nats.queue_change import Operation, QueueChange, QueueCopy, WriteGroup
from ringrift.engine.nats.stream import BATCH_MAX, PAGE, ConditionFailed, Write, damaged
from ringrift.engine.nats.work_items import (
    NOTHING,
    Item,
    QueueHead,
    WorkPlaces,
    decoded,
    first_dead,
    settle_by_needs,
)
from ringrift.engine.ports import (
    Claim,
    Claimant,
    Completion,
    EndedWork,
    Json,
    NewWork,
    WorkItem,
    WorkState,
    WriteGuard,
)
from ringrift.engine.waiting import ENDS, QUEUE
from ringrift.engine.work_rules import (
    ENDED,
    PAYLOAD_DAMAGED,
    no_such_item,
    not_dead,
    still_needs_dead,
    unknown_dependency,
)
from ringrift.errors import AlreadyExists, ConfigError, Corrupt, LeaseLost, RingRiftError, Unavailable
from ringrift.task_owner import TaskOwner

T = TypeVar("T")

APART_BYTES = 200_000  # a payload or result of more lies beside its item
ITEM_BYTES_MAX = 400_000  # without its payload; an error of the largest size still fits into its message
ROOM = BATCH_MAX - 20  # for messages beside the head, guards and holds
CLAIMS_AT_ONCE = ROOM // 2  # fewer than asked for is allowed, and they are stored together
TRIES = 100
CLOSE_S_MAX = 2.0
CALLS_AT_ONCE = 200
TRIM_SHARE = 0.01
DROPPED_AT_ONCE = 200


class _Again(Enum):
    """Why calls have to be decided again."""

    MOVED = auto()  # by what others changed
    FRESH = auto()  # by a copy that is known to be up to date
    IN_HALVES = (
        auto()
    )  # more than one batch holds: only a call that is too large by itself is stored in parts


@dataclass(slots=True, eq=False)
class _Call:
    operation: Operation[Any]
    answer: asyncio.Future[Any]


class NatsWorkQueue:
    """See `WorkQueue`."""

    def __init__(self, store: NatsStore, kv: NatsKeyValue) -> None:
        self._store, self._kv, self._stream = store, kv, store.stream
        self._places = WorkPlaces(f"{store.prefix}.w")
        self._copy = QueueCopy(store.stream, kv, store.runtime, self._places)
        self._trim_at_s = -math.inf
        self._waiting: list[_Call] = []
        self._turn = asyncio.Lock()
        self._tasks = TaskOwner("changes of the queue")

    # --- reading what there is ------------------------------------------------------------------------------

    async def _view(self, item: Item) -> WorkItem:
        now_s = self._store.clock.now_s()
        is_early = item.state is WorkState.READY and item.not_before_s > now_s
        result = await self._result(item)
        return WorkItem(
            id=item.id,
            kind=item.kind,
            payload=decode_json(item.id, await self._payload(item)),
            state=item.state,
            priority=item.priority,
            attempts=item.attempts,
            attempts_max=item.attempts_max,
            holder=item.holder,
            token=item.token,
            lease_until_s=item.lease_until_s,
            result=None if result is None else decode_json(item.id, result),
            error=item.error,
            added_s=item.added_s,
            changed_s=item.changed_s,
            group=item.group,
            requires=item.requires,
            node=item.node,
            not_before_s=item.not_before_s if is_early else None,
            waits_for=tuple(sorted(set(item.waits_for))) if item.state is WorkState.BLOCKED else (),
        )

    async def _payload(self, item: Item) -> bytes:
        if item.payload_apart:
            return await self._content(self._places.payload(item.id))
        return bytes(item.payload)

    async def _result(self, item: Item) -> bytes | None:
        if item.result_apart:
            return await self._content(self._places.result(item.id))
        found = bytes(item.result)
        return None if found == bytes(NOTHING) else found

    async def _content(self, apart: str) -> bytes:
        stored = await self._stream.get(apart)
        if stored is None or stored.is_gone:
            raise damaged(apart, "a large content is missing")
        return stored.data

    # --- changing it ----------------------------------------------------------------------------------------

    async def _change(self, operation: Operation[T]) -> T:
        """Have *operation* take effect, or none of it; on the loop of the connection."""

        async def work() -> T:
            if self._tasks.is_stopped:
                raise Unavailable(CLOSED)
            call = _Call(operation, asyncio.get_running_loop().create_future())
            self._waiting.append(call)
            self._begin_rounds()
            answer: T = await call.answer
            return answer

        return await self._store.call(work)

    def _begin_rounds(self) -> None:
        if not self._turn.locked() and not self._tasks.is_stopped:
            self._tasks.create_task(self._rounds())

    async def _rounds(self) -> None:
        if self._turn.locked():
            return
        try:
            async with self._turn:
                while self._waiting:
                    calls, self._waiting = self._waiting[:CALLS_AT_ONCE], self._waiting[CALLS_AT_ONCE:]
                    try:
                        await self._round(calls)
                    except RingRiftError as error:
                        _refuse(calls, error)
                    finally:
                        _refuse(calls, Unavailable("the change was broken off; it may still take effect"))
        finally:
            if self._waiting:  # a defect ended this; the next calls are not to wait for it
                self._begin_rounds()

    async def _round(self, calls: Sequence[_Call]) -> None:
        is_fresh = False
        for _ in range(TRIES):
            calls = [call for call in calls if not call.answer.done()]  # whoever gave up gets nothing
            async with self._copy.lock:
                found = await self._try(calls, is_fresh=is_fresh)
            if found is _Again.IN_HALVES:
                half = len(calls) // 2
                await self._round(calls[:half])
                await self._round(calls[half:])
                return
            if not isinstance(found, _Again):
                _answer(calls, found)
                return
            is_fresh = found is _Again.FRESH
        raise Unavailable("the queue is changed by others all the time", retry_after_s=1.0)

    async def _try(self, calls: Sequence[_Call], *, is_fresh: bool) -> list[Any] | _Again:
        """What each call came to, once it is stored; or why all have to be decided again."""
        if is_renewed := self._copy.is_renewed:
            await self._copy.sync()  # to settle what a cut change left, all has to be known
        change = QueueChange(self._copy, self._store.clock.now_s())
        if not await self._prepare(change):
            return _Again.MOVED
        outcomes = [await change.attempt(call.operation) for call in calls]
        groups = change.groups()
        room = BATCH_MAX - 2 - len(set(change.guards))
        if len(calls) > 1 and sum(len(group.writes) for group in groups) > room:
            return _Again.IN_HALVES
        # A batch that is stored proves that the copy was up to date; without one it has to be asked.
        if not groups and not is_fresh:
            self._kv.forget(*change.guards)
            if await self._copy.sync() or change.guards:
                return _Again.FRESH
        try:
            await self._commit(change, groups)
        except ConditionFailed:
            self._kv.forget(*change.guards)
            await self._copy.sync()
            return _Again.MOVED
        if is_renewed:
            self._copy.is_renewed = False
        return outcomes

    async def _prepare(self, change: QueueChange) -> bool:
        """What is due before any call; False if it was so much that it was stored by itself."""
        change.expire()
        if self._copy.is_renewed:
            await change.settle_left()
        if len(change.changed) <= ROOM // 2:
            return True
        try:
            await self._commit(change, change.groups())
            self._copy.is_renewed = False
        except ConditionFailed:
            await self._copy.sync()
        return False

    async def _commit(self, change: QueueChange, groups: Sequence[WriteGroup]) -> None:
        """Store what changed. After the first of several batches nothing can be decided again."""
        copied, prefix = self._copy, self._store.prefix
        around = [
            self._kv.condition(guard, f"guard{n}") for n, guard in enumerate(dict.fromkeys(change.guards))
        ]
        if change.asks_holds:
            holds_seq = max(0, copied.holds_seq)
            around.append(Write(f"{prefix}.c.holds", expected=holds_seq, of=self._places.holds))
        for number, part in enumerate(_parts(groups, BATCH_MAX - 1 - len(around))):
            head = msgspec.structs.replace(
                change.head, ended={kind: dict(by_state) for kind, by_state in copied.head.ended.items()}
            )
            for group in part:
                group.count(head)
            writes = [write for group in part for write in group.writes]
            numbers = Write(self._places.head, msgspec.json.encode(head), expected=copied.head_seq)
            try:
                last = await self._stream.write(numbers, *around, *writes)
            except (ConditionFailed, Unavailable) as error:
                if number:
                    copied.renew()
                    self._store.announce(*change.topics, QUEUE, ENDS)
                    why = "others changed the queue" if isinstance(error, ConditionFailed) else str(error)
                    raise Unavailable(f"a part of the change is stored, and the rest is not: {why}") from None
                raise
            copied.stored(head, last - len(around) - len(writes), last)
            for group in part:
                item = group.item
                copied.put(self._places.item(item.id, WorkState.READY), None if item.state in ENDED else item)
        if change.topics:
            self._store.announce(*change.topics)

    # --- adding ---------------------------------------------------------------------------------------------

    async def add(self, items: Sequence[NewWork], *, guard: WriteGuard | None = None) -> list[str]:
        encoded = _encoded(items, guard)

        async def operation(change: QueueChange) -> list[str]:
            await self._guarded(change, guard)
            return await self._add(change, items, encoded)

        return await self._change(operation)

    async def _guarded(self, change: QueueChange, guard: WriteGuard | None) -> None:
        if guard is not None:
            await self._kv.require(guard)
            change.guards.append(guard)

    async def _add(
        self, change: QueueChange, items: Sequence[NewWork], encoded: Sequence[tuple[bytes, bytes]]
    ) -> list[str]:
        ids: list[str] = []
        for new, (payload, trace) in zip(items, encoded, strict=True):
            key = new.idempotency_key
            known = None if key is None else await change.item_of_key(key)
            if known is not None:
                ids.append(known)
                continue
            item_id = new.id or self._store.runtime.new_id()
            if new.id is not None and await change.find(new.id) is not None:
                raise AlreadyExists(item_id)
            needs = []
            for name in new.after:
                if (need := await change.find(name)) is None:
                    raise unknown_dependency(item_id, name)
                needs.append(need)
            change.head.seq += 1
            inline = len(payload) <= APART_BYTES
            if not inline:
                change.apart[self._places.payload(item_id)] = payload
            item = Item(
                seq=change.head.seq,
                id=item_id,
                kind=new.kind,
                state=WorkState.READY,
                payload=msgspec.Raw(payload) if inline else NOTHING,
                payload_apart=not inline,
                trace=msgspec.Raw(trace),
                attempts_max=new.attempts_max,
                not_before_s=change.now_s + new.delay_s,
                added_s=change.now_s,
                changed_s=change.now_s,
                priority=new.priority,
                requires=new.requires,
                node=new.node,
                group=new.group,
                after=new.after,
                key=key,
            )
            settle_by_needs(item, needs)
            size = len(msgspec.json.encode(item)) - len(item.payload)
            if size > ITEM_BYTES_MAX:
                raise ConfigError(
                    f"{item_id} has {size} bytes beside its payload; at most {ITEM_BYTES_MAX} fit"
                )
            change.add(item)
            ids.append(item_id)
        return ids

    # --- handing out ----------------------------------------------------------------------------------------

    async def claim(
        self, claimant: Claimant, *, lease_s: float, limit: int = 1, wait_s: float = 0.0
    ) -> list[Claim]:
        check.check_claim(claimant, lease_s, limit, wait_s)

        async def operation(change: QueueChange) -> tuple[list[Claim] | None, float | None]:
            claims = await self._claim(change, claimant, lease_s, limit)
            return claims or None, None if claims else self._copy.next_due_s(change.now_s)

        async def look() -> tuple[list[Claim] | None, float | None]:
            return await self._change(operation)

        return await self._store.wait(look, topic=QUEUE, timeout_s=wait_s) or []

    async def _claim(
        self, change: QueueChange, claimant: Claimant, lease_s: float, limit: int
    ) -> list[Claim]:
        now_s = change.now_s
        change.asks_holds = True
        held = self._copy.held_work(now_s)
        fitting = [item for item in change.unended() if item.fits(claimant, now_s, held)]
        fitting.sort(key=lambda item: (-item.priority, item.seq))
        if not fitting:
            return []
        change.head.token += 1
        claims = []
        for item in map(change.edit, fitting[: min(limit, CLAIMS_AT_ONCE)]):
            try:
                payload = decode_json(item.id, await self._payload(item))
            except Corrupt:
                item.error = PAYLOAD_DAMAGED
                change.end_claim(item, WorkState.DEAD)
                change.kill_dependents(item)
                continue
            item.attempts += 1
            item.holder, item.token = claimant.worker, change.head.token
            item.lease_until_s = now_s + lease_s
            change.move(item, WorkState.CLAIMED)
            claims.append(
                Claim(
                    id=item.id,
                    kind=item.kind,
                    payload=payload,
                    token=item.token,
                    attempt=item.attempts,
                    lease_until_s=item.lease_until_s,
                    trace=decode_json(item.id, bytes(item.trace)),
                )
            )
        return claims

    # --- under a claim --------------------------------------------------------------------------------------

    async def renew(self, item_id: str, *, token: int, lease_s: float) -> float:
        check.check_held(item_id, token)
        check.check_lease(lease_s)

        async def operation(change: QueueChange) -> float:
            item = await change.held(item_id, token)
            item.lease_until_s = change.now_s + lease_s
            return item.lease_until_s

        return await self._change(operation)

    async def complete(self, item_id: str, *, token: int, result: Json | None = None) -> None:
        check.check_held(item_id, token)
        text = encode_json("result", {} if result is None else result)

        async def operation(change: QueueChange) -> None:
            self._complete(change, await change.held(item_id, token), text)

        await self._change(operation)

    async def complete_many(self, done: Sequence[Completion]) -> list[str]:
        check.check_completions(done)
        texts = [encode_json("result", completion.result) for completion in done]
        check.check_call_size("results", map(len, texts))

        async def operation(change: QueueChange) -> list[str]:
            refused = []
            for completion, text in zip(done, texts, strict=True):
                try:
                    item = await change.held(completion.id, completion.token)
                except LeaseLost:
                    refused.append(completion.id)
                else:
                    self._complete(change, item, text)
            return refused

        return await self._change(operation)

    def _complete(self, change: QueueChange, item: Item, result: bytes) -> None:
        item.result_apart = len(result) > APART_BYTES
        item.result = NOTHING if item.result_apart else msgspec.Raw(result)
        if item.result_apart:
            change.apart[self._places.result(item.id)] = result
        item.error = None
        change.end_claim(item, WorkState.DONE)
        change.free_dependents(item)

    async def fail(
        self, item_id: str, *, token: int, error: str, retry_after_s: float = 0.0, final: bool = False
    ) -> WorkState:
        check.check_failure(item_id, token, error, retry_after_s=retry_after_s, final=final)

        async def operation(change: QueueChange) -> WorkState:
            item = await change.held(item_id, token)
            item.error = error
            item.not_before_s = change.now_s + retry_after_s
            change.end_attempt(item, final=final)
            return item.state

        return await self._change(operation)

    async def release(self, item_id: str, *, token: int) -> None:
        check.check_held(item_id, token)

        async def operation(change: QueueChange) -> None:
            item = await change.held(item_id, token)
            item.attempts -= 1  # the claim counted it
            change.end_claim(item, WorkState.READY)
            change.topics.add(QUEUE)

        await self._change(operation)

    # --- by whoever ordered it ------------------------------------------------------------------------------

    async def cancel(self, item_id: str, *, reason: str, guard: WriteGuard | None = None) -> bool:
        check.check_cancel(item_id, reason)
        _check_guard(guard)

        async def operation(change: QueueChange) -> bool:
            await self._guarded(change, guard)
            return await self._cancel(change, item_id, reason)

        return await self._change(operation)

    async def _cancel(self, change: QueueChange, item_id: str, reason: str) -> bool:
        found = await change.find(item_id)
        if found is None or found.state in ENDED:
            return False
        item = change.edit(found)
        item.error = reason
        change.end_claim(item, WorkState.CANCELLED)
        change.kill_dependents(item)
        return True

    async def replace(
        self, item_id: str, new: NewWork, *, reason: str, guard: WriteGuard | None = None
    ) -> str | None:
        check.check_cancel(item_id, reason)
        encoded = _encoded([new], guard)

        async def operation(change: QueueChange) -> str | None:
            await self._guarded(change, guard)
            found = await change.find(item_id)
            if found is None or found.state in ENDED:
                return None
            if new.id is not None and await change.find(new.id) is not None:
                raise AlreadyExists(new.id)
            await self._cancel(change, item_id, reason)
            return (await self._add(change, [new], encoded))[0]

        return await self._change(operation)

    async def revive(self, item_id: str, *, guard: WriteGuard | None = None) -> None:
        check.check_text("item id", item_id)
        _check_guard(guard)

        async def operation(change: QueueChange) -> None:
            await self._guarded(change, guard)
            found = await change.find(item_id)
            if found is None:
                raise no_such_item(item_id)
            if found.state is not WorkState.DEAD:
                raise not_dead(item_id, found.state)
            needs = [need for name in found.after if (need := await change.find(name)) is not None]
            item = change.edit(found)
            item.attempts, item.error, item.not_before_s = 0, None, change.now_s
            item.changed_s = change.now_s
            settle_by_needs(item, needs)
            if item.state is WorkState.DEAD:
                dead = first_dead(needs)
                raise still_needs_dead(item_id, dead.id, dead.state)
            change.topics.add(QUEUE)

        await self._change(operation)

    async def expire(self) -> int:
        async def operation(change: QueueChange) -> int:
            return change.expired

        count = await self._change(operation)
        await self._trim()
        return count

    async def _trim(self) -> None:
        """Drop what ended long ago; every now and then, whoever comes by."""
        limits, now_s = self._stream.link.config.limits, self._store.clock.now_s()
        if now_s < self._trim_at_s:
            return
        self._trim_at_s = now_s + min(limits.finished_retention_s, limits.dead_retention_s) * TRIM_SHARE
        while await self._change(self._drop_some) == DROPPED_AT_ONCE:
            continue

    async def _drop_some(self, change: QueueChange) -> int:
        """Drop of what ended first what is past its time, or too much; return how many went."""
        limits = self._stream.link.config.limits
        excess = change.head.items_ended() + len(self._copy.items) - limits.work_rows_max
        taken = {*self._copy.items, *change.changed, *(each.id for each in change.dropped)}
        for state in ENDED:  # each by itself: dead items are kept longer, and stand before the others
            page = await self._stream.page(self._places.ended(state.value), after=0, limit=PAGE)
            is_dead = state is WorkState.DEAD
            kept_s = limits.dead_retention_s if is_dead else limits.finished_retention_s
            for stored in page.messages:
                if stored.is_gone or len(change.dropped) >= DROPPED_AT_ONCE:
                    continue
                item = decoded(stored, Item)
                is_due = item.changed_s < change.now_s - kept_s or len(change.dropped) < excess
                if not is_due or item.id in taken:
                    continue
                # A server that lags behind shows what is gone, or lives again, by now.
                newest = await self._stream.get(stored.subject)
                if newest is not None and newest.seq == stored.seq:
                    taken.add(item.id)
                    change.dropped.append(item)
        return len(change.dropped)

    # --- looking --------------------------------------------------------------------------------------------

    async def _current(self) -> list[Item]:
        """What has not ended, as of now."""

        async def work() -> tuple[list[Item], bool]:
            async with self._copy.lock:
                await self._copy.sync()
                items, now_s = list(self._copy.items.values()), self._store.clock.now_s()
            due = any(each.lease_until_s is not None and each.lease_until_s <= now_s for each in items)
            return items, due or now_s >= self._trim_at_s

        items, has_upkeep = await self._store.call(work)
        if has_upkeep:
            await self.expire()
            items, _ = await self._store.call(work)
        return items

    async def _views(self, items: Iterable[Item], limit: int) -> list[WorkItem]:
        chosen = list(items)[:limit]

        async def work() -> list[WorkItem]:
            return [await self._view(item) for item in chosen]

        return await self._store.call(work)

    async def get(self, item_id: str) -> WorkItem | None:
        check.check_text("item id", item_id)
        known = {item.id: item for item in await self._current()}

        async def work() -> WorkItem | None:
            item = known.get(item_id) or await self._copy.ended_item(item_id)
            while item is None:  # it may have been revived in between
                async with self._copy.lock:
                    moved = await self._copy.sync()
                    item = self._copy.items.get(item_id)
                if not moved:
                    break
                item = item or await self._copy.ended_item(item_id)
            return None if item is None else await self._view(item)

        return await self._store.call(work)

    async def counts(self) -> dict[str, dict[WorkState, int]]:
        await self._current()  # ends what is due

        async def work() -> tuple[list[Item], QueueHead]:
            async with self._copy.lock:
                await self._copy.sync()
                return list(self._copy.items.values()), self._copy.head

        items, head = await self._store.call(work)
        counts = {
            kind: {WorkState(state): count for state, count in by_state.items()}
            for kind, by_state in head.ended.items()
            if by_state
        }
        for item in items:
            by_state = counts.setdefault(item.kind, {})
            by_state[item.state] = by_state.get(item.state, 0) + 1
        return counts

    async def dead(self, *, limit: int = 100) -> list[WorkItem]:
        check.check_limit(limit)
        await self._current()

        async def work() -> list[Item]:
            return [decoded(each, Item) for each in await self._stream.matching(self._places.ended("dead"))]

        found = sorted(await self._store.call(work), key=lambda item: (-item.changed_s, -item.seq))
        return await self._views(found, limit)

    async def ready(self, *, limit: int = 100) -> list[WorkItem]:
        check.check_limit(limit)
        items, now_s = await self._current(), self._store.clock.now_s()
        free = [item for item in items if item.state is WorkState.READY and item.not_before_s <= now_s]
        return await self._views(sorted(free, key=lambda item: (-item.priority, item.seq)), limit)

    async def delayed(self, *, limit: int = 1000) -> list[WorkItem]:
        check.check_limit(limit)
        items, now_s = await self._current(), self._store.clock.now_s()
        early = [item for item in items if item.state is WorkState.READY and item.not_before_s > now_s]
        return await self._views(sorted(early, key=lambda item: (item.not_before_s, item.seq)), limit)

    async def blocked(self, *, limit: int = 1000) -> list[WorkItem]:
        check.check_limit(limit)
        items = [item for item in await self._current() if item.state is WorkState.BLOCKED]
        return await self._views(sorted(items, key=lambda item: item.seq), limit)

    async def claimed(self, *, limit: int = 1000) -> list[WorkItem]:
        check.check_limit(limit)
        items = [item for item in await self._current() if item.state is WorkState.CLAIMED]
        return await self._views(sorted(items, key=lambda item: (item.lease_until_s or 0.0, item.seq)), limit)

    async def unended(self, *, after: int, limit: int) -> list[tuple[int, WorkItem]]:
        check.check_page(after, limit)
        items = sorted((i for i in await self._current() if i.seq > after), key=lambda item: item.seq)[:limit]
        return list(zip([item.seq for item in items], await self._views(items, limit), strict=True))

    async def ended(self, *, after: int, limit: int, wait_s: float = 0.0) -> list[EndedWork]:
        check.check_page(after, limit)
        check.check_wait("wait_s", wait_s)

        async def look() -> tuple[list[EndedWork] | None, float | None]:
            items = await self._current()
            ends_s = [item.lease_until_s for item in items if item.lease_until_s is not None]
            return await self._store.call(lambda: self._ended(after, limit)) or None, min(
                ends_s, default=None
            )

        return await self._store.wait(look, topic=ENDS, timeout_s=wait_s) or []

    async def _ended(self, after: int, limit: int) -> list[EndedWork]:
        found: list[EndedWork] = []
        complete = False
        while not complete and len(found) < limit:
            page = await self._stream.page(self._places.ended(), after=after, limit=min(PAGE, limit))
            for stored in page.messages:
                if not stored.is_gone:
                    item = await self._view(decoded(stored, Item))
                    found.append(EndedWork(number=stored.seq, item=item))
            after, complete = page.seq, page.complete
        return found[:limit]

    async def close(self) -> None:
        """Finish what was accepted, for a while, and refuse the rest."""
        await self._tasks.wait(CLOSE_S_MAX)
        await self._tasks.stop(1.0)
        _refuse(self._waiting, Unavailable(CLOSED))


def _answer(calls: Sequence[_Call], outcomes: Sequence[Any]) -> None:
    for call, outcome in zip(calls, outcomes, strict=True):
        if isinstance(outcome, RingRiftError):
            _refuse([call], outcome)
        elif not call.answer.done():
            call.answer.set_result(outcome)


def _refuse(calls: Sequence[_Call], error: RingRiftError) -> None:
    for call in calls:
        if not call.answer.done():
            call.answer.set_exception(error)


def _parts(groups: Sequence[WriteGroup], room: int) -> Iterator[list[WriteGroup]]:
    """As many groups at a time as fit into a batch."""
    part: list[WriteGroup] = []
    size = 0
    for group in groups:
        if part and size + len(group.writes) > room:
            yield part
            part, size = [], 0
        part.append(group)
        size += len(group.writes)
    if part:
        yield part


def _check_guard(guard: WriteGuard | None) -> None:
    if guard is not None:
        check.check_guard(guard)


def _encoded(items: Sequence[NewWork], guard: WriteGuard | None) -> list[tuple[bytes, bytes]]:
    """Payload and trace as they are stored; what JSON cannot hold is refused."""
    check.check_new_work(items)
    _check_guard(guard)
    encoded = [(encode_json("payload", new.payload), encode_trace(new.trace)) for new in items]
    check.check_call_size("items", (len(payload) + len(trace) for payload, trace in encoded))
    return encoded
