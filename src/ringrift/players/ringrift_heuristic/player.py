"""The heuristic player of RingRift."""

from __future__ import annotations

import numpy as np

from ringrift.games.contract import ActionArray, States, check_batch
from ringrift.games.ringrift.core.geometry import make_table
from ringrift.games.ringrift.game import RingRiftGame
from ringrift.players.contract import Seeds
from ringrift.players.look_ahead import LookAhead, Values
from ringrift.players.ringrift_heuristic.judgement import judge_batch
from ringrift.players.ringrift_heuristic.weights import Weights

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
