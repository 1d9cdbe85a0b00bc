"""What goes into a sample file: the games offered, the window over them, how much each counts, and which
are held out of training.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringrift.errors import ConfigError
from ringrift.jobs.files import scratch_database

# Which games to learn from, and how much each counts: pure functions of what is known about the games.


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


# Which games are held out of training: it follows from the game itself, so it stays so in every file.


HOLD_OUT = 0.05  # share of games
_PARTS = 10_000


def game_hash(fingerprint: str) -> int:
    """The number by which samples know their game."""
    return int(fingerprint[:16], 16)


def is_held_out(game_hashes: npt.NDArray[np.uint64], share: float) -> npt.NDArray[np.bool_]:
    """Whether the games are among the *share* that is held out; a smaller share is part of a larger one."""
    return (game_hashes % np.uint64(_PARTS)) < np.uint64(round(share * _PARTS))


# What goes into a sample file: the games offered, the window over them, and how much each counts.
#
# All of it lies in scratch tables, so that planning a million games takes no more memory than planning ten.


_TABLES = """
CREATE TABLE qualities (game_id TEXT PRIMARY KEY, quality REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE games (
  number INTEGER PRIMARY KEY,
  shard INTEGER NOT NULL,
  game_id TEXT NOT NULL,
  rows INTEGER NOT NULL,
  completed_s REAL NOT NULL,
  engine_mode TEXT NOT NULL,
  quality REAL NOT NULL,
  held_out INTEGER NOT NULL,
  weight REAL  -- null outside the window
);
CREATE UNIQUE INDEX by_id ON games (game_id);
CREATE INDEX by_age ON games (completed_s DESC, number, rows);
"""
_OFFER = """
INSERT INTO games (shard, game_id, rows, completed_s, engine_mode, quality, held_out)
VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_KEEP = """
UPDATE games SET weight = 1.0
WHERE number IN (SELECT number FROM games ORDER BY completed_s DESC, number LIMIT ?)
"""
_TOTALS = """
SELECT count(weight), coalesce(sum(rows) FILTER (WHERE weight IS NOT NULL), 0),
  count(*), coalesce(sum(rows), 0), max(completed_s) FILTER (WHERE weight IS NOT NULL),
  count(weight) FILTER (WHERE held_out),
  coalesce(sum(rows) FILTER (WHERE held_out AND weight IS NOT NULL), 0)
FROM games
"""


@dataclass(frozen=True, slots=True)
class PlannedGame:
    """A game that may be exported."""

    shard: int
    game_id: str
    rows: int
    completed_s: float
    engine_mode: str
    quality: float
    held_out: bool = False


@dataclass(frozen=True, slots=True)
class Marks:
    """What the plan says about a game that is in."""

    weight: float
    quality: float


@dataclass(frozen=True, slots=True)
class PlanTotals:
    """How much is in the plan; `held_…` are the part of it that training holds out."""

    games: int
    rows: int
    games_offered: int
    rows_offered: int
    newest_s: float | None
    held_games: int
    held_rows: int


class SamplePlan:
    """Collects games and chooses among them; a context manager."""

    def __init__(self) -> None:
        self._db = scratch_database(_TABLES)

    def __enter__(self) -> SamplePlan:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def note_qualities(self, found: Iterable[tuple[str, float]]) -> None:
        """Remember the accepted games of the shard at hand, in place of those of the last one."""
        self._db.execute("DELETE FROM qualities")
        self._db.executemany("INSERT INTO qualities VALUES (?, ?)", found)

    def qualities_of(self, game_ids: Sequence[str]) -> dict[str, float]:
        """Of those games of the shard at hand that were accepted."""
        marks = ", ".join("?" * len(game_ids))
        found = f"SELECT game_id, quality FROM qualities WHERE game_id IN ({marks})"
        return dict(self._db.execute(found, game_ids).fetchall())

    def offer(self, games: Iterable[PlannedGame]) -> None:
        rows = (
            (g.shard, g.game_id, g.rows, g.completed_s, g.engine_mode, g.quality, g.held_out) for g in games
        )
        self._db.executemany(_OFFER, rows)

    def choose(self, rows_max: int) -> None:
        """Keep the newest games that fit; of games of the same time those offered first."""
        newest = self._db.execute("SELECT rows FROM games ORDER BY completed_s DESC, number")
        self._db.execute(_KEEP, (games_within((row[0] for row in newest), rows_max),))

    def weigh(self, *, now_s: float, half_life_s: float | None) -> None:
        """Weigh the kept games: 1 on average over all rows."""

        def unscaled(engine_mode: str, completed_s: float) -> float:
            return unscaled_weight(engine_mode, age_s=now_s - completed_s, half_life_s=half_life_s)

        self._db.create_function("unscaled", 2, unscaled, deterministic=True)
        mean = "SELECT sum(unscaled(engine_mode, completed_s) * rows) / sum(rows)"
        (scale,) = self._db.execute(f"{mean} FROM games WHERE weight IS NOT NULL").fetchone()
        weight = "UPDATE games SET weight = unscaled(engine_mode, completed_s) / ?"
        self._db.execute(f"{weight} WHERE weight IS NOT NULL", (scale,))

    def marks_of(self, shard: int, game_ids: Sequence[str]) -> dict[str, Marks]:
        """Of those games of this shard that are in."""
        marks = ", ".join("?" * len(game_ids))
        query = "SELECT game_id, weight, quality FROM games WHERE shard = ? AND weight IS NOT NULL"
        found = self._db.execute(f"{query} AND game_id IN ({marks})", (shard, *game_ids))
        return {game_id: Marks(weight, quality) for game_id, weight, quality in found}

    def totals(self) -> PlanTotals:
        return PlanTotals(*self._db.execute(_TOTALS).fetchone())
