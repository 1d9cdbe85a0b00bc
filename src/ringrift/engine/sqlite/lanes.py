"""Lanes: items that the same claimants may take."""

from __future__ import annotations

import sqlite3
import threading

from ringrift.engine.ports import Claimant
from ringrift.engine.sqlite import queue_sql as sql
from ringrift.engine.sqlite.queue_batches import LaneKey, requirements
from ringrift.engine.sqlite.writer import Transaction

_CLAIMANTS_MAX = 256


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
