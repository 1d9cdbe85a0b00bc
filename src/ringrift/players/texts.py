"""Players by name: `random`, `heuristic[:plies]`, `mcts:100`, `model:PATH@32`, `untrained:PRESET@32`."""

from __future__ import annotations

from ringrift.errors import ConfigError
from ringrift.games.contract import Game
from ringrift.games.ringrift.game import RingRiftGame
from ringrift.players.contract import Player
from ringrift.players.random import RandomPlayer
from ringrift.players.ringrift_heuristic.player import HeuristicPlayer
from ringrift.players.rollout import RolloutPlayer

FORMS = "random, heuristic, heuristic:PLIES, mcts:SIMULATIONS"


def parse_player(text: str, game: Game) -> Player:
    """The player that *text* names, for *game*; raises `ConfigError` that says what would be right."""
    kind, colon, rest = text.strip().partition(":")
    if kind == "random" and not colon:
        return RandomPlayer(game)
    if kind == "mcts" and rest:
        return RolloutPlayer(game, simulations=_whole_number(rest, text))
    if kind == "heuristic" and bool(colon) == bool(rest):
        if not isinstance(game, RingRiftGame):
            raise ConfigError(f"{text!r}: there is no heuristic player for {game.key}")
        return HeuristicPlayer(game, plies=_whole_number(rest, text) if rest else 1)
    raise ConfigError(f"{text!r} names no player; there are {FORMS}")


def _whole_number(digits: str, text: str) -> int:
    if not (digits.isascii() and digits.isdigit()):
        raise ConfigError(f"{text!r}: {digits!r} is no whole number")
    return int(digits)
