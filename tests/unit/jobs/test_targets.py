"""Targets of rows: the jobs of the loop make the same of a game as the one process that plays and trains."""

from __future__ import annotations

import base64
import io
import json
import sqlite3

import numpy as np
import pytest

from ringrift.errors import ConfigError
from ringrift.games.registry import load_game
from ringrift.jobs.frame import run_job
from ringrift.jobs.samples.export import EXPORT
from ringrift.jobs.samples.npz_files import DRAW_WEIGHT_MAX, Targets, drawn, later_values
from ringrift.jobs.selfplay.selfplay import SELFPLAY, SelfplayParams, make_evaluator, selfplay_config
from ringrift.jobs.shards.records import StoredGame
from ringrift.jobs.shards.storage import BrokenGame, open_shard
from ringrift.jobs.training.learning_loop import ReplayWindow, game_rows
from ringrift.players.contract import derived
from ringrift.search.batch import search_positions
from ringrift.search.contract import Evaluation, SearchConfig
from ringrift.search.selfplay import play_games

ORDER = {"games": 3, "seed": 5, "simulations": 8, "slots": 3, "quick_simulations": 2, "full_share": 0.5}
ORDER |= {"opening_plies": 6}


def job(spec, params):
    lines = io.StringIO()
    argv = [word for name, value in params.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    assert run_job(spec, argv, out=lines) == 0, lines.getvalue()
    return json.loads(lines.getvalue().splitlines()[-1])


def played_both_ways(key, tmp_path):
    """The shard that the job writes, and the same games as self-play hands them over."""
    job(SELFPLAY, {"config": key, "out": tmp_path, **ORDER})
    game = load_game(key)
    params = SelfplayParams(config=key, out=tmp_path, **ORDER)
    evaluator, _ = make_evaluator(params, game)
    seeds = [int(derived(params.seed, index)[0]) for index in range(params.games)]
    games = list(play_games(game, evaluator, selfplay_config(params), seeds))
    return game, next(tmp_path.glob("*.shard.db")), games


def by_state(states, *columns):
    return {state.tobytes(): row for state, *row in zip(states, *columns, strict=True)}


@pytest.mark.parametrize("key", ["connect_four_2p", "square8_2p", "hex8_3p"])
def test_export_makes_the_targets_that_the_window_makes(key, tmp_path):
    game, shard, games = played_both_ways(key, tmp_path)
    targets = {"value_mix": 0.8, "value_decay": 0.8, "surprise": 0.5}
    job(EXPORT, {"shards": shard, "out": tmp_path / "x.npz", **targets})
    with np.load(tmp_path / "x.npz", allow_pickle=False) as arrays:
        values = arrays["values_mp"][:, : game.players]
        found = by_state(arrays["states"], values, arrays["draw_weights"])
    assert np.ptp([weight for _, weight in found.values()]) > 0.1
    count = 0
    for finished in games:
        rows = game_rows(game, finished, Targets(**targets))
        assert rows.weights.mean() <= 1 + 1e-5
        for state, wanted in by_state(rows.states, rows.values, rows.weights).items():
            np.testing.assert_allclose(found[state][0], wanted[0], atol=1e-6)
            assert found[state][1] == pytest.approx(wanted[1], abs=1e-6)
            count += 1
    assert count == len(found)


def test_later_searches_count_in_the_values_of_a_position():
    roots = np.array([[0.0], [0.5], [1.0], [-1.0], [1.0]], dtype=np.float32)
    lengths = np.array([3, 2])
    mixed = later_values(roots, lengths, 0.5)
    np.testing.assert_allclose(mixed, [[0.375], [0.75], [1.0], [0.0], [1.0]])
    np.testing.assert_array_equal(later_values(roots, lengths, 0.0), roots)


def test_a_move_without_a_search_is_passed_over():
    roots = np.array([[0.0, 0.0], [np.nan, np.nan], [1.0, -1.0], [np.nan, np.nan]], dtype=np.float32)
    mixed = later_values(roots, np.array([4]), 0.5)
    np.testing.assert_allclose(mixed[[0, 2]], [[0.5, -0.5], [1.0, -1.0]])
    assert np.isnan(mixed[[1, 3]]).all()
    results = np.array([[1.0, -1.0]] * 4, dtype=np.float32)
    values = Targets(value_mix=0.5, value_decay=0.5).values(results, mixed)
    np.testing.assert_allclose(values, [[0.75, -0.75], [1, -1], [1, -1], [1, -1]])


def test_shares_beyond_one_are_refused():
    with pytest.raises(ConfigError, match="value_decay"):
        Targets(value_mix=0.5, value_decay=1.5)


class Likes:
    """Thinks that one column is better than the others by *logit*, and that all positions are even."""

    def __init__(self, column, logit):
        self.column, self.logit = column, logit

    def evaluate(self, states, legal):
        logits = np.where(legal.actions == self.column, self.logit, 0.0).astype(np.float32)
        return Evaluation(logits, np.zeros((len(states), 2), dtype=np.float32))


def test_surprise_is_the_divergence_of_the_search_from_the_network():
    game = load_game("connect_four_2p")
    config = SearchConfig(simulations=32)
    # The first player wins at once in column 3, which this network likes least.
    states = game.new_states(1)
    for column in (3, 0, 3, 0, 3, 0):
        game.apply(states, np.array([column], dtype=np.int32))
    for logit in (-4.0, 4.0):
        found = search_positions(game, Likes(3, logit), config, states, np.zeros(1, np.int64))
        logits = np.where(np.arange(7) == 3, logit, 0.0)
        prior = np.exp(logits) / np.exp(logits).sum()
        some = found.policy > 0
        divergence = (found.policy[some] * np.log(found.policy[some] / prior[some])).sum()
        assert found.surprise[0] == pytest.approx(divergence, abs=1e-4)
    # It is not surprised by what it knew.
    assert found.surprise[0] < 0.2


def test_weight_moves_within_a_game_alone_and_is_bounded():
    targets = Targets(surprise=0.5)
    surprise = np.array([0.0, 1.0, 2.0, 100.0, *[0.0] * 99, np.nan, 3.0, 0.0], dtype=np.float32)
    games = np.array([0, 0, 0, *[1] * 100, 2, 2, 3])
    weights = targets.draw_weights(surprise, games)
    np.testing.assert_allclose(weights[:3], [0.5, 1.0, 1.5])
    assert weights[3] == DRAW_WEIGHT_MAX
    assert weights[games == 1].sum() <= 100
    np.testing.assert_allclose(weights[games >= 2], 1.0)
    np.testing.assert_array_equal(Targets().draw_weights(surprise, games), np.ones(len(games)))


def test_rows_are_drawn_as_often_as_their_weights_say():
    weights = np.array([1.0, 3.0, 0.0, 4.0])
    places = drawn(np.cumsum(weights), np.random.default_rng(0), 80_000)
    np.testing.assert_allclose(np.bincount(places) / 10_000, weights, atol=0.1)


def test_a_window_draws_by_surprise_and_weighs_all_alike(tmp_path):
    game, _, games = played_both_ways("connect_four_2p", tmp_path)
    window = ReplayWindow(game, Targets(surprise=0.5))
    for finished in games:
        window.add(finished)
    window.forget(len(window) - 1)  # drops the first game
    held = window.take(np.arange(len(window)))
    rows = window.draw(np.random.default_rng(0), 40_000)
    assert (rows.weights == 1).all()
    heaviest = held.states[held.weights.argmax()]
    share = (rows.states == heaviest).all(axis=1).mean()
    twins = (held.states == heaviest).all(axis=1)
    assert share == pytest.approx(held.weights[twins].sum() / held.weights.sum(), rel=0.1)


BAD_SURPRISE = {
    "no text": 3,
    "no base64": "?",
    "too few": base64.b64encode(np.zeros(1, "<f4").tobytes()).decode(),
    "negative": -1.0,
    "huge": 1e9,
    "infinite": np.inf,
}


@pytest.mark.parametrize("what", BAD_SURPRISE)
def test_a_game_whose_surprise_is_none_is_not_read(what, tmp_path):
    _, shard, _ = played_both_ways("connect_four_2p", tmp_path)
    with open_shard(shard) as opened:
        first, *others = [stored.game for stored in opened.games()]
    said = BAD_SURPRISE[what]
    if isinstance(said, float):
        said = base64.b64encode(np.full(len(first.actions), said, "<f4").tobytes()).decode()
    shard.chmod(0o644)
    with sqlite3.connect(shard) as db:
        text = json.dumps({"surprise": said})
        db.execute("UPDATE games SET metadata_json = ? WHERE game_id = ?", (text, first.game_id))
    with open_shard(shard) as opened:
        read = list(opened.games())
    assert [each.game_id for each in read if isinstance(each, BrokenGame)] == [first.game_id]
    assert len([each for each in read if isinstance(each, StoredGame)]) == len(others)


def test_games_of_older_versions_are_drawn_evenly(tmp_path):
    _, shard, _ = played_both_ways("connect_four_2p", tmp_path)
    shard.chmod(0o644)
    with sqlite3.connect(shard) as db:
        db.execute("UPDATE games SET metadata_json = '{}'")
    job(EXPORT, {"shards": shard, "out": tmp_path / "x.npz", "surprise": 0.5})
    with np.load(tmp_path / "x.npz", allow_pickle=False) as arrays:
        assert (arrays["draw_weights"] == 1).all()
