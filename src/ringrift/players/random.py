"""The player that any legal action will do for."""

from __future__ import annotations

from ringrift.games.contract import ActionArray, Game, States
from ringrift.players.contract import Seeds
from ringrift.players.seeds import picked


class RandomPlayer:
    """Uniform over the legal actions."""

    name = "random"

    def __init__(self, game: Game) -> None:
        self._game = game

    def choose(self, states: States, seeds: Seeds) -> ActionArray:
        legal = self._game.legal(states)
        chosen: ActionArray = legal.actions[legal.offsets[:-1] + picked(seeds, legal.counts)]
        return chosen
