"""What goes into a sample file: the games offered, the window over them, and how much each counts.

All of it lies in scratch tables, so that planning a million games takes no more memory than planning ten.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ringrift.jobs.samples.window import games_within, unscaled_weight
from ringrift.jobs.scratch import scratch_database

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

    def quality_of(self, game_id: str) -> float | None:
        found = self._db.execute("SELECT quality FROM qualities WHERE game_id = ?", (game_id,)).fetchone()
        return None if found is None else float(found[0])

    def offer(self, game: PlannedGame) -> None:
        row = (game.shard, game.game_id, game.rows, game.completed_s, game.engine_mode, game.quality)
        self._db.execute(_OFFER, (*row, game.held_out))

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

    def marks_of(self, shard: int, game_id: str) -> Marks | None:
        """None if this game of this shard is not in."""
        query = "SELECT weight, quality FROM games WHERE game_id = ? AND shard = ? AND weight IS NOT NULL"
        found = self._db.execute(query, (game_id, shard)).fetchone()
        return None if found is None else Marks(*found)

    def totals(self) -> PlanTotals:
        return PlanTotals(*self._db.execute(_TOTALS).fetchone())
