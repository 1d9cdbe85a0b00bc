"""How much each feature counts."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields

import numpy as np
import numpy.typing as npt

from ringrift.errors import ConfigError
from ringrift.players.ringrift_heuristic.features import FEATURE_NAMES


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """Log-odds of ending ahead of another player, per unit by which a feature exceeds the other's."""

    eliminated: float = 8.0
    eliminated_squared: float = 4.0
    territory: float = 4.0
    territory_squared: float = 4.0
    hand: float = 1.0
    stacks: float = 1.0
    caps: float = 1.0
    captives: float = 1.0
    buried: float = -0.5
    tallest_cap: float = 0.0
    lone: float = -2.0
    fuel: float = 1.0
    idle: float = -1.0
    win_threat: float = 1.0
    markers: float = 1.0
    line_ready: float = 2.0
    line_but_one: float = 1.0
    line_but_two: float = 0.5
    slides: float = 0.2
    stuck_stacks: float = -1.0
    shots: float = 1.0
    sweep: float = 1.0
    attacks: float = 1.0
    attacked: float = -0.5
    enclosed_rings: float = 1.0
    enclosed_cells: float = 1.0
    trapped_rings: float = -1.0
    turn: float = 0.2
    turn_enclosed_rings: float = 4.0
    turn_enclosed_cells: float = 2.0
    turn_capture: float = 0.2
    turn_line: float = 0.5
    turn_region: float = 0.5
    turn_line_debt: float = 0.5
    turn_region_debt: float = 0.5
    must_shot: float = 0.5
    must_attacks: float = 0.5
    must_slides: float = 0.1

    def array(self) -> npt.NDArray[np.float64]:
        return np.array(astuple(self), dtype=np.float64)

    @classmethod
    def from_array(cls, values: npt.NDArray[np.float64]) -> Weights:
        if values.shape != (len(FEATURE_NAMES),):
            raise ConfigError(f"heuristic: {len(FEATURE_NAMES)} weights are needed, not {values.shape}")
        return cls(**{field.name: float(value) for field, value in zip(fields(cls), values, strict=True)})
