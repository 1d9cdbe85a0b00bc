"""The event log on SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import structlog

from ringrift.decoding import decoder_of
from ringrift.engine import arguments as check
from ringrift.engine.limits import EngineLimits
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
from ringrift.engine.sqlite import queries as sql
from ringrift.engine.sqlite.schema import of_event
from ringrift.engine.sqlite.store import Store
from ringrift.engine.sqlite.writer import Transaction
from ringrift.engine.waiting import EVENTS

_TRIM_ROWS = 2_000  # one transaction removes no more, so that nobody waits long behind it

log = structlog.get_logger()
_encode = msgspec.json.encode
_decode_seqs = decoder_of(tuple[int, ...]).decode


class Trimmed(NamedTuple):
    """How many events went, and the subscription for which more stay than the log should hold."""

    events: int
    held_for: CursorKey | None


class SqliteEventLog:
    """See `EventLog`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._last_own = 0  # of what was appended here
        self._looked: tuple[int | None, int] = (None, 0)  # changes before the last look, and what it found

    async def append(self, events: Sequence[LogEvent]) -> list[Appended]:
        check.check_events(events)
        appended = await self._store.write(lambda tx: _append(tx, events, self._store.config.limits))
        self._last_own = max([self._last_own, *(each.seq for each in appended)])
        return appended

    async def read(self, *, after: int, limit: int, types: Sequence[str] | None = None) -> list[LogRecord]:
        check.check_read(after, limit, types)

        def query(db: sqlite3.Connection) -> list[LogRecord]:
            if types is None:
                rows = db.execute(sql.READ_EVENTS, (after, limit))
            else:
                wanted = {"after": after, "limit": limit, "types": _encode(list(types)).decode()}
                rows = db.execute(sql.READ_EVENTS_OF_TYPES, wanted)
            return [record for row in rows if (record := _record(row)) is not None]

        return await self._store.read(query)

    async def bounds(self) -> LogBounds:
        return await self._store.read(read_bounds)

    async def seq_at(self, *, since_s: float) -> int:
        check.check_since(since_s)
        return await self._store.read(lambda db: seq_before(db, since_s))

    async def wait(self, *, after: int, timeout_s: float) -> int:
        check.check_log_wait(after, timeout_s)

        first = True

        async def look() -> tuple[int | None, float | None]:
            nonlocal first
            changes, is_first, first = self._store.changes(EVENTS), first, False
            if self._last_own > after:  # what was appended here need not be read to be known
                return self._last_own, None
            # Nor what nobody has changed since. Later looks read: the word of a change may have been lost.
            is_known = is_first and changes is not None and changes == self._looked[0]
            if not is_known:
                self._looked = (changes, await self._store.read(_last_seq))
            last = self._looked[1]
            return (last if last > after else None), None

        found = await self._store.wait(look, topic=EVENTS, timeout_s=timeout_s)
        return await self._store.read(_last_seq) if found is None else found

    async def positions(self, instance: str) -> dict[str, Position]:
        check.check_text("instance", instance, empty=True)

        def query(db: sqlite3.Connection) -> dict[str, Position]:
            rows = db.execute(sql.POSITIONS, (instance,))
            return {consumer: Position(floor, _decode_seqs(done)) for consumer, floor, done in rows}

        return await self._store.read(query)

    async def commit(self, positions: Mapping[CursorKey, Position]) -> None:
        check.check_positions(positions)
        if positions:
            await self._store.write(lambda tx: _commit(tx, positions, self._store.config.limits))

    async def forget(self, keys: Sequence[CursorKey]) -> None:
        check.check_cursor_keys(keys)
        rows = [(instance, consumer) for consumer, instance in keys]
        await self._store.write(lambda tx: tx.db.executemany(sql.FORGET_POSITION, rows).rowcount)

    async def trim(self) -> int:
        removed, limits = 0, self._store.config.limits
        while True:
            trimmed = await self._store.write(lambda tx: trim_some(tx, limits))
            removed += trimmed.events
            if trimmed.events < _TRIM_ROWS:
                return removed


def _record(row: tuple[int, str, str, bytes, float, int | None]) -> LogRecord | None:
    """Read one row; None for one that is not as it was appended.

    An event only says that there is something to look at, so a damaged one is left out, and said: an error
    would keep all later ones from everybody for as long as it is in the log.
    """
    seq, event_id, kind, body, appended_s, checksum = row
    if checksum != of_event(event_id, kind, appended_s, body):
        log.error("engine.event.damaged", seq=seq, id=event_id, type=kind)
        return None
    return LogRecord(seq=seq, id=event_id, type=kind, body=body, appended_s=appended_s)


def _append(tx: Transaction, events: Sequence[LogEvent], limits: EngineLimits) -> list[Appended]:
    _make_room(tx, limits)
    # A clock that goes back must not unsort the log: ages are found by bisection.
    last = tx.db.execute(sql.LAST_STAMP).fetchone()
    stamp_s = tx.now_s if last is None else max(tx.now_s, last[0])
    outcome = []
    for event in events:
        checksum = of_event(event.id, event.type, stamp_s, event.body)
        done = tx.db.execute(sql.APPEND_EVENT, (event.id, event.type, stamp_s, event.body, checksum))
        if done.rowcount:
            assert done.lastrowid is not None
            outcome.append(Appended(done.lastrowid, duplicate=False))
            tx.changed.add(EVENTS)
        else:
            (seq,) = tx.db.execute(sql.SEQ_OF_ID, (event.id,)).fetchone()
            outcome.append(Appended(seq, duplicate=True))
    return outcome


def _make_room(tx: Transaction, limits: EngineLimits) -> None:
    """Refuse the publisher when the log is full of events that somebody has yet to see."""
    while (rows := _rows(tx.db)) >= limits.event_rows_max:
        trimmed = trim_some(tx, limits, is_waiting=True)
        if not trimmed.events:
            if trimmed.held_for is not None:
                raise log_is_full(rows, trimmed.held_for)
            return


def _commit(tx: Transaction, positions: Mapping[CursorKey, Position], limits: EngineLimits) -> None:
    for (consumer, instance), given in positions.items():
        row = tx.db.execute(sql.POSITION, (instance, consumer)).fetchone()
        stored = None if row is None else Position(row[0], _decode_seqs(row[1]))
        merged = merge_positions(stored, given)
        if merged != stored:
            done = _encode(merged.done_above)
            tx.db.execute(sql.STORE_POSITION, (instance, consumer, merged.floor, done, tx.now_s))
        elif row[2] < tx.now_s - limits.position_touch_s:  # it has nothing to do, and is there
            tx.db.execute(sql.TOUCH_POSITION, (tx.now_s, instance, consumer))


def _last_seq(db: sqlite3.Connection) -> int:
    row = db.execute(sql.LAST_SEQ).fetchone()
    return 0 if row is None else int(row[0])


def read_bounds(db: sqlite3.Connection) -> LogBounds:
    last = _last_seq(db)
    (first,) = db.execute(sql.FIRST_SEQ).fetchone()
    return LogBounds(last + 1 if first is None else first, last)


def _rows(db: sqlite3.Connection) -> int:
    first, last = read_bounds(db)
    return last - first + 1


def seq_before(db: sqlite3.Connection, since_s: float) -> int:
    """Return the last sequence number stamped before *since_s*, by bisection: stamps never go back."""
    first, last = read_bounds(db)
    low, high = first, last + 1  # everything below low is older, everything from high on is not
    while low < high:
        middle = (low + high) // 2
        row = db.execute(sql.STAMP_FROM, (middle,)).fetchone()
        if row is not None and row[1] < since_s:
            low = row[0] + 1
        else:
            high = middle
    return low - 1


def trim_some(tx: Transaction, limits: EngineLimits, *, is_waiting: bool = False) -> Trimmed:
    """Remove the oldest events that are past their age or number, up to a bounded count.

    Nothing goes that a live subscription has yet to see. With *is_waiting*, as soon after a start or a sleep
    of the machine, age takes nothing, and whoever has missed nothing so far counts as live: it may come back.
    """
    first, last = read_bounds(tx.db)
    old, gone_s = tx.now_s - limits.event_retention_s, tx.now_s - limits.subscription_life_s
    upto_age, upto_number, held_for = 0, last - limits.event_retention_rows, None
    if not is_waiting:
        slowest = _slowest(tx, since_s=old)
        upto_age = min(seq_before(tx.db, old), last if slowest is None else slowest[0])
    slowest = _slowest(tx, since_s=gone_s, missed_nothing=first - 1 if is_waiting else None)
    if slowest is not None and slowest[0] < upto_number:
        upto_number, held_for = slowest
    upto = min(max(upto_age, upto_number), first + _TRIM_ROWS - 1)
    return Trimmed(0 if upto < first else tx.db.execute(sql.TRIM_EVENTS, (upto,)).rowcount, held_for)


def _slowest(
    tx: Transaction, *, since_s: float, missed_nothing: int | None = None
) -> tuple[int, CursorKey] | None:
    given = {"since_s": since_s, "missed_nothing": missed_nothing}  # NULL is never below a floor
    row = tx.db.execute(sql.LIVE_FLOOR, given).fetchone()
    return None if row is None else (row[0], CursorKey(*row[1:]))


def forget_old_positions(tx: Transaction, limits: EngineLimits) -> None:
    tx.db.execute(sql.FORGET_OLD_POSITIONS, (tx.now_s - limits.cursor_retention_s,))
