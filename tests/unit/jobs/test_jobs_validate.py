"""Validation finds every way in which a game can be wrong, and names it."""

import io
import json
import shutil
import sqlite3
from dataclasses import replace

import numpy as np
import pytest
from jobs_samples import random_game, write_shard

from ringrift.jobs.frame import run_job
from ringrift.jobs.shards.checking import ACTION_TYPE, common_moves
from ringrift.jobs.shards.storage import open_shard
from ringrift.jobs.shards.validate import VALIDATE


def validate(*paths, **options):
    out = io.StringIO()
    argv = ["--shards", *map(str, paths)]
    for name, value in options.items():
        argv += [f"--{name.replace('_', '-')}", str(value)]
    code = run_job(VALIDATE, argv, out=out)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert lines[-1]["event"] == "result"
    return code, lines[-1]


def report_of(path):
    return json.loads(path.with_name(path.name + ".report.json").read_text())


def change(path, *statements):
    with sqlite3.connect(path) as db:
        for statement in statements:
            db.execute(statement)
    db.close()


def test_right_games_are_accepted_and_scored(shard):
    code, result = validate(shard)
    assert code == 0
    assert (result["games"], result["accepted"], result["refused"]) == (8, 8, 0)
    report = report_of(shard)
    assert report["rows"] == sum(each["rows"] for each in report["accepted"]) > 0
    assert all(0.5 < each["quality"] <= 1 for each in report["accepted"])


@pytest.mark.parametrize("key", ["square8_2p", "hex8_4p"])
def test_ringrift_games_are_accepted(tmp_path, key):
    shard = write_shard(tmp_path, [random_game(key, seed) for seed in range(4)], key=key).path
    assert validate(shard)[0] == 0


FIRST = "(SELECT min(game_id) FROM games)"
LAST_MOVE = f"(SELECT max(move_number) FROM game_moves WHERE game_id = {FIRST})"
FAULTS = {
    "truncated": [f"DELETE FROM game_moves WHERE game_id = {FIRST} AND move_number = {LAST_MOVE}"],
    "unreadable": [f"DELETE FROM game_moves WHERE game_id = {FIRST} AND move_number = 2"],
    "altered": [
        f"UPDATE game_moves SET action = (action + 1) % 7 WHERE game_id = {FIRST} AND move_number = 0"
    ],
    "wrong_player": [f"UPDATE game_moves SET player = 2 WHERE game_id = {FIRST} AND move_number = 0"],
    "wrong_result": [
        f"UPDATE game_players SET result = -result, ranking = 3 - ranking WHERE game_id = {FIRST}"
    ],
    "wrong_config": [f"UPDATE games SET config_key = 'square8_2p' WHERE game_id = {FIRST}"],
}


@pytest.mark.parametrize("reason", FAULTS)
def test_each_fault_is_named(shard, reason):
    change(shard, *FAULTS[reason])
    code, result = validate(shard)
    assert code == 4
    assert (result["accepted"], result["reasons"]) == (7, {reason: 1})
    refused = report_of(shard)["refused"][0]
    assert refused["game_id"] == "connect_four_2p-run-0"
    assert refused["detail"]


def changed_game(**changes):
    return replace(random_game(seed=99), **changes)


def with_policy(probabilities=None, actions=None):
    game = random_game(seed=99)
    policies = game.policies
    at = int(np.flatnonzero(policies.searched)[0])
    span = slice(policies.offsets[at], policies.offsets[at + 1])
    values, names = policies.probabilities.copy(), policies.actions.copy()
    if probabilities is not None:
        values[span] = probabilities
    if actions is not None:
        names[span] = actions
    return replace(game, policies=replace(policies, probabilities=values, actions=names))


def shortened():
    game = random_game(seed=99)
    policies = game.policies
    cut = len(game.actions) - 1
    end = policies.offsets[cut]
    policies = replace(
        policies,
        offsets=policies.offsets[: cut + 1],
        actions=policies.actions[:end],
        probabilities=policies.probabilities[:end],
    )
    return replace(game, actions=game.actions[:cut], policies=policies, root_values=game.root_values[:cut])


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (shortened, "unfinished"),
        (lambda: with_policy(probabilities=0.5), "bad_policy"),
        (lambda: with_policy(probabilities=np.nan), "bad_policy"),
        (lambda: with_policy(actions=3), "bad_policy"),
        (lambda: with_policy(actions=np.arange(20, 27)), "bad_policy"),
    ],
)
def test_games_written_wrong_are_refused(tmp_path, made, reason):
    shard = write_shard(tmp_path, [random_game(seed=0), made()]).path
    code, result = validate(shard)
    assert (code, result["reasons"]) == (4, {reason: 1})


def given_up(results=(1.0, -1.0)):
    seats = tuple(
        replace(seat, result=result, ranking=1 if result > 0 else 2)
        for seat, result in zip(random_game(seed=99).seats, results, strict=True)
    )
    return replace(shortened(), termination="resignation", seats=seats)


def test_a_game_given_up_is_right_only_if_it_was_running(tmp_path):
    assert validate(write_shard(tmp_path / "a", [given_up()]).path)[0] == 0
    over = replace(random_game(seed=3), termination="resignation")
    for number, wrong in enumerate([over, given_up((1.0, 1.0))]):
        code, result = validate(write_shard(tmp_path / str(number), [wrong]).path)
        assert (code, result["reasons"]) == (4, {"wrong_result": 1})


def test_an_illegal_move_is_named_with_its_number(tmp_path):
    shard = write_shard(tmp_path, [random_game(seed=0)]).path
    change(shard, "UPDATE game_moves SET action = 77 WHERE move_number = 4")
    with sqlite3.connect(shard) as db:  # as whoever forges a game would do
        db.execute("UPDATE games SET fingerprint = ?", (_forged(shard),))
    db.close()
    code, _ = validate(shard)
    refused = report_of(shard)["refused"][0]
    assert (code, refused["reason"], refused["move"]) == (4, "illegal_move", 4)


def test_the_first_divergence_of_an_altered_game_is_named(tmp_path):
    shard = write_shard(tmp_path, [random_game(seed=0)]).path
    change(shard, "UPDATE game_moves SET action = 77 WHERE move_number = 4")
    code, _ = validate(shard)
    refused = report_of(shard)["refused"][0]
    assert (code, refused["reason"], refused["move"]) == (4, "altered", 4)
    assert "action 77 is not legal" in refused["detail"]


def test_a_phase_that_was_not_is_refused(tmp_path):
    game = random_game("square8_2p", seed=0)
    shard = write_shard(tmp_path, [game], key="square8_2p").path
    change(shard, "UPDATE game_moves SET phase = 'capture' WHERE move_number = 0")
    code, result = validate(shard)
    refused = report_of(shard)["refused"][0]
    assert (code, result["reasons"], refused["move"]) == (4, {"wrong_phase": 1}, 0)
    assert "ring_placement" in refused["detail"]


def _forged(path):
    with open_shard(path) as shard:
        return next(shard.games()).game.fingerprint()


def test_duplicates_are_found_within_and_across_shards(tmp_path):
    game = random_game(seed=1)
    first = write_shard(tmp_path, [game, replace(game, game_id="other name", run_index=5)]).path
    second = tmp_path / "copy.shard.db"
    shutil.copy(first, second)
    code, result = validate(first, second)
    assert (code, result["accepted"], result["reasons"]) == (4, 1, {"duplicate": 3})


def test_short_games_are_refused_by_the_given_limit(shard):
    code, result = validate(shard, moves_min=100)
    assert (code, result["reasons"]) == (4, {"too_short": 8})


def test_a_damaged_shard_does_not_keep_others_from_being_checked(tmp_path, shard):
    broken = tmp_path / "broken.shard.db"
    broken.write_bytes(shard.read_bytes()[:5000])
    code, result = validate(broken, shard)
    assert (code, result["accepted"], len(result["damaged"])) == (4, 8, 1)


@pytest.mark.parametrize("winner", ["NULL", "winner"])
def test_a_foreign_shard_with_a_game_twice_does_not_keep_others_from_being_checked(tmp_path, shard, winner):
    """Its table need not have a key, and the rows of one id may differ where a value may be null."""
    foreign = tmp_path / "foreign.shard.db"
    shutil.copy(shard, foreign)
    with sqlite3.connect(foreign) as db:
        [declared] = db.execute("SELECT sql FROM sqlite_schema WHERE name = 'games'").fetchone()
        keyless = declared.replace("TEXT PRIMARY KEY", "TEXT").replace("WITHOUT ROWID", "")
        rows = db.execute("SELECT * FROM games").fetchall()
        marks = ", ".join("?" * len(rows[0]))
        db.execute("DROP TABLE games")
        db.execute(keyless)
        db.executemany(f"INSERT INTO games VALUES ({marks})", rows)
        db.execute(f"INSERT INTO games SELECT * FROM games WHERE game_id = {FIRST}")
        db.execute(f"UPDATE games SET winner = {winner} WHERE rowid = (SELECT max(rowid) FROM games)")
        db.execute("UPDATE schema_metadata SET value = '9' WHERE key = 'games'")
    db.close()
    code, result = validate(foreign, shard)
    assert (code, result["status"], result["accepted"]) == (4, "data_refused", 8)
    assert [each["shard"] for each in result["damaged"]] == [str(foreign)]


def test_a_missing_shard_is_wrong_input(tmp_path):
    code, result = validate(tmp_path / "none.db")
    assert (code, result["status"]) == (2, "wrong_input")


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        ([], [], 0),
        ([], [1], 0),
        ([7, 8, 9], [7, 8, 9], 3),
        ([7, 8], [7, 8, 9], 2),
        ([7, 8, 9], [7, 300, 9], 1),
        ([7, 256, 9], [7, 512, 9], 1),
        ([7, 8, 70_000], [7, 8, 4_464], 2),
        ([1, 2], [2, 2], 0),
    ],
)
def test_first_moves_that_games_share_are_counted(one, other, common):
    left, right = (np.array(actions, dtype=ACTION_TYPE).tobytes() for actions in (one, other))
    assert common_moves(left, right) == common_moves(right, left) == common
