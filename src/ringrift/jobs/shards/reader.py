"""Reading shards: a few games at a time, never more than that in memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ringrift.errors import Corrupt
from ringrift.foreign_files.databases import open_foreign_database
from ringrift.jobs.shards.encoding import GameRows, Row, Undecodable, stored_games
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
GAMES_AT_ONCE, BYTES_AT_ONCE = 64, 1 << 20  # that are put together
MOVES_AT_ONCE = 64
MOVE_BYTES = 256  # that a move takes beside its policy, about


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
        group: list[GameRows] = []
        size = 0
        for row in self._db.execute(_GAMES):
            if wanted is not None and not wanted(row[0]):
                continue
            try:
                group.append(self._rows(row))
            except Undecodable as fault:
                yield from _assembled(group)
                group, size = [], 0
                yield BrokenGame(str(row[0]), str(fault))
                continue
            size += group[-1].size
            if len(group) >= GAMES_AT_ONCE or size >= BYTES_AT_ONCE:
                yield from _assembled(group)
                group, size = [], 0
        yield from _assembled(group)

    def _rows(self, row: Row) -> GameRows:
        players = self._db.execute(_PLAYERS, row[:1]).fetchmany(PLAYERS_MAX + 1)
        found, moves, size = self._db.execute(_MOVES, row[:1]), [], 0
        while some := found.fetchmany(MOVES_AT_ONCE):
            moves += some
            size += sum(len(blob) for move in some for blob in move[-2:] if blob is not None)
            if len(moves) > MOVES_MAX or size > GAME_BYTES_MAX:
                raise Undecodable(f"more than {MOVES_MAX} moves, or policies of {GAME_BYTES_MAX} bytes")
        return GameRows(row, players, moves, size + MOVE_BYTES * len(moves))


def _assembled(group: Sequence[GameRows]) -> Iterator[StoredGame | BrokenGame]:
    """The games of *group*; each by itself if they cannot be put together at once."""
    if not group:
        return
    try:
        yield from stored_games(group)
    except Undecodable as fault:
        if len(group) == 1:
            yield BrokenGame(str(group[0].game[0]), str(fault))
            return
        for each in group:
            yield from _assembled([each])


@contextmanager
def open_shard(path: Path, *, every_value: bool = True) -> Iterator[ShardReader]:
    """Open a sealed shard; raises `Corrupt` or a kind of it if the file is damaged or not ours.

    Without *every_value* only SQLite's own check is made: for whoever opens it for the second time.
    """
    check_header(path)
    with open_foreign_database(path, TABLE_RULES, advice=COPY_ADVICE, every_value=every_value) as db:
        yield ShardReader(db, path)
