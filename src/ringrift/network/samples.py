"""Positions to try a network on."""

from __future__ import annotations

import numpy as np

from ringrift.games.contract import Game, States

PLIES_MAX = 64


def sample_positions(game: Game, count: int, *, seed: int = 1) -> States:
    """Running games after up to `PLIES_MAX` random plies each; the same for the same seed."""
    rng = np.random.default_rng(seed)
    states = game.new_states(count)
    plies = rng.integers(0, PLIES_MAX, count)
    for ply in range(PLIES_MAX):
        moving = np.flatnonzero(plies > ply)
        if not len(moving):
            break
        rows = states[moving]
        legal = game.legal(rows)
        draws = (rng.random(len(moving)) * legal.counts).astype(np.int64)
        game.apply(rows, legal.actions[legal.offsets[:-1] + draws], trusted=True)
        running = ~game.terminal(rows)
        states[moving[running]] = rows[running]
        plies[moving[~running]] = 0  # a finished game stays where it was before its last move
    return states
