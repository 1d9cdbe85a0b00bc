"""A short search over somebody's judgement of positions.

It judges the position after each action. Where a turn takes several decisions, that compares a turn half
made with one that is over; so the most promising actions can be followed to the end of the turn, each
further decision made by the same judgement, and compared there, where everybody's turn is over.
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
    """Chooses actions by a judge; *followed* of them, if any, are followed to the end of the turn."""

    def __init__(self, game: Game, judge: Judge, *, followed: int) -> None:
        if followed < 0:
            raise ConfigError(f"look-ahead: the actions followed must not be negative: {followed}")
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
        if self._followed:
            top = _highest(scores + tie_break, legal.offsets, self._followed)
            after = np.full(len(scores), OUT_OF_QUESTION)
            after[top] = self._follow(children[top], scores[top], seats[top])
            scores = after
        scores = scores + tie_break
        return legal.actions[_best(scores, legal.offsets)]

    def _follow(self, states: States, scores: Values, seats: Indices) -> Values:
        """What each seat's best further decisions of this turn make of its score."""
        states, scores = states.copy(), scores.copy()
        for _ in range(TURN_DECISIONS_MAX):
            same_turn = (self._game.to_move(states) == seats) & ~self._game.terminal(states)
            rows = np.flatnonzero(same_turn)
            if not rows.size:
                break
            for start in range(0, rows.size, self._games_max):
                part = rows[start : start + self._games_max]
                legal, children, values = self._judge_children(states[part])
                own = values[np.arange(len(children)), np.repeat(seats[part], legal.counts)]
                best = _best(own, legal.offsets)
                states[part], scores[part] = children[best], own[best]
        return scores

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
