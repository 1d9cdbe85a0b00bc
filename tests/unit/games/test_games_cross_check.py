"""Both engines side by side: the same legal sets and the same states, on every board."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringrift.games.ringrift.boards import SHAPES, board_for
from ringrift.games.ringrift.game import RingRiftGame
from ringrift.games.ringrift.reference import ReferenceGame, reference_from_json, reference_to_json

SMALL = [(board, players) for board in ("square8", "hex8") for players in (2, 3, 4)]
LARGE = [(board, players) for board in ("square19", "hexagonal") for players in (2, 3, 4)]
GAMES = {(board, players): RingRiftGame(board_for(board, players)) for board, players in SMALL + LARGE}


def test_every_board_is_covered():
    assert {board for board, _ in GAMES} == set(SHAPES)


def assert_same(game, state, reference):
    assert game.to_json(state) == reference_to_json(reference)
    actions = game.legal(state[None, :]).actions
    texts = game.action_texts(state, actions)
    assert len(set(texts)) == len(texts) == len(set(actions.tolist()))
    assert sorted(texts) == reference.legal_texts()
    return dict(zip(texts, actions, strict=True))


def make(game, state, action):
    game.apply(state[None, :], np.array([action], dtype=np.int32))


@settings(max_examples=12, deadline=None)
@given(config=st.sampled_from(SMALL), seed=st.integers(0, 2**32))
def test_a_random_game_goes_the_same_way_in_both_engines(config, seed):
    game, random = GAMES[config], np.random.default_rng(seed)
    reference, state = ReferenceGame(game.board), game.new_states(1)[0]
    while reference.winner is None:
        legal = assert_same(game, state, reference)
        text = str(random.choice(sorted(legal)))
        make(game, state, legal[text])
        reference.apply_text(text)
    assert_same(game, state, reference)
    assert game.rankings(state[None, :])[0].tolist() == list(reference.ranking())


@pytest.mark.parametrize("config", SMALL + LARGE)
def test_positions_from_all_over_a_game_give_the_same_decisions(config):
    """Late positions of large boards, which the reference engine would take minutes to reach by play."""
    game, random = GAMES[config], np.random.default_rng(sum(config[0].encode()) + config[1])
    state, wanted = game.new_states(1)[0], 0
    longest = 90 if config in SMALL else 900
    for decision in range(longest):
        actions = game.legal(state[None, :]).actions
        if not len(actions):
            break
        action = int(random.choice(actions))
        if decision >= wanted:
            wanted += longest // 12
            reference = reference_from_json(game.board, game.to_json(state))
            legal = assert_same(game, state, reference)
            text = next(text for text, number in legal.items() if number == action)
            after = state.copy()
            make(game, after, action)
            reference.apply_text(text)
            assert game.to_json(after) == reference_to_json(reference)
        make(game, state, action)


def rare_states(config, phases_and_debts, *, games=400):
    """States in which something rare is to be decided, found by random play."""
    game, found = GAMES[config], {}
    states = game.new_states(games)
    random = np.random.default_rng(11)
    while len(states):
        for state in states:
            turn = (int(state[1]), int(state[6]), bool(state[5]))
            if turn in phases_and_debts:
                found.setdefault(turn, []).append(state.copy())
        legal = game.legal(states)
        picks = legal.offsets[:-1] + (random.random(len(states)) * legal.counts).astype(np.int64)
        game.apply(states, legal.actions[picks], trusted=True)
        states = np.ascontiguousarray(states[~game.terminal(states)])
    return found


RARE = {
    (4, 0, False): "a line to process",
    (4, 1, False): "a line elimination",
    (1, 3, True): "the option of a recovery line",
    (1, 4, True): "the cost of a recovery",
    (5, 0, True): "a region after a recovery",
    (5, 2, True): "a buried ring to pay with",
    (6, 0, False): "a forced elimination",
}


@pytest.mark.parametrize("config", [("square8", 3), ("hex8", 4)])
def test_rare_decisions_are_reached_and_agree(config):
    game, found = GAMES[config], rare_states(config, RARE)
    assert set(found) >= set(RARE) - {(1, 3, True)}, "random play no longer reaches what this test is for"
    for states in found.values():
        for state in states[:6]:
            legal = assert_same(game, state, reference_from_json(game.board, game.to_json(state)))
            for text, action in list(legal.items())[:8]:
                reference, after = reference_from_json(game.board, game.to_json(state)), state.copy()
                make(game, after, action)
                reference.apply_text(text)
                assert_same(game, after, reference)
