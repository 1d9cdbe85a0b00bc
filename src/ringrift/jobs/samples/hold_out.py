"""Which games are held out of training: it follows from the game itself, so it stays so in every file."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

HOLD_OUT = 0.05  # share of games
_PARTS = 10_000


def game_hash(fingerprint: str) -> int:
    """The number by which samples know their game."""
    return int(fingerprint[:16], 16)


def is_held_out(game_hashes: npt.NDArray[np.uint64], share: float) -> npt.NDArray[np.bool_]:
    """Whether the games are among the *share* that is held out; a smaller share is part of a larger one."""
    return (game_hashes % np.uint64(_PARTS)) < np.uint64(round(share * _PARTS))
