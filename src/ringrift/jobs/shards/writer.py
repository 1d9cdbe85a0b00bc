"""Writing shards: finished games are committed one by one, and sealed by the hundred.

Games gather in an open file beside the shards (`….games`), each in a transaction of its own, so that a
killed process loses no finished game. Sealing copies them into a fresh file, checks it and renames it;
the open file is emptied after that, and a game that is in both is left in the sealed one only.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path

import structlog

from ringrift.errors import Corrupt
from ringrift.games.contract import Game
from ringrift.jobs.sealing import SealedFile, describe, sealing, storage_errors, sync_folder
from ringrift.jobs.shards.encoding import game_row, move_rows, player_rows
from ringrift.jobs.shards.reader import ShardReader, open_shard
from ringrift.jobs.shards.records import PlayedGame, StoredGame, describe_moves
from ringrift.jobs.shards.schema import GAME_TABLES, check_header, create_tables

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
