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
        """How records call it; the text that `make_player` takes."""
        ...

    def choose(self, states: States, seeds: Seeds) -> ActionArray:
        """One legal action per game, none of which is over.

        A choice follows from its own row and seed alone: it is the same in every batch.
        """
        ...
