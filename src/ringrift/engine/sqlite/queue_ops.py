"""What happens to work inside a transaction."""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Collection, Sequence
from typing import NamedTuple

from ringrift.engine.arguments import LAST_CHARACTER
from ringrift.engine.ports import Claimant, WorkState
from ringrift.engine.sqlite import queue_sql as sql
from ringrift.engine.sqlite.checksums import of_result, of_work
from ringrift.engine.sqlite.lanes import LaneIndex, find_or_add_lane
from ringrift.engine.sqlite.queue_batches import (
    ClaimedRows,
    FinishedRun,
    LaneKey,
    LinkedItem,
    PlainRun,
    as_parameter,
)
from ringrift.engine.sqlite.queue_sql import STATE_OF, Code
from ringrift.engine.sqlite.writer import Transaction
from ringrift.engine.waiting import ENDS, QUEUE
from ringrift.engine.work_rules import (
    HOLDS,
    LEASE_RAN_OUT,
    PAYLOAD_DAMAGED,
    WORK_LEASES,
    HeldWork,
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


def add(tx: Transaction, parts: Sequence[PlainRun | LinkedItem]) -> list[str]:
    lanes: dict[LaneKey, int] = {}
    ids: list[str] = []
    for part in parts:
        if part.lane not in lanes:
            lanes[part.lane] = find_or_add_lane(tx, part.lane)
        if isinstance(part, PlainRun):
            _insert(tx, part.rows, lanes[part.lane], part.ids)
            ids += part.ids
        else:
            ids.append(_add_linked(tx, part, lanes[part.lane]))
    return ids


def _add_linked(tx: Transaction, item: LinkedItem, lane: int) -> str:
    """Add an item that has an idempotency key or needs others; return its id or that of the first."""
    key = item.new.idempotency_key
    if key is not None:
        existing = tx.db.execute(sql.ID_OF_KEY, (key,)).fetchone()
        if existing is not None:
            return str(existing[0])
    needs = sorted(_needed(tx.db, item.id, needed) for needed in set(item.new.after))
    _insert(tx, item.row, lane, [item.id])
    (seq, _) = tx.db.execute(sql.SEQ_AND_STATE, (item.id,)).fetchone()
    blockers = sum(1 for need in needs if need.code != Code.DONE)
    code, due_s = _unclaimed(blockers, tx.now_s + item.new.delay_s, tx.now_s)
    error = None
    broken = next((need for need in needs if need.code in _BROKEN), None)
    if broken is not None:
        code, due_s = Code.DEAD, None
        error = why_dependents_die(broken.id, STATE_OF[broken.code])
    tx.db.execute(sql.LINK, (code, due_s, blockers, key, error, seq))
    tx.db.executemany(sql.ADD_NEED, [(need.seq, seq) for need in needs])
    if broken is not None:
        _note_ends(tx, [seq])
    return item.id


def _insert(tx: Transaction, rows: str, lane: int, ids: Sequence[str]) -> None:
    try:
        tx.db.execute(sql.ADD, {"rows": rows, "lane": lane, "now_s": tx.now_s})
    except sqlite3.IntegrityError:
        raise AlreadyExists(_known(tx.db, ids)) from None
    tx.changed.add(QUEUE)


def _known(db: sqlite3.Connection, ids: Sequence[str]) -> str:
    """The first id that is there already, or stands twice in this call."""
    seen: set[str] = set()
    for item_id in ids:
        if item_id in seen or db.execute(sql.SEQ_AND_STATE, (item_id,)).fetchone() is not None:
            return item_id
        seen.add(item_id)
    raise AssertionError("the database refused an item, and none of the ids is taken")


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


def _held(db: sqlite3.Connection, now_s: float) -> tuple[HeldWork, float | None]:
    """What is not to be handed out, and when the first of it ends by itself."""
    rows: list[tuple[str, float | None]] = []
    for prefix in (HOLDS, WORK_LEASES):
        rows += db.execute(sql.HELD, (prefix, prefix + LAST_CHARACTER, now_s)).fetchall()
    ends_s = [end_s for _, end_s in rows if end_s is not None]
    return HeldWork.by(key for key, _ in rows), min(ends_s, default=None)


def find_ready(
    db: sqlite3.Connection, lanes: LaneIndex, claimant: Claimant, limit: int, held: HeldWork
) -> list[int]:
    """Return the sequence numbers of the best items for *claimant*: one index seek per lane."""
    found: list[tuple[int, int]] = []
    for lane in lanes.fitting(db, claimant):
        if held.holds(lanes.group(lane), lanes.kind(lane)):
            continue
        found += db.execute(sql.READY_IN_LANE, (lane, limit)).fetchall()
    return [seq for _, seq in heapq.nsmallest(limit, found)]


def claim(
    tx: Transaction, lanes: LaneIndex, claimant: Claimant, *, lease_s: float, limit: int
) -> ClaimedRows | float | None:
    """Hand out items; with none, return when time alone may bring one."""
    end_due(tx)
    held, hold_ends_s = _held(tx.db, tx.now_s)
    picked = find_ready(tx.db, lanes, claimant, limit, held)
    if not picked:
        times_s = (tx.db.execute(sql.NEXT_DUE).fetchone()[0], hold_ends_s)
        return min((time_s for time_s in times_s if time_s is not None), default=None)
    (token,) = tx.db.execute(sql.NEXT_TOKEN).fetchone()
    until_s = tx.now_s + lease_s
    rows = tx.db.execute(
        sql.CLAIM, (claimant.worker, token, until_s, tx.now_s, as_parameter(picked))
    ).fetchall()
    by_seq = {row[0]: row for row in rows}
    ordered = [by_seq[seq] for seq in picked]
    sound = [row for row in ordered if _is_sound(tx, row)]
    return ClaimedRows(
        [(item_id, lanes.kind(lane), *rest) for _, item_id, lane, *rest, _ in sound], token, until_s
    )


def _is_sound(tx: Transaction, row: tuple[int, str, int, bytes, int, bytes, int | None]) -> bool:
    """Whether an item asks for what it was added with; one that does not ends, with the reason."""
    seq, item_id, _, payload, _, trace, checksum = row
    if checksum == of_work(item_id, payload, trace):
        return True
    _end_attempt(tx, seq, item_id, PAYLOAD_DAMAGED, spent=True, not_before_s=tx.now_s)
    return False


def renew(tx: Transaction, item_id: str, token: int, lease_s: float) -> float:
    until_s = tx.now_s + lease_s
    if tx.db.execute(sql.RENEW, (until_s, item_id, token, tx.now_s)).fetchone() is None:
        raise lease_lost(tx, item_id, token)
    return until_s


def complete(tx: Transaction, runs: Sequence[FinishedRun]) -> list[tuple[str, int]]:
    """Complete the items whose claims hold; return the ids and tokens of the others."""
    refused = []
    for run in runs:
        checksum = of_result(run.result)
        parameters = (tx.now_s, run.result, checksum, as_parameter(run.ids), run.token, tx.now_s)
        finished = dict(tx.db.execute(sql.COMPLETE, parameters).fetchall())
        _note_ends(tx, finished.values())
        refused += [(item_id, run.token) for item_id in run.ids if item_id not in finished]
        _unblock_dependents(tx, finished)
    return refused


def fail(
    tx: Transaction, item_id: str, token: int, error: str, *, retry_after_s: float, final: bool
) -> WorkState:
    row = tx.db.execute(sql.HELD_ATTEMPTS, (item_id, token, tx.now_s)).fetchone()
    if row is None:
        raise lease_lost(tx, item_id, token)
    seq, attempts, attempts_max = row
    not_before_s = tx.now_s + retry_after_s
    tx.db.execute(sql.SET_NOT_BEFORE, (not_before_s, seq))
    spent = final or attempts >= attempts_max
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
    _note_ends(tx, [row[0]])
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
    tx.db.execute(sql.FORGET_END, (seq,))
    tx.changed.add(QUEUE)


def end_due(tx: Transaction) -> int:
    """End leases that ran out and delays that are over, up to a bounded count; return the leases."""
    due = tx.db.execute(sql.DUE, (tx.now_s, _DUE_ROWS)).fetchall()
    delayed = [seq for seq, _, code, _, _ in due if code == Code.DELAYED]
    if delayed:
        tx.db.execute(sql.MAKE_READY, (as_parameter(delayed),))
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
        _note_ends(tx, [seq])
        _kill_dependents(tx, seq, item_id, code)
    tx.changed.add(QUEUE)
    return code


def _unblock_dependents(tx: Transaction, finished: Collection[str]) -> None:
    if not finished or tx.db.execute(sql.ANY_NEEDS).fetchone() is None:
        return
    for (needed,) in tx.db.execute(sql.HAS_DEPENDENTS, (as_parameter(finished),)).fetchall():
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
            _note_ends(tx, [other_seq])
            ended.append((other_seq, other_id, Code.DEAD))


def _note_ends(tx: Transaction, seqs: Collection[int]) -> None:
    """Give each item that ended its place among the ends."""
    if seqs:
        tx.db.execute(sql.NOTE_ENDS, (as_parameter(seqs),))
        tx.changed.add(ENDS)
