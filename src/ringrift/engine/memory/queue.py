"""The work queue in memory: plain scans of what has not ended, so that the rules stand out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from ringrift.engine import arguments as check
from ringrift.engine.encoding import decode_json, encode_json, encode_trace
from ringrift.engine.memory.stores import Handle
from ringrift.engine.ports import (
    Claim,
    Claimant,
    Completion,
    EndedWork,
    Entry,
    Json,
    NewWork,
    WorkItem,
    WorkState,
    WriteGuard,
)
from ringrift.engine.waiting import ENDS, QUEUE
from ringrift.engine.work_rules import (
    ENDED,
    LEASE_RAN_OUT,
    HeldWork,
    lost_because,
    no_such_item,
    not_dead,
    still_needs_dead,
    unknown_dependency,
    why_dependents_die,
)
from ringrift.errors import AlreadyExists, LeaseLost

# What is kept for a time goes at the latest after this share of it more.
TRIM_SHARE = 0.01


@dataclass(slots=True, kw_only=True)
class _Item:
    seq: int
    id: str
    new: NewWork
    payload: bytes
    trace: bytes
    not_before_s: float
    added_s: float
    changed_s: float
    state: WorkState
    attempts: int = 0
    holder: str | None = None
    token: int = 0
    lease_until_s: float | None = None
    result: bytes | None = None
    error: str | None = None
    end_number: int = 0  # its place among the ends; 0 while it has not ended

    def fits(self, claimant: Claimant, now_s: float, held: HeldWork) -> bool:
        return (
            self.state is WorkState.READY
            and not held.holds(self.new.group, self.new.kind)
            and self.not_before_s <= now_s
            and (claimant.kinds is None or self.new.kind in claimant.kinds)
            and self.new.kind not in claimant.except_kinds
            and self.new.node in (None, claimant.node)
            and self.new.requires <= claimant.capabilities
        )

    def view(self, now_s: float, waits_for: tuple[str, ...]) -> WorkItem:
        is_early = self.state is WorkState.READY and self.not_before_s > now_s
        return WorkItem(
            id=self.id,
            kind=self.new.kind,
            payload=decode_json(self.id, self.payload),
            state=self.state,
            priority=self.new.priority,
            attempts=self.attempts,
            attempts_max=self.new.attempts_max,
            holder=self.holder,
            token=self.token,
            lease_until_s=self.lease_until_s,
            result=None if self.result is None else decode_json(self.id, self.result),
            error=self.error,
            added_s=self.added_s,
            changed_s=self.changed_s,
            group=self.new.group,
            requires=self.new.requires,
            node=self.new.node,
            not_before_s=self.not_before_s if is_early else None,
            waits_for=waits_for,
        )


@dataclass(slots=True)
class QueueState:
    """Items in order of arrival."""

    items: dict[str, _Item] = field(default_factory=dict)
    unended: dict[str, _Item] = field(default_factory=dict)
    ends: dict[int, _Item] = field(default_factory=dict)  # by the number of the end, which is their order
    id_by_key: dict[str, str] = field(default_factory=dict)  # idempotency keys live as long as their items
    last_seq: int = 0
    last_token: int = 0
    last_end: int = 0
    trim_at_s: float = 0.0
    expire_at_s: float = 0.0  # no lease runs out before


class MemoryWorkQueue:
    """See `WorkQueue`."""

    def __init__(self, handle: Handle, state: QueueState, *, holds: Callable[[], Iterable[Entry]]) -> None:
        self._handle, self._state, self._holds = handle, state, holds

    async def add(self, items: Sequence[NewWork], *, guard: WriteGuard | None = None) -> list[str]:
        encoded = _encoded(items)
        now_s = await self._enter()
        self._handle.check_guard(guard, now_s)
        ids = self._check_batch(items)
        self._add_batch(items, ids, encoded, now_s)
        return ids

    def _add_batch(
        self, items: Sequence[NewWork], ids: list[str], encoded: list[tuple[bytes, bytes]], now_s: float
    ) -> None:
        for new, item_id, (payload, trace) in zip(items, ids, encoded, strict=True):
            if item_id not in self._state.items:
                self._add_one(new, item_id, payload, trace, now_s)
        self._handle.changed(QUEUE)

    def _check_batch(self, items: Sequence[NewWork]) -> list[str]:
        """Return the id of each item, existing or new; raise before anything is stored."""
        state, ids = self._state, list[str]()
        fresh, keys = set[str](), dict[str, str]()
        for new in items:
            key = new.idempotency_key
            # also an item of the same call
            known = None if key is None else keys.get(key) or state.id_by_key.get(key)
            if known is not None:
                ids.append(known)
                continue
            item_id = new.id or self._handle.runtime.new_id()
            if item_id in fresh or item_id in state.items:
                raise AlreadyExists(item_id)
            for needed in new.after:
                if needed not in fresh and needed not in state.items:
                    raise unknown_dependency(item_id, needed)
            fresh.add(item_id)
            if key is not None:
                keys[key] = item_id
            ids.append(item_id)
        return ids

    def _add_one(self, new: NewWork, item_id: str, payload: bytes, trace: bytes, now_s: float) -> None:
        state = self._state
        state.last_seq += 1
        item = _Item(
            seq=state.last_seq,
            id=item_id,
            new=new,
            payload=payload,
            trace=trace,
            not_before_s=now_s + new.delay_s,
            added_s=now_s,
            changed_s=now_s,
            state=WorkState.READY,
        )
        state.items[item_id] = state.unended[item_id] = item
        if new.idempotency_key is not None:
            state.id_by_key[new.idempotency_key] = item_id
        item.state = self._state_by_needs(item)
        if item.state is WorkState.DEAD:
            item.error = why_dependents_die(*self._dead_need(item))
            self._note_end(item)

    def _state_by_needs(self, item: _Item) -> WorkState:
        states = {self._state.items[needed].state for needed in item.new.after if needed in self._state.items}
        if states & {WorkState.DEAD, WorkState.CANCELLED}:
            return WorkState.DEAD
        return WorkState.READY if states <= {WorkState.DONE} else WorkState.BLOCKED

    def _dead_need(self, item: _Item) -> tuple[str, WorkState]:
        needs = [self._state.items[needed] for needed in item.new.after if needed in self._state.items]
        dead = [need for need in needs if need.state in (WorkState.DEAD, WorkState.CANCELLED)]
        first = min(dead, key=lambda need: need.seq)
        return first.id, first.state

    async def claim(
        self, claimant: Claimant, *, lease_s: float, limit: int = 1, wait_s: float = 0.0
    ) -> list[Claim]:
        check.check_claim(claimant, lease_s, limit, wait_s)

        async def look() -> tuple[list[Claim] | None, float | None]:
            now_s = await self._enter()
            held, next_end_s = self._held_work(now_s)
            claims = self._claim(claimant, lease_s, limit, now_s, held)
            times_s = (self._next_due_s(now_s), next_end_s)
            return claims or None, min((each for each in times_s if each is not None), default=None)

        return await self._handle.wait(look, topic=QUEUE, timeout_s=wait_s) or []

    def _claim(
        self, claimant: Claimant, lease_s: float, limit: int, now_s: float, held: HeldWork
    ) -> list[Claim]:
        fitting = [item for item in self._state.unended.values() if item.fits(claimant, now_s, held)]
        # arrival, not time: two of one moment still have an order
        fitting.sort(key=lambda item: (-item.new.priority, item.seq))
        if not fitting[:limit]:
            return []
        self._state.last_token += 1
        claims = []
        for item in fitting[:limit]:
            item.attempts += 1
            item.holder, item.token = claimant.worker, self._state.last_token
            item.lease_until_s = now_s + lease_s
            self._state.expire_at_s = min(self._state.expire_at_s, item.lease_until_s)
            self._move(item, WorkState.CLAIMED, now_s)
            claims.append(
                Claim(
                    id=item.id,
                    kind=item.new.kind,
                    payload=decode_json(item.id, item.payload),
                    token=item.token,
                    attempt=item.attempts,
                    lease_until_s=item.lease_until_s,
                    trace=decode_json(item.id, item.trace),
                )
            )
        return claims

    def _next_due_s(self, now_s: float) -> float | None:
        leases = [i.lease_until_s for i in self._state.unended.values() if i.lease_until_s is not None]
        delays = [
            item.not_before_s
            for item in self._state.unended.values()
            if item.state is WorkState.READY and item.not_before_s > now_s
        ]
        return min([*leases, *delays], default=None)

    async def renew(self, item_id: str, *, token: int, lease_s: float) -> float:
        check.check_held(item_id, token)
        check.check_lease(lease_s)
        now_s = await self._enter()
        item = self._held(item_id, token)
        item.lease_until_s = now_s + lease_s
        self._state.expire_at_s = min(self._state.expire_at_s, item.lease_until_s)
        return item.lease_until_s

    async def complete(self, item_id: str, *, token: int, result: Json | None = None) -> None:
        check.check_held(item_id, token)
        text = encode_json("result", {} if result is None else result)
        now_s = await self._enter()
        self._complete(self._held(item_id, token), text, now_s)

    async def complete_many(self, done: Sequence[Completion]) -> list[str]:
        check.check_completions(done)
        texts = [encode_json("result", completion.result) for completion in done]
        check.check_call_size("results", map(len, texts))
        now_s = await self._enter()
        refused = []
        for completion, text in zip(done, texts, strict=True):
            try:
                item = self._held(completion.id, completion.token)
            except LeaseLost:
                refused.append(completion.id)
            else:
                self._complete(item, text, now_s)
        return refused

    def _complete(self, item: _Item, result: bytes, now_s: float) -> None:
        item.result, item.error = result, None
        self._end_claim(item, WorkState.DONE, now_s)
        for other in self._dependents(item.id):
            other.state = self._state_by_needs(other)
            other.changed_s = now_s
            self._handle.changed(QUEUE)

    async def fail(
        self, item_id: str, *, token: int, error: str, retry_after_s: float = 0.0, final: bool = False
    ) -> WorkState:
        check.check_failure(item_id, token, error, retry_after_s=retry_after_s, final=final)
        now_s = await self._enter()
        item = self._held(item_id, token)
        item.error = error
        item.not_before_s = now_s + retry_after_s
        self._end_attempt(item, now_s, final=final)
        return item.state

    async def release(self, item_id: str, *, token: int) -> None:
        check.check_held(item_id, token)
        now_s = await self._enter()
        item = self._held(item_id, token)
        item.attempts -= 1  # the claim counted it
        self._end_claim(item, WorkState.READY, now_s)
        self._handle.changed(QUEUE)

    async def cancel(self, item_id: str, *, reason: str, guard: WriteGuard | None = None) -> bool:
        check.check_cancel(item_id, reason)
        now_s = await self._enter()
        self._handle.check_guard(guard, now_s)
        item = self._state.items.get(item_id)
        if item is None or item.state in ENDED:
            return False
        self._cancel(item, reason, now_s)
        return True

    async def replace(
        self, item_id: str, new: NewWork, *, reason: str, guard: WriteGuard | None = None
    ) -> str | None:
        check.check_cancel(item_id, reason)
        encoded = _encoded([new])
        now_s = await self._enter()
        self._handle.check_guard(guard, now_s)
        item = self._state.items.get(item_id)
        if item is None or item.state in ENDED:
            return None
        ids = self._check_batch([new])
        self._cancel(item, reason, now_s)
        self._add_batch([new], ids, encoded, now_s)
        return ids[0]

    def _cancel(self, item: _Item, reason: str, now_s: float) -> None:
        item.error = reason
        self._end_claim(item, WorkState.CANCELLED, now_s)
        self._kill_dependents(item, now_s)

    async def get(self, item_id: str) -> WorkItem | None:
        check.check_text("item id", item_id)
        now_s = await self._enter()
        item = self._state.items.get(item_id)
        return None if item is None else self._view(item, now_s)

    async def counts(self) -> dict[str, dict[WorkState, int]]:
        await self._enter()
        counts: dict[str, dict[WorkState, int]] = {}
        for item in self._state.items.values():
            by_state = counts.setdefault(item.new.kind, {})
            by_state[item.state] = by_state.get(item.state, 0) + 1
        return counts

    async def dead(self, *, limit: int = 100) -> list[WorkItem]:
        check.check_limit(limit)
        now_s = await self._enter()
        ended = (item for item in self._state.ends.values() if item.state is WorkState.DEAD)
        dead = sorted(ended, key=lambda item: (-item.changed_s, -item.seq))
        return [self._view(item, now_s) for item in dead[:limit]]

    async def ready(self, *, limit: int = 100) -> list[WorkItem]:
        check.check_limit(limit)
        now_s = await self._enter()
        free = [item for item in self._in(WorkState.READY) if item.not_before_s <= now_s]
        free.sort(key=lambda item: (-item.new.priority, item.seq))
        return [self._view(item, now_s) for item in free[:limit]]

    async def delayed(self, *, limit: int = 1000) -> list[WorkItem]:
        check.check_limit(limit)
        now_s = await self._enter()
        early = [item for item in self._in(WorkState.READY) if item.not_before_s > now_s]
        early.sort(key=lambda item: (item.not_before_s, item.seq))
        return [self._view(item, now_s) for item in early[:limit]]

    async def blocked(self, *, limit: int = 1000) -> list[WorkItem]:
        check.check_limit(limit)
        now_s = await self._enter()
        waiting = sorted(self._in(WorkState.BLOCKED), key=lambda item: item.seq)
        return [self._view(item, now_s) for item in waiting[:limit]]

    async def claimed(self, *, limit: int = 1000) -> list[WorkItem]:
        check.check_limit(limit)
        now_s = await self._enter()
        held = sorted(self._in(WorkState.CLAIMED), key=lambda item: (item.lease_until_s or 0.0, item.seq))
        return [self._view(item, now_s) for item in held[:limit]]

    async def unended(self, *, after: int, limit: int) -> list[tuple[int, WorkItem]]:
        check.check_page(after, limit)
        now_s = await self._enter()
        unended = self._state.unended.values()
        rest = sorted((item for item in unended if item.seq > after), key=lambda item: item.seq)
        return [(item.seq, self._view(item, now_s)) for item in rest[:limit]]

    async def ended(self, *, after: int, limit: int, wait_s: float = 0.0) -> list[EndedWork]:
        check.check_page(after, limit)
        check.check_wait("wait_s", wait_s)

        async def look() -> tuple[list[EndedWork] | None, float | None]:
            now_s = await self._enter()
            # From the newest back: readers are nearly up to date, and the ends of days lie before.
            newest = takewhile(lambda number: number > after, reversed(self._state.ends))
            ends = [self._state.ends[number] for number in reversed(list(newest))]
            found = [EndedWork(number=item.end_number, item=self._view(item, now_s)) for item in ends[:limit]]
            return found or None, self._next_due_s(now_s)

        return await self._handle.wait(look, topic=ENDS, timeout_s=wait_s) or []

    async def revive(self, item_id: str, *, guard: WriteGuard | None = None) -> None:
        check.check_text("item id", item_id)
        now_s = await self._enter()
        self._handle.check_guard(guard, now_s)
        item = self._state.items.get(item_id)
        if item is None:
            raise no_such_item(item_id)
        if item.state is not WorkState.DEAD:
            raise not_dead(item_id, item.state)
        state = self._state_by_needs(item)
        if state is WorkState.DEAD:
            raise still_needs_dead(item_id, *self._dead_need(item))
        item.attempts, item.error, item.not_before_s = 0, None, now_s
        self._move(item, state, now_s)
        self._handle.changed(QUEUE)

    async def expire(self) -> int:
        return self._expire(await self._handle.enter())

    async def _enter(self) -> float:
        now_s = await self._handle.enter()
        self._expire(now_s)
        self._trim(now_s)
        return now_s

    def _expire(self, now_s: float) -> int:
        # Every call comes by here: most must not look through all items.
        if now_s < self._state.expire_at_s:
            return 0
        ends_s = {
            item.id: item.lease_until_s
            for item in self._state.unended.values()
            if item.lease_until_s is not None
        }
        self._state.expire_at_s = min((at_s for at_s in ends_s.values() if at_s > now_s), default=math.inf)
        due = [self._state.unended[item_id] for item_id, at_s in ends_s.items() if at_s <= now_s]
        for item in due:
            item.error = LEASE_RAN_OUT
            self._end_attempt(item, now_s)
        return len(due)

    def _trim(self, now_s: float) -> None:
        if now_s < self._state.trim_at_s:
            return
        limits = self._handle.limits
        self._state.trim_at_s = now_s + min(limits.finished_retention_s, limits.dead_retention_s) * TRIM_SHARE
        for item in list(self._state.items.values()):
            keep_s = limits.dead_retention_s if item.state is WorkState.DEAD else limits.finished_retention_s
            if item.state in ENDED and item.changed_s < now_s - keep_s:
                del self._state.items[item.id], self._state.ends[item.end_number]
                self._state.id_by_key.pop(item.new.idempotency_key or "", None)

    def _view(self, item: _Item, now_s: float) -> WorkItem:
        needs = item.new.after if item.state is WorkState.BLOCKED else ()
        items = self._state.items
        undone = {name for name in needs if name in items and items[name].state is not WorkState.DONE}
        return item.view(now_s, tuple(sorted(undone)))

    def _held_work(self, now_s: float) -> tuple[HeldWork, float | None]:
        """What is not to be handed out, and when the first of it ends by itself."""
        alive = [entry for entry in self._holds() if entry.expires_s is None or entry.expires_s > now_s]
        ends_s = [entry.expires_s for entry in alive if entry.expires_s is not None]
        return HeldWork.by(entry.key for entry in alive), min(ends_s, default=None)

    def _in(self, state: WorkState) -> list[_Item]:
        """Those that have not ended and are in *state*."""
        return [item for item in self._state.unended.values() if item.state is state]

    def _held(self, item_id: str, token: int) -> _Item:
        item = self._state.items.get(item_id)
        if item is None or item.state is not WorkState.CLAIMED or item.token != token:
            found = None if item is None else (item.state, item.token)
            raise LeaseLost(item_id, token=token, reason=lost_because(token, found))
        return item

    def _end_attempt(self, item: _Item, now_s: float, *, final: bool = False) -> None:
        spent = final or item.attempts >= item.new.attempts_max
        self._end_claim(item, WorkState.DEAD if spent else WorkState.READY, now_s)
        if spent:
            self._kill_dependents(item, now_s)
        self._handle.changed(QUEUE)

    def _end_claim(self, item: _Item, state: WorkState, now_s: float) -> None:
        item.holder, item.lease_until_s = None, None
        self._move(item, state, now_s)

    def _move(self, item: _Item, state: WorkState, now_s: float) -> None:
        self._state.ends.pop(item.end_number, None)  # of one that is revived
        self._state.unended[item.id] = item
        item.state, item.changed_s, item.end_number = state, now_s, 0
        if state in ENDED:
            self._note_end(item)

    def _note_end(self, item: _Item) -> None:
        self._state.last_end += 1
        item.end_number = self._state.last_end
        self._state.ends[item.end_number] = item
        del self._state.unended[item.id]
        self._handle.changed(ENDS)

    def _dependents(self, item_id: str) -> Iterable[_Item]:
        return [other for other in self._in(WorkState.BLOCKED) if item_id in other.new.after]

    def _kill_dependents(self, ended: _Item, now_s: float) -> None:
        # A list and no recursion: a chain of needs may be long.
        doomed = [ended]
        while doomed:
            needed = doomed.pop()
            for other in self._dependents(needed.id):
                other.error = why_dependents_die(needed.id, needed.state)
                self._move(other, WorkState.DEAD, now_s)
                doomed.append(other)


def _encoded(items: Sequence[NewWork]) -> list[tuple[bytes, bytes]]:
    """Payload and trace as a database would have them.

    What comes back is a copy, and what JSON cannot hold is refused here, too.
    """
    check.check_new_work(items)
    encoded = [(encode_json("payload", new.payload), encode_trace(new.trace)) for new in items]
    check.check_call_size("items", (len(payload) + len(trace) for payload, trace in encoded))
    return encoded
