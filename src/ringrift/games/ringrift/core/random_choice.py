"""A small random generator for playouts: the same games for the same seed on every machine."""

from __future__ import annotations

import numpy as np

from ringrift.games.compiled import compiled

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)


@compiled
def seed_random(seed: int, stream: int) -> np.uint64:
    """A start for stream number *stream* of *seed*."""
    word = (np.uint64(seed) + np.uint64(1)) * GOLDEN ^ (np.uint64(stream) + np.uint64(1)) * MIX_1
    word = (word ^ (word >> np.uint64(30))) * MIX_2
    word = word ^ (word >> np.uint64(31))
    return word | np.uint64(1)  # the generator must not start at zero


@compiled
def next_random(word: np.uint64) -> np.uint64:
    """The next word; its upper half is the better one."""
    word ^= word << np.uint64(13)
    word ^= word >> np.uint64(7)
    word ^= word << np.uint64(17)
    return word
