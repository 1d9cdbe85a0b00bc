"""Self-play as a job: the same games for the same seed, however often it was stopped."""

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from jobs_samples import Ticking, artifacts_of, run, stopping_after

from ringrift.jobs.selfplay.selfplay import SELFPLAY, SelfplayParams, run_identity
from ringrift.jobs.shards.storage import open_shard
from ringrift.jobs.shards.validate import VALIDATE

FEW = ("--config", "connect_four_2p", "--simulations", 8, "--slots", 6)


def played(paths):
    games = {}
    for path in paths:
        with open_shard(path) as shard:
            for stored in shard.games():
                games[stored.game.game_id] = stored
    return games


def same(one, other):
    assert one.keys() == other.keys()
    for name, stored in one.items():
        assert stored.fingerprint == other[name].fingerprint
        np.testing.assert_array_equal(stored.game.root_values, other[name].game.root_values)


def test_games_are_written_with_what_made_them(tmp_path):
    code, result = run(SELFPLAY, *FEW, "--games", 7, "--out", tmp_path, "--games-per-shard", 3)
    assert (code, result["games"], result["unfinished"]) == (0, 7, 0)
    shards = artifacts_of(result, "shard")
    assert len(shards) == 3
    games = played(shards)
    assert len(games) == 7
    for stored in games.values():
        game = stored.game
        assert (game.engine_mode, game.search_budget, game.source) == ("gumbel", 8, "selfplay")
        assert game.rows == len(game.actions)
        assert game.completed_s >= game.started_s > 1.6e9
    assert run(VALIDATE, "--shards", *shards)[0] == 0
    assert {path.suffix for path in tmp_path.iterdir()} == {".db", ".json"}


def test_a_stopped_run_continues_to_the_same_games(tmp_path):
    _, straight = run(SELFPLAY, *FEW, "--games", 9, "--out", tmp_path / "a")
    code, stopped = run(stopping_after(SELFPLAY, 2), *FEW, "--games", 9, "--out", tmp_path / "b")
    assert (code, stopped["status"]) == (3, "stopped")
    assert 0 < stopped["games"] < 9
    assert stopped["unfinished"] > 0
    code, continued = run(SELFPLAY, *FEW, "--games", 9, "--out", tmp_path / "b")
    assert (code, continued["games"]) == (0, 9)
    assert continued["moves"] < straight["moves"]
    same(played(artifacts_of(straight, "shard")), played(artifacts_of(continued, "shard")))
    assert not list((tmp_path / "b").glob("*.unfinished.json"))


def test_a_finished_run_has_nothing_to_do_and_says_the_same(tmp_path):
    _, first = run(SELFPLAY, *FEW, "--games", 3, "--out", tmp_path)
    code, again = run(SELFPLAY, *FEW, "--games", 3, "--out", tmp_path)
    assert (code, again["moves"]) == (0, 0)
    assert again["artifacts"] == first["artifacts"]
    assert (again["games"], again["rows"], again["seed"]) == (first["games"], first["rows"], 0)


def test_the_result_counts_what_is_in_the_shards(tmp_path):
    run(stopping_after(SELFPLAY, 3), *FEW, "--games", 6, "--out", tmp_path)
    _, result = run(SELFPLAY, *FEW, "--games", 6, "--out", tmp_path, "--quick-simulations", 0)
    games = [each.game for each in played(artifacts_of(result, "shard")).values()]
    assert result["decisions"] == sum(len(game.actions) for game in games)
    assert result["rows"] == sum(game.rows for game in games)
    assert sum(each["counts"]["games"] for each in result["artifacts"]) == 6
    assert result["generator_sha256"] is None


def test_games_noted_before_a_kill_go_on_where_they_were(tmp_path):
    def killed(job, params):
        """Dies as soon as games in progress were noted with some moves."""

        class Watched(type(job.stop)):
            @property
            def requested(self):
                side = list(tmp_path.glob("*.unfinished.json"))
                if side and len(json.loads(side[0].read_text())["games"][0]["moves"]) > 2:
                    raise KeyboardInterrupt
                return False

        job.stop, job.runtime = Watched(), Ticking(job.runtime)
        return SELFPLAY.run(job, params)

    few = (*FEW[:2], "--simulations", 2, "--games", 4)
    with pytest.raises(KeyboardInterrupt):
        run(replace(SELFPLAY, run=killed), *few, "--out", tmp_path, "--checkpoint-s", 0.02)
    noted = json.loads(next(tmp_path.glob("*.unfinished.json")).read_text())["games"]
    with closing(sqlite3.connect(next(tmp_path.glob("*.games")))) as db:
        finished = db.execute("SELECT coalesce(sum(total_moves), 0) FROM games").fetchone()[0]
    code, result = run(SELFPLAY, *few, "--out", tmp_path)
    assert (code, result["games"]) == (0, 4)
    assert result["resumed_moves"] == sum(len(each["moves"]) for each in noted) > 0
    assert finished + result["resumed_moves"] + result["moves"] == result["decisions"]
    _, straight = run(SELFPLAY, *few, "--out", tmp_path / "straight")
    same(played(artifacts_of(straight, "shard")), played(artifacts_of(result, "shard")))


def test_more_games_of_a_run_are_new_games(tmp_path):
    run(SELFPLAY, *FEW, "--games", 3, "--out", tmp_path)
    _, more = run(SELFPLAY, *FEW, "--games", 5, "--out", tmp_path)
    _, all_at_once = run(SELFPLAY, *FEW, "--games", 5, "--out", tmp_path / "x")
    same(played(artifacts_of(more, "shard")), played(artifacts_of(all_at_once, "shard")))


def test_another_seed_makes_other_games(tmp_path):
    _, one = run(SELFPLAY, *FEW, "--games", 3, "--out", tmp_path)
    _, other = run(SELFPLAY, *FEW, "--games", 3, "--out", tmp_path, "--seed", 1)
    assert one["run_id"] != other["run_id"]
    lines = [
        [each.game.actions.tolist() for each in played(artifacts_of(r, "shard")).values()]
        for r in (one, other)
    ]
    assert lines[0] != lines[1]


def test_slots_and_shards_do_not_change_the_games(tmp_path):
    _, one = run(SELFPLAY, *FEW, "--games", 5, "--out", tmp_path / "a")
    _, other = run(SELFPLAY, *FEW[:-1], 2, "--games", 5, "--out", tmp_path / "b", "--games-per-shard", 2)
    assert one["run_id"] == other["run_id"]
    same(played(artifacts_of(one, "shard")), played(artifacts_of(other, "shard")))


def test_quick_moves_teach_no_policy(tmp_path):
    code, result = run(SELFPLAY, *FEW, "--games", 4, "--out", tmp_path, "--quick-simulations", 2)
    rows = [each.game.rows for each in played(artifacts_of(result, "shard")).values()]
    assert code == 0
    assert 0 < sum(rows) < result["moves"] / 2


def test_games_of_earlier_versions_keep_their_identity():
    """Settings that came later count only where they are used."""
    params = SelfplayParams(config="connect_four_2p", games=3, out=Path("x"), seed=5)
    assert run_identity(params, "ab") == "94c977efa15d79bd"
    for later in ({"opening_plies": 3}, {"prove": True}, {"rescale": False}):
        assert run_identity(msgspec.structs.replace(params, **later), "ab") != "94c977efa15d79bd"


def test_notes_of_unfinished_games_that_make_no_sense_are_refused(tmp_path):
    run(stopping_after(SELFPLAY, 1), *FEW, "--games", 9, "--out", tmp_path)
    (side,) = tmp_path.glob("*.unfinished.json")
    noted = json.loads(side.read_text())
    noted["games"][0]["moves"][0]["action"] = 77
    side.write_text(json.dumps(noted))
    code, result = run(SELFPLAY, *FEW, "--games", 9, "--out", tmp_path)
    assert code == 4
    assert "Remove it" in result["error"]


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("--config", "square8", "--games", 1), "no config key"),
        (("--config", "nowhere_2p", "--games", 1), "nowhere"),
        ((*FEW, "--games", 1, "--model", "/no/model.safetensors"), "no card"),
    ],
)
def test_wrong_input_is_named(tmp_path, argv, told):
    code, result = run(SELFPLAY, *argv, "--out", tmp_path)
    assert code == 2
    assert told in result["error"]
