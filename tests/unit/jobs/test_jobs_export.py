"""Export: samples that agree with the games, load without unpickling, and never come from a wrong game."""

import hashlib
import io
import json
import sqlite3
import subprocess
import sys
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs_samples import random_game, write_shard

from ringrift.games.registry import load_game
from ringrift.jobs.frame import run_job
from ringrift.jobs.samples.export import EXPORT, choose_games
from ringrift.jobs.samples.npz_files import check_samples, quick_check
from ringrift.jobs.samples.plan import (
    SOURCE_WEIGHTS,
    PlannedGame,
    PowerWindow,
    SamplePlan,
    freshness,
    is_held_out,
    unscaled_weight,
)
from ringrift.jobs.shards.records import SoftPolicies
from ringrift.jobs.shards.validate import VALIDATE

NOW = 2_000_000.0


def export(shards, out, *more):
    lines = io.StringIO()
    argv = ["--shards", *map(str, shards), "--out", str(out), "--now-s", str(NOW), *map(str, more)]
    code = run_job(EXPORT, argv, out=lines)
    return code, json.loads(lines.getvalue().splitlines()[-1])


def load(path):
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def policy_of(arrays, sample):
    o = arrays["policy_offsets"]
    span = slice(o[sample], o[sample + 1])
    return dict(zip(arrays["policy_indices"][span].tolist(), arrays["policy_values"][span], strict=True))


@pytest.mark.parametrize("key", ["connect_four_2p", "square8_2p", "hex8_3p"])
def test_samples_say_what_the_games_say(tmp_path, key):
    played = [random_game(key, seed) for seed in range(3)]
    shard = write_shard(tmp_path, played, key=key).path
    code, result = export([shard], tmp_path / "x.npz")
    assert code == 0
    arrays, game = load(tmp_path / "x.npz"), load_game(key)
    assert result["rows"] == len(arrays["values"]) == sum(each.rows for each in played)
    by_hash = {int(each.fingerprint()[:16], 16): each for each in played}
    for sample in range(len(arrays["values"])):
        source = by_hash[int(arrays["game_hashes"][sample])]
        move = int(arrays["move_numbers"][sample])
        state = game.new_states(1)
        for action in source.actions[:move]:
            game.apply(state, np.array([action], dtype=np.int32))
        np.testing.assert_array_equal(arrays["states"][sample], state[0])
        np.testing.assert_array_equal(arrays["features"][sample], game.observe(state)[0])
        seat = int(game.to_move(state)[0])
        assert arrays["values"][sample] == source.results[seat]
        assert arrays["values_mp"][sample][: game.players].tolist() == source.results.tolist()
        names, values = source.policies.of(move)
        found = policy_of(arrays, sample)
        assert found.keys() == set(game.legal(state).actions.tolist())
        assert found == pytest.approx(dict(zip(names.tolist(), values, strict=True)), rel=1e-5)


def test_all_symmetries_are_turned_samples(tmp_path):
    shard = write_shard(tmp_path, [random_game("square8_2p", 1)], key="square8_2p").path
    export([shard], tmp_path / "plain.npz")
    export([shard], tmp_path / "turned.npz", "--symmetries")
    plain, turned, game = load(tmp_path / "plain.npz"), load(tmp_path / "turned.npz"), load_game("square8_2p")
    assert len(turned["values"]) == game.symmetries * len(plain["values"])
    for sample in range(0, len(turned["values"]), 7):
        state = turned["states"][sample][None, :]
        assert policy_of(turned, sample).keys() == set(game.legal(state).actions.tolist())
        np.testing.assert_array_equal(turned["features"][sample], game.observe(state)[0])


def test_the_same_games_make_the_same_bytes(tmp_path, shard):
    export([shard], tmp_path / "a.npz")
    export([shard], tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_arrays_are_packed_in_the_way_that_takes_least_time(tmp_path, shard):
    """Packing them tighter took two fifths of all that an export did."""
    export([shard], tmp_path / "x.npz")
    with zipfile.ZipFile(tmp_path / "x.npz") as archive:
        for member in archive.infolist():
            fast = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
            packed = fast.compress(archive.read(member)) + fast.flush()
            assert (member.filename, member.compress_size) == (member.filename, len(packed))


def test_words_are_codes(tmp_path):
    shard = write_shard(tmp_path, [random_game("square8_2p", 1)], key="square8_2p").path
    export([shard], tmp_path / "x.npz")
    arrays = load(tmp_path / "x.npz")
    words = json.loads(str(arrays["codes"]))
    assert words["engine_modes"] == ["gumbel"]
    assert len(words["move_types"]) == arrays["move_types"].max() + 1
    assert json.loads(str(arrays["metadata"]))["game_count"] == 1


def test_refused_games_are_left_out_and_counted(tmp_path):
    wrong = random_game(seed=5)
    wrong = replace(wrong, seats=tuple(replace(seat, result=-seat.result) for seat in wrong.seats))
    played = [random_game(seed=0), wrong, replace(random_game(seed=0), game_id="twin", run_index=9)]
    shard = write_shard(tmp_path, played).path
    code, result = export([shard], tmp_path / "x.npz")
    assert (code, result["games"]) == (0, 1)
    assert result["refused"] == {"wrong_result": 1, "duplicate": 1}


def test_nothing_to_learn_from_is_refused_and_leaves_no_file(tmp_path, shard):
    code, result = export([shard], tmp_path / "x.npz", "--budget-min", 1000)
    assert (code, result["status"]) == (4, "data_refused")
    assert "low_budget" in result["error"]
    assert not list(tmp_path.glob("x.npz*"))


def test_what_a_killed_export_left_is_removed(tmp_path, shard):
    left = tmp_path / "o" / "x.npz.part-killed"
    left.mkdir(parents=True)
    (left / "values").write_bytes(b"much")
    assert export([shard], tmp_path / "o" / "x.npz")[0] == 0
    assert [path.name for path in (tmp_path / "o").iterdir()] == ["x.npz"]


def test_configs_are_not_mixed(tmp_path, shard):
    other = write_shard(tmp_path / "o", [random_game("square8_2p", 1)], key="square8_2p").path
    code, result = export([shard, other], tmp_path / "x.npz")
    assert code == 2
    assert "connect_four_2p" in result["error"]
    assert "square8_2p" in result["error"]


def test_a_report_spares_the_replay_and_is_bound_to_its_shard(tmp_path, shard):
    assert run_job(VALIDATE, ["--shards", str(shard)], out=io.StringIO()) == 0
    report = shard.with_name(shard.name + ".report.json")
    content = json.loads(report.read_text())
    content["accepted"] = content["accepted"][:3]
    report.write_text(json.dumps(content))
    assert export([shard], tmp_path / "x.npz", "--reports", report)[1]["games"] == 3
    with sqlite3.connect(shard) as db:
        db.execute("INSERT INTO schema_metadata VALUES ('touched', 'yes')")
    db.close()
    assert export([shard], tmp_path / "y.npz", "--reports", report)[1]["games"] == 8


def test_a_shard_that_changes_while_it_is_read_is_refused(tmp_path, shard, monkeypatch):
    def exchanged(*args, **named):
        shard.write_bytes(write_shard(tmp_path / "other", [random_game(seed=0)]).path.read_bytes())
        return choose_games(*args, **named)

    monkeypatch.setattr("ringrift.jobs.samples.export.choose_games", exchanged)
    code, result = export([shard], tmp_path / "x.npz")
    assert (code, "changed" in result["error"]) == (4, True)
    assert not (tmp_path / "x.npz").exists()


def test_a_policy_that_names_some_actions_gives_the_others_nothing(tmp_path):
    played = random_game(seed=5)
    first = np.array([[6, 2]], dtype=np.int32).ravel()
    rest = played.policies.between(1, len(played.actions))
    some = SoftPolicies(np.array([0, 2]), first, np.array([0.25, 0.75], dtype=np.float32))
    shard = write_shard(tmp_path, [replace(played, policies=SoftPolicies.joined([some, rest]))]).path
    assert export([shard], tmp_path / "x.npz")[0] == 0
    arrays = load(tmp_path / "x.npz")
    at = arrays["move_numbers"].tolist().index(0)
    assert policy_of(arrays, at) == {0: 0, 1: 0, 2: 0.75, 3: 0, 4: 0, 5: 0, 6: 0.25}


def test_the_newest_games_make_the_window(tmp_path):
    played = [random_game(seed=seed, completed_s=1000.0 * seed) for seed in range(6)]
    shard = write_shard(tmp_path, played).path
    rows = sum(each.rows for each in played[3:])
    code, result = export([shard], tmp_path / "x.npz", "--window", "rows", "--window-rows", rows)
    assert (code, result["games"], result["rows"]) == (0, 3, rows)
    assert load(tmp_path / "x.npz")["timestamps"].min() == 3000.0


def test_old_games_weigh_less(tmp_path):
    old, new = random_game(seed=0, completed_s=NOW - 3 * 86_400), random_game(seed=1, completed_s=NOW)
    export([write_shard(tmp_path, [old, new]).path], tmp_path / "x.npz")
    arrays = load(tmp_path / "x.npz")
    weights = {
        stamp: arrays["sample_weights"][arrays["timestamps"] == stamp][0] for stamp in (NOW, old.completed_s)
    }
    assert weights[NOW] == pytest.approx(2 * weights[old.completed_s])
    assert arrays["sample_weights"].mean() == pytest.approx(1)


def test_search_values_mix_into_the_target(tmp_path):
    played = random_game(seed=3)
    export([write_shard(tmp_path, [played]).path], tmp_path / "x.npz", "--value-mix", 0.5)
    arrays = load(tmp_path / "x.npz")
    move = int(arrays["move_numbers"][0])
    wanted = 0.5 * played.results + 0.5 * played.root_values[move]
    np.testing.assert_allclose(arrays["values_mp"][0][:2], wanted, rtol=1e-6)


def test_memory_does_not_grow_with_the_number_of_games(tmp_path):
    command = [sys.executable, Path(__file__).with_name("export_memory.py"), tmp_path]
    measured = subprocess.run(command, capture_output=True, text=True, timeout=250, check=True)
    few, many = json.loads(measured.stdout)
    # The interpreter keeps some freed objects for reuse; the moves of a game would be more than that.
    assert many - few < 320 * 1_000, (few, many)


def test_what_training_holds_out_is_counted(tmp_path):
    shard = write_shard(tmp_path, [random_game(seed=seed) for seed in range(40)]).path
    _, result = export([shard], tmp_path / "x.npz", "--hold-out", 0.3)
    rows = load(tmp_path / "x.npz")["game_hashes"]
    held = rows[is_held_out(rows, 0.3)]
    assert 0 < len(held) < len(rows)
    told = {"share": 0.3, "games": len(set(held.tolist())), "rows": len(held)}
    assert result["hold_out"] == told
    assert set(rows[is_held_out(rows, 0.1)].tolist()) <= set(held.tolist())


def test_the_result_names_the_file(tmp_path, shard):
    _, result = export([shard], tmp_path / "x.npz")
    content = (tmp_path / "x.npz").read_bytes()
    assert (result["config"], result["samples"]) == ("connect_four_2p", str(tmp_path / "x.npz"))
    assert result["sha256"] == hashlib.sha256(content).hexdigest()
    assert (result["games"], result["games_offered"], result["window"]) == (8, 8, "all")


# The result is checked before it gets its name; these are the checks.


def corrupted(path, name, change):
    target = path.with_name("bad.npz")
    arrays = load(path)
    change(arrays)
    np.savez(target, **arrays)
    return target


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda a: (a.pop("features"), a.pop("states")), "features and states are missing"),
        (lambda a: a.pop("values"), "values is missing"),
        (lambda a: a.update(values=a["values"][:-1]), "entries for"),
        (lambda a: a.update(values=a["values"] * 3), "checksum"),
        (lambda a: a["values"].__setitem__(0, np.nan), "finite"),
        (lambda a: a["policy_values"].__setitem__(0, 0.9), "sums to"),
        (lambda a: a.update(policy_indices=a["policy_indices"][:-1]), "differ in length"),
        (lambda a: a["policy_offsets"].__setitem__(-1, 10**15), "do not divide"),
        (lambda a: a["policy_offsets"].__setitem__(3, 0), "do not divide"),
        (lambda a: a.update(phases=np.array([None] * len(a["values"]), dtype=object)), "unpickling"),
        (lambda a: a.update(states=a["states"][:, :-1]), "entries of"),
    ],
)
def test_every_fault_of_a_file_is_found(tmp_path, shard, change, told):
    export([shard], tmp_path / "x.npz")
    bad = corrupted(tmp_path / "x.npz", "bad", change)
    found = check_samples(bad, game=load_game("connect_four_2p"))
    assert not found.valid
    assert any(told in error for error in found.errors), found.errors


def test_a_good_file_is_good_and_described(tmp_path, shard):
    export([shard], tmp_path / "x.npz")
    found = check_samples(tmp_path / "x.npz", game=load_game("connect_four_2p"))
    assert (found.valid, found.warnings) == (True, [])
    assert found.array_shapes["features"] == (found.sample_count, 3, 6, 7)
    assert quick_check(tmp_path / "x.npz") == (True, f"{found.sample_count} samples")


def test_files_that_are_no_samples_are_refused(tmp_path, shard):
    assert quick_check(tmp_path / "none.npz")[0] is False
    (tmp_path / "empty.npz").touch()
    assert quick_check(tmp_path / "empty.npz") == (False, "the file is empty")
    export([shard], tmp_path / "x.npz")
    content = (tmp_path / "x.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(content[: len(content) // 2])
    assert "unreadable" in quick_check(tmp_path / "cut.npz")[1]


def test_a_stitched_file_that_claims_billions_is_refused(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (22_000_000_000,)}
    )
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("values.npy", header.getvalue() + b"\0" * 100)
    ok, why = quick_check(tmp_path / "x.npz")
    assert not ok
    assert "cannot be" in why


# The window and the weights, as pure functions.


@given(st.integers(0, 10**9))
def test_the_power_window_keeps_all_at_first_and_never_more_than_there_is(rows):
    window = PowerWindow()
    assert 0 <= window.rows(rows) <= rows
    assert window.rows(rows) <= window.rows(rows + 1000)
    if rows <= window.c:
        assert window.rows(rows) == rows


def test_the_power_window_has_its_published_values():
    assert PowerWindow().rows(250_000) == 250_000
    assert PowerWindow().rows(4_000_000) == round(250_000 * (1 + 0.4 * (16**0.75 - 1) / 0.75))


planned = st.builds(
    PlannedGame,
    shard=st.just(0),
    game_id=st.just(""),
    rows=st.integers(1, 100),
    completed_s=st.floats(0, NOW),
    engine_mode=st.sampled_from(["gumbel", "heuristic", "policy"]),
    quality=st.just(1.0),
)
plans = st.lists(planned, min_size=1, max_size=30).map(
    lambda games: [replace(game, game_id=str(at)) for at, game in enumerate(games)]
)


def planning(games, rows_max):
    """The games in the window, with their weights."""
    with SamplePlan() as plan:
        for game in games:
            plan.offer([game])
        plan.choose(rows_max)
        plan.weigh(now_s=NOW, half_life_s=86_400.0)
        totals = plan.totals()
        kept = [
            (game, marks.weight)
            for game in games
            if (marks := plan.marks_of(0, [game.game_id]).get(game.game_id))
        ]
    assert totals.games == len(kept)
    assert totals.rows == sum(game.rows for game, _ in kept)
    assert totals.rows_offered == sum(game.rows for game in games)
    return kept


@settings(deadline=None)  # a scratch file may have to wait for the disk
@given(plans, st.integers(1, 1000))
def test_the_window_holds_whole_games_and_the_newest(games, rows_max):
    expected, rows = [], 0
    for game in sorted(games, key=lambda game: (-game.completed_s, int(game.game_id))):
        rows += game.rows
        if rows > rows_max:
            break
        expected.append(game)
    kept = [game for game, _ in planning(games, rows_max)]
    assert kept == sorted(expected, key=lambda game: int(game.game_id))


@settings(deadline=None)  # a scratch file may have to wait for the disk
@given(plans)
def test_weights_are_one_on_average(games):
    kept = planning(games, 10**9)
    rows = sum(game.rows for game in games)
    assert sum(weight * game.rows for game, weight in kept) / rows == pytest.approx(1)
    for game, weight in kept:
        fresh = freshness(NOW - game.completed_s, 86_400.0)
        assert weight / kept[0][1] == pytest.approx(
            fresh * SOURCE_WEIGHTS.get(game.engine_mode, 1.0) / unscaled_of(kept[0][0])
        )


def unscaled_of(game):
    return unscaled_weight(game.engine_mode, age_s=NOW - game.completed_s, half_life_s=86_400.0)


def test_freshness_halves_down_to_its_floor():
    assert freshness(-5, 100) == 1
    assert freshness(100, 100) == 0.5
    assert freshness(10_000, 100) == 0.1
