"""The contract of a game, held against games of OpenSpiel, and what is particular to them."""

import subprocess
import sys

import numpy as np
import pytest
from test_game_contract import (  # noqa: F401  (collected here for the games of this file)
    some_states,
    test_a_fresh_batch_is_at_the_start,
    test_actions_out_of_range_or_after_the_end_are_refused,
    test_an_empty_batch_is_a_batch,
    test_every_action_has_a_slot_of_its_own,
    test_games_of_a_batch_do_not_touch_each_other,
    test_random_play_ends_every_game_and_repeats_for_a_seed,
    test_states_survive_json_and_moves_their_text,
    test_symmetry_zero_changes_nothing_and_others_keep_the_game,
    test_trusted_and_tested_actions_do_the_same,
)

from ringrift.errors import ConfigError
from ringrift.games import open_spiel as open_spiel_game
from ringrift.games.open_spiel import make_game
from ringrift.games.registry import load_game

KEYS = [
    "open_spiel:hex(board_size=8)",
    "open_spiel:breakthrough(columns=6,rows=6)",
    "open_spiel:othello",
    "open_spiel:go(board_size=9)",
    "open_spiel:connect_four",
    "open_spiel:nim",
]


@pytest.fixture(params=KEYS)
def game(request):
    return load_game(request.param)


def test_the_key_names_the_same_game_again(game):
    assert game.key.startswith("open_spiel:")
    assert load_game(game.key).key == game.key


def test_a_stone_shows_in_the_cell_of_its_action():
    for key in ("open_spiel:hex(board_size=5)", "open_spiel:othello", "open_spiel:go(board_size=5)"):
        game = load_game(key)
        layout, cells = game.action_layout, np.prod(game.observation_shape[1:])
        (state,) = game.new_states(1)
        occupied = _varying_cells(game.observe(state[None, :])[0])
        for action in game.legal(state[None, :]).actions:
            if layout.slots[action] >= cells:
                continue  # a pass
            after = state[None, :].copy()
            game.apply(after, np.array([action]))
            cell = int(layout.slots[action])
            assert cell not in occupied
            assert cell in _varying_cells(game.observe(after)[0])


def _varying_cells(planes):
    """Cells that differ from the commonest cell in some plane."""
    flat = planes.reshape(len(planes), -1)
    common = np.median(flat, axis=1, keepdims=True)
    return set(np.flatnonzero((flat != common).any(axis=0)).tolist())


def test_the_planes_of_a_breakthrough_action_lie_on_the_piece_that_moves():
    game = load_game("open_spiel:breakthrough(columns=6,rows=6)")
    states = game.new_states(1)
    layout = game.action_layout
    assert layout.placeless == 0
    pieces = game.observe(states)[0, :2].reshape(2, -1)
    mine = {int(layout.slots[action]) % 36 for action in game.legal(states).actions}
    assert any(mine <= set(np.flatnonzero(plane).tolist()) for plane in pieces)


def test_a_row_alone_is_enough_to_go_on(monkeypatch):
    """A row from elsewhere, such as a file, is played on by a game that has seen nothing of it."""
    monkeypatch.setattr(open_spiel_game, "POSITIONS_KEPT", 2)
    ours, other = load_game("open_spiel:go(board_size=9)"), load_game("open_spiel:go(board_size=9)")
    states = some_states(ours)
    copies = states.copy()
    assert (other.legal(copies).actions == ours.legal(states).actions).all()
    assert (other.observe(copies) == ours.observe(states)).all()
    assert other.draw(copies[3]) == ours.draw(states[3])


def test_symmetries_are_those_that_are_known():
    known = {"go(board_size=5)": 8, "othello": 4, "hex(board_size=5)": 1, "breakthrough": 1}
    assert {name: make_game(f"open_spiel:{name}").symmetries for name in known} == known


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("open_spiel:", "expected open_spiel:GAME"),
        ("open_spiel:no_such_game", "Unknown game 'no_such_game'"),
        ("open_spiel:hex(sides=3)", "Unknown parameter 'sides'"),
        ("open_spiel:backgammon", "it has chance"),
        ("open_spiel:kuhn_poker", "it has chance"),
        ("open_spiel:dark_hex", "it hides information"),
        ("open_spiel:matrix_pd", "at the same time"),
        ("open_spiel:solitaire", "chance"),
    ],
)
def test_a_game_we_cannot_play_is_refused_and_the_reason_said(key, problem):
    with pytest.raises(ConfigError, match=r".*") as refused:
        load_game(key)
    assert problem in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_history_that_was_never_played_is_no_state():
    game = load_game("open_spiel:hex(board_size=5)")
    for actions, problem in (([3, 3], "after 1 actions"), ([99], "0 to 24"), ("3", "list"), ([True], "list")):
        with pytest.raises(ConfigError, match=problem):
            game.from_json({"actions": actions})
    with pytest.raises(ConfigError, match="state of open_spiel:othello"):
        game.from_json({"config": "open_spiel:othello", "actions": []})


def test_without_the_extra_the_error_says_what_to_install():
    program = (
        "import sys; sys.modules['pyspiel'] = None\n"
        "from ringrift.games.registry import load_game\n"
        "from ringrift.errors import ConfigError\n"
        "try:\n    load_game('open_spiel:hex')\nexcept ConfigError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "pip install 'ringrift[openspiel]'" in done.stdout, done.stderr
