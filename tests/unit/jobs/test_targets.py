"""Targets of rows: the jobs of the loop make the same of a game as the one process that plays and trains."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest

from ringrift.errors import ConfigError
from ringrift.games.registry import load_game
from ringrift.jobs.export import EXPORT
from ringrift.jobs.frame import run_job
from ringrift.jobs.samples.targets import Targets, later_values
from ringrift.jobs.selfplay import SELFPLAY, SelfplayParams, make_evaluator, selfplay_config
from ringrift.jobs.training.replay_window import game_rows
from ringrift.players.seeds import derived
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
    targets = {"value_mix": 0.8, "value_decay": 0.8}
    job(EXPORT, {"shards": shard, "out": tmp_path / "x.npz", **targets})
    with np.load(tmp_path / "x.npz", allow_pickle=False) as arrays:
        found = by_state(arrays["states"], arrays["values_mp"][:, : game.players])
    count = 0
    for finished in games:
        rows = game_rows(game, finished, Targets(**targets))
        for state, (values,) in by_state(rows.states, rows.values).items():
            np.testing.assert_allclose(found[state][0], values, atol=1e-6)
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
