"""What the rows of a game learn besides the policies of its searches: one place for all that trains."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringrift.errors import ConfigError

Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int64]
DRAW_WEIGHT_MIN, DRAW_WEIGHT_MAX = 1e-3, 8.0  # networks that learn give their rows 0.5 to 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """How the targets of rows are made of a game."""

    value_mix: float = 0.0  # share of the searches in the value; the rest is the game's result
    value_decay: float = 0.0  # of that, the share of the searches of later moves
    surprise: float = 0.0  # share of how often a row is drawn that goes by its surprise

    def __post_init__(self) -> None:
        for name in ("value_mix", "value_decay", "surprise"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"targets: {name} must lie between 0 and 1, not {getattr(self, name)}")

    def draw_weights(self, surprise: Floats, games: Numbers) -> Floats:
        """How often rows are drawn: 1 on average over a game; *games* says of which game each row is.

        Where the search disagrees with the network there is most to learn. What a worker says of its rows
        only moves weight between the rows of one game, and no row gets more than `DRAW_WEIGHT_MAX`. A row
        whose surprise is not known weighs 1.
        """
        known = np.isfinite(surprise)
        sums = np.bincount(games[known], surprise[known], minlength=int(games.max(initial=0)) + 1)
        counts = np.bincount(games[known], minlength=len(sums))
        means = np.divide(sums, counts, out=np.zeros(len(sums)), where=counts > 0)[games]
        ratios = np.divide(surprise, means, out=np.ones(len(games)), where=known & (means > 0))
        weights = (1 - self.surprise) + self.surprise * ratios
        return np.clip(weights, DRAW_WEIGHT_MIN, DRAW_WEIGHT_MAX).astype(np.float32)

    def values(self, results: Floats, root_values: Floats) -> Floats:
        """Value targets per seat of rows whose games ended with *results*.

        *root_values* are those of `later_values`; where they are not known, the result is all there is.
        """
        if not self.value_mix:
            return results
        mixed = (1 - self.value_mix) * results + self.value_mix * root_values
        unknown = np.isnan(root_values).any(axis=1, keepdims=True)
        return np.where(unknown, results, np.clip(mixed, -1, 1)).astype(np.float32)


def later_values(root_values: Floats, lengths: Numbers, decay: float) -> Floats:
    """What each search said, mixed with what those after it said: (1 - decay) now, the rest later.

    The moves of several games lie one game after the other, *lengths* of them each. A search is noisy, and
    those of later moves know more: their mean is nearer to the truth than one search, and sooner than the
    result. A move without a search stays without a value, and is passed over by those before it.
    """
    if not decay:
        return root_values
    values = root_values.astype(np.float32)
    unknown = np.isnan(values)
    ends = np.cumsum(lengths)
    for back in range(1, int(lengths.max(initial=0))):
        now = (ends - 1 - back)[lengths > back]
        later = np.where(np.isnan(values[now + 1]), values[now], values[now + 1])
        own = np.where(unknown[now], later, values[now])
        values[now] = (1 - decay) * own + decay * later
    return np.where(unknown, np.float32(np.nan), values)


def drawn(weights_upto: npt.NDArray[np.float64], rng: np.random.Generator, count: int) -> Numbers:
    """*count* places, each as often as its weight says; *weights_upto* are the sums up to each place."""
    places = np.searchsorted(weights_upto, rng.random(count) * weights_upto[-1], side="right")
    inside: Numbers = np.minimum(places, len(weights_upto) - 1)
    return inside
