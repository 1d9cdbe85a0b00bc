"""The value of RingRift positions per seat.

A position's value for a seat is how likely it is to end ahead of the others, taken one by one, on the scale
of results.
"""

from __future__ import annotations

from math import tanh
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ringrift.games.compiled import cached_kernel, compiled, source_fingerprint
from ringrift.games.ringrift import core
from ringrift.games.ringrift.core.geometry import Table, cells, players
from ringrift.games.ringrift.core.layout import Words
from ringrift.players.ringrift_heuristic.features import FEATURE_COUNT, Features, read_features

FINGERPRINT = source_fingerprint(Path(__file__).parent, Path(core.__file__).parent)

Values = npt.NDArray[np.float64]


@compiled
def compare(strengths: Values, out: Values) -> None:
    """Turn strengths, counted from seat 1, into the mean chance against each other seat."""
    count = out.shape[0]
    for seat in range(count):
        total = 0.0
        for other in range(count):
            if other != seat:
                total += tanh(0.5 * (strengths[seat + 1] - strengths[other + 1]))
        out[seat] = total / (count - 1)


@cached_kernel(FINGERPRINT)
def judge_batch(states: Words, t: Table, weights: Values, out: Values) -> None:
    """Write the value of every game for every seat, games x players."""
    work = np.empty(3 * cells(t), dtype=np.int64)
    features = np.empty((players(t) + 1, FEATURE_COUNT), dtype=np.float64)
    for game in range(states.shape[0]):
        read_features(states[game], t, work, features)
        compare(features @ weights, out[game])


@cached_kernel(FINGERPRINT)
def features_batch(states: Words, t: Table, out: Features) -> None:
    """Features of every game, games x (players + 1) x features."""
    work = np.empty(3 * cells(t), dtype=np.int64)
    for game in range(states.shape[0]):
        read_features(states[game], t, work, out[game])
