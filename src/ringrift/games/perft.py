"""Leaf counts: how many sequences of decisions of a given length there are."""

from __future__ import annotations

import numpy as np

from ringrift.errors import ConfigError
from ringrift.games.contract import Game, States

BATCH_MAX = 4096  # states held at once per level of depth


def count_leaves(game: Game, depth: int) -> int:
    """Number of positions after *depth* decisions from the start, counted once per way to reach them.

    A game that ends earlier has no leaf.
    """
    if depth < 0:
        raise ConfigError(f"depth must not be negative, not {depth}")
    return _count(game, game.new_states(1), depth)


def _count(game: Game, states: States, depth: int) -> int:
    if depth == 0:
        return len(states)
    legal = game.legal(states)
    if depth == 1:
        return len(legal.actions)
    parents = np.repeat(np.arange(len(states)), legal.counts)
    total = 0
    for start in range(0, len(parents), BATCH_MAX):
        chosen = slice(start, start + BATCH_MAX)
        children = states[parents[chosen]]
        game.apply(children, legal.actions[chosen], trusted=True)
        total += _count(game, children, depth - 1)
    return total
