"""Merging shards: every game once, nothing lost, nothing changed, and refusals instead of guesses."""

import hashlib
import shutil
import sqlite3

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jobs_samples import CONFIG, artifacts_of, random_game, run, stopping_after, write_shard

from ringrift.jobs.kinds import ExitCode, job_main
from ringrift.jobs.shards.consolidate import CONSOLIDATE, ShardMerger
from ringrift.jobs.shards.storage import open_shard


def shard_of(folder, seeds, **given):
    return write_shard(folder, [random_game(seed=seed, **given) for seed in seeds]).path


def merge(out, *shards, config=CONFIG):
    return run(CONSOLIDATE, "--config", config, "--out", out, "--shards", *shards)


def rows_of(path):
    """Everything in the game tables, column by column."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
        return {
            table: sorted(db.execute(f"SELECT * FROM {table}"), key=repr)
            for table in ("games", "game_players", "game_moves")
        }


def tampered(shard, sql):
    with sqlite3.connect(shard) as db:
        db.execute(sql)
    db.close()
    return shard


def test_every_row_of_every_source_is_in_the_result_and_nothing_else(tmp_path):
    shards = [shard_of(tmp_path / str(n), range(5 * n, 5 * n + 5)) for n in range(4)]
    before = [hashlib.sha256(shard.read_bytes()).hexdigest() for shard in shards]
    code, result = merge(tmp_path / "out", *shards)
    assert code == ExitCode.DONE
    (merged,) = artifacts_of(result, "shard")
    expected = {"games": [], "game_players": [], "game_moves": []}
    for shard in shards:
        for table, rows in rows_of(shard).items():
            expected[table] += rows
    assert rows_of(merged) == {table: sorted(rows, key=repr) for table, rows in expected.items()}
    assert result["sources"] == before
    assert (result["games"], result["duplicates"]) == (20, 0)
    assert result["artifacts"][0]["counts"]["rows"] == result["rows"]
    assert [hashlib.sha256(shard.read_bytes()).hexdigest() for shard in shards] == before


def test_merged_games_read_like_the_originals(tmp_path):
    shards = [shard_of(tmp_path / str(n), [n, n + 10]) for n in range(2)]
    _, result = merge(tmp_path / "out", *shards)
    with open_shard(artifacts_of(result, "shard")[0]) as found:
        stored = {each.game.game_id: each.game for each in found.games()}
        assert found.metadata["config_key"] == CONFIG
        assert found.metadata["games"] == "4"
    for seed in (0, 1, 10, 11):
        played = random_game(seed=seed)
        assert stored[played.game_id].fingerprint() == played.fingerprint()
        np.testing.assert_array_equal(stored[played.game_id].root_values, played.root_values)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(st.sets(st.integers(0, 7), min_size=1), min_size=2, max_size=5))
def test_games_that_several_shards_have_are_in_once(tmp_path_factory, parts):
    folder = tmp_path_factory.mktemp("merge")
    shards = [shard_of(folder / str(n), sorted(seeds)) for n, seeds in enumerate(parts)]
    code, result = merge(folder / "out", *shards)
    assert code == ExitCode.DONE
    every = set().union(*parts)
    assert result["games"] == len(every)
    assert result["duplicates"] == sum(map(len, parts)) - len(every)
    with open_shard(artifacts_of(result, "shard")[0]) as found:
        assert {each.run_index for each in found.summaries()} == every


def test_the_same_shards_make_the_same_file(tmp_path):
    shards = [shard_of(tmp_path / str(n), [n]) for n in range(3)]
    digests = {merge(tmp_path / out, *shards)[1]["artifacts"][0]["sha256"] for out in ("x", "y")}
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("ALTER TABLE games ADD COLUMN mood TEXT", "differ in the column 'mood'"),
        ("CREATE TABLE notes (text TEXT)", "a table 'notes' that is not ours"),
        ("DELETE FROM game_moves WHERE move_number = 3", "not all moves of game"),
        ("DELETE FROM games WHERE run_index = 5", "2 of 3 games are there"),
    ],
)
def test_a_shard_that_would_lose_something_is_left_out_and_named(tmp_path, sql, why):
    good = [shard_of(tmp_path / str(n), [n]) for n in range(2)]
    bad = tampered(shard_of(tmp_path / "bad", [4, 5, 6]), sql)
    code, result = merge(tmp_path / "out", *good, bad)
    assert code == ExitCode.DATA_REFUSED
    assert result["games"] == 2
    assert len(result["sources"]) == 2
    (refused,) = result["refused"]
    assert why in refused["why"]
    with open_shard(artifacts_of(result, "shard")[0]) as found:
        assert found.game_count == 2


def test_another_game_under_a_known_id_is_refused(tmp_path):
    shards = [shard_of(tmp_path / str(n), [n]) for n in range(2)]
    other = tampered(shard_of(tmp_path / "other", [0]), "UPDATE games SET fingerprint = 'x'")
    code, result = merge(tmp_path / "out", *shards, other)
    assert code == ExitCode.DATA_REFUSED
    assert "another game under the id connect_four_2p-run-0" in result["refused"][0]["why"]


def test_damaged_foreign_and_other_configs_are_refused(tmp_path):
    good = [shard_of(tmp_path / str(n), [n]) for n in range(2)]
    cut = tmp_path / "cut.shard.db"
    cut.write_bytes(good[0].read_bytes()[:5000])
    other = write_shard(tmp_path / "o", [random_game("square8_2p", 1)], key="square8_2p").path
    code, result = merge(tmp_path / "out", *good, cut, other)
    assert code == ExitCode.DATA_REFUSED
    assert [each["shard"] for each in result["refused"]] == [str(cut), str(other)]


def test_too_few_that_fit_leave_no_file(tmp_path):
    code, _ = merge(tmp_path / "out", shard_of(tmp_path / "a", [1]), tmp_path / "missing.shard.db")
    assert code == ExitCode.WRONG_INPUT
    assert not list((tmp_path / "out").glob("*"))
    same = shard_of(tmp_path / "b", [1])
    assert merge(tmp_path / "out", same, same)[0] == ExitCode.WRONG_INPUT


def test_a_row_that_gets_lost_on_the_way_is_noticed(tmp_path, monkeypatch):
    """The last check stands on its own: a merge that drops rows does not become a shard."""
    shards = [shard_of(tmp_path / str(n), [n]) for n in range(2)]
    copy = ShardMerger._copy

    def lossy(self):
        copied = copy(self)
        self._db.execute("UPDATE main.game_moves SET move_probs = NULL WHERE move_number = 2")
        return copied

    monkeypatch.setattr(ShardMerger, "_copy", lossy)
    code, result = merge(tmp_path / "out", *shards)
    assert code == ExitCode.DATA_REFUSED
    assert "did not arrive" in result["error"]
    assert not list((tmp_path / "out").glob("*"))


def test_a_stop_leaves_no_half_file_and_the_next_run_does_it_all(tmp_path):
    shards = [shard_of(tmp_path / str(n), [n]) for n in range(4)]
    arguments = ("--config", CONFIG, "--out", tmp_path / "out", "--shards", *shards)
    code, _ = run(stopping_after(CONSOLIDATE, 2), *arguments)
    assert code == ExitCode.STOPPED
    assert not list((tmp_path / "out").glob("*"))
    assert run(CONSOLIDATE, *arguments)[1]["games"] == 4


def test_merged_shards_can_be_merged_again(tmp_path):
    shards = [shard_of(tmp_path / str(n), [n]) for n in range(4)]
    first = artifacts_of(merge(tmp_path / "x", *shards[:2])[1], "shard")[0]
    second = tmp_path / "second.shard.db"
    shutil.copy(artifacts_of(merge(tmp_path / "y", *shards[2:])[1], "shard")[0], second)
    code, result = merge(tmp_path / "z", first, second)
    assert (code, result["games"]) == (ExitCode.DONE, 4)


def test_the_job_is_found_by_its_name():
    assert job_main("consolidate").__module__ == "ringrift.jobs.shards.consolidate"
