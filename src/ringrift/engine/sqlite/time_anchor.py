"""The anchor of the engine's time, as one row of the database."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from ringrift import clock
from ringrift.clock import NOTED_EVERY_S, ClockAnchor, new_anchor

if TYPE_CHECKING:  # `ringrift status` reads the time, and has none to load these
    from ringrift.engine.sqlite.turnstile import Turnstile
    from ringrift.runtime import Runtime

_READ = "SELECT boot, boot_s, time_s, last_s FROM clock WHERE id = 1"
_STORE = "INSERT OR REPLACE INTO clock(id, boot, boot_s, time_s, last_s) VALUES (1, ?, ?, ?, ?)"
_NOTE = "UPDATE clock SET last_s = max(last_s, ?) WHERE id = 1"


def settle_anchor(
    db: sqlite3.Connection, turnstile: Turnstile, runtime: Runtime, *, wait_s: float
) -> ClockAnchor:
    """Return the anchor of this database; the first to come after a start of the machine stores a new one."""
    anchor, _ = _read(db, boot=runtime.boot_id, boot_s=runtime.boot_s())
    if anchor is not None:
        return anchor
    with turnstile.passed_within(wait_s):
        db.execute("BEGIN IMMEDIATE")
        try:
            anchor, last_s = _read(db, boot=runtime.boot_id, boot_s=runtime.boot_s())
            if anchor is None:
                anchor = new_anchor(
                    boot=runtime.boot_id, boot_s=runtime.boot_s(), now_s=runtime.now_s(), last_s=last_s
                )
                db.execute(_STORE, (anchor.boot, anchor.boot_s, anchor.time_s, anchor.time_s))
            db.execute("COMMIT")
            return anchor
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")


def time_of(db: sqlite3.Connection) -> float:
    """What time it is for this database, for one who only reads."""
    boot, boot_s, wall_s = clock.boot_id(), clock.boot_s(), clock.wall_s()
    anchor, last_s = _read(db, boot=boot, boot_s=boot_s)
    return (anchor or new_anchor(boot=boot, boot_s=boot_s, now_s=wall_s, last_s=last_s)).at(boot_s)


def _read(db: sqlite3.Connection, *, boot: str, boot_s: float) -> tuple[ClockAnchor | None, float | None]:
    """The anchor if it still holds, and the last time that was stored."""
    row = db.execute(_READ).fetchone()
    if row is None:
        return None, None
    anchor, last_s = ClockAnchor(*row[:3]), float(row[3])
    return (anchor if anchor.holds(boot=boot, boot_s=boot_s, last_s=last_s) else None), last_s


class TimeNote:
    """Stores now and then how late it is, so that a machine that is started again goes on from there."""

    def __init__(self) -> None:
        self._noted_s = 0.0

    def write(self, db: sqlite3.Connection, now_s: float) -> None:
        """To be called in a transaction that has changed something anyway."""
        if now_s - self._noted_s >= NOTED_EVERY_S:
            db.execute(_NOTE, (now_s,))
            self._noted_s = now_s
