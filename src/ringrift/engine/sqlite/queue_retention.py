"""Ended work leaves by age, and earlier when there is too much of it."""

from __future__ import annotations

from collections.abc import Sequence

from ringrift.engine.limits import EngineLimits
from ringrift.engine.sqlite import queue_sql as sql
from ringrift.engine.sqlite.queue_batches import as_parameter
from ringrift.engine.sqlite.queue_sql import Code
from ringrift.engine.sqlite.writer import Transaction

_SWEEP_ROWS = 2_000
_DROP_ROWS = 1_000
_LANES_KEPT = 1_000


class WorkSweep:
    """Walks over all work in small steps, one per transaction, and begins again at the end."""

    def __init__(self, limits: EngineLimits) -> None:
        self._limits = limits
        self._after = 0

    def step(self, tx: Transaction, *, by_age: bool = True) -> int:
        """Drop what is past its time among the next rows; return how many went."""
        rows = tx.db.execute(sql.SWEEP, (self._after, _SWEEP_ROWS)).fetchall()
        self._after = rows[-1][0] if len(rows) == _SWEEP_ROWS else 0
        kept_s = {
            Code.DONE: self._limits.finished_retention_s,
            Code.CANCELLED: self._limits.finished_retention_s,
            Code.DEAD: self._limits.dead_retention_s,
        }
        if not by_age:
            return self._drop_excess(tx)
        past = [seq for seq, code, at_s in rows if code in kept_s and at_s < tx.now_s - kept_s[Code(code)]]
        return _drop(tx, past) + self._drop_excess(tx)

    def _drop_excess(self, tx: Transaction) -> int:
        (count,) = tx.db.execute(sql.COUNT_WORK).fetchone()
        excess = min(count - self._limits.work_rows_max, _DROP_ROWS)
        if excess <= 0:
            return 0
        return _drop(tx, [seq for (seq,) in tx.db.execute(sql.OLDEST_ENDED, (excess,))])


def drop_empty_lanes(tx: Transaction) -> None:
    """Lanes are few; only where somebody made very many is it worth looking for empty ones."""
    (count,) = tx.db.execute(sql.COUNT_LANES).fetchone()
    if count > _LANES_KEPT:
        tx.db.execute(sql.DROP_EMPTY_LANES)
        tx.db.execute(sql.DROP_EMPTY_COUNTS)


def _drop(tx: Transaction, seqs: Sequence[int]) -> int:
    if not seqs:
        return 0
    numbers = as_parameter(seqs)
    tx.db.execute(sql.DROP_NEEDS, (numbers, numbers))
    tx.db.execute(sql.DROP_ENDS, (numbers,))
    return tx.db.execute(sql.DROP_WORK, (numbers,)).rowcount
