"""Which games to learn from, and how much each counts: pure functions of what is known about the games."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ringrift.errors import ConfigError

SOURCE_WEIGHTS = {"gumbel": 3.0, "puct": 3.0, "mcts": 3.0, "policy": 1.5}
OTHER_SOURCE_WEIGHT = 1.0
FRESHNESS_FLOOR = 0.1
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class PlannedGame:
    """A game that may be exported."""

    shard: int
    game_id: str
    rows: int
    completed_s: float
    engine_mode: str
    quality: float


@dataclass(frozen=True, slots=True)
class PowerWindow:
    """How many of the newest rows to keep after N: `c (1 + b ((N/c)^a - 1) / a)`, all of them up to c."""

    a: float = 0.75
    b: float = 0.4
    c: float = 250_000.0

    def __post_init__(self) -> None:
        if not (0 < self.a < 1 and 0 < self.b <= 1 and self.c >= 1):
            raise ConfigError(f"window: need 0 < a < 1, 0 < b <= 1, c >= 1, not {self.a}, {self.b}, {self.c}")

    def rows(self, generated: int) -> int:
        if generated <= self.c:
            return generated
        grown = float((generated / self.c) ** self.a)
        return round(self.c * (1 + self.b * (grown - 1) / self.a))


def newest(games: Sequence[PlannedGame], rows_max: int) -> list[PlannedGame]:
    """The newest games that fit into *rows_max*, in their first order; whole games only."""
    kept, rows = set(), 0
    for at in sorted(range(len(games)), key=lambda at: (-games[at].completed_s, at)):
        if rows + games[at].rows > rows_max:
            break
        rows += games[at].rows
        kept.add(at)
    return [game for at, game in enumerate(games) if at in kept]


def freshness(age_s: float, half_life_s: float) -> float:
    """Halves with each half-life, down to a floor; the future counts as now."""
    return max(FRESHNESS_FLOOR, float(0.5 ** (max(age_s, 0.0) / half_life_s)))


def game_weights(games: Sequence[PlannedGame], *, now_s: float, half_life_s: float | None) -> list[float]:
    """Weight of each game's rows: source times freshness, 1 on average over all rows."""
    raw = [
        SOURCE_WEIGHTS.get(game.engine_mode, OTHER_SOURCE_WEIGHT)
        * (1.0 if half_life_s is None else freshness(now_s - game.completed_s, half_life_s))
        for game in games
    ]
    rows = sum(game.rows for game in games)
    if not rows:
        return raw
    mean = sum(weight * game.rows for weight, game in zip(raw, games, strict=True)) / rows
    return [weight / mean for weight in raw]
