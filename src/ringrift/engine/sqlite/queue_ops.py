"""What happens to work inside a transaction."""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from ringrift.engine.encoding import decode_json
from ringrift.engine.ports import Claim, Claimant, NewWork, WorkState
from ringrift.engine.sqlite import queue_sql as sql
from ringrift.engine.sqlite.lanes import LaneIndex, find_or_add_lane, lane_key
from ringrift.engine.sqlite.queue_sql import STATE_OF, Code
from ringrift.engine.sqlite.writer import Transaction
from ringrift.engine.waiting import QUEUE
from ringrift.engine.work_rules import (
    LEASE_RAN_OUT,
    lost_because,
    no_such_item,
    not_dead,
    still_needs_dead,
    unknown_dependency,
    why_dependents_die,
)
from ringrift.errors import AlreadyExists, LeaseLost

_BROKEN = (Code.DEAD, Code.CANCELLED)
_DUE_ROWS = 500  # one transaction ends no more leases, so that nobody waits long behind it


@dataclass(frozen=True, slots=True)
class EncodedWork:
    """An item as it will be stored; *id* is its own or a fresh one."""

    new: NewWork
    id: str
    payload: bytes
    trace: bytes


def many(numbers: Iterable[int]) -> str:
    """The numbers as one parameter of a query."""
    return msgspec.json.encode(list(numbers)).decode()


def add(tx: Transaction, items: Sequence[EncodedWork]) -> list[str]:
    lanes: dict[tuple[str, str, str], int] = {}
    ids = []
    for item in items:
        existing = _id_of_key(tx.db, item.new.idempotency_key)
        if existing is not None:
            ids.append(existing)
            continue
        key = lane_key(item.new)
        if key not in lanes:
            lanes[key] = find_or_add_lane(tx, key)
        _add_one(tx, item, lanes[key])
        ids.append(item.id)
    return ids


def _id_of_key(db: sqlite3.Connection, key: str | None) -> str | None:
    row = None if key is None else db.execute(sql.ID_OF_KEY, (key,)).fetchone()
    return None if row is None else row[0]


def _add_one(tx: Transaction, item: EncodedWork, lane: int) -> None:
    new, now_s = item.new, tx.now_s
    needs = sorted(_needed(tx.db, item.id, needed) for needed in set(new.after))
    broken = next((need for need in needs if need.code in _BROKEN), None)
    blockers = sum(1 for need in needs if need.code != Code.DONE)
    not_before_s = now_s + new.delay_s
    code, due_s = _unclaimed(blockers, not_before_s, now_s)
    error = None
    if broken is not None:
        code, due_s = Code.DEAD, None
        error = why_dependents_die(broken.id, STATE_OF[broken.code])
    row = (item.id, lane, code, new.priority, new.attempts_max, due_s, not_before_s, now_s, now_s)
    try:
        added = tx.db.execute(sql.ADD, (*row, blockers, new.idempotency_key, error, item.trace, item.payload))
    except sqlite3.IntegrityError:
        raise AlreadyExists(item.id) from None
    if needs:
        tx.db.executemany(sql.ADD_NEED, [(need.seq, added.lastrowid) for need in needs])
    tx.changed.add(QUEUE)


class _Need(NamedTuple):
    seq: int
    id: str
    code: Code


def _needed(db: sqlite3.Connection, item_id: str, needed: str) -> _Need:
    row = db.execute(sql.SEQ_AND_STATE, (needed,)).fetchone()
    if row is None:
        raise unknown_dependency(item_id, needed)
    return _Need(row[0], needed, Code(row[1]))


def _unclaimed(blockers: int, not_before_s: float, now_s: float) -> tuple[Code, float | None]:
    """The state of an item that nobody holds, and when time alone will change it."""
    if blockers:
        return Code.BLOCKED, None
    if not_before_s > now_s:
        return Code.DELAYED, not_before_s
    return Code.READY, None


def find_ready(db: sqlite3.Connection, lanes: LaneIndex, claimant: Claimant, limit: int) -> list[int]:
    """Return the sequence numbers of the best items for *claimant*: one index seek per lane."""
    found: list[tuple[int, int]] = []
    for lane in lanes.fitting(db, claimant):
        found += db.execute(sql.READY_IN_LANE, (lane, limit)).fetchall()
    return [seq for _, seq in heapq.nsmallest(limit, found)]


def claim(
    tx: Transaction, lanes: LaneIndex, claimant: Claimant, *, lease_s: float, limit: int
) -> tuple[list[Claim], float | None]:
    """Hand out items; with none, say when time alone may bring one."""
    end_due(tx)
    picked = find_ready(tx.db, lanes, claimant, limit)
    if not picked:
        return [], tx.db.execute(sql.NEXT_DUE).fetchone()[0]
    (token,) = tx.db.execute(sql.NEXT_TOKEN).fetchone()
    until_s = tx.now_s + lease_s
    rows = tx.db.execute(sql.CLAIM, (claimant.worker, token, until_s, tx.now_s, many(picked))).fetchall()
    by_seq = {row[0]: row for row in rows}
    claims = []
    for _, item_id, lane, payload, attempts, trace in (by_seq[seq] for seq in picked):
        claims.append(
            Claim(
                id=item_id,
                kind=lanes.kind(lane),
                payload=decode_json(payload),
                token=token,
                attempt=attempts,
                lease_until_s=until_s,
                trace=decode_json(trace),
            )
        )
    return claims, None


def renew(tx: Transaction, item_id: str, token: int, lease_s: float) -> float:
    until_s = tx.now_s + lease_s
    if tx.db.execute(sql.RENEW, (until_s, item_id, token, tx.now_s)).fetchone() is None:
        raise lease_lost(tx, item_id, token)
    return until_s


def complete(tx: Transaction, done: Sequence[tuple[str, int, bytes]]) -> list[tuple[str, int]]:
    """Complete each (id, token, result) whose claim holds; return those refused."""
    refused, finished = [], []
    for item_id, token, result in done:
        row = tx.db.execute(sql.COMPLETE, (tx.now_s, result, item_id, token, tx.now_s)).fetchone()
        if row is None:
            refused.append((item_id, token))
        else:
            finished.append(row[0])
    _unblock_dependents(tx, finished)
    return refused


def fail(tx: Transaction, item_id: str, token: int, error: str, retry_after_s: float) -> WorkState:
    row = tx.db.execute(sql.HELD_ATTEMPTS, (item_id, token, tx.now_s)).fetchone()
    if row is None:
        raise lease_lost(tx, item_id, token)
    seq, attempts, attempts_max = row
    not_before_s = tx.now_s + retry_after_s
    tx.db.execute(sql.SET_NOT_BEFORE, (not_before_s, seq))
    spent = attempts >= attempts_max
    return STATE_OF[_end_attempt(tx, seq, item_id, error, spent=spent, not_before_s=not_before_s)]


def release(tx: Transaction, item_id: str, token: int) -> None:
    if tx.db.execute(sql.RELEASE, (tx.now_s, item_id, token, tx.now_s)).fetchone() is None:
        raise lease_lost(tx, item_id, token)
    tx.changed.add(QUEUE)


def cancel(tx: Transaction, item_id: str, reason: str) -> bool:
    row = tx.db.execute(sql.CANCELLABLE, (item_id,)).fetchone()
    if row is None:
        return False
    tx.db.execute(sql.MOVE, (Code.CANCELLED, None, reason, tx.now_s, row[0]))
    _kill_dependents(tx, row[0], item_id, Code.CANCELLED)
    return True


def revive(tx: Transaction, item_id: str) -> None:
    row = tx.db.execute(sql.SEQ_AND_STATE, (item_id,)).fetchone()
    if row is None:
        raise no_such_item(item_id)
    seq, code = row
    if code != Code.DEAD:
        raise not_dead(item_id, STATE_OF[Code(code)])
    needs = tx.db.execute(sql.NEEDS_OF, (seq,)).fetchall()
    for needed, needed_code in needs:
        if needed_code in _BROKEN:
            raise still_needs_dead(item_id, needed, STATE_OF[Code(needed_code)])
    blockers = sum(1 for _, needed_code in needs if needed_code != Code.DONE)
    state, _ = _unclaimed(blockers, tx.now_s, tx.now_s)
    tx.db.execute(sql.REVIVE, (state, tx.now_s, tx.now_s, blockers, seq))
    tx.changed.add(QUEUE)


def end_due(tx: Transaction) -> int:
    """End leases that ran out and delays that are over, up to a bounded count; return the leases."""
    due = tx.db.execute(sql.DUE, (tx.now_s, _DUE_ROWS)).fetchall()
    delayed = [seq for seq, _, code, _, _ in due if code == Code.DELAYED]
    if delayed:
        tx.db.execute(sql.MAKE_READY, (many(delayed),))
        tx.changed.add(QUEUE)
    expired = [row for row in due if row[2] == Code.CLAIMED]
    for seq, item_id, _, attempts, attempts_max in expired:
        spent = attempts >= attempts_max
        _end_attempt(tx, seq, item_id, LEASE_RAN_OUT, spent=spent, not_before_s=tx.now_s)
    return len(expired)


def is_due(db: sqlite3.Connection, now_s: float) -> bool:
    return db.execute(sql.IS_DUE, (now_s,)).fetchone() is not None


def lease_lost(tx: Transaction, item_id: str, token: int) -> LeaseLost:
    row = tx.db.execute(sql.STATE_AND_TOKEN, (item_id,)).fetchone()
    found = None if row is None else (STATE_OF[Code(row[0])], row[1])
    return LeaseLost(item_id, token=token, reason=lost_because(token, found))


def _end_attempt(
    tx: Transaction, seq: int, item_id: str, error: str, *, spent: bool, not_before_s: float
) -> Code:
    code, due_s = (Code.DEAD, None) if spent else _unclaimed(0, not_before_s, tx.now_s)
    tx.db.execute(sql.MOVE, (code, due_s, error, tx.now_s, seq))
    if spent:
        _kill_dependents(tx, seq, item_id, code)
    tx.changed.add(QUEUE)
    return code


def _unblock_dependents(tx: Transaction, finished: Sequence[int]) -> None:
    if not finished:
        return
    for (needed,) in tx.db.execute(sql.HAS_DEPENDENTS, (many(finished),)).fetchall():
        for seq, _, blockers, not_before_s in tx.db.execute(sql.BLOCKED_BY, (needed,)).fetchall():
            code, due_s = _unclaimed(blockers - 1, not_before_s, tx.now_s)
            tx.db.execute(sql.SET_BLOCKERS, (blockers - 1, code, due_s, tx.now_s, seq))
            tx.changed.add(QUEUE)


def _kill_dependents(tx: Transaction, seq: int, item_id: str, code: Code) -> None:
    """Everything that needs a dead or cancelled item dies with it, and so on."""
    ended = [(seq, item_id, code)]
    while ended:
        needed_seq, needed_id, needed_code = ended.pop()
        error = why_dependents_die(needed_id, STATE_OF[needed_code])
        for other_seq, other_id, _, _ in tx.db.execute(sql.BLOCKED_BY, (needed_seq,)).fetchall():
            tx.db.execute(sql.MOVE, (Code.DEAD, None, error, tx.now_s, other_seq))
            ended.append((other_seq, other_id, Code.DEAD))
