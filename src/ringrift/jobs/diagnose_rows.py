"""Rows to learn from before there are any: positions of random games with the moves and results of these."""

from __future__ import annotations

import numpy as np

from ringrift.games.contract import Game, LegalActions
from ringrift.jobs.training.rows import TrainingRows
from ringrift.network.samples import sample_positions


def random_rows(game: Game, count: int, *, seed: int) -> TrainingRows:
    """Each position with one random action as its policy, and the end of one random game from there."""
    rng = np.random.default_rng(seed)
    states = sample_positions(game, count, seed=seed)
    legal: LegalActions = game.legal(states)
    policy = np.zeros(len(legal.actions), dtype=np.float32)
    policy[legal.offsets[:-1] + (rng.random(count) * legal.counts).astype(np.int64)] = 1.0
    ends = states.copy()
    game.play_random(ends, seed=seed)
    return TrainingRows(
        states=states,
        legal=legal,
        policy=policy,
        seats=np.asarray(game.to_move(states), dtype=np.int64),
        values=game.results(ends),
        weights=np.ones(count, dtype=np.float32),
    )
