"""Reading positions only grow: what was handled once stays handled, in whatever order commits arrive."""

from __future__ import annotations

from ringrift.engine.ports import CursorKey, Position
from ringrift.errors import Unavailable

_FULL_RETRY_S = 10.0


def merge_positions(stored: Position | None, given: Position) -> Position:
    """Return the position that has handled everything that either one has."""
    if stored is None:
        floor, done = given.floor, set(given.done_above)
    else:
        floor, done = max(stored.floor, given.floor), {*stored.done_above, *given.done_above}
    return Position(floor, tuple(sorted(seq for seq in done if seq > floor)))


def log_is_full(rows: int, unseen_by: CursorKey) -> Unavailable:
    """Return what the publisher gets: there is no room without dropping what somebody has yet to see."""
    return Unavailable(
        f"the event log is full: it holds {rows:,} events, and the subscription {unseen_by.consumer!r} of"
        f" {unseen_by.instance!r} has not seen the oldest",
        retry_after_s=_FULL_RETRY_S,
    )
