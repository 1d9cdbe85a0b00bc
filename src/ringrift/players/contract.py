"""What a match asks of a player."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from ringrift.games.contract import ActionArray, States

Seeds = npt.NDArray[np.int64]


class Player(Protocol):
    """Chooses actions for many games at once."""

    @property
    def name(self) -> str:
        """How records call it; the text that `parse_player` takes."""
        ...

    def choose(self, states: States, seeds: Seeds) -> ActionArray:
        """One legal action per game, none of which is over.

        A choice follows from its own row and seed alone: it is the same in every batch.
        """
        ...


# Seeds from seeds: a tree of independent streams, the same on every machine and in every batch.


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_POSITIVE = np.uint64(0x7FFFFFFFFFFFFFFF)


def derived(seeds: Seeds | int, numbers: npt.NDArray[np.int64] | int) -> Seeds:
    """Seed number *numbers* of each of *seeds*; both count from 0 and are matched like arrays in numpy."""
    parents = np.atleast_1d(np.asarray(seeds, dtype=np.int64)).view(np.uint64)
    children = np.atleast_1d(np.asarray(numbers, dtype=np.int64)).view(np.uint64)
    word = (parents ^ (parents >> np.uint64(31))) * _MIX_1 + (children + np.uint64(1)) * _GOLDEN
    word = (word ^ (word >> np.uint64(30))) * _MIX_1
    word = (word ^ (word >> np.uint64(27))) * _MIX_2
    mixed: Seeds = ((word ^ (word >> np.uint64(31))) & _POSITIVE).view(np.int64)
    return mixed


def picked(seeds: Seeds, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """A uniform number below each of *counts*."""
    upper = derived(seeds, 0).view(np.uint64) >> np.uint64(31)
    return ((upper * counts.astype(np.uint64)) >> np.uint64(32)).view(np.int64)
