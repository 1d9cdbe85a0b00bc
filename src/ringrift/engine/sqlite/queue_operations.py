"""What happens to work: prepared outside the transaction, found by lanes, changed inside the transaction."""

from __future__ import annotations

import heapq
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from ringrift.engine.arguments import LAST_CHARACTER, check_call_size, check_completions, check_new_work
from ringrift.engine.encoding import decode_json, encode_json, encode_trace
from ringrift.engine.ports import Claim, Claimant, Completion, NewWork, WorkState
from ringrift.engine.sqlite import queries as sql
from ringrift.engine.sqlite.queries import STATE_OF, Code
from ringrift.engine.sqlite.schema import of_result, of_work
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

# Work on its way in and out, prepared outside the transaction.
#
# While a transaction is open all other processes wait, so everything that can be done before or after it is
# done there. Many items become one statement with one JSON parameter: the driver hands the interpreter
# lock back and forth at every step of a statement, which costs more than the step itself.


LaneKey = tuple[str, str, str, str]
_SEPARATOR = "\x1f"  # in no name: control characters are refused

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class PlainRun:
    """Items of one lane, next to each other, without dependencies and idempotency keys."""

    lane: LaneKey
    ids: list[str]
    rows: str


@dataclass(frozen=True, slots=True)
class LinkedItem:
    """An item that needs others or has an idempotency key."""

    lane: LaneKey
    id: str
    new: NewWork
    row: str


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """Completions under one token with one result."""

    token: int
    result: bytes
    ids: list[str]


def as_parameter(values: Iterable[Any]) -> str:
    """Many values as one parameter of a query."""
    return _encode(list(values)).decode()


def lane_of(new: NewWork) -> LaneKey:
    requires = _SEPARATOR.join(sorted(new.requires)) if new.requires else ""
    return new.kind, new.node or "", requires, new.group


def requirements(text: str) -> frozenset[str]:
    """Read back what `lane_of` wrote."""
    return frozenset(text.split(_SEPARATOR)) if text else frozenset()


def prepare(items: Sequence[NewWork], new_id: Callable[[], str]) -> list[PlainRun | LinkedItem]:
    """Check and encode *items*; `ConfigError` for the first that makes no sense."""
    check_new_work(items)
    parts: list[PlainRun | LinkedItem] = []
    run_lane: LaneKey | None = None
    ids: list[str] = []
    rows: list[tuple[Any, ...]] = []
    sizes: list[int] = []

    def end_run() -> None:
        if run_lane is not None and rows:
            parts.append(PlainRun(run_lane, ids.copy(), as_parameter(rows)))
            ids.clear()
            rows.clear()

    for new in items:
        item_id, lane = new.id or new_id(), lane_of(new)
        payload, trace = encode_json("payload", new.payload), encode_trace(new.trace)
        checksum = of_work(item_id, payload, trace)
        row = (
            item_id,
            new.priority,
            new.attempts_max,
            new.delay_s,
            trace.decode(),
            payload.decode(),
            checksum,
        )
        sizes.append(len(payload) + len(trace))
        # In its place between the others: arrival decides who is first among equals.
        if new.after or new.idempotency_key is not None:
            end_run()
            parts.append(LinkedItem(lane, item_id, new, as_parameter([row])))
            continue
        if lane != run_lane:
            end_run()
            run_lane = lane
        ids.append(item_id)
        rows.append(row)
    end_run()
    check_call_size("items", sizes)
    return parts


def group(done: Sequence[Completion]) -> list[FinishedRun]:
    """Put together what one statement can complete; each id once per run."""
    check_completions(done)
    runs: dict[tuple[int, bytes], dict[str, None]] = {}
    for each in done:
        runs.setdefault((each.token, encode_json("result", each.result)), {})[each.id] = None
    check_call_size("results", (len(result) for _, result in runs))
    return [FinishedRun(token, result, list(ids)) for (token, result), ids in runs.items()]


@dataclass(frozen=True, slots=True)
class ClaimedRows:
    """What a claim brought, as it came from the database."""

    rows: Sequence[tuple[Any, ...]]
    token: int
    until_s: float

    def claims(self) -> list[Claim]:
        return [
            Claim(
                id=item_id,
                kind=kind,
                payload=decode_json(f"work item {item_id}", payload),
                token=self.token,
                attempt=attempts,
                lease_until_s=self.until_s,
                trace=decode_json(f"work item {item_id}", trace),
            )
            for item_id, kind, payload, attempts, trace in self.rows
        ]


# Lanes: items that the same claimants may take.


_CLAIMANTS_MAX = 256  # workers of one machine; beyond, the memory starts anew


def find_or_add_lane(tx: Transaction, key: LaneKey) -> int:
    # Looked up anew each time: upkeep of another process may have dropped an empty lane.
    row = tx.db.execute(sql.FIND_LANE, key).fetchone()
    if row is not None:
        return int(row[0])
    lane = tx.db.execute(sql.ADD_LANE, key).lastrowid
    assert lane is not None
    return lane


class LaneIndex:
    """Which lanes fit which claimant; remembered, because the same few claimants ask again and again.

    Lane numbers are never used twice, so that a dropped lane in here is merely empty. What an undone
    transaction added must be forgotten, since its numbers will be given again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0
        self._kinds: dict[int, str] = {}
        self._lanes: list[tuple[int, str, str, frozenset[str]]] = []
        self._groups: dict[int, str] = {}
        self._fitting: dict[Claimant, list[int]] = {}

    def forget(self) -> None:
        with self._lock:
            self._last = 0
            self._kinds.clear()
            self._lanes.clear()
            self._groups.clear()
            self._fitting.clear()

    def kind(self, lane: int) -> str:
        return self._kinds[lane]

    def group(self, lane: int) -> str:
        return self._groups[lane]

    def fitting(self, db: sqlite3.Connection, claimant: Claimant) -> list[int]:
        """Return the numbers of the lanes that *claimant* may take from."""
        with self._lock:
            self._load(db)
            found = self._fitting.get(claimant)
            if found is None:
                if len(self._fitting) >= _CLAIMANTS_MAX:
                    self._fitting.clear()
                found = [
                    lane for lane, kind, node, needs in self._lanes if _fits(claimant, kind, node, needs)
                ]
                self._fitting[claimant] = found
            return found

    def _load(self, db: sqlite3.Connection) -> None:
        fresh = db.execute(sql.LANES_AFTER, (self._last,)).fetchall()
        for lane, kind, node, requires, group in fresh:
            self._last = max(self._last, lane)
            self._kinds[lane], self._groups[lane] = kind, group
            self._lanes.append((lane, kind, node, requirements(requires)))
        if fresh:
            self._fitting.clear()


def _fits(claimant: Claimant, kind: str, node: str, requires: frozenset[str]) -> bool:
    return (
        (claimant.kinds is None or kind in claimant.kinds)
        and kind not in claimant.except_kinds
        and node in ("", claimant.node)
        and requires <= claimant.capabilities
    )


# What happens to work inside a transaction.


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
    # Looked for as they are named, then by arrival, so that a reason names the same one each time.
    needs = sorted(_needed(tx.db, item.id, needed) for needed in dict.fromkeys(item.new.after))
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
        tx.db.execute(sql.ADD_WORK, {"rows": rows, "lane": lane, "now_s": tx.now_s})
    # Asked of the database only when it refuses, because ids are nearly always new.
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
    # In the same transaction as the claim: a hold that was written before is never overtaken.
    held, hold_ends_s = _held(tx.db, tx.now_s)
    picked = find_ready(tx.db, lanes, claimant, limit, held)
    if not picked:
        times_s = (tx.db.execute(sql.NEXT_DUE_WORK).fetchone()[0], hold_ends_s)
        return min((time_s for time_s in times_s if time_s is not None), default=None)
    # One token for all items of the call: it only has to grow.
    (token,) = tx.db.execute(sql.NEXT_TOKEN).fetchone()
    until_s = tx.now_s + lease_s
    rows = tx.db.execute(
        sql.CLAIM, (claimant.worker, token, until_s, tx.now_s, as_parameter(picked))
    ).fetchall()
    by_seq = {row[0]: row for row in rows}
    ordered = [by_seq[seq] for seq in picked]
    # Looked at while it is handed out, which is the last moment at which damage costs nothing.
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


def replace(tx: Transaction, item_id: str, parts: Sequence[PlainRun | LinkedItem], reason: str) -> str | None:
    # An item that is refused takes the cancellation back with it: an operation is one savepoint.
    return add(tx, parts)[0] if cancel(tx, item_id, reason) else None


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
    tx.db.execute(sql.FORGET_END, (seq,))  # it has not ended any more, and will end under a new number
    tx.changed.add(QUEUE)


def end_due(tx: Transaction) -> int:
    """End leases that ran out and delays that are over, up to a bounded count; return the leases."""
    due = tx.db.execute(sql.DUE_WORK, (tx.now_s, _DUE_ROWS)).fetchall()
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
    # Most queues have no dependencies: one look spares a search for each completed item.
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
