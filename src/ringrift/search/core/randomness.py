"""Random numbers by counting: sample number i of a key is a function of both and of nothing else.

So a game's draws depend on its own seed and move, and never on which games are searched beside it.
"""

from __future__ import annotations

import math

import numpy as np

from ringrift.games.compiled import compiled

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)
TO_UNIT = 2.0**-53


@compiled
def mixed(word: np.uint64) -> np.uint64:
    """Spread the bits of *word* evenly."""
    word = (word ^ (word >> np.uint64(30))) * MIX_1
    word = (word ^ (word >> np.uint64(27))) * MIX_2
    return word ^ (word >> np.uint64(31))


@compiled
def move_key(seed: int, ply: int) -> np.uint64:
    """The key of all draws for move number *ply* of the game with *seed*."""
    return mixed(mixed(np.uint64(seed) + GOLDEN) + (np.uint64(ply) + np.uint64(1)) * GOLDEN)


@compiled
def uniform(key: np.uint64, number: int) -> float:
    """Sample *number*, between 0 and 1 and never equal to either."""
    word = mixed(key + (np.uint64(number) + np.uint64(1)) * GOLDEN)
    return (float(word >> np.uint64(11)) + 0.5) * TO_UNIT


@compiled
def gumbel(key: np.uint64, number: int) -> float:
    return -math.log(-math.log(uniform(key, number)))


@compiled
def log_gamma_sample(key: np.uint64, number: int, shape: float) -> float:
    """Logarithm of a gamma-distributed sample (Marsaglia and Tsang): small shapes underflow otherwise."""
    stream = mixed(key + (np.uint64(number) + np.uint64(1)) * GOLDEN)
    boost = math.log(uniform(stream, 0)) / shape if shape < 1.0 else 0.0
    d = (shape + 1.0 if shape < 1.0 else shape) - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    draw = 1
    while True:
        radius = math.sqrt(-2.0 * math.log(uniform(stream, draw)))
        normal = radius * math.cos(2.0 * math.pi * uniform(stream, draw + 1))
        v = (1.0 + c * normal) ** 3
        chance = uniform(stream, draw + 2)
        draw += 3
        if v > 0.0 and math.log(chance) < 0.5 * normal * normal + d - d * v + d * math.log(v):
            return math.log(d * v) + boost
