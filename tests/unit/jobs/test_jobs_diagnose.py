"""The job `diagnose`: every check passes on what is sound and fails on a planted fault."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from jobs_samples import CONFIG, random_game, run, write_shard

from ringrift.games.registry import load_game
from ringrift.jobs.diagnosis.checks import (
    check_calibration,
    check_games,
    check_hold_out,
    check_labels,
    check_network_symmetry,
    check_overfit,
    check_symmetries,
    judge_canary,
    solve,
    solved_positions,
)
from ringrift.jobs.diagnosis.diagnose import DIAGNOSE, random_rows
from ringrift.jobs.samples.export import EXPORT
from ringrift.jobs.training.learner import Learner, LearnerConfig
from ringrift.jobs.training.rows import TrainingRows, make_batch, some_rows
from ringrift.network.architecture import ModelCard, Preset
from ringrift.network.model import build
from ringrift.network.storage import save_model

TINY = Preset(channels=16, blocks=1, neck=8, hidden=32)


@pytest.fixture(scope="module")
def game():
    return load_game(CONFIG)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """As jobs compute; several threads on a busy machine wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Planted:
    """A game with one thing about it changed."""

    def __init__(self, game, **changes):
        self._game, self._changes = game, changes

    def __getattr__(self, name):
        return self._changes[name] if name in self._changes else getattr(self._game, name)


class Rows:
    """Rows in memory as something to learn from."""

    def __init__(self, rows):
        self._rows = rows

    def __len__(self):
        return len(self._rows.states)

    def take(self, rows):
        return some_rows(self._rows, np.asarray(rows))


# --- symmetries -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [CONFIG, "square8_2p"])
def test_the_symmetries_of_our_games_agree(key):
    found = check_symmetries(load_game(key), seed=3, positions=24)
    assert found.level == "fine", found.text


def test_moves_that_are_not_turned_are_found(game):
    wrong = Planted(game, turned_actions=lambda _states, legal, _symmetry: legal.actions)
    found = check_symmetries(wrong, seed=3, positions=64)
    assert found.level == "problem"


def test_a_grid_that_is_not_turned_is_found(game):
    wrong = Planted(game, turned_grid=lambda _symmetry: game.turned_grid(0))
    found = check_symmetries(wrong, seed=3, positions=64)
    assert (found.level, "looks otherwise" in found.text) == ("problem", True)


def test_a_network_that_minds_how_the_board_is_turned_is_noticed(game):
    net = build(game, TINY, seed=1)
    assert check_network_symmetry(game, net, seed=1).level == "fine"
    columns = game.observation_shape[2]

    def lopsided(states):
        return np.sign(states_left(game, states, columns))

    wrong = Planted(game)
    found = check_network_symmetry(wrong, trained_on(game, lopsided), seed=1)
    assert found.level == "warning"


def states_left(game, states, columns):
    """More stones on the left half than on the right."""
    planes = game.observe(states)[:, :2].sum(axis=(1, 2))
    return planes[:, : columns // 2].sum(axis=1) - planes[:, -(columns // 2) :].sum(axis=1) + 0.5


def trained_on(game, value_of):
    """A small network that was taught *value_of* positions."""
    rows = random_rows(game, 2000, seed=5)
    mine = value_of(rows.states).astype(np.float32)
    values = np.where(rows.seats[:, None] == np.arange(2), mine[:, None], -mine[:, None]).astype(np.float32)
    source = Rows(replace(rows, values=values))
    learner = Learner(build(game, TINY, seed=1), LearnerConfig(average_decay=0.0))
    rng = np.random.default_rng(1)
    for _ in range(250):
        learner.step(make_batch(game, source.take(rng.choice(2000, 128, replace=False))), 5e-3)
    return learner.averaged()


# --- learning -------------------------------------------------------------------------------------------


def test_a_batch_is_learned_by_heart_unless_positions_all_look_alike(game):
    rows = random_rows(game, 128, seed=1)
    assert check_overfit(game, rows, preset=TINY, seed=1).level == "fine"
    blind = Planted(game, observe=lambda states: np.zeros_like(game.observe(states)))
    assert check_overfit(blind, rows, preset=TINY, seed=1).level == "problem"


def taught_rows(game, count=3000):
    """Rows whose policy and value follow from the position."""
    rows = random_rows(game, count, seed=2)
    policy = np.zeros_like(rows.policy)
    policy[rows.legal.offsets[:-1]] = 1.0  # the leftmost column that is not full
    mine = np.sign(states_left(game, rows.states, 7)).astype(np.float32)
    values = np.where(rows.seats[:, None] == np.arange(2), mine[:, None], -mine[:, None]).astype(np.float32)
    return replace(rows, policy=policy, values=values)


def shuffled(rows):
    """The same rows with the targets of others."""
    rng = np.random.default_rng(9)
    policy = np.concatenate(
        [
            rng.permutation(rows.policy[a:b])
            for a, b in zip(rows.legal.offsets, rows.legal.offsets[1:], strict=False)
        ]
    )
    return replace(rows, policy=policy, values=rng.permutation(rows.values))


def halves(count):
    return np.arange(0, count * 9 // 10), np.arange(count * 9 // 10, count)


def test_shuffled_labels_are_told_from_true_ones(game):
    rows, halved = taught_rows(game, 22_000), halves(22_000)
    true = check_labels(game, Rows(rows), halved, preset=TINY, seed=1)
    assert true.level == "fine"
    assert true.evidence["policy_gain"] > 0.5
    false = check_labels(game, Rows(shuffled(rows)), halved, preset=TINY, seed=1)
    assert false.level == "problem"


@pytest.mark.parametrize("count", [200, 5000])
def test_too_few_rows_are_no_ground_for_a_verdict(game, count):
    """A network that sees every row many times knows them by heart, which says nothing about others."""
    rows = shuffled(taught_rows(game, count))
    assert check_labels(game, Rows(rows), halves(count), preset=TINY, seed=1) is None


def test_values_that_say_the_opposite_are_found(game):
    rows = taught_rows(game)
    held = np.arange(600)
    net = trained_on(game, lambda states: np.sign(states_left(game, states, 7)))
    assert check_calibration(game, Rows(rows), held, net).level == "fine"
    turned: TrainingRows = replace(rows, values=-rows.values)
    assert check_calibration(game, Rows(turned), held, net).level == "problem"
    assert check_calibration(game, Rows(rows), held[:10], net) is None


# --- hold-out -------------------------------------------------------------------------------------------


def test_a_hold_out_that_is_missing_or_shared_is_found(game):
    rows = Rows(random_rows(game, 1000, seed=4))
    hashes = np.arange(1000, dtype=np.uint64) // np.uint64(10)
    everything, none = np.arange(1000), np.arange(0)
    assert check_hold_out(game, rows, halves(1000), hashes, share=0.1).level == "fine"
    missing = check_hold_out(game, rows, (everything, none), hashes, share=0.0)
    assert (missing.level, "no game of 100" in missing.text) == ("problem", True)
    torn = (np.arange(0, 1000, 2), np.arange(1, 1000, 2))
    assert "also trained on" in check_hold_out(game, rows, torn, hashes, share=0.5).text
    twice = Rows(some_rows(random_rows(game, 500, seed=4), np.tile(np.arange(500), 2)))
    same = check_hold_out(
        game, twice, (np.arange(500), np.arange(500, 1000)), np.arange(1000, dtype=np.uint64), share=0.5
    )
    assert same.level == "warning"


# --- games ----------------------------------------------------------------------------------------------


def symptoms(game, *paths):
    return {each.check: each.level for each in check_games(game, paths)}


def test_games_are_examined(game, tmp_path):
    games = [random_game(seed=seed) for seed in range(60)]
    sound = write_shard(tmp_path, games, name="sound").path
    assert symptoms(game, sound) == {"duplicates": "fine", "cut_off": "fine", "draws": "fine"}
    assert symptoms(game, sound, sound)["duplicates"] == "problem"
    assert check_games(game, []) == []


def test_games_that_stop_in_the_middle_are_found(game, tmp_path):
    games = [cut(random_game(seed=seed)) if seed % 4 == 0 else random_game(seed=seed) for seed in range(60)]
    shard = write_shard(tmp_path, games, name="cut").path
    assert symptoms(game, shard)["cut_off"] == "problem"


def cut(played):
    moves = len(played.actions) - 3
    offsets = played.policies.offsets[: moves + 1]
    policies = replace(
        played.policies,
        offsets=offsets,
        actions=played.policies.actions[: offsets[-1]],
        probabilities=played.policies.probabilities[: offsets[-1]],
    )
    return replace(
        played, actions=played.actions[:moves], policies=policies, root_values=played.root_values[:moves]
    )


def test_too_many_draws_are_found(game, tmp_path):
    games = [drawn(random_game(seed=seed)) for seed in range(60)]
    assert symptoms(game, write_shard(tmp_path, games, name="drawn").path)["draws"] == "warning"


def drawn(played):
    return replace(played, seats=tuple(replace(seat, result=0.0, ranking=1) for seat in played.seats))


# --- solved positions -----------------------------------------------------------------------------------


def after(game, columns):
    state = game.new_states(1)
    for column in columns:
        game.apply(state, np.array([column], dtype=np.int32))
    return state[0]


def test_a_position_is_solved_exactly(game):
    three_in_a_row = after(game, [0, 6, 1, 6, 2, 5])  # the fourth column wins at once
    solved = solve(game, three_in_a_row, nodes_max=200_000)
    assert solved is None  # a nearly empty board is too much to look at
    late = solved_positions(game, 8, seed=1)
    assert len(late) == 8
    for each in late:
        legal = game.legal(each.state[None, :]).actions
        for action, keeps in zip(legal, each.keeps, strict=True):
            assert (value_by_hand(game, each.state, int(action)) == each.value) == keeps


def value_by_hand(game, state, action):
    """What the player on turn gets for *action*, by plain recursion."""
    seat = int(game.to_move(state[None, :])[0])

    def value(rows):
        if game.terminal(rows)[0]:
            return float(game.results(rows)[0, seat])
        best = max if int(game.to_move(rows)[0]) == seat else min
        return best(value(made(rows, each)) for each in game.legal(rows).actions)

    def made(rows, each):
        there = rows.copy()
        game.apply(there, np.array([each], dtype=np.int32))
        return there

    return value(made(state[None, :], action))


def test_late_positions_of_ringrift_are_solved():
    game = load_game("square8_2p")
    late = solved_positions(game, 3, seed=1)
    assert len(late) == 3
    assert all(each.keeps.any() and not each.keeps.all() for each in late)
    assert [each.state.tolist() for each in solved_positions(game, 3, seed=1)] == [
        each.state.tolist() for each in late
    ]


def test_a_model_that_learned_the_solutions_keeps_more_of_them(game):
    positions = solved_positions(game, 48, seed=1)
    untrained = build(game, "small", seed=0)
    before = judge_canary(game, untrained, positions, seed=1)
    learner = Learner(untrained, LearnerConfig(average_decay=0.0))
    states = np.stack([each.state for each in positions])
    legal = game.legal(states)
    policy = np.concatenate([each.keeps / each.keeps.sum() for each in positions]).astype(np.float32)
    rows = TrainingRows(
        states, legal, policy, game.to_move(states), np.zeros((48, 2), np.float32), np.ones(48, np.float32)
    )
    for _ in range(80):
        learner.step(make_batch(game, rows), 2e-3)
    learned = judge_canary(game, learner.averaged(), positions, seed=1)
    assert learned["kept"] > max(0.9, before["kept"])
    assert learned["by_chance"] == before["by_chance"] < 0.7


# --- the whole job --------------------------------------------------------------------------------------


def test_the_job_writes_a_diagnosis_of_a_run(game, tmp_path):
    shard = write_shard(tmp_path, [random_game(seed=seed) for seed in range(120)], name="games").path
    samples = tmp_path / "samples.npz"
    assert run(EXPORT, "--shards", shard, "--out", samples)[0] == 0
    net = build(game, TINY, seed=1)
    model = tmp_path / "model.safetensors"
    card = save_model(net, ModelCard(config=CONFIG, architecture=net.architecture), model)
    out = tmp_path / "diagnosis.json"
    code, result = run(
        DIAGNOSE, "--config", CONFIG, "--out", out, "--model", model, "--samples", samples,
        "--shards", shard, "--canary", "8", "--hold-out", "0.2",
    )  # fmt: skip
    assert code == 0
    found = json.loads(out.read_bytes())
    assert found["model"] == card.sha256 == result["model"]
    assert {"symmetries", "overfit", "hold_out", "duplicates", "cut_off", "draws", "canary"} <= {
        each["check"] for each in found["findings"]
    }
    assert found["canary"]["positions"] == 8
    levels = {each["check"]: each["level"] for each in found["findings"]}
    assert "labels" not in levels  # too few rows to tell
    assert levels["hold_out"] == "fine"


def test_without_a_run_the_game_and_the_network_are_examined(tmp_path):
    code, result = run(DIAGNOSE, "--config", CONFIG, "--out", tmp_path / "diagnosis.json")
    assert code == 0
    assert {each["check"]: each["level"] for each in result["findings"]} == {
        "symmetries": "fine",
        "overfit": "fine",
    }
