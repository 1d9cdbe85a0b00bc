"""A short search over somebody's judgement of positions.

It judges the position after each action. Where a turn takes several decisions, that compares a turn half
made with one that is over; so the most promising actions can be followed to the end of the turn, each
further decision made by the same judgement, and compared there; and the best of those through the turn of
the next seat, which decides by its own value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ringrift.errors import ConfigError
from ringrift.games.contract import ActionArray, Game, LegalActions, States
from ringrift.players.contract import Seeds
from ringrift.players.seeds import derived

Values: TypeAlias = npt.NDArray[np.float64]  # games x players
Judge: TypeAlias = Callable[[States], Values]
Indices: TypeAlias = npt.NDArray[np.int64]

TURN_DECISIONS_MAX = 64  # a longer turn is judged where it stands
CHILD_BYTES_MAX = 64 << 20
OPTIONS_GUESS = 64  # legal actions per game, to size the parts of a batch
TIE_BREAK = 1e-6
OUT_OF_QUESTION = -2.0  # below every value


class LookAhead:
    """Chooses actions by a judge.

    *followed* says how many are followed to the end of the turn, how many of those through the next turn,
    which is another seat's, and so on; none if it is empty.
    """

    def __init__(self, game: Game, judge: Judge, *, followed: tuple[int, ...]) -> None:
        if any(count < 1 for count in followed):
            raise ConfigError(f"look-ahead: at least one action must be followed, not {followed}")
        self._game, self._judge, self._followed = game, judge, followed
        self._games_max = max(1, CHILD_BYTES_MAX // (8 * game.words * OPTIONS_GUESS))

    def choose(self, states: States, seeds: Seeds) -> ActionArray:
        part = self._games_max
        chosen = [
            self._choose(states[start : start + part], seeds[start : start + part])
            for start in range(0, len(states), part)
        ]
        return np.concatenate(chosen)

    def _choose(self, states: States, seeds: Seeds) -> ActionArray:
        legal, children, values = self._judge_children(states)
        parents = np.repeat(np.arange(len(states)), legal.counts)
        seats = self._game.to_move(states)[parents]
        places = np.arange(len(parents)) - legal.offsets[parents]
        scores = values[np.arange(len(parents)), seats]
        tie_break = TIE_BREAK * (derived(seeds[parents], places) / 2.0**63)
        scores = scores + tie_break
        left = np.arange(len(scores))
        for turn, keep in enumerate(self._followed):
            left = left[_highest(scores[left], parents[left], keep)]
            movers = self._game.to_move(children[left]) if turn else seats[left]
            children[left], values[left] = self._follow(children[left], values[left], movers)
            scores[left] = values[left, seats[left]] + tie_break[left]
        dropped = np.ones(len(scores), dtype=bool)
        dropped[left] = False
        scores[dropped] = OUT_OF_QUESTION
        return legal.actions[_best(scores, legal.offsets)]

    def _follow(self, states: States, values: Values, seats: Indices) -> tuple[States, Values]:
        """Play on by each seat's best decisions until its turn is over, at once where it is over already."""
        states, values = states.copy(), values.copy()
        for _ in range(TURN_DECISIONS_MAX):
            same_turn = (self._game.to_move(states) == seats) & ~self._game.terminal(states)
            rows = np.flatnonzero(same_turn)
            if not rows.size:
                break
            for start in range(0, rows.size, self._games_max):
                part = rows[start : start + self._games_max]
                legal, children, judged = self._judge_children(states[part])
                own = judged[np.arange(len(children)), np.repeat(seats[part], legal.counts)]
                best = _best(own, legal.offsets)
                states[part], values[part] = children[best], judged[best]
        return states, values

    def _judge_children(self, states: States) -> tuple[LegalActions, States, Values]:
        """Every position that one action leads to, and its value; the result where the game is over."""
        legal = self._game.legal(states)
        children = np.repeat(states, legal.counts, axis=0)
        self._game.apply(children, legal.actions, trusted=True)
        values = self._judge(children)
        over = self._game.terminal(children)
        if over.any():
            values[over] = self._game.results(children[over])
        return legal, children, values


def _best(scores: Values, offsets: Indices) -> Indices:
    """Index of the highest score of each game, the first among equals."""
    counts = np.diff(offsets)
    highest = np.repeat(np.maximum.reduceat(scores, offsets[:-1]), counts)
    first = np.where(scores == highest, np.arange(len(scores)), len(scores))
    return np.minimum.reduceat(first, offsets[:-1])


def _highest(scores: Values, games: Indices, count: int) -> Indices:
    """Indices of the *count* highest scores of each game; *games* says whose score each is, in order."""
    order = np.lexsort((-scores, games))
    rank = np.arange(len(scores)) - np.searchsorted(games, games)
    return np.sort(order[rank < count])
