"""Label connect-four positions with an exact solver, once, for `solver_positions`.

    python scripts/label_positions.py --out tests/data/connect_four_positions.txt

A position is 6 to 29 uniformly random plies from the start, the number itself uniform, the game not over. It
is kept when its legal moves differ in result, so that there is something to get wrong. The solver is bitbully
from PyPI, which knows the exact value of every move.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from bitbully import BitBully, Board
from solver_positions import DRAW, FULL, LOSS, WIN, Position, read_positions

from ringrift.games.connect_four import COLUMNS
from ringrift.games.registry import load_game

PLIES_MIN, PLIES_MAX = 6, 29


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(argv)
    solver, random = BitBully(), np.random.default_rng(options.seed)
    kept: dict[str, Position] = {}
    while len(kept) < options.count:
        moves = random_beginning(random, int(random.integers(PLIES_MIN, PLIES_MAX + 1)))
        results = solve(solver, moves)
        if len(set(results) - {FULL}) > 1:
            kept[moves] = Position(moves, results)
    text = "".join(f"{each.moves} {each.results}\n" for each in kept.values())
    options.out.write_text(text, encoding="ascii")
    assert read_positions(options.out) == list(kept.values())
    return 0


def random_beginning(random: np.random.Generator, plies: int) -> str:
    """The columns of so many random plies after which the game is not over."""
    game = load_game("connect_four_2p")
    while True:
        state, moves = game.new_states(1), ""
        while len(moves) < plies and not game.terminal(state)[0]:
            action = random.choice(game.legal(state).actions)
            game.apply(state, np.array([action], dtype=np.int32))
            moves += str(action)
        if not game.terminal(state)[0]:
            return moves


def solve(solver: BitBully, moves: str) -> str:
    """What each column leads to for the player on turn, under best play of both."""
    scores = solver.score_all_moves(Board.from_moves([int(column) for column in moves]))
    return "".join(
        FULL if column not in scores else (LOSS, DRAW, WIN)[int(np.sign(scores[column])) + 1]
        for column in range(COLUMNS)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
