"""Keys and values, and the event log, on SQLite."""

from __future__ import annotations

import asyncio
import math
import sqlite3
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
import structlog

from ringrift.decoding import decoder_of
from ringrift.engine import arguments as check
from ringrift.engine.arguments import LAST_CHARACTER
from ringrift.engine.limits import EngineLimits
from ringrift.engine.ports import (
    Appended,
    Change,
    ChangePage,
    CursorKey,
    Entry,
    LogBounds,
    LogEvent,
    LogRecord,
    Position,
    WriteGuard,
    log_is_full,
    merge_positions,
)
from ringrift.engine.sqlite import queries as sql
from ringrift.engine.sqlite.schema import EntryRow, check_entry, of_entry, of_event
from ringrift.engine.sqlite.store import Query, Store
from ringrift.engine.sqlite.writer import Transaction
from ringrift.engine.waiting import EVENTS, KV, QUEUE, kv_topic
from ringrift.engine.work_rules import changes_holds
from ringrift.errors import AlreadyExists, RevisionMismatch

log = structlog.get_logger()

# Keys and values.


_CHANGES_ROWS = 1_000
_EXPIRE_ROWS = 500
T = TypeVar("T")


class SqliteKeyValue:
    """See `KeyValue`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def get(self, key: str) -> Entry | None:
        check.check_key(key)
        now_s = self._store.clock.now_s()
        return await self._store.read(lambda db: self._get(db, key, now_s))

    async def entries(self, *prefixes: str) -> list[Entry]:
        for prefix in prefixes:
            check.check_prefix(prefix)
        now_s = self._store.clock.now_s()

        def query(db: sqlite3.Connection) -> list[Entry]:
            found: dict[str, Entry] = {}
            for prefix in prefixes or ("",):
                rows = db.execute(sql.ENTRIES, (prefix, prefix + LAST_CHARACTER, now_s))
                found |= {row[0]: _entry(self._store.config.database, row) for row in rows}
            return [found[key] for key in sorted(found)] if len(prefixes) > 1 else list(found.values())

        return await self._store.read(query)

    async def create(
        self, key: str, value: bytes, *, ttl_s: float | None = None, guard: WriteGuard | None = None
    ) -> int:
        check.check_entry(key, value, ttl_s)

        def operation(tx: Transaction) -> int:
            if (present := self._get(tx.db, key, tx.now_s)) is not None:
                raise AlreadyExists(key, revision=present.revision)
            return _put(tx, key, value, ttl_s)

        return await self._store.write(operation, guard=guard)

    async def put(
        self, key: str, value: bytes, *, ttl_s: float | None = None, guard: WriteGuard | None = None
    ) -> int:
        check.check_entry(key, value, ttl_s)
        return await self._store.write(lambda tx: _put(tx, key, value, ttl_s), guard=guard)

    async def update(
        self,
        key: str,
        value: bytes,
        *,
        revision: int,
        ttl_s: float | None = None,
        guard: WriteGuard | None = None,
    ) -> int:
        check.check_entry(key, value, ttl_s)
        check.check_integer("revision", revision)

        def operation(tx: Transaction) -> int:
            self._check_revision(tx, key, revision)
            return _put(tx, key, value, ttl_s)

        return await self._store.write(operation, guard=guard)

    async def delete(self, key: str, *, revision: int | None = None, guard: WriteGuard | None = None) -> bool:
        check.check_key(key)
        if revision is not None:
            check.check_integer("revision", revision)

        def operation(tx: Transaction) -> bool:
            if revision is not None:
                self._check_revision(tx, key, revision)
            if self._get(tx.db, key, tx.now_s) is None:
                return False
            _put(tx, key, None, None)
            return True

        return await self._store.write(operation, guard=guard)

    def watch(self, prefix: str = "", *, after: int | None = None) -> AsyncGenerator[Change, None]:
        check.check_watch(prefix, after)
        # The starting point is read when the caller asks, not when it first iterates.
        start = self._store.begin_read(lambda db: _revision(db) if after is None else after)
        return self._watch(prefix, start)

    async def _watch(self, prefix: str, start: Future[int]) -> AsyncGenerator[Change, None]:
        after = await asyncio.wrap_future(start)

        async def look() -> tuple[list[Change] | None, float | None]:
            nonlocal after
            found, next_due_s, revision = await self._read(lambda db: self._changes(db, prefix, after))
            if not found:
                # What other prefixes changed is behind us: without this, every look would walk it again.
                after = max(after, revision)
            return found or None, next_due_s

        while True:
            changes = await self._store.wait(look, topic=kv_topic(prefix), timeout_s=math.inf)
            for change in changes or ():
                after = change.revision
                yield change

    async def changes(self, prefix: str = "", *, after: int, limit: int = _CHANGES_ROWS) -> ChangePage:
        check.check_prefix(prefix)
        check.check_page(after, limit)

        def query(db: sqlite3.Connection) -> ChangePage:
            revision = _revision(db)  # before the rows: what is written meanwhile comes with the next page
            rows = db.execute(sql.CHANGED_ENTRIES, (after, prefix, prefix + LAST_CHARACTER, limit))
            found = tuple(self._change(row) for row in rows)
            if len(found) == limit:
                return ChangePage(found, found[-1].revision, complete=False)
            # Not *after*: of a store that was set back, what comes from here on must not be passed over.
            last = found[-1].revision if found else revision
            return ChangePage(found, max(revision, last), complete=True)

        return await self._read(query)

    async def expire(self) -> None:
        """Turn entries that ran out into deletions that watchers see."""
        now_s = self._store.clock.now_s()
        while await self._store.read(lambda db: _is_due(db, now_s)):
            await self._store.write(expire_some)

    async def _read(self, query: Query[T]) -> T:
        """Run *query* on a snapshot in which every entry that ran out is a deletion."""
        now_s = self._store.clock.now_s()

        def look(db: sqlite3.Connection) -> tuple[T] | None:
            return None if _is_due(db, now_s) else (query(db),)

        while (found := await self._store.read(look)) is None:
            await self._store.write(expire_some)
        return found[0]

    # --- reading: what is not as it was stored is an error, never a value ----------------------------------

    def _get(self, db: sqlite3.Connection, key: str, now_s: float) -> Entry | None:
        row = db.execute(sql.GET_ENTRY, (key, now_s)).fetchone()
        return None if row is None else _entry(self._store.config.database, row)

    def _check_revision(self, tx: Transaction, key: str, revision: int) -> None:
        present = self._get(tx.db, key, tx.now_s)
        current = None if present is None else present.revision
        if current != revision:
            raise RevisionMismatch(key, expected=revision, current=current)

    def _changes(
        self, db: sqlite3.Connection, prefix: str, after: int
    ) -> tuple[list[Change], float | None, int]:
        rows = db.execute(sql.CHANGED_ENTRIES, (after, prefix, prefix + LAST_CHARACTER, _CHANGES_ROWS))
        found = [self._change(row) for row in rows]
        (next_due_s,) = db.execute(sql.NEXT_DUE_ENTRY).fetchone()
        return found, next_due_s, _revision(db)

    def _change(self, row: EntryRow) -> Change:
        entry = _entry(self._store.config.database, row)
        return Change(key=entry.key, value=row[1], revision=entry.revision)


def _entry(database: Path, row: EntryRow) -> Entry:
    """Read one row; `Corrupt` with its key if it is not as it was stored."""
    check_entry(database, row)
    key, value, revision, expires_s, _ = row
    return Entry(key=key, value=b"" if value is None else value, revision=revision, expires_s=expires_s)


def _revision(db: sqlite3.Connection) -> int:
    return int(db.execute(sql.REVISION).fetchone()[0])


def _put(tx: Transaction, key: str, value: bytes | None, ttl_s: float | None) -> int:
    (revision,) = tx.db.execute(sql.NEXT_REVISION).fetchone()
    expires_s = None if ttl_s is None else tx.now_s + ttl_s
    checksum = of_entry(key, revision, expires_s, value)
    tx.db.execute(sql.STORE_ENTRY, (key, revision, expires_s, tx.now_s, value, checksum))
    tx.changed.update((KV, kv_topic(key)))
    if changes_holds(key):
        tx.changed.add(QUEUE)  # a hold that ends lets work be claimed
    return int(revision)


def _is_due(db: sqlite3.Connection, now_s: float) -> bool:
    return db.execute(sql.DUE_ENTRIES, (now_s, 1)).fetchone() is not None


def expire_some(tx: Transaction) -> int:
    """Delete entries that ran out, up to a bounded count."""
    due = tx.db.execute(sql.DUE_ENTRIES, (tx.now_s, _EXPIRE_ROWS)).fetchall()
    for (key,) in due:
        _put(tx, key, None, None)
    return len(due)


def drop_old_tombstones(tx: Transaction, limits: EngineLimits) -> None:
    tx.db.execute(sql.DROP_TOMBSTONES, (tx.now_s - limits.tombstone_retention_s,))


# The event log.


_TRIM_ROWS = 2_000  # one transaction removes no more, so that nobody waits long behind it
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

    async def last_by_type(self) -> dict[str, float]:
        return await self._store.read(lambda db: dict(db.execute(sql.LAST_BY_TYPE)))

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
