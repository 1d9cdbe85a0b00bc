"""Reading shards: one game at a time, never more than one in memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ringrift.errors import Corrupt
from ringrift.jobs.scratch import CACHE_KIB
from ringrift.jobs.shards.encoding import Row, Undecodable, stored_game
from ringrift.jobs.shards.records import StoredGame
from ringrift.jobs.shards.schema import COPY_ADVICE, check_header

_GAMES = """
SELECT game_id, config_key, num_players, rng_seed, run_id, run_index, created_at, completed_at, winner,
       termination_reason, total_moves, source, engine_mode, generator_sha256, search_budget, fingerprint,
       metadata_json
FROM games ORDER BY run_id, run_index, game_id
"""
_PLAYERS = """
SELECT player_number, ai_type, name, model_sha256, simulations, result, ranking
FROM game_players WHERE game_id = ? ORDER BY player_number
"""
_MOVES = """
SELECT move_number, turn_number, player, phase, move_type, action, move_text, move_probs, root_values
FROM game_moves WHERE game_id = ? ORDER BY move_number
"""
_SUMMARIES = """
SELECT game_id, config_key, run_id, run_index, completed_at, total_moves, policy_rows, source, engine_mode,
       generator_sha256, search_budget, fingerprint
FROM games ORDER BY run_id, run_index, game_id
"""


@dataclass(frozen=True, slots=True)
class BrokenGame:
    """A game whose rows cannot be put together."""

    game_id: str
    why: str


@dataclass(frozen=True, slots=True)
class GameSummary:
    """What is known of a game without reading its moves."""

    game_id: str
    config_key: str
    run_id: str
    run_index: int
    completed_s: float
    total_moves: int
    rows: int
    source: str
    engine_mode: str
    generator_sha256: str | None
    search_budget: int | None
    fingerprint: str


class ShardReader:
    """An open shard; nothing can be written through it."""

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self._db, self.path = db, path

    @property
    def metadata(self) -> dict[str, str]:
        return dict(self._db.execute("SELECT key, value FROM schema_metadata"))

    @property
    def game_count(self) -> int:
        count: int = self._db.execute("SELECT count(*) FROM games").fetchone()[0]
        return count

    def summaries(self) -> Iterator[GameSummary]:
        for row in self._db.execute(_SUMMARIES):
            yield GameSummary(*row)

    def games(self, wanted: Callable[[str], bool] | None = None) -> Iterator[StoredGame | BrokenGame]:
        """Every game, or those whose id is wanted, in the order in which the run numbered them."""
        for row in self._db.execute(_GAMES):
            if wanted is None or wanted(row[0]):
                yield self._assemble(row)

    def _assemble(self, row: Row) -> StoredGame | BrokenGame:
        players = self._db.execute(_PLAYERS, row[:1]).fetchall()
        moves = self._db.execute(_MOVES, row[:1]).fetchall()
        try:
            return stored_game(row, players, moves)
        except Undecodable as fault:
            return BrokenGame(str(row[0]), str(fault))


@contextmanager
def open_shard(path: Path) -> Iterator[ShardReader]:
    """Open a sealed shard; raises `Corrupt` or a kind of it if the file is damaged or not ours."""
    check_header(path)
    # A sealed file never changes, so SQLite need not look for a journal or take locks.
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    try:
        # Large shards are sorted; that may take a file, but not memory that grows with the shard.
        db.execute("PRAGMA temp_store = FILE")
        db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise Corrupt(path, found=f"the database is damaged ({found})", advice=COPY_ADVICE)
        yield ShardReader(db, path)
    except sqlite3.DatabaseError as error:
        raise Corrupt(path, found=f"the database is damaged ({error})", advice=COPY_ADVICE) from error
    finally:
        db.close()
