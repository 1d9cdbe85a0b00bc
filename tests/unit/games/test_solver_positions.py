"""The labeled connect-four positions: what the solver says, and an independent search of the late ones."""

import sys
from functools import cache
from pathlib import Path

import numpy as np
from bitbully import BitBully

from ringrift.games.registry import load_game
from ringrift.players.specs import parse_player

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))

from label_positions import PLIES_MAX, PLIES_MIN, solve
from solver_positions import moves_kept, read_positions, states_of

GAME = load_game("connect_four_2p")
POSITIONS = read_positions()
LATE_PLIES, SOLVED = 24, 40


def test_there_are_600_different_positions_each_with_something_to_get_wrong():
    assert len({each.moves for each in POSITIONS}) == 600
    assert {len(each.moves) for each in POSITIONS} <= set(range(PLIES_MIN, PLIES_MAX + 1))
    assert all(len(set(each.results) - {"."}) > 1 for each in POSITIONS)
    legal = GAME.legal(states_of(GAME, POSITIONS))
    for index, each in enumerate(POSITIONS):
        assert legal.of(index).tolist() == [column for column in range(7) if each.results[column] != "."]


def test_labels_are_those_of_the_solver():
    solver = BitBully()
    some = POSITIONS[:: len(POSITIONS) // SOLVED]
    assert [solve(solver, each.moves) for each in some] == [each.results for each in some]


def test_labels_of_late_positions_are_those_of_a_search_to_the_end():
    @cache
    def value(words):
        """The result for the player on turn; -1, 0 or 1."""
        state = np.array([words], dtype=np.int64)
        if GAME.terminal(state)[0]:
            return int(GAME.results(state)[0, GAME.to_move(state)[0]])
        best = -1
        for action in GAME.legal(state).actions:
            best = max(best, -value(after(words, action)))
            if best == 1:
                break
        return best

    def after(words, action):
        state = np.array([words], dtype=np.int64)
        GAME.apply(state, np.array([action], dtype=np.int32))
        return tuple(state[0].tolist())

    late = [each for each in POSITIONS if len(each.moves) >= LATE_PLIES + 3][:12]
    for each, state in zip(late, states_of(GAME, late), strict=True):
        words = tuple(state.tolist())
        found = [
            "." if each.results[column] == "." else "-=+"[1 - value(after(words, column))]
            for column in range(7)
        ]
        assert "".join(found) == each.results


def test_a_search_keeps_more_results_than_chance_and_the_same_ones_each_time():
    by_chance = moves_kept(GAME, parse_player("random", GAME), POSITIONS)
    searched = moves_kept(GAME, parse_player("mcts:30", GAME), POSITIONS)
    assert searched == moves_kept(GAME, parse_player("mcts:30", GAME), POSITIONS)
    assert by_chance["interval"][1] < searched["interval"][0]
    assert searched["kept"] == round(600 * searched["score"])
