"""A short search over somebody's judgement of positions: every seat maximises its own value.

The first ply judges the position after each action. The second judges every reply to the most promising
actions and takes the reply that is best for whoever makes it, which may be the same seat again.
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

PLIES_MAX = 2
CHILD_BYTES_MAX = 64 << 20
OPTIONS_GUESS = 64  # legal actions per game, to size the parts of a batch
TIE_BREAK = 1e-6
OUT_OF_QUESTION = -2.0  # below every value


class LookAhead:
    """Chooses actions by a judge; *followed* actions are looked at more closely by a second ply."""

    def __init__(self, game: Game, judge: Judge, *, plies: int, followed: int) -> None:
        if not 1 <= plies <= PLIES_MAX:
            raise ConfigError(f"heuristic: plies must be 1 to {PLIES_MAX}, not {plies}")
        self._game, self._judge = game, judge
        self._plies, self._followed = plies, followed
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
        scores = scores + TIE_BREAK * (derived(seeds[parents], places) / 2.0**63)
        if self._plies > 1:
            top = _highest(scores, legal.offsets, self._followed)
            running = top[~self._game.terminal(children[top])]
            after = np.full(len(scores), OUT_OF_QUESTION)
            after[top] = scores[top]
            after[running] = self._reply_values(children[running])[np.arange(running.size), seats[running]]
            after[running] += scores[running] * TIE_BREAK
            scores = after
        return legal.actions[_best(scores, legal.offsets)]

    def _reply_values(self, states: States) -> Values:
        """The value of each state after the reply that is best for the seat on turn."""
        out = np.empty((len(states), self._game.players))
        for start in range(0, len(states), self._games_max):
            part = states[start : start + self._games_max]
            legal, _, values = self._judge_children(part)
            seats = np.repeat(self._game.to_move(part), legal.counts)
            best = _best(values[np.arange(len(seats)), seats], legal.offsets)
            out[start : start + self._games_max] = values[best]
        return out

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


def _highest(scores: Values, offsets: Indices, count: int) -> Indices:
    """Indices of the *count* highest scores of each game."""
    games = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    order = np.lexsort((-scores, games))
    rank = np.arange(len(scores)) - offsets[games]
    return order[rank < count]
