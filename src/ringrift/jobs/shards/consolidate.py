"""The `consolidate` job: merges small shards of one config into a large one.

The sources are only read. A shard that cannot be merged without losing something is left out and named; the
result lists the hashes of those that are in, so that whoever asked knows which files live on in the new one.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import structlog

from ringrift.errors import ConfigError, Corrupt
from ringrift.files import file_sha256
from ringrift.foreign_files.databases import bound_work, restrict
from ringrift.jobs.files import CACHE_KIB, describe, sealing
from ringrift.jobs.frame import Job, JobSpec, Outcome, Params, run_job
from ringrift.jobs.kinds import ExitCode
from ringrift.jobs.shards.schema import COPY_ADVICE, GAME_TABLES, create_tables
from ringrift.jobs.shards.storage import COUNTS, SHARD_SUFFIX, open_shard

# Many small shards as one large one: every game once, every column as it was.
#
# Nothing is taken on trust. A shard with a column or a table that the result would not have, with a game
# whose moves are not all there, or with another game under the id of one that is in already, is refused
# whole. When all are in, each row of each source is looked for in the result before it is sealed.


LEAVE = "Leave it as it is; it holds something that a merged shard would lose"
_OF_THE_DISK = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}
_DERIVED = frozenset({*COUNTS, "content_sha256", "sources"})  # facts that are made anew


@dataclass(frozen=True, slots=True)
class MergedSource:
    """One shard that is in the result."""

    path: Path
    sha256: str
    games: int
    duplicates: int  # games of it that another source had brought
    facts: dict[str, str]


class ShardMerger:
    """Takes shards in, one by one; a shard that is refused leaves nothing behind."""

    def __init__(self, part: Path, config: str) -> None:
        self._config, self._part = config, part
        self.sources: list[MergedSource] = []
        self._db = sqlite3.connect(part.absolute().as_uri(), isolation_level=None, uri=True)
        self._db.execute("PRAGMA page_size = 4096")
        self._db.execute("PRAGMA journal_mode = MEMORY")
        self._db.execute("PRAGMA synchronous = OFF")  # the whole file is synced before its rename
        self._db.execute("PRAGMA temp_store = FILE")
        self._db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        restrict(self._db)
        create_tables(self._db)
        self._columns = {table: _columns(self._db, "main", table) for table in GAME_TABLES}

    def close(self) -> None:
        self._db.close()

    def add(self, path: Path) -> MergedSource:
        """Take in every game of a shard; raises `Corrupt` if that would lose or change anything."""
        with open_shard(path) as shard:
            facts = shard.metadata
        if facts.get("config_key") != self._config:
            problem = f"its games are of {facts.get('config_key')!r}, not of {self._config!r}"
            raise Corrupt(path, found=problem, advice="Merge shards of one config")
        with self._attached(path):
            games = self._check_games(path, facts)
            self._db.execute("BEGIN")
            try:
                duplicates = self._copy()
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
        source = MergedSource(path, file_sha256(path), games, duplicates, facts)
        self.sources.append(source)
        return source

    def finish(self) -> dict[str, int]:
        """Look for every row of every source in the result, then write its facts; returns its counts."""
        for source in self.sources:
            with self._attached(source.path):
                self._check_complete(source.path)
        return self._write_facts()

    @contextmanager
    def _attached(self, path: Path) -> Iterator[None]:
        # A sealed file never changes, so SQLite need not look for a journal or take locks.
        bound_work(self._db, path.stat().st_size + self._part.stat().st_size)
        self._db.execute("ATTACH ? AS source", (f"{path.absolute().as_uri()}?mode=ro&immutable=1",))
        try:
            yield
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _OF_THE_DISK:
                raise
            raise Corrupt(path, found=f"the database is damaged ({error})", advice=COPY_ADVICE) from error
        finally:
            bound_work(self._db, 0)
            self._db.execute("DETACH source")

    def _check_games(self, path: Path, facts: dict[str, str]) -> int:
        games: int = self._db.execute("SELECT count(*) FROM source.games").fetchone()[0]
        if facts.get("games") != str(games):
            problem = f"{games} of {facts.get('games')} games are there"
            raise Corrupt(path, found=problem, advice="Fetch it again")
        halved = self._db.execute(
            "SELECT game_id FROM source.games AS g WHERE total_moves != "
            "(SELECT count(*) FROM source.game_moves AS m WHERE m.game_id = g.game_id) LIMIT 1"
        ).fetchone()
        if halved is not None:
            raise Corrupt(path, found=f"not all moves of game {halved[0]} are there", advice="Fetch it again")
        other = self._db.execute(
            "SELECT game_id FROM source.games AS s JOIN main.games AS m USING (game_id) "
            "WHERE s.fingerprint != m.fingerprint LIMIT 1"
        ).fetchone()
        if other is not None:
            problem = f"another shard has another game under the id {other[0]}"
            raise Corrupt(path, found=problem, advice="Find out which of the two is right")
        return games

    def _copy(self) -> int:
        before: int = self._db.execute("SELECT count(*) FROM main.games").fetchone()[0]
        self._db.execute(
            "CREATE TEMP TABLE fresh AS SELECT game_id FROM source.games "
            "WHERE game_id NOT IN (SELECT game_id FROM main.games)"
        )
        for table, columns in self._columns.items():
            names = ", ".join(columns)
            self._db.execute(
                f"INSERT INTO main.{table} ({names}) SELECT {names} FROM source.{table} "
                "WHERE game_id IN (SELECT game_id FROM temp.fresh)"
            )
        self._db.execute("DROP TABLE temp.fresh")
        after: int = self._db.execute("SELECT count(*) FROM main.games").fetchone()[0]
        games: int = self._db.execute("SELECT count(*) FROM source.games").fetchone()[0]
        return games - (after - before)

    def _check_complete(self, path: Path) -> None:
        """Of duplicates one stays, and what is not the game itself (when it was noted) may differ."""
        for table, columns in self._columns.items():
            names = ", ".join(columns) if not self._has_duplicates(path) else _KEYS[table]
            lost = self._db.execute(
                f"SELECT {names} FROM source.{table} EXCEPT SELECT {names} FROM main.{table} LIMIT 1"
            ).fetchone()
            if lost is not None:
                problem = f"{table} {lost[:2]} did not arrive in the merged shard"
                raise Corrupt(path, found=problem, advice="Check the disk; the sources are untouched")

    def _has_duplicates(self, path: Path) -> bool:
        return any(source.duplicates for source in self.sources if source.path == path)

    def _write_facts(self) -> dict[str, int]:
        games, moves, rows = self._db.execute(
            "SELECT count(*), sum(total_moves), sum(policy_rows) FROM main.games"
        ).fetchone()
        prints = hashlib.sha256()
        ordered = "SELECT fingerprint FROM main.games ORDER BY run_id, run_index, game_id"
        for (fingerprint,) in self._db.execute(ordered):
            prints.update(fingerprint.encode())
        facts = {
            **_common_facts(self.sources),
            "games": str(games),
            "moves": str(moves),
            "rows": str(rows),
            "content_sha256": prints.hexdigest(),
            "sources": json.dumps([_described(source) for source in self.sources]),
        }
        self._db.executemany("INSERT INTO schema_metadata VALUES (?, ?)", sorted(facts.items()))
        return dict(zip(COUNTS, (games, moves, rows), strict=True))


_KEYS = {
    "games": "game_id, fingerprint",
    "game_players": "game_id, player_number",
    "game_moves": "game_id, move_number, action",
}


def _columns(db: sqlite3.Connection, schema: str, table: str) -> tuple[str, ...]:
    return tuple(row[1] for row in db.execute(f"PRAGMA {schema}.table_info({table})"))


def _common_facts(sources: Sequence[MergedSource]) -> dict[str, str]:
    """Facts that all sources agree on; the others are kept with their sources."""
    first = sources[0].facts
    return {
        name: value
        for name, value in first.items()
        if name not in _DERIVED and all(source.facts.get(name) == value for source in sources)
    }


def _described(source: MergedSource) -> dict[str, object]:
    return {"sha256": source.sha256, "games": source.games, "facts": source.facts}


log = structlog.get_logger()


class ConsolidateParams(Params, frozen=True, kw_only=True):
    """Parameters of `consolidate`."""

    config: Annotated[str, msgspec.Meta(min_length=1, description="The config of all the shards.")]
    shards: Annotated[tuple[Path, ...], msgspec.Meta(min_length=2, description="Shards to merge.")]
    out: Annotated[Path, msgspec.Meta(description="Folder of the merged shard.")]
    name: Annotated[str, msgspec.Meta(min_length=1, description="Its name, without ending.")] = "merged"

    def __post_init__(self) -> None:
        if len(set(self.shards)) != len(self.shards):
            raise ValueError("shards: one of them is named twice")
        if Path(self.name).name != self.name:
            raise ValueError(f"name: {self.name!r} is no plain file name")


def run_consolidate(job: Job, params: ConsolidateParams) -> Outcome:
    refused: list[dict[str, str]] = []
    path = params.out / f"{params.name}{SHARD_SUFFIX}"
    job.stage("merging", total=len(params.shards))
    with sealing(path) as part:
        with closing(ShardMerger(part, params.config)) as merger:
            for number, shard in enumerate(params.shards, start=1):
                job.stop_point()  # a half-merged file is worth nothing
                try:
                    merger.add(shard)
                except Corrupt as error:
                    log.warning("consolidate.shard_refused", shard=str(shard), what=str(error))
                    refused.append({"shard": str(shard), "why": str(error)})
                job.progress(number, refused=len(refused))
            if len(merger.sources) < 2:
                problem = "; ".join(each["why"] for each in refused)
                raise ConfigError(f"fewer than two shards can be merged: {problem}")
            job.stage("comparing", total=len(merger.sources))
            counts, sources = merger.finish(), merger.sources
        with open_shard(part) as merged:
            expected = sum(source.games - source.duplicates for source in sources)
            if merged.game_count != expected:
                problem = f"{merged.game_count} of {expected} games are there"
                raise Corrupt(part, found=problem, advice="Check the disk; the sources are untouched")
    job.sealed(describe(path, "shard", config=params.config, sources=len(sources), **counts))
    fields = {
        **counts,
        "sources": [source.sha256 for source in sources],
        "duplicates": sum(source.duplicates for source in sources),
        "refused": refused,
    }
    return Outcome(ExitCode.DATA_REFUSED if refused else ExitCode.DONE, fields)


CONSOLIDATE = JobSpec(
    "consolidate", "Merge small shards into a large one, every game once.", ConsolidateParams, run_consolidate
)


def main(argv: Sequence[str]) -> int:
    return run_job(CONSOLIDATE, argv)
