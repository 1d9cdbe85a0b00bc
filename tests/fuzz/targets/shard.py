"""Game shards: any bytes, and sound shards changed by SQL, are read to the last game or refused."""

import sqlite3
import tempfile
from pathlib import Path

import numpy as np

from ringrift.data.manifest.file_facts import read_facts
from ringrift.errors import Corrupt
from ringrift.games.registry import load_game
from ringrift.jobs.shards.checking import SeenGames, checked_games
from ringrift.jobs.shards.records import PlayedGame, SeatRecord, SoftPolicies, termination_of
from ringrift.jobs.shards.schema import TABLE_RULES
from ringrift.jobs.shards.storage import ShardWriter, open_shard

CONFIG = "connect_four_2p"
GAME = load_game(CONFIG)
FOLDER = Path(tempfile.mkdtemp())
FILE = FOLDER / "x.shard.db"
VALUES = (
    "NULL",
    "0",
    "-1",
    "1",
    "2",
    "7",
    "2147483648",
    "9223372036854775807",
    "1e308",
    "9e999",
    "''",
    "'x'",
    "x''",
    "x'00'",
    "zeroblob(8)",
    "zeroblob(300)",
    "zeroblob(2000000)",
    "printf('%.*c', 300, 'x')",
    "char(0)",
    "char(27)",
    "'{}'",
    "'[]'",
    "'{\"a\":NaN}'",
    "cast(x'ff' as text)",
    "randomblob(8)",
    "randomblob(16)",
)
SCHEMA = (
    "CREATE VIEW v AS SELECT 1",
    "CREATE INDEX i ON games (run_id)",
    "CREATE TABLE other (x)",
    "CREATE TRIGGER t AFTER DELETE ON games BEGIN SELECT 1; END",
    "ALTER TABLE games ADD COLUMN extra TEXT",
    "ALTER TABLE games DROP COLUMN winner",
    "DROP TABLE game_players",
    "UPDATE sqlite_schema SET rootpage = abs(random() % 12)",
    "UPDATE sqlite_schema SET sql = replace(sql, 'TEXT', 'BLOB')",
    "UPDATE sqlite_schema SET sql = replace(sql, 'NOT NULL', '')",
    "UPDATE sqlite_schema SET sql = 'CREATE TABLE games (x)' WHERE name = 'games'",
    "UPDATE sqlite_schema SET type = 'view', rootpage = 0 WHERE name = 'games'",
    "VACUUM",
    "PRAGMA journal_mode = WAL",
)


def _played(seed: int) -> PlayedGame:
    rng, state, actions = np.random.default_rng(seed), GAME.new_states(1), []
    policies = []
    while not GAME.terminal(state)[0]:
        legal = GAME.legal(state).actions
        actions.append(rng.choice(legal))
        policies.append((legal, np.full(len(legal), 1 / len(legal), np.float32)))
        GAME.apply(state, np.array(actions[-1:], dtype=np.int32))
    ends = zip(GAME.results(state)[0], GAME.rankings(state)[0], strict=True)
    return PlayedGame(
        game_id=f"g{seed}", config_key=CONFIG, seed=seed, run_id="r", run_index=seed, source="selfplay",
        engine_mode="gumbel", started_s=1.0, completed_s=2.0, termination=termination_of(GAME, state[0]),
        seats=tuple(SeatRecord("gumbel", "net", float(result), int(rank)) for result, rank in ends),
        actions=np.array(actions, dtype=np.int32),
        policies=SoftPolicies(
            np.cumsum([0] + [len(named) for named, _ in policies], dtype=np.int64),
            np.concatenate([named for named, _ in policies]),
            np.concatenate([shares for _, shares in policies]),
        ),
        root_values=np.zeros((len(actions), 2), np.float32),
    )  # fmt: skip


def seeds() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        writer = ShardWriter(Path(folder), "x", GAME, games_per_shard=9, facts={"config_key": CONFIG})
        writer.add(_played(0))
        sealed = writer.seal()
        writer.close()
        assert sealed is not None
        db = sqlite3.connect(sealed.path, isolation_level=None)
        db.execute("PRAGMA page_size = 512")
        db.execute("VACUUM")  # a small input is changed in a place that matters more often
        db.close()
        return [sealed.path.read_bytes()]


def mutate(data: bytes, rng) -> bytes:
    FILE.write_bytes(data)
    db = sqlite3.connect(FILE, isolation_level=None)
    try:
        db.execute("PRAGMA writable_schema = ON")
        for _ in range(rng.choice((1, 1, 2, 4))):
            if rng.random() < 0.2:
                db.execute(rng.choice(SCHEMA))
                continue
            table = rng.choice(list(TABLE_RULES))
            column, value = rng.choice(TABLE_RULES[table].columns).name, rng.choice(VALUES)
            some = f"(SELECT rowid_ FROM (SELECT {column} AS rowid_ FROM {table} ORDER BY random() LIMIT 1))"
            where = rng.choice(("", f" WHERE {column} IS {some}"))
            change = (
                f"UPDATE OR IGNORE {table} SET {column} = {value}{where}",
                f"DELETE FROM {table}{where}",
            )
            db.execute(rng.choice((*change[:1] * 9, change[1])))
    except sqlite3.Error:
        pass
    finally:
        db.close()
    return FILE.read_bytes()


def run(data: bytes) -> None:
    FILE.write_bytes(data)
    assert read_facts(FILE).kind
    try:
        with open_shard(FILE) as shard, SeenGames() as seen:
            assert all(isinstance(value, str) for value in shard.metadata.values())
            summaries = list(shard.summaries())
            assert all(isinstance(each.total_moves, int) for each in summaries)
            found = list(checked_games(GAME, shard.games(), seen=seen, moves_min=5))
            assert len(found) == len(summaries)
    except Corrupt:
        return


run(seeds()[0])  # compiles the rules before memory is limited
