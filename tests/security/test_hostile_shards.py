"""Shards that an attacker wrote are refused with the reason, within time and memory."""

import json
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hostile_shards import HOSTILE, HOSTILE_GAMES, changed

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "jobs"))
from jobs_samples import CONFIG, random_game, write_shard

from ringrift.data.manifest.file_facts import read_facts
from ringrift.data.table_merge import RecordTable, merge_database
from ringrift.errors import Corrupt
from ringrift.jobs.shards.storage import BrokenGame, open_shard

MEMORY_BYTES = 3 << 30  # of addresses; numba's compiler takes about half of it
RECORDS = RecordTable(table="models", key=("model_id",), age="updated_at")


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return write_shard(tmp_path_factory.mktemp("sound"), [random_game(seed=seed) for seed in range(3)]).path


def limited():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def run_limited(*arguments, timeout=240):
    command = [sys.executable, "-m", "ringrift.jobs", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, preexec_fn=limited, check=False
    )


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_shard_is_refused_with_the_reason(sound, tmp_path, name):
    statements, why = HOSTILE[name]
    writable = any("sqlite_schema" in str(each) for each in statements)
    path = changed(sound, tmp_path / "x.shard.db", *statements, writable_schema=writable)
    if why.endswith("games are there"):
        assert why in read_facts(path).problem
        return
    with pytest.raises(Corrupt, match=why), open_shard(path) as shard:
        assert shard.metadata


@pytest.mark.parametrize("name", HOSTILE_GAMES)
def test_a_hostile_game_is_named_and_the_others_are_read(sound, tmp_path, name):
    first = " WHERE game_id = (SELECT min(game_id) FROM games)"
    parts = [each if isinstance(each, tuple) else (each, ()) for each in HOSTILE_GAMES[name]]
    statements = [(sql + first, values) for sql, values in parts]
    with open_shard(changed(sound, tmp_path / "x.shard.db", *statements)) as shard:
        games = list(shard.games())
    if name == "policy_that_is_no_number":
        return  # for the replay to find: see the job below
    assert [isinstance(game, BrokenGame) for game in games] == [True, False, False]


def test_validate_survives_all_of_them_in_little_memory(sound, tmp_path):
    paths = []
    for name, (statements, _) in HOSTILE.items():
        writable = any("sqlite_schema" in str(each) for each in statements)
        paths.append(changed(sound, tmp_path / f"{name}.shard.db", *statements, writable_schema=writable))
    for name, statements in HOSTILE_GAMES.items():
        paths.append(changed(sound, tmp_path / f"{name}.shard.db", *statements))
    ended = run_limited("validate", "--out", tmp_path, "--shards", *paths, sound)
    assert ended.returncode == 4, ended.stderr
    result = json.loads(ended.stdout.splitlines()[-1])
    refused = {Path(each["shard"]).name.split(".")[0] for each in result["damaged"]}
    # How many facts there are is nobody's business who does not read them all.
    assert refused == HOSTILE.keys()
    assert result["accepted"] == 3  # of the sound one; ids that were there before are refused as such
    assert "Traceback" not in ended.stderr


def test_a_pipe_is_no_shard(tmp_path):
    pipe = tmp_path / "x.shard.db"
    os.mkfifo(pipe)
    with pytest.raises(Corrupt, match="no plain file"), open_shard(pipe):
        pass


def test_a_merge_takes_nothing_from_a_hostile_shard(sound, tmp_path):
    other = write_shard(tmp_path / "b", [random_game(seed=9)]).path
    bad = changed(sound, tmp_path / "bad.shard.db", "UPDATE games SET rng_seed = 'x'")
    ended = run_limited(
        *("consolidate", "--config", CONFIG, "--out", tmp_path / "out", "--shards", sound, other, bad)
    )
    assert ended.returncode == 4, ended.stderr
    result = json.loads(ended.stdout.splitlines()[-1])
    assert result["games"] == 4
    assert "rng_seed holds a value" in result["refused"][0]["why"]


def test_records_of_another_node_bring_no_code(tmp_path):
    theirs = tmp_path / "theirs.db"
    with sqlite3.connect(theirs) as db:
        db.execute("CREATE VIEW models AS SELECT 1 AS model_id, 2 AS updated_at")
    db.close()
    with pytest.raises(Corrupt, match="models is no plain table"):
        merge_database(tmp_path / "mine.db", theirs, [RECORDS])
    shutil.os.unlink(theirs)
    with sqlite3.connect(theirs) as db:
        db.execute(
            "CREATE TABLE models (model_id TEXT PRIMARY KEY, updated_at REAL, "
            "size INTEGER DEFAULT (abs(-9223372036854775808)) CHECK (size > 0))"
        )
        db.execute("INSERT INTO models VALUES ('a', 1.0, 3)")
    db.close()
    assert merge_database(tmp_path / "mine.db", theirs, [RECORDS]).added == 1
    with sqlite3.connect(tmp_path / "mine.db") as db:
        (made,) = db.execute("SELECT sql FROM sqlite_schema WHERE name = 'models'").fetchone()
    db.close()
    assert "CHECK" not in made
    assert "DEFAULT" not in made
