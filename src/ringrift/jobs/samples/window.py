"""Which games to learn from, and how much each counts: pure functions of what is known about the games."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass

from ringrift.errors import ConfigError

SOURCE_WEIGHTS = {"gumbel": 3.0, "puct": 3.0, "mcts": 3.0, "policy": 1.5}
OTHER_SOURCE_WEIGHT = 1.0
FRESHNESS_FLOOR = 0.1
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class PowerWindow:
    """How many of the newest rows to keep after N: `c (1 + b ((N/c)^a - 1) / a)`, all of them up to c.

    With b = 0 the newest c.
    """

    a: float = 0.75
    b: float = 0.4
    c: float = 250_000.0

    def __post_init__(self) -> None:
        if not (0 < self.a < 1 and 0 <= self.b <= 1 and self.c >= 1):
            raise ConfigError(
                f"window: need 0 < a < 1, 0 <= b <= 1, c >= 1, not {self.a}, {self.b}, {self.c}"
            )

    def rows(self, generated: int) -> int:
        if generated <= self.c:
            return generated
        grown = float((generated / self.c) ** self.a)
        return round(self.c * (1 + self.b * (grown - 1) / self.a))


def games_within(rows_newest_first: Iterable[int], rows_max: int) -> int:
    """How many of the newest games fit into *rows_max*, whole games only."""
    rows = 0
    for count, more in enumerate(rows_newest_first):
        rows += more
        if rows > rows_max:
            return count
    return sys.maxsize


def freshness(age_s: float, half_life_s: float) -> float:
    """Halves with each half-life, down to a floor; the future counts as now."""
    return max(FRESHNESS_FLOOR, float(0.5 ** (max(age_s, 0.0) / half_life_s)))


def unscaled_weight(engine_mode: str, *, age_s: float, half_life_s: float | None) -> float:
    """Weight of a game's rows by its source and freshness; without ageing if there is no half-life."""
    fresh = 1.0 if half_life_s is None else freshness(age_s, half_life_s)
    return SOURCE_WEIGHTS.get(engine_mode, OTHER_SOURCE_WEIGHT) * fresh
