"""Connect four by its own rules, counted and played by hand."""

import numpy as np
import pytest

from ringrift.errors import ConfigError, IllegalAction
from ringrift.games.registry import load_game
from ringrift.games.tool import count_leaves

GAME = load_game("connect_four_2p")


def after(columns):
    state = GAME.new_states(1)[0]
    for column in columns:
        GAME.apply(state[None, :], np.array([int(column) - 1], dtype=np.int32))
    return state


def test_leaf_counts_match_the_known_ones():
    assert [count_leaves(GAME, depth) for depth in range(1, 9)] == [
        7, 49, 343, 2401, 16807, 117649, 823536, 5673234,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "results"),
    [
        ("1213141", [1, -1]),  # a column
        ("1122334", [1, -1]),  # a row
        ("12233434464", [1, -1]),  # rising
        ("76655454424", [1, -1]),  # falling
        ("71213141", [-1, 1]),  # the second player's column
        ("112233", [0, 0]),  # three are not enough
        ("121314", [0, 0]),
    ],
)
def test_four_in_a_row_win(columns, results):
    state = after(columns)
    assert GAME.results(state[None, :])[0].tolist() == results
    assert bool(GAME.terminal(state[None, :])[0]) == any(results)


def test_the_top_of_a_column_does_not_run_on_into_the_next():
    rows = ["x......", "x......", "x......", "o......", "o......", "ox....."]
    assert GAME.to_json(GAME.from_json({"rows": rows}))["status"] == "active"


def test_a_full_board_is_a_draw_of_two_first_ranks():
    state = after("666165577462463234152541333211132724554777")
    assert GAME.to_json(state)["status"] == "completed"
    assert GAME.rankings(state[None, :])[0].tolist() == [1, 1]
    assert GAME.results(state[None, :])[0].tolist() == [0, 0]
    assert "draw" in GAME.draw(state)


def test_a_full_column_is_refused():
    state = after("111111")
    with pytest.raises(IllegalAction, match="full"):
        GAME.apply(state[None, :], np.array([0], dtype=np.int32))


@pytest.mark.parametrize(
    "rows",
    [
        ["......."] * 5,
        ["x......"] + ["......."] * 5,
        ["......."] * 5 + ["o......"],
        ["......."] * 5 + ["xz....."],
        ["......."] * 4 + ["xxxx...", "oooo..."],
        ["......."] * 4 + ["ooo....", "xxxx.oo"],
    ],
)
def test_a_state_that_no_game_reaches_is_refused(rows):
    with pytest.raises(ConfigError):
        GAME.from_json({"rows": rows})
