"""Reading positions only grow: what was handled once stays handled, in whatever order commits arrive."""

from __future__ import annotations

from ringrift.engine.ports import Position


def merge_positions(stored: Position | None, given: Position) -> Position:
    """Return the position that has handled everything that either one has."""
    if stored is None:
        floor, done = given.floor, set(given.done_above)
    else:
        floor, done = max(stored.floor, given.floor), {*stored.done_above, *given.done_above}
    return Position(floor, tuple(sorted(seq for seq in done if seq > floor)))
