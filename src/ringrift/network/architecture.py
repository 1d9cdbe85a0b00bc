"""What a network looks like: everything that must agree between a file of weights and its user.

The shapes at both ends come from the game; a preset adds width and depth. Nothing here needs PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from ringrift.errors import ArchitectureMismatch, ConfigError
from ringrift.games.contract import Game

KIND = "residual"


@dataclass(frozen=True, slots=True)
class Preset:
    """Width and depth."""

    channels: int
    blocks: int
    neck: int  # channels of the layer that sees the whole board at once
    hidden: int  # units behind it


PRESETS: Mapping[str, Preset] = {
    "small": Preset(channels=32, blocks=3, neck=8, hidden=64),
    "medium": Preset(channels=64, blocks=6, neck=16, hidden=128),
    "large": Preset(channels=128, blocks=12, neck=32, hidden=256),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Layers of a network, by their sizes."""

    kind: str = KIND
    input_planes: int
    rows: int
    columns: int
    players: int
    action_planes: int
    placeless: int
    channels: int
    blocks: int
    neck: int
    hidden: int

    def __post_init__(self) -> None:
        if self.kind != KIND:
            raise ConfigError(f"network: no architecture {self.kind!r}; there is {KIND!r}")
        for field in fields(self):
            value = getattr(self, field.name)
            low = 0 if field.name in ("action_planes", "placeless", "blocks") else 1
            if field.name != "kind" and (not isinstance(value, int) or value < low):
                raise ConfigError(
                    f"network: {field.name} must be a whole number from {low} up, not {value!r}"
                )
        if self.action_planes + self.placeless == 0:
            raise ConfigError("network: there must be an action")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Architecture:
        names = {field.name for field in fields(cls)}
        if odd := sorted(names ^ set(record)):
            raise ConfigError(f"network: the architecture's fields are wrong at {', '.join(odd)}")
        return cls(**record)


def architecture_for(game: Game, preset: str | Preset) -> Architecture:
    """The network of *preset* size for *game*."""
    if isinstance(preset, str):
        if preset not in PRESETS:
            raise ConfigError(f"network: no preset {preset!r}; there are {', '.join(PRESETS)}")
        preset = PRESETS[preset]
    planes, rows, columns = game.observation_shape
    layout = game.action_layout
    if (layout.rows, layout.columns) != (rows, columns):
        raise ConfigError(f"{game.key}: actions and observations lie on grids of different sizes")
    return Architecture(
        input_planes=planes,
        rows=rows,
        columns=columns,
        players=game.players,
        action_planes=layout.planes,
        placeless=layout.placeless,
        channels=preset.channels,
        blocks=preset.blocks,
        neck=preset.neck,
        hidden=preset.hidden,
    )


def require_same(model: str, *, wanted: Architecture, found: Architecture) -> None:
    """Raise `ArchitectureMismatch` that names the first field in which they differ."""
    for field in fields(Architecture):
        want, have = getattr(wanted, field.name), getattr(found, field.name)
        if want != have:
            raise ArchitectureMismatch(model, field=field.name, wanted=want, found=have)


def board_mask(game: Game) -> npt.NDArray[np.bool_]:
    """Which cells of the grid are on the board: those with an action, or seen at the start of the game.

    A hex board lies on a larger square grid. Cells off the board must stay zero in every layer, or the
    network would see the border of the grid instead of the border of the board.
    """
    _, rows, columns = game.observation_shape
    layout = game.action_layout
    placed = layout.slots[layout.slots < layout.planes * rows * columns] % (rows * columns)
    mask: npt.NDArray[np.bool_] = game.observe(game.new_states(1))[0].any(axis=0).ravel()
    mask[placed] = True
    if not placed.size:
        mask[:] = True
    return mask.reshape(rows, columns)
