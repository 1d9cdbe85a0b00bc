"""Reading shards: one game at a time, never more than one in memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ringrift.errors import Corrupt
from ringrift.foreign_files.databases import open_foreign_database
from ringrift.jobs.shards.encoding import Row, Undecodable, stored_game
from ringrift.jobs.shards.records import StoredGame
from ringrift.jobs.shards.schema import COPY_ADVICE, PLAYERS_MAX, TABLE_RULES, check_header

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


FACTS_MAX = 100
MOVES_MAX = 50_000  # of one game; the longest that a game may be is 32,768
GAME_BYTES_MAX = 64 << 20  # policies and values of one game


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
        rows = self._db.execute("SELECT key, value FROM schema_metadata").fetchmany(FACTS_MAX + 1)
        if len(rows) > FACTS_MAX:
            raise Corrupt(self.path, found=f"it states more than {FACTS_MAX} facts", advice=COPY_ADVICE)
        return dict(rows)

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
        players = self._db.execute(_PLAYERS, row[:1]).fetchmany(PLAYERS_MAX + 1)
        try:
            return stored_game(row, players, self._moves(row))
        except Undecodable as fault:
            return BrokenGame(str(row[0]), str(fault))

    def _moves(self, row: Row) -> list[Row]:
        moves, size = [], 0
        for move in self._db.execute(_MOVES, row[:1]):
            moves.append(move)
            size += sum(len(blob) for blob in move[-2:] if blob is not None)
            if len(moves) > MOVES_MAX or size > GAME_BYTES_MAX:
                raise Undecodable(f"more than {MOVES_MAX} moves, or policies of {GAME_BYTES_MAX} bytes")
        return moves


@contextmanager
def open_shard(path: Path) -> Iterator[ShardReader]:
    """Open a sealed shard; raises `Corrupt` or a kind of it if the file is damaged or not ours."""
    check_header(path)
    with open_foreign_database(path, TABLE_RULES, advice=COPY_ADVICE) as db:
        yield ShardReader(db, path)
