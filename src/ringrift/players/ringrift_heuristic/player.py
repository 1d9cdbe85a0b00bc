"""The heuristic player of RingRift: weights of the features, the value of a position, and a short search
over it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, fields
from math import isfinite, tanh
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ringrift.errors import ConfigError
from ringrift.games.compiled import cached_kernel, compiled, source_fingerprint
from ringrift.games.contract import ActionArray, Game, LegalActions, States, check_batch
from ringrift.games.ringrift import core
from ringrift.games.ringrift.core.geometry import Table, cells, make_table, players
from ringrift.games.ringrift.core.layout import Words
from ringrift.games.ringrift.game import RingRiftGame
from ringrift.players.contract import Seeds, derived
from ringrift.players.ringrift_heuristic.features import FEATURE_COUNT, FEATURE_NAMES, Features, read_features

# How much each feature counts.


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """Log-odds of ending ahead of another player, per unit by which a feature exceeds the other's.

    The defaults were set by hand and moved part of the way to what stochastic approximation found in matches
    of the player against itself on square8 and hex8; all the way played worse against other players. The
    job `tune` searches on from here.
    """

    eliminated: float = 5.94
    eliminated_squared: float = 1.64
    territory: float = 3.11
    territory_squared: float = 7.12
    hand: float = 2.42
    stacks: float = 4.48
    caps: float = 2.21
    captives: float = 1.7
    buried: float = 0.61
    tallest_cap: float = -2.13
    lone: float = -2.31
    fuel: float = 0.85
    shortage: float = -6.0
    idle: float = -0.29
    win_threat: float = 1.86
    markers: float = 4.83
    line_ready: float = 2.0
    line_but_one: float = 4.28
    line_but_two: float = 6.07
    slides: float = -0.02
    stuck_stacks: float = -3.97
    shots: float = 1.39
    sweep: float = 1.92
    attacks: float = -2.49
    attacked: float = -4.78
    enclosed_rings: float = 0.68
    enclosed_cells: float = 1.08
    trapped_rings: float = -0.66
    turn: float = 0.66
    turn_enclosed_rings: float = 5.82
    turn_enclosed_cells: float = 3.1
    turn_capture: float = 0.75
    turn_line: float = 1.89
    turn_region: float = 0.45
    turn_line_debt: float = 1.82
    turn_region_debt: float = -0.54
    must_shot: float = 0.43
    must_attacks: float = 2.92
    must_slides: float = 2.57

    def array(self) -> npt.NDArray[np.float64]:
        return np.array(astuple(self), dtype=np.float64)

    @classmethod
    def from_names(cls, values: Mapping[str, Any]) -> Weights:
        """Weights by the names of features; those not named keep their defaults."""
        unknown = sorted(values.keys() - set(FEATURE_NAMES))
        if unknown:
            raise ConfigError(f"heuristic: there is no feature {unknown[0]!r}")
        if wrong := [name for name, value in values.items() if not _is_finite(value)]:
            raise ConfigError(f"heuristic: the weight of {wrong[0]} is {values[wrong[0]]!r}, not a number")
        return cls(**values)

    @classmethod
    def from_array(cls, values: npt.NDArray[np.float64]) -> Weights:
        if values.shape != (len(FEATURE_NAMES),):
            raise ConfigError(f"heuristic: {len(FEATURE_NAMES)} weights are needed, not {values.shape}")
        return cls(**{field.name: float(value) for field, value in zip(fields(cls), values, strict=True)})


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


# The value of RingRift positions per seat.
#
# A position's value for a seat is how likely it is to end ahead of the others, taken one by one, on the scale
# of results.


FINGERPRINT = source_fingerprint(Path(__file__).parent, Path(core.__file__).parent)

Floats = npt.NDArray[np.float64]


@compiled
def compare(strengths: Floats, out: Floats) -> None:
    """Turn strengths, counted from seat 1, into the mean chance against each other seat."""
    count = out.shape[0]
    for seat in range(count):
        total = 0.0
        for other in range(count):
            if other != seat:
                total += tanh(0.5 * (strengths[seat + 1] - strengths[other + 1]))
        out[seat] = total / (count - 1)


@cached_kernel(FINGERPRINT)
def judge_batch(states: Words, t: Table, weights: Floats, out: Floats) -> None:
    """Write the value of every game for every seat, games x players."""
    work = np.empty(3 * cells(t), dtype=np.int64)
    features = np.empty((players(t) + 1, FEATURE_COUNT), dtype=np.float64)
    for game in range(states.shape[0]):
        read_features(states[game], t, work, features)
        compare(features @ weights, out[game])


@cached_kernel(FINGERPRINT)
def features_batch(states: Words, t: Table, out: Features) -> None:
    """Features of every game, games x (players + 1) x features."""
    work = np.empty(3 * cells(t), dtype=np.int64)
    for game in range(states.shape[0]):
        read_features(states[game], t, work, out[game])


# A short search over somebody's judgement of positions.
#
# It judges the position after each action. Where a turn takes several decisions, that compares a turn half
# made with one that is over; so the most promising actions can be followed to the end of the turn, each
# further decision made by the same judgement, and compared there; and the best of those through the turn of
# the next seat, which decides by its own value.


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


# The heuristic player of RingRift.


# Actions that are followed to the end of the turn, and on through the next one.
FOLLOWED = (16, 5)


class HeuristicPlayer:
    """Plays the action with the best value after this turn and the next, or if *quick* after the action."""

    def __init__(
        self, game: RingRiftGame, *, quick: bool = False, weights: Weights | None = None, name: str = ""
    ) -> None:
        self.name = name or ("heuristic:quick" if quick else "heuristic")
        self._game = game
        self._table = make_table(game.board)
        self.quick, self.weights = quick, weights or Weights()
        self._weights = self.weights.array()
        self._search = LookAhead(game, self.judge, followed=() if quick else FOLLOWED)

    def choose(self, states: States, seeds: Seeds) -> ActionArray:
        return self._search.choose(states, seeds)

    def judge(self, states: States) -> Values:
        """The value of each position for each seat, of games that are not over."""
        check_batch(self._game, states)
        values = np.empty((len(states), self._game.players))
        judge_batch(states, self._table, self._weights, values)
        return values
