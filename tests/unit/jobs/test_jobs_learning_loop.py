"""Learning in one process: it gets stronger, and what was saved goes on."""

import re

import numpy as np
import pytest
import torch

from ringrift.games.registry import load_game
from ringrift.jobs.samples.plan import PowerWindow
from ringrift.jobs.training.learning_loop import LearningConfig, LearningLoop
from ringrift.network.evaluator import NetEvaluator
from ringrift.players.matches import MatchConfig, play_match
from ringrift.players.search_player import SearchPlayer
from ringrift.players.specs import RandomPlayer
from ringrift.search.contract import SearchConfig
from ringrift.search.selfplay import SelfplayConfig
from ringrift.statistics.line_plot import line_plot

GAME = load_game("connect_four_2p")


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def small_loop(seed=0):
    config = LearningConfig(
        selfplay=SelfplayConfig(search=SearchConfig(simulations=8), slots=16),
        batch=32,
        steps_at_once=4,
        rows_first=100,
        window=PowerWindow(c=400.0),
    )
    return LearningLoop(GAME, config, seed=seed)


def advance(loop, rows):
    loop.advance(lambda: loop.window.added >= rows)


def test_new_rows_earn_steps_and_the_window_is_bounded():
    loop = small_loop()
    advance(loop, 1500)
    counts = loop.counts()
    spent, earned = counts["steps"] * 32, counts["rows"] * 4
    assert earned - 4 * 32 * 8 <= spent <= earned
    assert counts["window_rows"] <= loop.config.window.rows(counts["rows"]) + 42
    assert counts["value"] < 1


def test_a_saved_loop_goes_on_as_if_nothing_had_happened(tmp_path):
    straight, stopped = small_loop(), small_loop()
    advance(straight, 600)
    advance(stopped, 300)
    stopped.save(tmp_path)
    resumed = small_loop()
    resumed.load(tmp_path)
    assert (resumed.games, resumed.learner.steps) == (stopped.games, stopped.learner.steps)
    for name, value in stopped.learner.average.items():
        assert torch.equal(value, resumed.learner.average[name]), name
    every = np.arange(len(stopped.window))
    np.testing.assert_array_equal(stopped.window.take(every).states, resumed.window.take(every).states)
    assert {each.seed for each in resumed._selfplay.in_progress()} == {
        each.seed for each in stopped._selfplay.in_progress()
    }
    advance(resumed, 600)
    assert resumed.learner.steps > stopped.learner.steps
    assert resumed.games == pytest.approx(straight.games, abs=8)


def test_it_beats_a_random_player_after_a_moment():
    loop = small_loop()
    advance(loop, 2500)
    player = SearchPlayer("net", GAME, NetEvaluator(loop.network(), GAME), SearchConfig(simulations=1))
    played = play_match(GAME, [player, RandomPlayer(GAME)], MatchConfig(openings=40, seed=1, opening_plies=0))
    assert played.tally.score > 0.7


def test_a_plot_shows_the_band_of_a_series_whole():
    band = [(0, 0.5, 90), (1, 0.5, float("inf")), (2, 1, 4)]
    svg = line_plot("t", {"one": [(0, 1), (2, 3)]}, x_label="x", y_label="y", bands={"one": band})
    outline = re.search(r'<polygon points="([^"]+)"', svg)[1]
    heights = [float(point.split(",")[1]) for point in outline.split()]
    assert len(heights) == 4
    assert 0 < min(heights) < max(heights) < 420, "the picture is high enough for all of it"


def test_a_plot_shows_every_series():
    svg = line_plot(
        "a < b", {"one": [(0, 1), (1, float("nan")), (2, 3)], "two": []}, x_label="x", y_label="y"
    )
    assert svg.count("<polyline") == 2
    assert "a &lt; b" in svg
    assert "nan" not in svg
