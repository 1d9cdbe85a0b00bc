"""Keys and values on SQLite."""

from __future__ import annotations

import asyncio
import math
import sqlite3
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from ringrift.engine import arguments as check
from ringrift.engine.arguments import LAST_CHARACTER
from ringrift.engine.limits import EngineLimits
from ringrift.engine.ports import Change, ChangePage, Entry, WriteGuard
from ringrift.engine.sqlite import queries as sql
from ringrift.engine.sqlite.schema import EntryRow, check_entry, of_entry
from ringrift.engine.sqlite.store import Query, Store
from ringrift.engine.sqlite.writer import Transaction
from ringrift.engine.waiting import KV, QUEUE, kv_topic
from ringrift.engine.work_rules import changes_holds
from ringrift.errors import AlreadyExists, RevisionMismatch

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
