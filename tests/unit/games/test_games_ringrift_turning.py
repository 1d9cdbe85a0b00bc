"""Turned boards are the same game: legal actions, states and what a network sees."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringrift.games.ringrift.core import layout as at
from ringrift.games.ringrift.game import make_game, read_position

GAMES = {key: make_game(key) for key in ("square8_2p", "square8_3p", "hex8_2p", "hex8_4p", "hexagonal_2p")}


@pytest.mark.parametrize(
    ("key", "count"), [("square8_2p", 8), ("square19_3p", 8), ("hexagonal_2p", 12), ("hex8_2p", 4)]
)
def test_number_of_symmetries(key, count):
    assert make_game(key).symmetries == count


def several_axes(game, state, action):
    """A recovery that completes lines on several axes: the rules take the first axis, which turns along."""
    text = game.action_texts(state, [action])[0]
    if not text.startswith("R line"):
        return False
    start, end = (game.board.by_name[name] for name in text.split()[2].split(">"))
    position, player = read_position(game.board, state), int(state[at.CUR])
    del position.markers[start]
    runs = [len(position.run_through(end, axis, player)) for axis in range(game.board.axes)]
    return sum(length >= game.board.line_length for length in runs) > 1


@settings(max_examples=25, deadline=None)
@given(key=st.sampled_from(sorted(GAMES)), seed=st.integers(0, 2**32), symmetry=st.integers(0, 11))
def test_a_turned_game_is_the_same_game(key, seed, symmetry):
    game, random = GAMES[key], np.random.default_rng(seed)
    symmetry %= game.symmetries
    state = game.new_states(1)
    for _ in range(150):
        legal = game.legal(state)
        turned, turned_actions = game.turned(state, symmetry), game.turned_actions(state, legal, symmetry)
        assert sorted(turned_actions) == sorted(game.legal(turned).actions)
        seen = game.observe(state).reshape(*game.observation_shape[:1], -1)
        seen_turned = game.observe(turned).reshape(*game.observation_shape[:1], -1)
        assert (seen[:, game.turned_grid(symmetry)] == seen_turned).all()
        if not len(legal.actions):
            break
        pick = int(random.integers(len(legal.actions)))
        if several_axes(game, state[0], legal.actions[pick]):
            break
        game.apply(state, legal.actions[pick : pick + 1])
        game.apply(turned, turned_actions[pick : pick + 1])
        assert (game.turned(state, symmetry) == turned).all()


def test_the_observation_tells_positions_apart_and_stays_in_bounds():
    game = GAMES["hex8_4p"]
    states = game.new_states(64)
    random = np.random.default_rng(3)
    seen = set()
    for _ in range(60):
        legal = game.legal(states)
        picks = legal.offsets[:-1] + (random.random(len(states)) * legal.counts).astype(np.int64)
        game.apply(states, legal.actions[picks], trusted=True)
        states = np.ascontiguousarray(states[~game.terminal(states)])
        planes = game.observe(states)
        assert planes.dtype == np.float32
        assert np.abs(planes).max() <= 4
        seen |= {plane.tobytes() for plane in planes}
    assert len(seen) > 3000
    on_board = game.observe(game.new_states(1))[0, 0]
    assert on_board.sum() == 61
    assert (planes[:, :, on_board == 0] == 0).all()
