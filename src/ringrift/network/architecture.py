"""What a network looks like: everything that must agree between a file of weights and its user.

The shapes at both ends come from the game; a preset adds width and depth. The card beside a file of weights
says both, and where the model comes from. Nothing here needs PyTorch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ringrift.errors import ArchitectureMismatch, ConfigError, Corrupt, ForeignFile, SchemaTooNew
from ringrift.foreign_files.documents import NoDocument, parse_json
from ringrift.foreign_files.paths import read_regular
from ringrift.games.contract import Game

KIND = "residual"
# A network is built only after these: a file from elsewhere may name any size.
LARGEST: Mapping[str, int] = {
    "input_planes": 1024,
    "rows": 64,
    "columns": 64,
    "players": 16,
    "action_planes": 4096,
    "placeless": 65_536,
    "channels": 1024,
    "blocks": 128,
    "neck": 512,
    "hidden": 8192,
}
PARAMETERS_MAX = 250_000_000  # a gigabyte


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
        for each in fields(self):
            value = getattr(self, each.name)
            low = 0 if each.name in ("action_planes", "placeless", "blocks") else 1
            if each.name == "kind":
                continue
            high = LARGEST[each.name]
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                shown = repr(value)[:40]
                raise ConfigError(
                    f"network: {each.name} must be a whole number, {low} to {high}, not {shown}"
                )
        if self.action_planes + self.placeless == 0:
            raise ConfigError("network: there must be an action")
        if self.parameter_count > PARAMETERS_MAX:
            raise ConfigError(f"network: {self.parameter_count} parameters; {PARAMETERS_MAX} are the most")

    @property
    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """What a file of such a network's weights holds."""
        wide = self.channels
        shapes: dict[str, tuple[int, ...]] = {"mask": (1, 1, self.rows, self.columns)}
        shapes |= _layer("stem", wide, self.input_planes, 3, 3)
        for block in range(self.blocks):
            shapes |= _layer(f"blocks.{block}.first", wide, wide, 3, 3)
            shapes |= _layer(f"blocks.{block}.second", wide, wide, 3, 3)
        if self.action_planes:
            shapes |= _layer("policy", self.action_planes, wide, 1, 1)
        shapes |= _layer("neck", self.neck, wide, 1, 1)
        shapes |= _layer("hidden", self.hidden, self.neck * self.rows * self.columns)
        shapes |= _layer("outcome", self.players, self.hidden)
        if self.placeless:
            shapes |= _layer("placeless", self.placeless, self.hidden)
        return shapes

    @property
    def parameter_count(self) -> int:
        return sum(prod(shape) for shape in self.tensor_shapes.values())

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Architecture:
        names = {each.name for each in fields(cls)}
        if odd := sorted(names ^ set(record)):
            raise ConfigError(f"network: the architecture's fields are wrong at {', '.join(odd)}")
        return cls(**record)


def _layer(name: str, *shape: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}


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
    for each in fields(Architecture):
        want, have = getattr(wanted, each.name), getattr(found, each.name)
        if want != have:
            raise ArchitectureMismatch(model, field=each.name, wanted=want, found=have)


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


# --- the card of a model ------------------------------------------------------------------------------
#
# The card of a model: what a file of weights is, in JSON beside it.


FORMAT = "ringrift.model"
VERSION = 1
CARD_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What a model is and where it comes from."""

    config: str  # key of the game
    architecture: Architecture
    parent: str | None = None  # digest of the weights that training started from
    rows_seen: int = 0
    sha256: str = ""  # digest of the weights' file, written when it is saved
    notes: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "version": VERSION} | asdict(self)


def card_path(weights: Path) -> Path:
    """`net.safetensors` has its card in `net.json`."""
    return weights.with_suffix(".json")


def write_text(card: ModelCard) -> str:
    return json.dumps(card.to_json(), indent=2, sort_keys=True) + "\n"


def read_card(path: Path) -> ModelCard:
    """Read a card; raises `ForeignFile`, `SchemaTooNew` or `Corrupt` that says what is wrong with it."""
    record = _read_record(path)
    try:
        return ModelCard(
            config=_of_type(record, "config", str),
            architecture=Architecture.from_json(_of_type(record, "architecture", dict)),
            parent=None if record.get("parent") is None else _of_type(record, "parent", str),
            rows_seen=_of_type(record, "rows_seen", int),
            sha256=_of_type(record, "sha256", str),
            notes=_of_type(record, "notes", dict),
        )
    except ConfigError as error:
        raise Corrupt(
            path, found=str(error), advice="Take the card from where the model came from"
        ) from error


def _read_record(path: Path) -> dict[str, Any]:
    try:
        record = parse_json(read_regular(path, bytes_max=CARD_BYTES_MAX))
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no card of a model") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except NoDocument as error:
        raise Corrupt(path, found=f"the card is no JSON ({error})", advice="Copy it again") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise ForeignFile(path, found="this is not the card of a model", advice="Name a model's file")
    version = record.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise SchemaTooNew(
            path,
            found=f"the card has version {version!s:.40}, this program reads {VERSION}",
            advice="Update it",
        )
    return record


def _of_type(record: Mapping[str, Any], name: str, kind: type) -> Any:
    value = record.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ConfigError(f"the card's {name} is {value!r:.80}, not a {kind.__name__}")
    return value
