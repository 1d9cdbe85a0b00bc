"""How far one subscription has come in the log: pure bookkeeping, no I/O."""

from __future__ import annotations

from ringrift.engine.ports import Position


class Cursor:
    """Up to `fed` every record was looked at; of those, `outstanding` ones are not handled yet.

    Events of this very process are handled before the reader comes to them; they stand in `done`.
    """

    __slots__ = ("dirty", "done", "fed", "outstanding", "restored")

    def __init__(self, position: Position, *, restored: bool) -> None:
        self.fed = position.floor
        self.done = set(position.done_above)
        self.outstanding: set[int] = set()
        self.restored = restored
        self.dirty = not restored

    def expect(self, seq: int) -> None:
        self.outstanding.add(seq)

    def finish(self, seq: int) -> None:
        self.outstanding.discard(seq)
        self.done.add(seq)
        self.dirty = True

    def feed(self, upto: int) -> None:
        self.fed = max(self.fed, upto)

    def give_up_oldest(self) -> int | None:
        """Stop waiting for the oldest unhandled event; return which one it was."""
        oldest = min(self.outstanding, default=None)
        if oldest is not None:
            self.outstanding.discard(oldest)
        return oldest

    def rewind(self, *, still_running: int = 0) -> set[int]:
        """Look again at what was under way and is lost now, all but one that still runs.

        Returns the sequence numbers.
        """
        kept = self.outstanding & {still_running}
        lost = self.outstanding - kept
        self.outstanding = kept
        if lost:
            self.fed = min(self.fed, min(lost) - 1)
        return lost

    def is_new(self, seq: int) -> bool:
        """Whether this event was neither looked at nor handled."""
        return seq > self.fed and seq not in self.done and seq not in self.outstanding

    def position(self) -> Position:
        """Return what may be recorded now, and forget what the floor covers."""
        floor = min(self.fed, min(self.outstanding, default=self.fed + 1) - 1)
        self.done = {seq for seq in self.done if seq > floor}
        return Position(floor, tuple(sorted(self.done)))
