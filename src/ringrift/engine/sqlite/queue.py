"""The work queue on SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, TypeVar

from ringrift.decoding import decode_as
from ringrift.engine import arguments as check
from ringrift.engine.encoding import EMPTY_JSON, decode_json
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
from ringrift.engine.sqlite import queries as sql
from ringrift.engine.sqlite import queue_operations as ops
from ringrift.engine.sqlite.queries import STATE_OF, Code
from ringrift.engine.sqlite.queue_operations import ClaimedRows, LaneIndex, group, prepare, requirements
from ringrift.engine.sqlite.schema import of_result, of_work
from ringrift.engine.sqlite.store import Query, Store
from ringrift.engine.sqlite.writer import Transaction
from ringrift.engine.waiting import ENDS, QUEUE
from ringrift.engine.work_rules import PAYLOAD_DAMAGED, RESULT_DAMAGED

T = TypeVar("T")


class SqliteWorkQueue:
    """See `WorkQueue`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lanes = LaneIndex()
        store.writer.forget_cached.append(self._lanes.forget)

    async def add(self, items: Sequence[NewWork], *, guard: WriteGuard | None = None) -> list[str]:
        parts = prepare(items, self._store.runtime.new_id)
        return await self._store.write(lambda tx: ops.add(tx, parts), guard=guard)

    async def claim(
        self, claimant: Claimant, *, lease_s: float, limit: int = 1, wait_s: float = 0.0
    ) -> list[Claim]:
        check.check_claim(claimant, lease_s, limit, wait_s)

        async def look() -> tuple[list[Claim] | None, float | None]:
            found = await self._store.write(
                lambda tx: ops.claim(tx, self._lanes, claimant, lease_s=lease_s, limit=limit)
            )
            return (found.claims(), None) if isinstance(found, ClaimedRows) else (None, found)

        if wait_s <= 0:
            return (await look())[0] or []
        return await self._store.wait(look, topic=QUEUE, timeout_s=wait_s) or []

    async def renew(self, item_id: str, *, token: int, lease_s: float) -> float:
        check.check_held(item_id, token)
        check.check_lease(lease_s)
        return await self._store.write(lambda tx: ops.renew(tx, item_id, token, lease_s))

    async def complete(self, item_id: str, *, token: int, result: Json | None = None) -> None:
        runs = group([Completion(id=item_id, token=token, result={} if result is None else result)])

        def operation(tx: Transaction) -> None:
            if ops.complete(tx, runs):
                raise ops.lease_lost(tx, item_id, token)

        await self._store.write(operation)

    async def complete_many(self, done: Sequence[Completion]) -> list[str]:
        runs = group(done)
        refused = set(await self._store.write(lambda tx: ops.complete(tx, runs)))
        return [each.id for each in done if (each.id, each.token) in refused]

    async def fail(
        self, item_id: str, *, token: int, error: str, retry_after_s: float = 0.0, final: bool = False
    ) -> WorkState:
        check.check_failure(item_id, token, error, retry_after_s=retry_after_s, final=final)
        return await self._store.write(
            lambda tx: ops.fail(tx, item_id, token, error, retry_after_s=retry_after_s, final=final)
        )

    async def release(self, item_id: str, *, token: int) -> None:
        check.check_held(item_id, token)
        await self._store.write(lambda tx: ops.release(tx, item_id, token))

    async def cancel(self, item_id: str, *, reason: str, guard: WriteGuard | None = None) -> bool:
        check.check_cancel(item_id, reason)
        await self.expire()
        return await self._store.write(lambda tx: ops.cancel(tx, item_id, reason), guard=guard)

    async def replace(
        self, item_id: str, new: NewWork, *, reason: str, guard: WriteGuard | None = None
    ) -> str | None:
        check.check_cancel(item_id, reason)
        parts = prepare([new], self._store.runtime.new_id)
        await self.expire()
        return await self._store.write(lambda tx: ops.replace(tx, item_id, parts, reason), guard=guard)

    async def get(self, item_id: str) -> WorkItem | None:
        check.check_text("item id", item_id)
        row = await self._read(lambda db: db.execute(sql.GET_WORK, (item_id,)).fetchone())
        return None if row is None else _view(row)

    async def counts(self) -> dict[str, dict[WorkState, int]]:
        def query(db: sqlite3.Connection) -> list[tuple[str, int, int]]:
            return db.execute(sql.COUNTS).fetchall()

        counts: dict[str, dict[WorkState, int]] = {}
        for kind, code, number in await self._read(query):
            by_state, state = counts.setdefault(kind, {}), STATE_OF[Code(code)]
            by_state[state] = by_state.get(state, 0) + number
        return counts

    async def dead(self, *, limit: int = 100) -> list[WorkItem]:
        check.check_limit(limit)
        rows = await self._read(lambda db: db.execute(sql.DEAD, (limit,)).fetchall())
        return [_view(row) for row in rows]

    async def ready(self, *, limit: int = 100) -> list[WorkItem]:
        check.check_limit(limit)
        rows = await self._read(lambda db: db.execute(sql.READY, (limit,)).fetchall())
        return [_view(row) for row in rows]

    async def delayed(self, *, limit: int = 1000) -> list[WorkItem]:
        check.check_limit(limit)
        rows = await self._read(lambda db: db.execute(sql.WAITING, (limit,)).fetchall())
        return [_view(row) for row in rows]

    async def blocked(self, *, limit: int = 1000) -> list[WorkItem]:
        check.check_limit(limit)
        rows = await self._read(lambda db: db.execute(sql.BLOCKED, (limit,)).fetchall())
        return [_view(row) for row in rows]

    async def claimed(self, *, limit: int = 1000) -> list[WorkItem]:
        check.check_limit(limit)
        rows = await self._read(lambda db: db.execute(sql.CLAIMED, (limit,)).fetchall())
        return [_view(row) for row in rows]

    async def unended(self, *, after: int, limit: int) -> list[tuple[int, WorkItem]]:
        check.check_page(after, limit)
        rows = await self._read(lambda db: db.execute(sql.UNENDED, (after, limit)).fetchall())
        return [(number, _view(row)) for number, *row in rows]

    async def ended(self, *, after: int, limit: int, wait_s: float = 0.0) -> list[EndedWork]:
        check.check_page(after, limit)
        check.check_wait("wait_s", wait_s)

        def query(db: sqlite3.Connection) -> tuple[list[Any], float | None]:
            rows = db.execute(sql.ENDED, (after, limit)).fetchall()
            return rows, None if rows else db.execute(sql.NEXT_DUE_WORK).fetchone()[0]

        async def look() -> tuple[list[Any] | None, float | None]:
            rows, next_due_s = await self._read(query)
            return rows or None, next_due_s

        if wait_s <= 0:
            rows = (await look())[0]
        else:
            rows = await self._store.wait(look, topic=ENDS, timeout_s=wait_s)
        return [EndedWork(number=number, item=_view(row)) for number, *row in rows or ()]

    async def revive(self, item_id: str, *, guard: WriteGuard | None = None) -> None:
        check.check_text("item id", item_id)
        await self.expire()
        await self._store.write(lambda tx: ops.revive(tx, item_id), guard=guard)

    async def _read(self, query: Query[T]) -> T:
        """Run *query* on a snapshot in which nothing is held beyond its lease or delayed beyond its time."""
        now_s = self._store.clock.now_s()

        def look(db: sqlite3.Connection) -> tuple[T] | None:
            return None if ops.is_due(db, now_s) else (query(db),)

        while (found := await self._store.read(look)) is None:
            await self._store.write(ops.end_due)
        return found[0]

    async def expire(self) -> int:
        ended, now_s = 0, self._store.clock.now_s()
        while await self._store.read(lambda db: ops.is_due(db, now_s)):
            ended += await self._store.write(ops.end_due)
        return ended


def _view(row: Sequence[Any]) -> WorkItem:
    """Read one row; what is not as it was stored is left out, and the error says so."""
    item_id, kind, payload, code, priority, attempts, attempts_max, holder, token, due_s, *rest = row
    result, error, added_s, changed_s, trace, checksum, result_checksum, *rest = rest
    group, requires, node, waits_for = rest
    if checksum != of_work(item_id, payload, trace):
        payload, error = EMPTY_JSON, error or PAYLOAD_DAMAGED
    if result is not None and result_checksum != of_result(result):
        result, error = None, RESULT_DAMAGED
    return WorkItem(
        id=item_id,
        kind=kind,
        payload=decode_json(f"work item {item_id}", payload),
        state=STATE_OF[Code(code)],
        priority=priority,
        attempts=attempts,
        attempts_max=attempts_max,
        holder=holder,
        token=token,
        lease_until_s=due_s if code == Code.CLAIMED else None,
        result=None if result is None else decode_json(f"work item {item_id}", result),
        error=error,
        added_s=added_s,
        changed_s=changed_s,
        group=group,
        requires=requirements(requires),
        node=node or None,
        not_before_s=due_s if code == Code.DELAYED else None,
        waits_for=() if waits_for is None else tuple(sorted(decode_as(waits_for, list[str]))),
    )
