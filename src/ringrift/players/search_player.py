"""The player that searches with an evaluator: best play, no noise, a fresh tree for every decision."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ringrift.games.contract import ActionArray, Game, States
from ringrift.network.evaluator import NetEvaluator
from ringrift.network.model import build, chosen_device
from ringrift.network.storage import load_model
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


# Players that search with a network. Programs that may need none load this module when they do, since torch
# takes seconds.


UNTRAINED_SEED = 0  # the untrained net is a fixed opponent


def model_player(path: str, game: Game, *, simulations: int, device: str) -> SearchPlayer:
    """The model at *path*; raises an error that says which field does not fit if it is for another game."""
    config = SearchConfig(simulations=simulations)
    net, _ = load_model(Path(path), config=game.key)
    evaluator = NetEvaluator(net, game, device=chosen_device(device))
    return SearchPlayer(f"model:{path}@{simulations}", game, evaluator, config)


def untrained_player(preset: str, game: Game, *, simulations: int, device: str) -> SearchPlayer:
    """A network of *preset* as it is before training."""
    config = SearchConfig(simulations=simulations)
    net = build(game, preset, seed=UNTRAINED_SEED)
    evaluator = NetEvaluator(net, game, device=chosen_device(device))
    return SearchPlayer(f"untrained:{preset}@{simulations}", game, evaluator, config)
