"""Shards on disk: read a few games at a time, never more than that in memory; written so that games are
committed one by one, and sealed by the hundred.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from pathlib import Path

import structlog

from ringrift.errors import Corrupt
from ringrift.files import sync_folder
from ringrift.foreign_files.databases import open_foreign_database
from ringrift.games.contract import Game
from ringrift.jobs.files import SealedFile, describe, sealing, storage_errors
from ringrift.jobs.shards.records import (
    TOTAL_MOVES,
    PlayedGame,
    Row,
    StoredGame,
    Undecodable,
    describe_moves,
    game_row,
    move_rows,
    player_rows,
    stored_games,
)
from ringrift.jobs.shards.schema import (
    COPY_ADVICE,
    GAME_TABLES,
    PLAYERS_MAX,
    TABLE_RULES,
    check_header,
    create_tables,
)

# Reading shards: a few games at a time, never more than that in memory.


_GAMES = """
SELECT game_id, config_key, num_players, rng_seed, run_id, run_index, created_at, completed_at, winner,
       termination_reason, total_moves, source, engine_mode, generator_sha256, search_budget, fingerprint,
       metadata_json
FROM games ORDER BY run_id, run_index, game_id
"""
_PLAYERS = """
SELECT game_id, player_number, ai_type, name, model_sha256, simulations, result, ranking
FROM game_players WHERE game_id IN ({ids}) ORDER BY game_id, player_number
"""
_MOVES = """
SELECT game_id, move_number, player, phase, move_type, action, move_probs, root_values
FROM game_moves WHERE game_id IN ({ids}) ORDER BY game_id, move_number
"""
_SUMMARIES = """
SELECT game_id, config_key, run_id, run_index, completed_at, total_moves, policy_rows, source, engine_mode,
       generator_sha256, search_budget, fingerprint
FROM games ORDER BY run_id, run_index, game_id
"""


FACTS_MAX = 100
MOVES_MAX = 50_000  # of one game; the longest that a game may be is 32,768
GAME_BYTES_MAX = 64 << 20  # policies and values of one game
# That are read and put together at once: of short games there are many, and each alone would take far longer.
GAMES_AT_ONCE, MOVES_AT_ONCE, BYTES_AT_ONCE = 64, 1_000, 4 << 20
MOVES_FETCHED = 64
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

    def games(
        self, wanted: Callable[[Sequence[str]], Collection[str]] | None = None
    ) -> Iterator[StoredGame | BrokenGame]:
        """Every game, or of some ids at a time those that *wanted* returns; in the order of the run."""
        rows: Iterable[Row] = self._db.execute(_GAMES)
        for some in _short_together(rows if wanted is None else _wanted(rows, wanted)):
            yield from self._games_together(some) or map(self._game_alone, some)

    def _games_together(self, games: Sequence[Row]) -> list[StoredGame]:
        """*games*, in this order; none if one is damaged, or if they are more than they claim to be."""
        moves = sum(game[TOTAL_MOVES] for game in games)
        if moves > MOVES_AT_ONCE:
            return []
        try:
            found = self._read(sorted(games, key=itemgetter(0)), moves_max=moves, bytes_max=BYTES_AT_ONCE)
        except Undecodable:
            return []
        by_id = {each.game.game_id: each for each in found}
        return [by_id[game[0]] for game in games]

    def _game_alone(self, game: Row) -> StoredGame | BrokenGame:
        try:
            return self._read([game], moves_max=MOVES_MAX, bytes_max=GAME_BYTES_MAX)[0]
        except Undecodable as fault:
            return BrokenGame(str(game[0]), str(fault))

    def _read(self, games: Sequence[Row], *, moves_max: int, bytes_max: int) -> list[StoredGame]:
        """The games of these rows, which are in the order of their ids."""
        ids = [game[0] for game in games]
        marks = ", ".join("?" * len(ids))
        players_max = PLAYERS_MAX * len(ids)
        players = self._db.execute(_PLAYERS.format(ids=marks), ids).fetchmany(players_max + 1)
        found, moves, size = self._db.execute(_MOVES.format(ids=marks), ids), list[Row](), 0
        while some := found.fetchmany(MOVES_FETCHED):
            moves += some
            size += sum([len(row[-2] or b"") + len(row[-1] or b"") for row in some])  # policy and values
            if len(moves) > moves_max or size > bytes_max:
                raise Undecodable(f"more than {moves_max} moves, or policies of {bytes_max} bytes")
        return stored_games(games, players, moves)


def _wanted(games: Iterable[Row], wanted: Callable[[Sequence[str]], Collection[str]]) -> Iterator[Row]:
    remaining = iter(games)
    while some := list(islice(remaining, GAMES_AT_ONCE)):
        chosen = wanted([game[0] for game in some])
        yield from (game for game in some if game[0] in chosen)


def _short_together(games: Iterable[Row]) -> Iterator[list[Row]]:
    """Some games at a time, by the number of moves that they claim to have."""
    group: list[Row] = []
    moves = 0
    for game in games:
        if group and (moves + game[TOTAL_MOVES] > MOVES_AT_ONCE or len(group) == GAMES_AT_ONCE):
            yield group
            group, moves = [], 0
        group.append(game)
        moves += game[TOTAL_MOVES]
    if group:
        yield group


@contextmanager
def open_shard(path: Path, *, every_value: bool = True) -> Iterator[ShardReader]:
    """Open a sealed shard; raises `Corrupt` or a kind of it if the file is damaged or not ours.

    Without *every_value* only SQLite's own check is made: for whoever opens it for the second time.
    """
    check_header(path)
    with open_foreign_database(path, TABLE_RULES, advice=COPY_ADVICE, every_value=every_value) as db:
        yield ShardReader(db, path)


# Writing shards: finished games are committed one by one, and sealed by the hundred.
#
# Games gather in an open file beside the shards (`….games`), each in a transaction of its own, so that a
# killed process loses no finished game. Sealing copies them into a fresh file, checks it and renames it;
# the open file is emptied after that, and a game that is in both is left in the sealed one only.


SHARD_SUFFIX = ".shard.db"
OPEN_SUFFIX = ".games"
COUNTS = ("games", "moves", "rows")  # facts that every shard carries

log = structlog.get_logger()


class ShardWriter:
    """Gathers the games of one run in *folder* and seals them as `{name}-{number}.shard.db`."""

    def __init__(
        self, folder: Path, name: str, game: Game, *, games_per_shard: int, facts: Mapping[str, str]
    ) -> None:
        self._folder, self._name, self._game = folder, name, game
        self._games_per_shard, self._facts = games_per_shard, dict(facts)
        self.open_path = folder / f"{name}{OPEN_SUFFIX}"
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._db = _open_gathering(self.open_path)
        self.sealed: list[Path] = sorted(folder.glob(f"{name}-*{SHARD_SUFFIX}"))
        self._finish_sealing()

    def done_ids(self) -> set[str]:
        """The ids of all games that are sealed or gathered."""
        done = {row[0] for row in self._db.execute("SELECT game_id FROM games")}
        for path in self.sealed:
            with open_shard(path) as shard:
                done |= {summary.game_id for summary in shard.summaries()}
        return done

    def games(self) -> Iterator[StoredGame]:
        """Every game of the run so far, sealed or gathered."""
        for path in self.sealed:
            with open_shard(path) as shard:
                yield from (found for found in shard.games() if isinstance(found, StoredGame))
        gathered = ShardReader(self._db, self.open_path).games()
        yield from (found for found in gathered if isinstance(found, StoredGame))

    def add(self, played: PlayedGame) -> SealedFile | None:
        """Commit one game; returns the shard if this one filled it."""
        moves = describe_moves(self._game, played.actions)
        with storage_errors(self.open_path), self._db:
            self._db.execute("BEGIN IMMEDIATE")
            _insert(self._db, "games", [game_row(played, moves)])
            _insert(self._db, "game_players", player_rows(played))
            _insert(self._db, "game_moves", list(move_rows(played, moves)))
        return self.seal() if self.gathered >= self._games_per_shard else None

    @property
    def gathered(self) -> int:
        count: int = self._db.execute("SELECT count(*) FROM games").fetchone()[0]
        return count

    def sealed_before(self) -> Iterator[SealedFile]:
        """The shards that earlier runs of the same games sealed."""
        for path in self.sealed:
            with open_shard(path) as shard:
                facts = shard.metadata
            yield describe(path, "shard", **{name: int(facts[name]) for name in COUNTS})

    def seal(self) -> SealedFile | None:
        """Seal the gathered games, if there are any."""
        if not self.gathered:
            return None
        number = 1 + max((_number(path) for path in self.sealed), default=-1)
        path = self._folder / f"{self._name}-{number:05d}{SHARD_SUFFIX}"
        with sealing(path) as part:
            counts = self._write_shard(part)
            with open_shard(part) as shard:
                if shard.game_count != counts["games"]:
                    raise Corrupt(part, found="fewer games than were written", advice="Check the disk")
        self.sealed.append(path)
        self._empty()
        return describe(path, "shard", **counts)

    def close(self) -> None:
        """Release the open file, and remove it if it holds nothing."""
        empty = not self.gathered
        self._db.close()
        if empty:
            self.open_path.unlink(missing_ok=True)
            sync_folder(self._folder)

    def _write_shard(self, part: Path) -> dict[str, int]:
        db = sqlite3.connect(part, isolation_level=None)
        try:
            db.execute("PRAGMA page_size = 4096")
            db.execute("PRAGMA journal_mode = OFF")
            db.execute("PRAGMA synchronous = OFF")  # the whole file is synced before its rename
            create_tables(db)
            db.execute("ATTACH ? AS gathered", (str(self.open_path),))
            db.execute("BEGIN")
            for table in GAME_TABLES:
                db.execute(f"INSERT INTO main.{table} SELECT * FROM gathered.{table}")
            games, moves, rows = db.execute(
                "SELECT count(*), sum(total_moves), sum(policy_rows) FROM main.games"
            ).fetchone()
            prints = "".join(
                row[0] for row in db.execute("SELECT fingerprint FROM main.games ORDER BY run_id, run_index")
            )
            facts = {
                **self._facts,
                "games": str(games),
                "moves": str(moves),
                "rows": str(rows),
                "content_sha256": hashlib.sha256(prints.encode()).hexdigest(),
            }
            db.executemany("INSERT INTO schema_metadata VALUES (?, ?)", sorted(facts.items()))
            db.execute("COMMIT")
            db.execute("DETACH gathered")
        finally:
            db.close()
        return dict(zip(COUNTS, (games, moves, rows), strict=True))

    def _finish_sealing(self) -> None:
        """Empty the open file of games that a killed process had sealed already."""
        if not self.sealed or not self.gathered:
            return
        with open_shard(self.sealed[-1]) as shard:
            sealed = {(summary.game_id,) for summary in shard.summaries()}
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            for table in GAME_TABLES:
                self._db.executemany(f"DELETE FROM {table} WHERE game_id = ?", sealed)

    def _empty(self) -> None:
        with storage_errors(self.open_path), self._db:
            self._db.execute("BEGIN IMMEDIATE")
            for table in reversed(GAME_TABLES):
                self._db.execute(f"DELETE FROM {table}")


def _open_gathering(path: Path) -> sqlite3.Connection:
    # With a journal beside it, what the file says is not what was committed: SQLite undoes that first.
    interrupted = path.with_name(f"{path.name}-journal").exists()
    if path.exists() and path.stat().st_size and not interrupted:
        check_header(path)
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA synchronous = NORMAL")
    if not db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
        create_tables(db)
    elif interrupted:
        check_header(path)
    return db


def _insert(db: sqlite3.Connection, table: str, rows: list[tuple[object, ...]]) -> None:
    marks = ", ".join("?" * len(rows[0]))
    db.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)


def _number(path: Path) -> int:
    return int(path.name.removesuffix(SHARD_SUFFIX).rpartition("-")[2])
