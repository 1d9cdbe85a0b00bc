"""The event log on JetStream: a stream of its own, whose numbers are those of the events, without a gap.

Reading positions lie with the keys and values. Events leave by our own rule and not by the server's: what a
live subscription has not seen stays.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from ringrift.decoding import decode_as
from ringrift.engine import arguments as check
from ringrift.engine.encoding import UNREADABLE
from ringrift.engine.nats.kv import NatsStore
from ringrift.engine.nats.stream import (
    BATCH_MAX,
    GONE,
    MESSAGE_ID,
    PAGE,
    TTL,
    AlreadyStored,
    ConditionFailed,
    Stored,
    Stream,
    Write,
    damaged,
    spelled,
    text_of,
    token_of,
)
from ringrift.engine.ports import (
    Appended,
    CursorKey,
    LogBounds,
    LogEvent,
    LogRecord,
    Position,
    log_is_full,
    merge_positions,
)
from ringrift.engine.waiting import EVENTS

APPENDED, TYPE = "Ringrift-Appended", "Ringrift-Type"
GONE_KEPT_S = 3_600


class _StoredPosition(msgspec.Struct, frozen=True):
    """As it is written down."""

    consumer: str
    instance: str
    floor: int
    done_above: tuple[int, ...]
    stored_s: float

    @property
    def key(self) -> CursorKey:
        return CursorKey(self.consumer, self.instance)

    @property
    def position(self) -> Position:
        return Position(self.floor, self.done_above)


class NatsEventLog:
    """See `EventLog`."""

    def __init__(self, store: NatsStore, events: Stream) -> None:
        self._store, self._events = store, events
        self._limits = store.stream.link.config.limits
        self._began_s = store.runtime.boot_s()
        self._first = self._last = 0  # as of the last look
        self._unseen = 0  # appended since then
        self._appending = asyncio.Lock()  # what one call brings stands together, also in several batches

    # --- events ---------------------------------------------------------------------------------------------

    async def append(self, events: Sequence[LogEvent]) -> list[Appended]:
        check.check_events(events)
        if not events:
            return []
        outcome = await self._store.call(lambda: self._append(events))
        if any(not each.duplicate for each in outcome):
            self._store.announce(EVENTS)
        return outcome

    async def _append(self, events: Sequence[LogEvent]) -> list[Appended]:
        async with self._appending:
            await self._make_room()
            if len(events) > BATCH_MAX:  # in several batches, and nobody else's in between
                return await self._append_all(events)
        return await self._append_all(events)

    async def _append_all(self, events: Sequence[LogEvent]) -> list[Appended]:
        outcome: list[Appended] = []
        for start in range(0, len(events), BATCH_MAX):
            outcome += await self._append_some(events[start : start + BATCH_MAX])
        self._last = max(self._last, outcome[-1].seq)
        self._unseen += len(outcome)
        return outcome

    async def _append_some(self, events: Sequence[LogEvent]) -> list[Appended]:
        writes = [self._write_of(event) for event in events]
        if len(writes) > 1 and len({event.id for event in events}) == len(events):
            try:
                last = await self._events.write(*writes)
            except AlreadyStored:
                pass
            else:
                return [Appended(last - len(writes) + n, duplicate=False) for n in range(1, len(writes) + 1)]
        # One by one: the server tells for each where it stands.
        return [Appended(*await self._events.publish(write)) for write in writes]

    def _write_of(self, event: LogEvent) -> Write:
        headers = {
            MESSAGE_ID: token_of(event.id),
            APPENDED: repr(self._store.clock.now_s()),
            TYPE: spelled(event.type),
            "Ringrift-Id": spelled(event.id),
        }
        return Write(f"{self._store.prefix}.e.{token_of(event.type)}", event.body, headers)

    async def _make_room(self) -> None:
        """While the log is short nothing is to be done; how long it is, is asked now and then."""
        if not self._last or self._unseen > self._limits.event_retention_rows // 100:
            await self._look()
        # A little more than is kept, so that not each of many appends trims one event.
        if self._last - self._first + 1 > self._limits.event_retention_rows * 1.01:
            await self._trim()
        rows = self._last - self._first + 1
        if rows >= self._limits.event_rows_max:
            live = self._live(
                await self._positions(), self._store.clock.now_s() - self._limits.subscription_life_s
            )
            holder = min(live, key=lambda each: each.floor, default=None)
            if holder is not None:  # else the next append trims what nobody holds any more
                raise log_is_full(rows, holder.key)

    async def _look(self) -> LogBounds:
        state = await self._events.state()
        self._first, self._last, self._unseen = state["first_seq"] or 1, state["last_seq"], 0
        if not state["messages"]:
            self._first = self._last + 1
        return LogBounds(self._first, self._last)

    async def read(self, *, after: int, limit: int, types: Sequence[str] | None = None) -> list[LogRecord]:
        check.check_read(after, limit, types)
        if types is not None and not types:
            return []
        return await self._store.call(lambda: self._read(after, limit, types))

    async def _read(self, after: int, limit: int, types: Sequence[str] | None) -> list[LogRecord]:
        subject = f"{self._store.prefix}.e.>"
        if types is not None and len(types) == 1:
            subject = f"{self._store.prefix}.e.{token_of(types[0])}"
        wanted = None if types is None else frozenset(types)
        found: list[LogRecord] = []
        while True:
            page = await self._events.page(subject, after=after, limit=min(PAGE, limit))
            for stored in page.messages:
                record = _record(stored)
                if wanted is None or record.type in wanted:
                    found.append(record)
            if page.complete or len(found) >= limit:
                return found[:limit]
            after = page.seq

    async def bounds(self) -> LogBounds:
        return await self._store.call(self._look)

    async def seq_at(self, *, since_s: float) -> int:
        check.check_since(since_s)
        return await self._store.call(lambda: self._seq_before(since_s))

    async def _seq_before(self, since_s: float) -> int:
        first, last = await self._look()
        low, high = first - 1, last  # everything up to `low` is older, everything above `high` is not
        while low < high:
            middle = (low + high + 1) // 2
            stored = await self._events.at(middle)
            if stored is not None and _record(stored).appended_s >= since_s:
                high = middle - 1
            else:
                low = middle
        return low

    async def last_by_type(self) -> dict[str, float]:
        async def work() -> dict[str, float]:
            found, after = dict[str, float](), 0
            while True:
                page = await self._events.page(f"{self._store.prefix}.e.>", after=after, limit=PAGE)
                for stored in page.messages:
                    record = _record(stored)
                    found[record.type] = record.appended_s
                if page.complete:
                    return found
                after = page.seq

        return await self._store.call(work)

    async def wait(self, *, after: int, timeout_s: float) -> int:
        check.check_log_wait(after, timeout_s)

        async def look() -> tuple[int | None, float | None]:
            last = (await self.bounds()).last
            return (last if last > after else None), None

        found = await self._store.wait(look, topic=EVENTS, timeout_s=timeout_s)
        return self._last if found is None else found

    # --- positions ------------------------------------------------------------------------------------------

    def _place(self, key: CursorKey) -> str:
        # An instance may have no name.
        return f"{self._store.prefix}.p.{token_of(key.instance + '.')}.{token_of(key.consumer)}"

    async def positions(self, instance: str) -> dict[str, Position]:
        check.check_text("instance", instance, empty=True)
        subject = f"{self._store.prefix}.p.{token_of(instance + '.')}.*"

        async def work() -> dict[str, Position]:
            found = [_position(each) for each in await self._store.stream.matching(subject)]
            return {each.consumer: each.position for each in found}

        return await self._store.call(work)

    async def _positions(self) -> list[_StoredPosition]:
        subject = f"{self._store.prefix}.p.>"
        return [_position(each) for each in await self._store.stream.matching(subject)]

    async def commit(self, positions: Mapping[CursorKey, Position]) -> None:
        check.check_positions(positions)
        keys = [(CursorKey(*key), given) for key, given in positions.items()]

        async def work() -> None:
            for key, given in keys:
                await self._commit(key, given)

        await self._store.call(work)

    async def _commit(self, key: CursorKey, given: Position) -> None:
        subject = self._place(key)
        while True:
            stored = await self._store.stream.get(subject)
            known = None if stored is None or stored.is_gone else _position(stored).position
            merged = merge_positions(known, given)
            record = _StoredPosition(
                key.consumer, key.instance, merged.floor, merged.done_above, self._store.clock.now_s()
            )
            expected = 0 if stored is None else stored.seq
            try:
                await self._store.stream.write(Write(subject, msgspec.json.encode(record), expected=expected))
            except ConditionFailed:
                continue
            return

    async def forget(self, keys: Sequence[CursorKey]) -> None:
        check.check_cursor_keys(keys)
        places = [self._place(CursorKey(*key)) for key in keys]

        async def work() -> None:
            for place in places:
                await self._forget(place)

        await self._store.call(work)

    async def _forget(self, place: str, *, before_s: float = math.inf) -> None:
        stored = await self._store.stream.get(place)
        if stored is None or stored.is_gone or _position(stored).stored_s >= before_s:
            return
        gone = {GONE: "forgotten", TTL: f"{GONE_KEPT_S}s"}
        with suppress(ConditionFailed):  # somebody stored it just now, so it is used
            await self._store.stream.write(Write(place, b"", gone, expected=stored.seq))

    # --- retention ------------------------------------------------------------------------------------------

    async def trim(self) -> int:
        return await self._store.call(self._trim)

    async def _trim(self) -> int:
        now_s, limits = self._store.clock.now_s(), self._limits
        await self._look()
        positions = await self._positions()
        by_age = 0
        # Not soon after a start: when all were away for long, nobody has seen what grew old meanwhile.
        if self._store.runtime.boot_s() - self._began_s >= limits.age_grace_s:
            old_s = now_s - limits.event_retention_s
            by_age = min(await self._seq_before(old_s), self._seen_by_all(positions, old_s))
            await self._forget_unmoved(positions, now_s - limits.cursor_retention_s)
        seen = self._seen_by_all(positions, now_s - limits.subscription_life_s)
        keep_from = 1 + max(by_age, min(self._last - limits.event_retention_rows, seen))
        if keep_from <= self._first:
            return 0
        purged = await self._events.purge(below=keep_from)
        await self._look()
        return purged

    async def _forget_unmoved(self, positions: Sequence[_StoredPosition], since_s: float) -> None:
        """Drop the positions of processes that never come back."""
        for each in positions:
            if each.stored_s < since_s:
                await self._forget(self._place(each.key), before_s=since_s)

    def _seen_by_all(self, positions: Sequence[_StoredPosition], since_s: float) -> int:
        """Up to where everybody has seen the log who stored its position since then."""
        return min((each.floor for each in self._live(positions, since_s)), default=self._last)

    def _live(self, positions: Sequence[_StoredPosition], since_s: float) -> list[_StoredPosition]:
        return [each for each in positions if each.stored_s >= since_s]


def _record(stored: Stored) -> LogRecord:
    headers = stored.headers
    try:
        return LogRecord(
            seq=stored.seq,
            id=text_of(headers["Ringrift-Id"]) or "",
            type=text_of(headers[TYPE]) or "",
            body=stored.data,
            appended_s=float(headers[APPENDED]),
        )
    except (KeyError, ValueError) as error:
        raise damaged(f"{stored.subject} {stored.seq}", error) from None


def _position(stored: Stored) -> _StoredPosition:
    try:
        return decode_as(stored.data, _StoredPosition)
    except UNREADABLE as error:
        raise damaged(stored.subject, error) from None
