"""Training: it learns, it resumes to the same weights, and it refuses what does not fit."""

import hashlib
import io
import json
import math
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jobs_samples import random_game, run, stopping_after, write_shard

from ringrift.games.registry import load_game
from ringrift.jobs.evaluation.evaluate import EVALUATE
from ringrift.jobs.samples.export import EXPORT
from ringrift.jobs.selfplay.selfplay import SELFPLAY
from ringrift.jobs.training.learner import (
    Learner,
    LearnerConfig,
    LearningRate,
    ValueCalibration,
    read_checkpoint,
    write_checkpoint,
)
from ringrift.jobs.training.learning_loop import ReplayWindow
from ringrift.jobs.training.rows import SampleFile, SampleSet, make_batch
from ringrift.jobs.training.train import TRAIN
from ringrift.network.architecture import ModelCard, card_path, read_card
from ringrift.network.model import build
from ringrift.network.storage import load_model, save_model
from ringrift.search.contract import SearchConfig, UniformEvaluator
from ringrift.search.selfplay import SelfplayConfig, play_games

TINY = ("--config", "connect_four_2p", "--batch", 16, "--hold-out", 0.2, "--warmup-steps", 5)


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    folder = tmp_path_factory.mktemp("samples")
    shard = write_shard(folder, [random_game(seed=seed) for seed in range(24)]).path
    assert run(EXPORT, "--shards", shard, "--out", folder / "x.npz")[0] == 0
    return folder / "x.npz"


def train(samples, out, *more):
    return run(TRAIN, *TINY, "--samples", samples, "--out", out, *more)


def test_it_writes_a_model_with_its_card_and_curves(tmp_path, samples):
    code, result = train(samples, tmp_path / "m.safetensors", "--epochs", 3)
    assert code == 0
    _, card = load_model(tmp_path / "m.safetensors", config="connect_four_2p")
    assert (card.sha256, card.parent) == (result["model_sha256"], None)
    assert card.rows_seen == result["best_step"] * 16
    lines = [json.loads(line) for line in (tmp_path / "m.curve.jsonl").read_text().splitlines()]
    assert len(lines) >= 3
    assert {"train_policy", "train_value", "held_policy", "held_value", "lr"} <= lines[0].keys()
    assert (tmp_path / "m.curve.svg").read_text().startswith("<svg")
    assert not list(tmp_path.glob("*.checkpoint")) + list(tmp_path.glob(".train-*"))


def test_the_result_tells_what_a_controller_needs(tmp_path, samples):
    out = tmp_path / "m.safetensors"
    _, result = train(samples, out, "--steps", 30, "--check-every", 10)
    assert [each["artifact"] for each in result["artifacts"]] == [
        "model",
        "card",
        "checkpoint",
        "curve",
        "curve",
    ]
    assert (result["config"], result["model"], result["parent"]) == ("connect_four_2p", str(out), None)
    assert {"policy", "value"} <= result["train"].keys() == result["held"].keys()
    assert result["best_held"] <= result["held"]["policy"] + result["held"]["value"] + 1e-6
    assert result["epochs"] == pytest.approx(result["steps"] / (result["rows"] // 16), abs=1e-3)
    assert result["samples_per_s"] > 0
    bins = result["calibration"]["bins"]
    assert sum(each["rows"] for each in bins) == result["held_rows"] > 0
    assert 0 <= result["calibration"]["error"] <= 2
    again = train(samples, out, "--steps", 30, "--check-every", 10)[1]
    for name in ("model_sha256", "train", "held", "calibration", "rows_seen"):
        assert again[name] == result[name]
    _, without = train(samples, tmp_path / "n.safetensors", "--steps", 3, "--hold-out", 0)
    assert (without["held"], without["best_held"], without["calibration"]) == (None, None, None)


def test_a_training_goes_on_where_the_last_one_ended(tmp_path, samples):
    first, steady = tmp_path / "a.safetensors", ("--hold-out", 0, "--lr", 1e-3, "--lr-end", 1e-3)
    assert train(samples, first, *steady, "--steps", 7)[0] == 0
    kept = first.with_suffix(".checkpoint.safetensors")
    going_on = (*steady, "--steps", 5, "--parent", first, "--checkpoint", kept, "--seed", 9)
    assert train(samples, tmp_path / "b.safetensors", *going_on)[0] == 0
    tensors, facts = read_checkpoint(tmp_path / "b.checkpoint.safetensors")
    assert facts["steps"] == 12
    assert {int(value) for name, value in tensors.items() if name.endswith(".step")} == {12}
    # Without the optimizer's moments and the raw weights it would have gone elsewhere.
    assert train(samples, tmp_path / "c.safetensors", *steady, "--steps", 5, "--parent", first)[0] == 0
    _, gone_on = load_model(tmp_path / "b.safetensors", config="connect_four_2p")
    _, begun_anew = load_model(tmp_path / "c.safetensors", config="connect_four_2p")
    assert gone_on.sha256 != begun_anew.sha256
    assert gone_on.rows_seen == begun_anew.rows_seen == 12 * 16


def test_a_stopped_training_from_a_checkpoint_ends_with_the_same_weights(tmp_path, samples):
    first = tmp_path / "a.safetensors"
    assert train(samples, first, "--steps", 4)[0] == 0
    more = ("--steps", 8, "--parent", first, "--checkpoint", first.with_suffix(".checkpoint.safetensors"))
    _, whole = train(samples, tmp_path / "b.safetensors", *more)
    out = tmp_path / "c.safetensors"
    stopped = run(stopping_after(TRAIN, 4), *TINY, "--samples", samples, "--out", out, *more)
    assert stopped[0] == 3
    assert train(samples, out, *more)[1]["model_sha256"] == whole["model_sha256"]


def test_a_training_ends_when_its_time_is_up(tmp_path, samples):
    # Without patience for ever, a fast machine stops learning before the time is up.
    limits = ("--steps", 1_000_000, "--patience", 0, "--seconds", 0.5)
    _, result = train(samples, tmp_path / "m.safetensors", *limits)
    assert 0 < result["steps"] < 1_000_000
    assert "time" in result["ended"]


@pytest.mark.parametrize("damage", ["steps", "shape", "average", "no average", "facts", "empty", "parent"])
def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path, samples, damage):
    first = tmp_path / "a.safetensors"
    assert train(samples, first, "--steps", 2)[0] == 0
    kept, parent = first.with_suffix(".checkpoint.safetensors"), ("--parent", first)
    tensors, facts = read_checkpoint(kept)
    if damage == "steps":
        write_checkpoint(kept, tensors, {"steps": -1})
    elif damage == "shape":
        name = next(name for name in tensors if name.endswith(".exp_avg"))
        write_checkpoint(kept, {**tensors, name: torch.zeros(3)}, facts)
    elif damage == "average":
        name = next(name for name in tensors if name.startswith("average."))
        write_checkpoint(kept, {**tensors, name: torch.zeros(1)}, facts)
    elif damage == "no average":
        rest = {name: each for name, each in tensors.items() if not name.startswith("average.")}
        write_checkpoint(kept, rest, facts)
    elif damage == "facts":
        write_checkpoint(kept, tensors, [1])
    elif damage == "empty":
        kept.write_bytes(b"")
    else:
        parent = ()
    code, result = train(samples, tmp_path / "b.safetensors", *parent, "--checkpoint", kept, "--steps", 2)
    assert code not in (0, 1)
    assert "checkpoint" in result["error"]


def test_samples_without_the_planes_teach_the_same(tmp_path, samples):
    shard = write_shard(tmp_path, [random_game(seed=seed) for seed in range(24)]).path
    lean = tmp_path / "lean.npz"
    assert run(EXPORT, "--shards", shard, "--out", lean, "--no-features")[0] == 0
    assert lean.stat().st_size < samples.stat().st_size
    _, with_planes = train(samples, tmp_path / "a.safetensors", "--steps", 3)
    _, without = train(lean, tmp_path / "b.safetensors", "--steps", 3)
    assert without["train"] == with_planes["train"]


def test_rows_are_drawn_by_their_weights_and_those_of_older_files_in_turn(tmp_path, samples):
    """The same bytes as before for a file without the weights, or with even ones."""
    names = {name: tmp_path / f"{name}.npz" for name in ("older", "uneven")}
    for name, path in names.items():
        with zipfile.ZipFile(samples) as old, zipfile.ZipFile(path, "w") as new:
            for member in old.namelist():
                content = old.read(member)
                if member == "draw_weights.npy":
                    if name == "older":
                        continue
                    weights = np.load(io.BytesIO(content))
                    weights[::2] = 0.5
                    content = as_npy(weights)
                    digest = hashlib.sha256(weights.tobytes()).hexdigest()
                elif member == "checksums.npy" and name == "uneven":
                    sums = json.loads(str(np.load(io.BytesIO(content))))
                    content = as_npy(np.array(json.dumps(sums | {"draw_weights": digest})))
                new.writestr(member, content)
    even, older, uneven = (
        train(path, tmp_path / f"{path.stem}.safetensors", "--steps", 3)[1]
        for path in (samples, names["older"], names["uneven"])
    )
    assert older["train"] == even["train"]
    assert uneven["train"] != even["train"]
    assert uneven["held"].keys() == even["held"].keys()


def as_npy(array):
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def test_calibration_compares_what_was_said_with_what_came():
    found = ValueCalibration()
    assert found.as_json() is None
    said = np.array([-1, -0.95, 0.5, 0.5, 0.5, 0.5, 1.0], dtype=np.float32)
    came = np.array([-1, -1, 1, 1, 1, -1, 1.0], dtype=np.float32)
    found.add(said[:3], came[:3])
    found.add(said[3:], came[3:])
    told = found.as_json()
    assert [each["rows"] for each in told["bins"]] == [2, 4, 1]
    assert told["bins"][1] == {"rows": 4, "said": 0.5, "was": 0.5}
    assert told["error"] == pytest.approx(2 * 0.025 / 7, abs=1e-4)


@pytest.mark.parametrize("hold_out", [0, 0.2])
@pytest.mark.parametrize("stops", [(1,), (4, 3), (9,)])
def test_a_resumed_run_ends_with_the_same_bytes(tmp_path, samples, stops, hold_out):
    more = ("--steps", 12, "--check-every", 5, "--hold-out", hold_out)
    straight, out = tmp_path / "straight.safetensors", tmp_path / "resumed.safetensors"
    assert train(samples, straight, *more)[0] == 0
    for stop in stops:
        stopped = stopping_after(TRAIN, stop + 1)  # the first line is about reading the samples
        code, result = run(stopped, *TINY, "--samples", samples, "--out", out, *more)
        assert (code, result["status"]) == (3, "stopped")
        assert out.with_suffix(".checkpoint").exists()
        assert not out.exists()
    assert train(samples, out, *more)[0] == 0
    assert out.read_bytes() == straight.read_bytes()
    assert out.with_suffix(".curve.jsonl").read_bytes() == straight.with_suffix(".curve.jsonl").read_bytes()


def test_batches_made_ahead_and_threads_change_nothing(tmp_path, samples):
    digests = {
        train(samples, tmp_path / f"{number}.safetensors", "--steps", 6, *more)[1]["model_sha256"]
        for number, more in enumerate([(), ("--loaders", 3), ("--device", "auto"), ("--no-compile",)])
    }
    assert len(digests) == 1


def test_it_trains_in_bfloat16_as_a_gpu_does(tmp_path, samples):
    code, result = train(samples, tmp_path / "m.safetensors", "--steps", 6, "--bf16", "--loaders", 2)
    assert code == 0
    plain = train(samples, tmp_path / "n.safetensors", "--steps", 6, "--no-bf16")[1]
    assert result["model_sha256"] != plain["model_sha256"]
    assert result["held"]["policy"] == pytest.approx(plain["held"]["policy"], rel=0.05)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named(tmp_path, samples):
    model = tmp_path / "m.safetensors"
    code, result = train(samples, model, "--device", "cuda")
    assert (code, "--device cuda" in result["error"]) == (2, True)
    train(samples, model, "--steps", 2)
    same = ("--config", "connect_four_2p", "--out", tmp_path / "o", "--games", 2, "--device", "cuda")
    assert run(SELFPLAY, *same, "--model", model)[0] == 2
    assert run(EVALUATE, *same, "--candidate", f"model:{model}@2", "--opponents", "random")[0] == 2


def test_another_seed_or_order_gives_other_weights(tmp_path, samples):
    digests = {
        train(samples, tmp_path / f"{number}.safetensors", "--steps", 3, *more)[1]["model_sha256"]
        for number, more in enumerate([(), ("--seed", 1), ("--lr", 0.01), ("--no-augment",)])
    }
    assert len(digests) == 4


def test_a_checkpoint_of_another_run_is_refused(tmp_path, samples):
    out = tmp_path / "m.safetensors"
    run(stopping_after(TRAIN, 3), *TINY, "--samples", samples, "--out", out)
    code, result = train(samples, out, "--lr", 0.5)
    assert code == 2
    assert "other data or parameters" in result["error"]


def test_a_finished_run_is_not_trained_again_and_never_overwritten(tmp_path, samples):
    out = tmp_path / "m.safetensors"
    first = train(samples, out, "--steps", 3)[1]
    code, again = train(samples, out, "--steps", 3)
    assert (code, again["model_sha256"]) == (0, first["model_sha256"])
    code, other = train(samples, out, "--steps", 4)
    assert (code, other["error_type"]) == (5, "AlreadyExists")


def test_what_a_killed_run_left_is_removed(tmp_path, samples):
    out = tmp_path / "m.safetensors"
    (tmp_path / ".m.train-killed").mkdir()
    (tmp_path / ".m.train-killed" / "states.npy").write_bytes(b"much")
    train(samples, out, "--steps", 3)
    out.with_suffix(".checkpoint").write_bytes(b"of a run killed after its model was whole")
    assert train(samples, out, "--steps", 3)[0] == 0
    assert {path.name for path in tmp_path.iterdir()} == {
        "m.safetensors",
        "m.checkpoint.safetensors",
        "m.json",
        "m.curve.jsonl",
        "m.curve.svg",
    }


def test_a_child_starts_from_its_parent(tmp_path, samples):
    parent, child = tmp_path / "p.safetensors", tmp_path / "c.safetensors"
    before = train(samples, parent, "--steps", 5)[1]
    after = train(samples, child, "--steps", 5, "--parent", parent)[1]
    card = read_card(card_path(child))
    assert card.parent == before["model_sha256"]
    assert card.rows_seen == before["rows_seen"] + after["best_step"] * 16


def test_it_stops_when_the_hold_out_gets_no_better(tmp_path, samples):
    more = ("--lr", 0.03, "--lr-end", 0.03, "--check-every", 4, "--patience", 3, "--average-decay", 0.2)
    code, result = train(samples, tmp_path / "m.safetensors", "--steps", 4000, *more)
    assert code == 0
    assert result["steps"] < 4000
    assert result["best_step"] < result["steps"]
    assert "hold-out" in result["ended"]


def test_data_of_another_game_is_refused(tmp_path, samples):
    code, result = run(
        TRAIN, "--config", "square8_2p", "--samples", samples, "--out", tmp_path / "m.safetensors"
    )
    assert code == 2
    assert "the samples are of connect_four_2p, not of square8_2p" in result["error"]


def test_damaged_data_is_refused(tmp_path, samples):
    bad = tmp_path / "bad.npz"
    with np.load(samples, allow_pickle=False) as arrays:
        content = dict(arrays)
    content["values"][3] = np.nan
    np.savez(bad, **content)
    code, result = train(bad, tmp_path / "m.safetensors")
    assert code == 4
    assert "values" in result["error"]


def one_plain_array(samples, bad):
    with bad.open("wb") as file:
        np.save(file, np.zeros(3))


def with_a_damaged_member(samples, bad):
    with zipfile.ZipFile(samples) as archive:
        member = archive.getinfo("config_key.npy")
    content = bytearray(samples.read_bytes())
    begin = member.header_offset + 30 + len(member.filename)
    content[begin : begin + member.compress_size] = b"\xff" * member.compress_size
    bad.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        lambda samples, bad: bad.touch(),
        lambda samples, bad: bad.write_bytes(samples.read_bytes()[:3000]),
        lambda samples, bad: bad.write_bytes(b"SQLite format 3\x00" * 100),
        one_plain_array,
        with_a_damaged_member,
    ],
    ids=["empty", "cut", "foreign", "one-array", "damaged-member"],
)
def test_what_is_no_sample_file_is_refused_and_not_crashed_on(tmp_path, samples, damage):
    bad = tmp_path / "bad.npz"
    damage(samples, bad)
    code, result = train(bad, tmp_path / "m.safetensors")
    assert (code, result["status"]) == (4, "data_refused")
    assert "bad.npz" in result["error"]
    assert "pickle" not in result["error"]  # nobody is to be told to unpickle a file


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--out", "m.pth"), "safetensors"),
        (("--out", "m.safetensors", "--preset", "giant"), "giant"),
        (("--out", "m.safetensors", "--batch", 5000), "do not fill a batch"),
        (("--out", "m.safetensors", "--samples", "none.npz"), "no such file"),
    ],
)
def test_wrong_input_is_named(tmp_path, monkeypatch, samples, more, told):
    monkeypatch.chdir(tmp_path)
    code, result = run(TRAIN, "--config", "connect_four_2p", "--samples", samples, *more)
    assert code == 2
    assert told in result["error"]


def test_whole_games_are_held_out_and_stay_so(tmp_path, samples):
    game = load_game("connect_four_2p")
    file = SampleFile(samples, game, tmp_path / "scratch")
    rows, held = SampleSet([file]).split(0.3)
    assert len(rows) + len(held) == len(file)
    assert not set(file.game_hashes[rows]) & set(file.game_hashes[held])
    assert len(held) > 0
    _, more_held = SampleSet([file, file]).split(0.3)
    assert set(file.game_hashes[held]) == {file.game_hashes[row % len(file)] for row in more_held}


# The parts.


def finished_games(key, count):
    game = load_game(key)
    config = SelfplayConfig(search=SearchConfig(simulations=4), slots=4)
    return game, list(play_games(game, UniformEvaluator(game), config, range(count)))


@pytest.mark.parametrize("key", ["connect_four_2p", "square8_2p", "hex8_3p"])
def test_a_turned_batch_is_the_turned_position(key):
    game, games = finished_games(key, 2)
    window = ReplayWindow(game)
    for each in games:
        window.add(each)
    rows = window.take(np.arange(min(40, len(window))))
    turns = np.arange(len(rows.states)) % game.symmetries
    batch = make_batch(game, rows, turns)
    slots = game.action_layout.slots
    for row, turn in enumerate(turns):
        state = game.turned(rows.states[row : row + 1], int(turn))
        np.testing.assert_array_equal(batch.planes[row], game.observe(state)[0])
        taken = batch.legal[row]
        assert set(batch.slots[row][taken]) == set(slots[game.legal(state).actions])
        assert batch.policy[row].sum() == pytest.approx(1, abs=1e-4)
        seat = int(rows.seats[row])
        assert batch.values[row].tolist() == np.roll(rows.values[row], -seat).tolist()


def test_the_window_forgets_the_oldest_games_only():
    game, games = finished_games("connect_four_2p", 6)
    window = ReplayWindow(game)
    sizes = [window.add(each) for each in games]
    window.forget(sum(sizes[3:]) + 1)
    assert len(window) == sum(sizes[3:])
    assert window.added == sum(sizes)
    rows = window.take(np.array([0, len(window) - 1]))
    np.testing.assert_array_equal(rows.values[0], games[3].results)
    np.testing.assert_array_equal(rows.values[1], games[5].results)
    other = ReplayWindow(game)
    other.restore(*window.contents())
    assert (len(other), other.added) == (len(window), window.added)
    every = np.arange(len(window))
    np.testing.assert_array_equal(other.take(every).states, window.take(every).states)


def test_the_loss_falls_to_what_can_be_learned():
    game, games = finished_games("connect_four_2p", 3)
    window = ReplayWindow(game)
    for each in games:
        window.add(each)
    torch.manual_seed(0)
    learner = Learner(build(game, "small", seed=0), LearnerConfig(average_decay=0.5))
    batch = make_batch(game, window.take(np.arange(len(window))))
    first = learner.step(batch, 3e-3)
    for _ in range(150):
        last = learner.step(batch, 3e-3)
    assert last[0] - last[2] < 0.5 * (first[0] - first[2])
    assert last[1] < 0.3 * first[1]
    averaged = learner.judge(learner.averaged(), batch)
    assert averaged[1] < 0.4 * first[1]


@given(st.integers(0, 50), st.integers(60, 500))
def test_the_rate_rises_then_falls(warmup, steps):
    rate = LearningRate(1.0, 0.1, warmup, steps)
    rates = [rate.at(step) for step in range(steps + 10)]
    assert max(rates) == pytest.approx(1.0, abs=0.01)
    assert all(0 < each <= 1 + 1e-9 for each in rates)
    assert rates[-1] == pytest.approx(0.1)
    falling = rates[warmup:]
    assert falling == sorted(falling, reverse=True)
    assert math.isclose(rates[-5], rates[-1])


def test_a_network_begins_with_what_fits_of_another_configs(tmp_path, samples):
    other = tmp_path / "other.safetensors"
    net = build(load_game("hex8_2p"), "small", seed=9)
    card = save_model(net, ModelCard(config="hex8_2p", architecture=net.architecture), other)
    code, result = train(samples, tmp_path / "m.safetensors", "--steps", 2, "--warm-start", other)
    assert code == 0
    told = result["warm_start"]
    assert (told["sha256"], told["config"]) == (card.sha256, "hex8_2p")
    assert 0 < told["parameters"] < told["of"]
    assert read_card(card_path(tmp_path / "m.safetensors")).parent is None
    code, cold = train(samples, tmp_path / "cold.safetensors", "--steps", 2)
    assert cold["model_sha256"] != result["model_sha256"]
    both = ("--parent", tmp_path / "m.safetensors", "--warm-start", other)
    assert train(samples, tmp_path / "n.safetensors", "--steps", 2, *both)[0] == 2
