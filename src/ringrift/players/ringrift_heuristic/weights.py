"""How much each feature counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from ringrift.errors import ConfigError
from ringrift.players.ringrift_heuristic.features import FEATURE_NAMES


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """Log-odds of ending ahead of another player, per unit by which a feature exceeds the other's.

    The defaults were set by hand and moved part of the way to what stochastic approximation found in matches
    of the player against itself on square8 and hex8; all the way played worse against other players. The
    job `tune` searches on from here.
    """

    eliminated: float = 5.94
    eliminated_squared: float = 1.64
    territory: float = 3.11
    territory_squared: float = 7.12
    hand: float = 2.42
    stacks: float = 4.48
    caps: float = 2.21
    captives: float = 1.7
    buried: float = 0.61
    tallest_cap: float = -2.13
    lone: float = -2.31
    fuel: float = 0.85
    shortage: float = -6.0
    idle: float = -0.29
    win_threat: float = 1.86
    markers: float = 4.83
    line_ready: float = 2.0
    line_but_one: float = 4.28
    line_but_two: float = 6.07
    slides: float = -0.02
    stuck_stacks: float = -3.97
    shots: float = 1.39
    sweep: float = 1.92
    attacks: float = -2.49
    attacked: float = -4.78
    enclosed_rings: float = 0.68
    enclosed_cells: float = 1.08
    trapped_rings: float = -0.66
    turn: float = 0.66
    turn_enclosed_rings: float = 5.82
    turn_enclosed_cells: float = 3.1
    turn_capture: float = 0.75
    turn_line: float = 1.89
    turn_region: float = 0.45
    turn_line_debt: float = 1.82
    turn_region_debt: float = -0.54
    must_shot: float = 0.43
    must_attacks: float = 2.92
    must_slides: float = 2.57

    def array(self) -> npt.NDArray[np.float64]:
        return np.array(astuple(self), dtype=np.float64)

    @classmethod
    def from_names(cls, values: Mapping[str, Any]) -> Weights:
        """Weights by the names of features; those not named keep their defaults."""
        unknown = sorted(values.keys() - set(FEATURE_NAMES))
        if unknown:
            raise ConfigError(f"heuristic: there is no feature {unknown[0]!r}")
        if wrong := [name for name, value in values.items() if not _is_finite(value)]:
            raise ConfigError(f"heuristic: the weight of {wrong[0]} is {values[wrong[0]]!r}, not a number")
        return cls(**values)

    @classmethod
    def from_array(cls, values: npt.NDArray[np.float64]) -> Weights:
        if values.shape != (len(FEATURE_NAMES),):
            raise ConfigError(f"heuristic: {len(FEATURE_NAMES)} weights are needed, not {values.shape}")
        return cls(**{field.name: float(value) for field, value in zip(fields(cls), values, strict=True)})


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
