"""How temperature and search budget change over a game."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringrift.errors import ConfigError
from ringrift.search.contract import SIMULATIONS_MAX, Numbers

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
NEVER_PLY, OPENING_PLY = (1 << 62) - 1, (1 << 62) - 2  # no game has such a ply
OPENING_TEMPERATURE = 10.0
CAP_STREAM = np.uint64(0xD1B54A32D192ED03)  # keeps these draws apart from those of the search


@dataclass(frozen=True, kw_only=True, slots=True)
class TemperatureSchedule:
    """Full temperature for some plies, then halved again and again down to a floor."""

    start: float = 1.0
    plies: int = 30
    half_life_plies: float = 10.0
    floor: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.floor <= self.start or self.plies < 0 or self.half_life_plies <= 0:
            raise ConfigError(
                f"temperature: needs 0 <= floor <= start, plies >= 0, half life > 0; got {self}"
            )

    def at(self, plies: Numbers) -> npt.NDArray[np.float64]:
        late = np.maximum(plies - self.plies, 0)
        fallen: npt.NDArray[np.float64] = self.start * 0.5 ** (late / self.half_life_plies)
        return np.maximum(fallen, self.floor)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlayoutCaps:
    """Most moves get a quick search, some a full one; only full ones teach the policy.

    Quick moves play on with the same temperature but without noise on the root's policy. Which move is
    which depends on the game's seed and the ply.
    """

    quick_simulations: int
    full_share: float = 0.25

    def __post_init__(self) -> None:
        if not 1 <= self.quick_simulations <= SIMULATIONS_MAX or not 0 < self.full_share <= 1:
            raise ConfigError(
                f"playout caps: quick simulations from 1 up and a full share in (0, 1], not {self}"
            )

    def full(self, seeds: Numbers, plies: Numbers) -> npt.NDArray[np.bool_]:
        """Which moves get the full search."""
        return np.less(_unit_draws(seeds, plies), self.full_share)


@dataclass(frozen=True, kw_only=True, slots=True)
class Openings:
    """Some games begin with moves drawn at random, so that positions off the best line are learned too.

    Such a move is drawn from the network's policy at a high temperature, without a search, and teaches
    nothing. How many there are in a game depends on its seed.
    """

    plies_max: int
    share: float = 0.5  # of the games

    def __post_init__(self) -> None:
        if self.plies_max < 1 or not 0 < self.share <= 1:
            raise ConfigError(f"openings: at least one ply and a share in (0, 1], not {self}")

    def plies(self, seeds: Numbers) -> Numbers:
        """The random moves at the beginning of each game: from 1 to the most, or none."""
        drawn = _unit_draws(seeds, np.full(len(seeds), OPENING_PLY)) / self.share
        plies: Numbers = np.where(drawn < 1, 1 + np.floor(drawn * self.plies_max), 0).astype(np.int64)
        return plies


@dataclass(frozen=True, kw_only=True, slots=True)
class Resignation:
    """A player gives up when its root value stays below a threshold; for two players only."""

    below: float = -0.95
    moves: int = 3  # own moves in a row
    never_share: float = 0.1  # games played to the end all the same, to see how often giving up was wrong

    def __post_init__(self) -> None:
        if not -1 <= self.below < 0 or self.moves < 1 or not 0 <= self.never_share <= 1:
            raise ConfigError(f"resignation: below in [-1, 0), moves from 1, a share in [0, 1]; got {self}")

    def allowed(self, seed: int) -> bool:
        """Whether players of the game with *seed* may give up."""
        return bool(_unit_draws(np.array([seed]), np.array([NEVER_PLY]))[0] >= self.never_share)

    def gives_up(self, values: Sequence[float]) -> bool:
        """Whether a player with these root values at its own moves, oldest first, gives up now."""
        last = values[-self.moves :]
        return len(last) == self.moves and max(last) < self.below


def _unit_draws(seeds: Numbers, plies: Numbers) -> npt.NDArray[np.float64]:
    """One number in [0, 1) for each seed and ply."""
    word = seeds.astype(np.uint64) * GOLDEN + (plies.astype(np.uint64) + np.uint64(1)) * CAP_STREAM
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        word = (word ^ (word >> np.uint64(shift))) * np.uint64(factor)
    draws: npt.NDArray[np.float64] = (word ^ (word >> np.uint64(31))) / 2.0**64
    return draws
