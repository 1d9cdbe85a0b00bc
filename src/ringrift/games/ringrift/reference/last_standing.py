"""The rounds that decide who is the last player with a real action (§11)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

STREAK_TO_WIN = 3


@dataclass(slots=True)
class LastStanding:
    """Who opened the round, who could really act in it, and who was alone in that for how many rounds."""

    opener: int | None = None
    acted: set[int] = field(default_factory=set)
    streak: int = 0
    holder: int | None = None

    def start_turn(self, player: int, live: Sequence[int], real_action: Callable[[int], bool]) -> bool:
        """Record that a turn starts by rotation; true if *player* wins by it."""
        if self.opener not in live:
            self.opener, self.acted = player, set()
            if self.holder not in live:
                self.streak, self.holder = 0, None
        elif player == self.opener:
            self._close_round(live)
        if real_action(player):
            self.acted.add(player)
        if self.streak < STREAK_TO_WIN or self.holder != player:
            return False
        return [seat for seat in live if real_action(seat)] == [player]

    def _close_round(self, live: Sequence[int]) -> None:
        acted = [seat for seat in live if seat in self.acted]
        if len(acted) == 1:
            self.streak = self.streak + 1 if self.holder == acted[0] else 1
            self.holder = acted[0]
        else:
            self.streak, self.holder = 0, None
        self.acted = set()
