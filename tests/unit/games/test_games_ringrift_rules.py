"""What the rules promise: numbers of the boards, leaf counts, statistics, conservation, no illegal move."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringrift.errors import ConfigError, IllegalAction
from ringrift.games.ringrift.boards import board_for
from ringrift.games.ringrift.core import layout as at
from ringrift.games.ringrift.game import RingRiftGame, make_game, read_position
from ringrift.games.ringrift.reference import reference_from_json, reference_to_json
from ringrift.games.tool import count_leaves

CONFIGS = [f"{board}_{players}p" for board in ("square8", "hex8") for players in (2, 3, 4)]
GAMES = {key: make_game(key) for key in [*CONFIGS, "square19_2p", "hexagonal_3p"]}


@pytest.mark.parametrize(
    ("board", "cells", "rings", "farthest", "lines", "eliminations", "territories"),
    [
        ("square8", 64, 18, 7, (4, 3, 3), (18, 24, 30), (33, 22, 17)),
        ("hex8", 61, 18, 8, (4, 3, 3), (18, 24, 30), (31, 21, 16)),
        ("square19", 361, 72, 18, (4, 4, 4), (72, 96, 120), (181, 121, 91)),
        ("hexagonal", 469, 96, 24, (4, 4, 4), (96, 128, 160), (235, 157, 118)),
    ],
)
def test_the_numbers_of_the_boards(board, cells, rings, farthest, lines, eliminations, territories):
    boards = [board_for(board, players) for players in (2, 3, 4)]
    assert {(b.cells, b.rings, b.farthest) for b in boards} == {(cells, rings, farthest)}
    assert tuple(b.line_length for b in boards) == lines
    assert tuple(b.elimination_target for b in boards) == eliminations
    assert tuple(b.territory_target for b in boards) == territories


def test_the_action_space_has_the_size_of_the_rules():
    assert GAMES["square8_2p"].action_count == 4673
    assert GAMES["hex8_2p"].action_count == 3844


@pytest.mark.parametrize("players", [2, 3])
@pytest.mark.parametrize(
    ("board", "leaves"),
    [("square8", (192, 3192, 596904, 9666692)), ("hex8", (183, 2430, 432540, 5583042))],
)
def test_leaf_counts(board, leaves, players):
    depths = 4 if players == 2 else 3
    game = make_game(f"{board}_{players}p")
    assert tuple(count_leaves(game, depth) for depth in range(1, depths + 1)) == leaves[:depths]


# Mean decisions, mean options, shares of endings by elimination, territory, last standing, stalemate.
STATISTICS = {
    "square8_2p": (72.1, 43.6, (0.69, 0.20, 0.10, 0.00)),
    "square8_3p": (83.9, 43.1, (0.21, 0.67, 0.11, 0.01)),
    "square8_4p": (85.8, 43.3, (0.07, 0.80, 0.09, 0.04)),
    "hex8_2p": (76.3, 40.2, (0.62, 0.20, 0.19, 0.00)),
    "hex8_3p": (95.8, 38.2, (0.23, 0.61, 0.16, 0.00)),
    "hex8_4p": (103.2, 37.9, (0.11, 0.74, 0.13, 0.01)),
}


@pytest.mark.parametrize("key", CONFIGS)
def test_random_play_looks_as_recorded(key):
    decisions, options, endings = STATISTICS[key]
    game, games = GAMES[key], 3000
    states = game.new_states(games)
    played = game.play_random(states, seed=2)
    assert game.terminal(states).all()
    assert played.decisions / games == pytest.approx(decisions, abs=1.5)
    assert played.options / played.decisions == pytest.approx(options, abs=0.6)
    shares = np.bincount(states[:, at.REASON], minlength=5)[1:] / games
    assert shares.tolist() == pytest.approx(endings, abs=0.04)


def assert_conserved(game: RingRiftGame, state) -> None:
    board, position = game.board, read_position(game.board, state)
    assert not position.stacks.keys() & position.markers.keys() & position.collapsed.keys()
    assert all(len(stack) <= board.farthest + 1 for stack in position.stacks.values())
    for seat in range(1, board.players + 1):
        assert state[at.ON_BOARD + seat] == position.rings_of(seat)
        assert state[at.HAND + seat] + state[at.ON_BOARD + seat] + state[at.GONE + seat] == board.rings
        assert state[at.TERR + seat] == list(position.collapsed.values()).count(seat)
        assert state[at.MARKS + seat] == list(position.markers.values()).count(seat)
        assert state[at.CONTROLLED + seat] == len(position.controlled(seat))
    assert state[at.ELIM + 1 : at.ELIM + 5].sum() == state[at.GONE + 1 : at.GONE + 5].sum()


def progress(state) -> int:
    """What every slide, capture and elimination raises; it is bounded, so games end."""
    cells = state[at.CELLS :] & at.CODE_MASK
    return int(((cells > 0) & (cells <= 8)).sum() + state[at.ELIM + 1 : at.ELIM + 5].sum())


@settings(max_examples=20, deadline=None)
@given(key=st.sampled_from(sorted(GAMES)), seed=st.integers(0, 2**32))
def test_rings_are_conserved_and_games_move_on(key, seed):
    game, random = GAMES[key], np.random.default_rng(seed)
    state = game.new_states(1)[0]
    for _ in range(400):
        actions = game.legal(state[None, :]).actions
        if not len(actions):
            break
        action, before = int(random.choice(actions)), progress(state)
        kind = game.action_texts(state, [action])[0][0]
        game.apply(state[None, :], np.array([action], dtype=np.int32))
        assert_conserved(game, state)
        if kind in "MCEF":
            assert progress(state) > before
        elif kind in "LT":
            assert progress(state) >= before
    if game.board.cells < 100:
        assert game.terminal(state[None, :])[0]


@settings(max_examples=20, deadline=None)
@given(key=st.sampled_from(CONFIGS), seed=st.integers(0, 2**32), moves=st.integers(0, 100))
def test_whatever_is_not_legal_is_refused_and_changes_nothing(key, seed, moves):
    game, random = GAMES[key], np.random.default_rng(seed)
    state = game.new_states(1)
    for _ in range(moves):
        actions = game.legal(state).actions
        if len(actions):
            game.apply(state, random.choice(actions, size=1))
    before = state.copy()
    illegal = np.setdiff1d(np.arange(game.action_count), game.legal(state).actions)
    for action in [*random.choice(illegal, size=150), -1, game.action_count]:
        with pytest.raises(IllegalAction):
            game.apply(state, np.array([action]))
    assert (state == before).all()


def test_one_illegal_action_stops_the_whole_batch():
    game = GAMES["square8_2p"]
    states = game.new_states(3)
    before = states.copy()
    with pytest.raises(IllegalAction, match="game 1"):
        game.apply(states, np.array([0, game.action_count - 1, 1], dtype=np.int32))
    assert (states == before).all()


def test_a_batch_of_the_wrong_shape_is_refused():
    game = GAMES["square8_2p"]
    with pytest.raises(ConfigError, match="shape"):
        game.legal(np.zeros((2, 5), dtype=np.int64))
    with pytest.raises(ConfigError, match="contiguous"):
        game.legal(game.new_states(4)[::2])
    with pytest.raises(ConfigError, match="as many actions"):
        game.apply(game.new_states(2), np.array([0], dtype=np.int32))


def recovering_player(game):
    """Player 1 controls nothing, holds one buried ring and is one ring short of the elimination target."""
    fields = game.to_json(game.new_states(1)[0])
    fields |= {"phase": "movement", "stacks": {"3,3": [1, 2], "6,6": [2]}, "markers": {"3,2": 1}}
    fields["players"] = [[0, 17, 0], [16, 0, 0]]
    return fields


def test_a_recovery_is_judged_when_it_is_paid_for():
    """The strike reaches the target, but the slide and its cost are one move: both are credited."""
    game = GAMES["square8_2p"]
    fields = recovering_player(game)
    state, reference = game.from_json(fields), reference_from_json(game.board, fields)
    for text in ("R stack_strike 3,2>3,3", "E 3,3"):
        assert state[at.WINNER] == 0
        assert text in reference.legal_texts()
        game.apply(state[None, :], np.array([game.parse_action(state, text)], dtype=np.int32))
        reference.apply_text(text)
        assert game.to_json(state) == reference_to_json(reference)
    assert (state[at.WINNER], state[at.ELIM + 1]) == (1, 19)


def finished(game, **seats):
    """A finished game of player 1 with the given counters per seat."""
    state = game.new_states(1)[0]
    state[at.WINNER], state[at.REASON], state[at.PHASE] = 1, at.BY_TERRITORY, at.OVER
    for seat, (terr, elim, marks, lost_at) in enumerate(seats.values(), start=1):
        for word, value in zip(
            (at.TERR, at.ELIM, at.MARKS, at.LOST_AT), (terr, elim, marks, lost_at), strict=True
        ):
            state[word + seat] = value
    return state[None, :]


@pytest.mark.parametrize(
    ("others", "ranking", "results"),
    [
        (((3, 0, 0, 0), (2, 9, 9, 0), (1, 9, 9, 0)), [1, 2, 3, 4], [1, 1 / 3, -1 / 3, -1]),
        (((1, 0, 0, 0), (1, 2, 0, 0), (1, 1, 0, 0)), [1, 4, 2, 3], [1, -1, 1 / 3, -1 / 3]),
        (((1, 1, 5, 0), (1, 1, 5, 0), (1, 1, 4, 0)), [1, 2, 2, 4], [1, 0, 0, -1]),
        (((1, 1, 5, 30), (1, 1, 5, 0), (1, 1, 5, 40)), [1, 4, 2, 3], [1, -1, 1 / 3, -1 / 3]),
        (((9, 9, 9, 0), (9, 9, 9, 0), (9, 9, 9, 0)), [1, 2, 2, 2], [1, -1 / 3, -1 / 3, -1 / 3]),
    ],
)
def test_the_ranking_of_a_finished_game(others, ranking, results):
    game = GAMES["square8_4p"]
    states = finished(game, one=(0, 0, 0, 7), two=others[0], three=others[1], four=others[2])
    assert game.rankings(states)[0].tolist() == ranking
    assert game.results(states)[0].tolist() == pytest.approx(results)
    assert game.rankings(game.new_states(1))[0].tolist() == [0, 0, 0, 0]
