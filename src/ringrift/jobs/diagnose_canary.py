"""Positions near the end of games, solved exactly: does a model keep their value?

A position's value is what the player on turn can force against all others. The positions follow from the
game and the seed alone, so that models are compared on the same ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ringrift.games.contract import Game, State, States
from ringrift.network.evaluator import NetEvaluator
from ringrift.network.model import ResidualNet
from ringrift.players.search_player import SearchPlayer
from ringrift.search.contract import SearchConfig

WORDS_MAX = 400_000  # of all positions that follow one
NODES_MIN, NODES_MAX = 2_000, 40_000
PLIES_BACK = 8
GAMES_AT_ONCE = 32
ROUNDS_MAX = 40
SEARCH_SIMULATIONS = 32

Values = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SolvedPosition:
    """A position, what the player on turn can force, and which legal actions force it."""

    state: State
    value: float
    keeps: npt.NDArray[np.bool_]  # aligned with the legal actions


def solve(game: Game, state: State, *, nodes_max: int | None = None) -> SolvedPosition | None:
    """Solve one position; None if more than *nodes_max* positions can follow."""
    limit = nodes_max or max(NODES_MIN, min(NODES_MAX, WORDS_MAX // game.words))
    seat = int(game.to_move(state[None, :])[0])
    levels: list[tuple[States, npt.NDArray[np.int64]]] = []  # positions, and how many follow each
    states, nodes = state[None, :].copy(), 0
    while True:
        nodes += len(states)
        if nodes > limit:
            return None
        legal = game.legal(states)
        levels.append((states, legal.counts))
        if not len(legal.actions):
            break
        states = np.repeat(states, legal.counts, axis=0)
        game.apply(states, legal.actions, trusted=True)
    below = np.empty(0, dtype=np.float32)
    for states, counts in reversed(levels[1:]):
        below = _worth(game, states, counts, below, seat)
    if not len(below):
        return None  # the game is over
    best = float(below.max())
    return SolvedPosition(state, best, below >= best - 1e-6)


def _worth(game: Game, states: States, counts: npt.NDArray[np.int64], below: Values, seat: int) -> Values:
    """What *seat* can force in each of *states*, from what it can force in all that follow."""
    worth: Values = game.results(states)[:, seat].copy()
    running = np.flatnonzero(counts)
    if len(running):
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts[running])[:-1]])
        mine = game.to_move(states[running]) == seat
        most, least = np.maximum.reduceat(below, starts), np.minimum.reduceat(below, starts)
        worth[running] = np.where(mine, most, least)
    return worth


def solved_positions(
    game: Game, count: int, *, seed: int, stop_point: Callable[[], None] = lambda: None
) -> list[SolvedPosition]:
    """Late positions of random games in which it matters what is played; fewer if few can be solved."""
    found: list[SolvedPosition] = []
    for number in range(ROUNDS_MAX):
        for history in _random_games(game, GAMES_AT_ONCE, seed=seed * ROUNDS_MAX + number):
            stop_point()
            if (solved := _hardest(game, history)) is not None:
                found.append(solved)
            if len(found) >= count:
                return found
    return found


def _hardest(game: Game, history: list[State]) -> SolvedPosition | None:
    """The earliest of the last positions that can be solved and where some action is a mistake."""
    best = None
    for state in reversed(history[-PLIES_BACK:]):
        solved = solve(game, state)
        if solved is None:
            break
        if not solved.keeps.all():
            best = solved
    return best


def _random_games(game: Game, count: int, *, seed: int) -> list[list[State]]:
    """The last positions of random games, before each of their last moves."""
    rng = np.random.default_rng(seed)
    states = game.new_states(count)
    histories: list[list[State]] = [[] for _ in range(count)]
    running = np.arange(count)
    while len(running):
        rows = states[running]
        legal = game.legal(rows)
        for at, row in zip(running, rows, strict=True):
            histories[at].append(row.copy())
            del histories[at][:-PLIES_BACK]
        draws = (rng.random(len(running)) * legal.counts).astype(np.int64)
        game.apply(rows, legal.actions[legal.offsets[:-1] + draws], trusted=True)
        states[running] = rows
        running = running[~game.terminal(rows)]
    return histories


def judge_canary(
    game: Game, net: ResidualNet, positions: list[SolvedPosition], *, seed: int
) -> dict[str, Any]:
    """The share of *positions* whose value is kept by the network's first choice and by a search with it."""
    states = np.stack([each.state for each in positions])
    legal, evaluator = game.legal(states), NetEvaluator(net, game)
    logits = evaluator.evaluate(states, legal).logits
    alone = [
        bool(each.keeps[np.argmax(logits[legal.offsets[at] : legal.offsets[at + 1]])])
        for at, each in enumerate(positions)
    ]
    player = SearchPlayer("canary", game, evaluator, SearchConfig(simulations=SEARCH_SIMULATIONS))
    chosen = player.choose(states, np.arange(len(states), dtype=np.int64) + seed)
    searched = [bool(each.keeps[legal.of(at) == chosen[at]][0]) for at, each in enumerate(positions)]
    return {
        "positions": len(positions),
        "kept": round(float(np.mean(alone)), 4),
        "kept_by_search": round(float(np.mean(searched)), 4),
        "by_chance": round(float(np.mean([each.keeps.mean() for each in positions])), 4),
        "simulations": SEARCH_SIMULATIONS,
    }
