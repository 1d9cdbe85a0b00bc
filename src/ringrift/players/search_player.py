"""The player that searches with an evaluator: best play, no noise, a fresh tree for every decision."""

from __future__ import annotations

import numpy as np

from ringrift.games.contract import ActionArray, Game, States
from ringrift.players.contract import Seeds
from ringrift.search.batch import search_positions
from ringrift.search.contract import Evaluator, SearchConfig

GAMES_MAX = 256  # trees at a time


class SearchPlayer:
    """Plays what the search finds best within its simulations."""

    def __init__(self, name: str, game: Game, evaluator: Evaluator, config: SearchConfig) -> None:
        self.name = name
        self.evaluator = evaluator
        self._game, self._config = game, config

    def choose(self, states: States, seeds: Seeds) -> ActionArray:
        parts = range(0, len(states), GAMES_MAX)
        return np.concatenate(
            [self._choose(states[at : at + GAMES_MAX], seeds[at : at + GAMES_MAX]) for at in parts]
        )

    def _choose(self, states: States, seeds: Seeds) -> ActionArray:
        found = search_positions(self._game, self.evaluator, self._config, states, seeds, temperatures=0.0)
        return found.actions
