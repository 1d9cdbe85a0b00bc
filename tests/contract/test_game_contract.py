"""What every game promises, held against each of ours."""

import json

import numpy as np
import pytest

from ringrift.errors import IllegalAction
from ringrift.games.contract import LegalActions
from ringrift.games.registry import load_game

KEYS = ["connect_four_2p", "square8_2p", "hex8_3p", "square19_4p", "hexagonal_2p"]


@pytest.fixture(params=KEYS)
def game(request):
    return load_game(request.param)


def some_states(game, *, games=16, moves=25, seed=4):
    """Running games at different lengths."""
    random, states = np.random.default_rng(seed), game.new_states(games)
    for move in range(moves):
        legal = game.legal(states)
        picks = legal.offsets[:-1] + (random.random(games) * legal.counts).astype(np.int64)
        for at in range(games):
            if legal.counts[at] and at % moves >= move // 2:
                game.apply(states[at : at + 1], legal.actions[picks[at] : picks[at] + 1])
    return states


def test_a_fresh_batch_is_at_the_start(game):
    states = game.new_states(3)
    assert states.shape == (3, game.words)
    assert (states == states[0]).all()
    assert not game.terminal(states).any()
    assert game.to_move(states).tolist() == [0, 0, 0]
    assert (game.results(states) == 0).all()
    assert (game.rankings(states) == 0).all()


def test_positions_are_possible_and_rows_of_anything_are_not(game):
    assert game.possible(some_states(game)).all()
    random = np.random.default_rng(5)
    anything = random.integers(-(2**62), 2**62, (50, game.words))
    assert not game.possible(anything).any()
    near = some_states(game)
    near[:, : min(8, game.words)] += random.integers(1, 2**40, near[:, :8].shape)
    assert not game.possible(near).any()


def test_an_empty_batch_is_a_batch(game):
    states = game.new_states(0)
    assert len(game.legal(states).actions) == 0
    assert game.observe(states).shape == (0, *game.observation_shape)
    game.apply(states, np.zeros(0, dtype=np.int32))


def test_games_of_a_batch_do_not_touch_each_other(game):
    states = some_states(game)
    legal = game.legal(states)
    alone = [game.legal(states[at : at + 1]).actions for at in range(len(states))]
    assert all((legal.of(at) == actions).all() for at, actions in enumerate(alone))
    running = np.flatnonzero(legal.counts)
    batch = np.ascontiguousarray(states[running])
    first = legal.actions[legal.offsets[running]]
    game.apply(batch, first)
    for at, game_number in enumerate(running):
        single = states[game_number : game_number + 1].copy()
        game.apply(single, first[at : at + 1])
        assert (single[0] == batch[at]).all()


def test_trusted_and_tested_actions_do_the_same(game):
    states = game.new_states(2)
    action = game.legal(states).actions[:1].repeat(2)
    trusted = states.copy()
    game.apply(states, action)
    game.apply(trusted, action, trusted=True)
    assert (states == trusted).all()


def test_actions_out_of_range_or_after_the_end_are_refused(game):
    states = game.new_states(1)
    for action in (-1, game.action_count):
        with pytest.raises(IllegalAction):
            game.apply(states, np.array([action]))
    game.play_random(states, seed=1)
    with pytest.raises(IllegalAction):
        game.apply(states, np.array([0]))


def test_random_play_ends_every_game_and_repeats_for_a_seed(game):
    games = 20
    runs = []
    for seed in (5, 5, 6):
        states = game.new_states(games)
        played = game.play_random(states, seed=seed)
        assert game.terminal(states).all()
        assert played.options >= played.decisions >= games
        runs.append(states)
    assert (runs[0] == runs[1]).all()
    assert (runs[0] != runs[2]).any()
    ranks, results = game.rankings(runs[0]), game.results(runs[0])
    assert (ranks.min(axis=1) == 1).all()
    assert results.sum(axis=1) == pytest.approx(np.zeros(games), abs=1e-6)
    assert ((results == 1) <= (ranks == 1)).all()


def test_every_action_has_a_slot_of_its_own(game):
    layout = game.action_layout
    assert layout.slots.shape == (game.action_count,)
    assert len(set(layout.slots.tolist())) == game.action_count
    assert layout.slots.min() >= 0
    assert layout.slots.max() < layout.planes * layout.rows * layout.columns + layout.placeless
    assert (layout.rows, layout.columns) == game.observation_shape[1:]


def test_symmetry_zero_changes_nothing_and_others_keep_the_game(game):
    states = some_states(game, games=8)
    legal = game.legal(states)
    planes = game.observe(states).reshape(len(states), game.observation_shape[0], -1)
    for symmetry in range(game.symmetries):
        turned = game.turned(states, symmetry)
        actions = game.turned_actions(states, legal, symmetry)
        assert (turned == states).all() or symmetry > 0
        again = game.legal(turned)
        assert (again.offsets == legal.offsets).all()
        for at in range(len(states)):
            assert sorted(LegalActions(legal.offsets, actions).of(at)) == sorted(again.of(at))
        seen = game.observe(turned).reshape(planes.shape)
        assert (planes[..., game.turned_grid(symmetry)] == seen).all()


def test_states_survive_json_and_moves_their_text(game):
    for state in some_states(game, games=6):
        again = game.from_json(json.loads(json.dumps(game.to_json(state))))
        assert (again == state).all()
        for action in game.legal(state[None, :]).actions[:4]:
            (text,) = game.action_texts(state, [action])
            assert game.parse_action(state, text) == action
        assert game.key in game.draw(state)
