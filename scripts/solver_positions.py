"""How often a player's move keeps the game-theoretic result, on connect-four positions labeled by a solver.

The positions are in `tests/data/connect_four_positions.txt`, a line each: the columns played from the start,
then what each of the seven columns leads to for the player on turn (+ a win, = a draw, - a loss, . full).
`label_positions.py` made the file. A move keeps the result when no other leads to a better one; how quickly
it wins does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ringrift.games.contract import Game, States
from ringrift.players.contract import Player
from ringrift.statistics.ratings import wilson_interval

POSITIONS = Path(__file__).parents[1] / "tests" / "data" / "connect_four_positions.txt"


FULL, LOSS, DRAW, WIN = WORST_FIRST = ".-=+"


@dataclass(frozen=True, slots=True)
class Position:
    """A position by the columns that led to it, and the result of each column."""

    moves: str
    results: str

    def keeps(self, column: int) -> bool:
        return self.results[column] == max(self.results, key=WORST_FIRST.index)


def read_positions(path: Path = POSITIONS) -> list[Position]:
    return [Position(*line.split()) for line in path.read_text(encoding="ascii").splitlines()]


def states_of(game: Game, positions: Sequence[Position]) -> States:
    states = game.new_states(len(positions))
    for ply in range(max(len(each.moves) for each in positions)):
        at = np.array([index for index, each in enumerate(positions) if len(each.moves) > ply])
        moved = np.ascontiguousarray(states[at])
        game.apply(moved, np.array([int(positions[index].moves[ply]) for index in at], dtype=np.int32))
        states[at] = moved
    return states


def moves_kept(game: Game, player: Player, positions: Sequence[Position], *, seed: int = 0) -> dict[str, Any]:
    """Let *player* move in every position once; the same player and seed give the same count."""
    states = states_of(game, positions)
    actions = player.choose(states, np.arange(seed, seed + len(positions), dtype=np.int64))
    kept = sum(each.keeps(int(action)) for each, action in zip(positions, actions, strict=True))
    low, high = wilson_interval(kept / len(positions), len(positions))
    return {
        "score": round(kept / len(positions), 4),
        "interval": [round(low, 4), round(high, 4)],
        "games": len(positions),
        "kept": kept,
    }
