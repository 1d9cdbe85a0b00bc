"""Evaluators that need no network."""

from __future__ import annotations

import numpy as np

from ringrift.games.contract import Game, LegalActions, States
from ringrift.search.contract import Evaluation


class UniformEvaluator:
    """Knows nothing: every action is as good as any other and every position even."""

    def __init__(self, game: Game) -> None:
        self._players = game.players

    def evaluate(self, states: States, legal: LegalActions) -> Evaluation:
        return Evaluation(
            logits=np.zeros(len(legal.actions), dtype=np.float32),
            values=np.zeros((len(states), self._players), dtype=np.float32),
        )
