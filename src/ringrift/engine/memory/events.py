"""The event log in memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from ringrift.engine import arguments as check
from ringrift.engine.memory.handle import Handle
from ringrift.engine.ports import Appended, CursorKey, LogBounds, LogEvent, LogRecord, Position
from ringrift.engine.positions import log_is_full, merge_positions
from ringrift.engine.waiting import EVENTS


@dataclass(slots=True)
class EventState:
    """The records in order, and where each id stands."""

    records: list[LogRecord] = field(default_factory=list)
    seq_by_id: dict[str, int] = field(default_factory=dict)
    last_seq: int = 0
    positions: dict[CursorKey, Position] = field(default_factory=dict)
    stored_s: dict[CursorKey, float] = field(default_factory=dict)  # when each position was last stored


class MemoryEventLog:
    """See `EventLog`."""

    def __init__(self, handle: Handle, state: EventState) -> None:
        self._handle, self._state = handle, state

    async def append(self, events: Sequence[LogEvent]) -> list[Appended]:
        check.check_events(events)
        now_s = await self._handle.enter()
        self._make_room(now_s)
        outcome = [self._append_one(event, now_s) for event in events]
        self._trim(now_s)
        if any(not appended.duplicate for appended in outcome):
            self._handle.changed(EVENTS)
        return outcome

    def _make_room(self, now_s: float) -> None:
        self._trim(now_s)
        rows, limits = len(self._state.records), self._handle.limits
        if rows >= limits.event_rows_max:
            live = self._live(now_s - limits.subscription_life_s)
            raise log_is_full(rows, min(live, key=lambda each: each[1].floor)[0])

    def _append_one(self, event: LogEvent, now_s: float) -> Appended:
        state = self._state
        if (seq := state.seq_by_id.get(event.id)) is not None:
            return Appended(seq, duplicate=True)
        state.last_seq += 1
        state.seq_by_id[event.id] = state.last_seq
        # A clock that goes back must not unsort the log.
        stamp_s = max(now_s, state.records[-1].appended_s) if state.records else now_s
        state.records.append(
            LogRecord(seq=state.last_seq, id=event.id, type=event.type, body=event.body, appended_s=stamp_s)
        )
        return Appended(state.last_seq, duplicate=False)

    async def read(self, *, after: int, limit: int, types: Sequence[str] | None = None) -> list[LogRecord]:
        check.check_read(after, limit, types)
        await self._handle.enter()
        records = self._state.records
        start = bisect_right(records, after, key=attrgetter("seq"))
        wanted = None if types is None else frozenset(types)
        found: list[LogRecord] = []
        for index in range(start, len(records)):
            if len(found) >= limit:
                break
            if wanted is None or records[index].type in wanted:
                found.append(records[index])
        return found

    async def bounds(self) -> LogBounds:
        await self._handle.enter()
        return LogBounds(self._first(), self._state.last_seq)

    async def seq_at(self, *, since_s: float) -> int:
        check.check_since(since_s)
        await self._handle.enter()
        return self._seq_before(since_s)

    async def wait(self, *, after: int, timeout_s: float) -> int:
        check.check_log_wait(after, timeout_s)

        async def look() -> tuple[int | None, float | None]:
            await self._handle.enter()
            return (self._state.last_seq if self._state.last_seq > after else None), None

        await self._handle.wait(look, topic=EVENTS, timeout_s=timeout_s)
        return self._state.last_seq

    async def positions(self, instance: str) -> dict[str, Position]:
        check.check_text("instance", instance, empty=True)
        await self._handle.enter()
        return {key.consumer: at for key, at in self._state.positions.items() if key.instance == instance}

    async def commit(self, positions: Mapping[CursorKey, Position]) -> None:
        check.check_positions(positions)
        now_s = await self._handle.enter()
        stored = self._state.positions
        for key, given in positions.items():
            stored[CursorKey(*key)] = merge_positions(stored.get(key), given)
            self._state.stored_s[CursorKey(*key)] = now_s

    async def forget(self, keys: Sequence[CursorKey]) -> None:
        check.check_cursor_keys(keys)
        await self._handle.enter()
        for key in keys:
            self._state.positions.pop(key, None)
            self._state.stored_s.pop(key, None)

    async def trim(self) -> int:
        return self._trim(await self._handle.enter())

    def _trim(self, now_s: float) -> int:
        state, limits = self._state, self._handle.limits
        old_s = now_s - limits.event_retention_s
        by_age = min(self._seq_before(old_s), self._seen_by_all(old_s))
        seen = self._seen_by_all(now_s - limits.subscription_life_s)
        keep_from = 1 + max(by_age, min(state.last_seq - limits.event_retention_rows, seen))
        count = bisect_left(state.records, keep_from, key=attrgetter("seq"))
        for record in state.records[:count]:
            del state.seq_by_id[record.id]
        del state.records[:count]
        return count

    def _seen_by_all(self, since_s: float) -> int:
        """Return up to where everybody has seen the log who stored its position since then."""
        return min((position.floor for _, position in self._live(since_s)), default=self._state.last_seq)

    def _live(self, since_s: float) -> list[tuple[CursorKey, Position]]:
        stored_s = self._state.stored_s
        return [(key, at) for key, at in self._state.positions.items() if stored_s[key] >= since_s]

    def _first(self) -> int:
        return self._state.records[0].seq if self._state.records else self._state.last_seq + 1

    def _seq_before(self, since_s: float) -> int:
        count = bisect_left(self._state.records, since_s, key=attrgetter("appended_s"))
        return self._first() - 1 if count == 0 else self._state.records[count - 1].seq
