"""Players that search with a network."""

from __future__ import annotations

from pathlib import Path

from ringrift.games.contract import Game
from ringrift.network.devices import chosen_device
from ringrift.network.evaluator import NetEvaluator
from ringrift.network.model import build
from ringrift.network.storage import load_model
from ringrift.players.search_player import SearchPlayer
from ringrift.search.contract import SearchConfig

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
