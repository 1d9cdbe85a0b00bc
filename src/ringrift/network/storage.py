"""Models on disk: weights as safetensors, the card as JSON beside them. Nothing is ever unpickled.

The weights are written first and the card last, each under a temporary name that is synced and renamed.
The card carries the digest of the weights, so a model is whole if and only if its card says so.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ringrift.errors import ArchitectureMismatch, ConfigError, Corrupt, DigestMismatch, GameMismatch
from ringrift.files import replace_file
from ringrift.foreign_files.documents import NoDocument, parse_json
from ringrift.foreign_files.paths import read_regular
from ringrift.network.architecture import (
    Architecture,
    ModelCard,
    card_path,
    read_card,
    require_same,
    write_text,
)
from ringrift.network.model import ResidualNet

SUFFIX = ".safetensors"
HEADER_BYTES_MAX = 1 << 20


def save_model(net: ResidualNet, card: ModelCard, path: Path) -> ModelCard:
    """Write weights and card; returns the card with the digest of the weights filled in."""
    if path.suffix != SUFFIX:
        raise ConfigError(f"{path}: a model's file ends in {SUFFIX}")
    require_same(str(path), wanted=card.architecture, found=net.architecture)
    weights = save(
        {name: tensor.detach().cpu().float().contiguous() for name, tensor in net.state_dict().items()}
    )
    card = replace(card, sha256=hashlib.sha256(weights).hexdigest())
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, weights, private=False)
    replace_file(card_path(path), write_text(card).encode(), private=False)
    return card


def load_model(
    path: Path, *, config: str | None = None, architecture: Architecture | None = None
) -> tuple[ResidualNet, ModelCard]:
    """Read a model and check it against its card, and against *config* and *architecture* if given.

    Raises `GameMismatch`, `ArchitectureMismatch`, `DigestMismatch`, `SchemaTooNew`, `ForeignFile` or
    `Corrupt`, whichever comes first.
    """
    card = read_card(card_path(path))
    if config is not None and card.config != config:
        raise GameMismatch(str(path), wanted=config, found=card.config)
    if architecture is not None:
        require_same(str(path), wanted=architecture, found=card.architecture)
    tensors = _read_weights(path, card)
    net = ResidualNet(card.architecture, tensors["mask"][0, 0].numpy() > 0)
    _require_tensors(path, net.state_dict(), tensors)
    net.load_state_dict(tensors)
    return net, card


def _read_weights(path: Path, card: ModelCard) -> dict[str, Tensor]:
    shapes = card.architecture.tensor_shapes
    try:
        # As much as such weights take and no more, whatever the file's size.
        content = read_regular(path, bytes_max=4 * card.architecture.parameter_count + HEADER_BYTES_MAX)
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is a card but no weights") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    digest = hashlib.sha256(content).hexdigest()
    if digest != card.sha256:
        found = f"the weights have digest {digest[:12]}…, the card says {card.sha256[:12]}…"
        raise DigestMismatch(path, found=found, advice="Copy the model again")
    _check_header(path, content, shapes)
    try:
        return load(content)
    except SafetensorError as error:
        raise Corrupt(path, found=f"no safetensors file ({error})", advice="Copy the model again") from error


def _check_header(path: Path, content: bytes, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Compare the names, types and shapes that the file announces, before a tensor is made of it."""
    try:
        found = _announced(content)
    except NoDocument as error:
        raise Corrupt(path, found=f"no safetensors file ({error})", advice="Copy the model again") from None
    for name in sorted(shapes.keys() | found.keys()):
        have = found.get(name, {}).get("shape")
        want = list(shapes[name]) if name in shapes else None
        if have != want or found[name].get("dtype") != "F32":
            field, shown = f"tensor {name[:80]}", f"{have!s:.80}"
            raise ArchitectureMismatch(str(path), field=field, wanted=want, found=shown)


def _announced(content: bytes) -> dict[str, dict[str, Any]]:
    """The header of a safetensors file: a name for each tensor, and what it is."""
    (length,) = struct.unpack_from("<Q", content.ljust(8, b"\0"))
    if not 2 <= length <= min(HEADER_BYTES_MAX, len(content) - 8):
        raise NoDocument(f"a header of {length} bytes")
    header = parse_json(content[8 : 8 + length])
    if not isinstance(header, dict) or not all(isinstance(each, dict) for each in header.values()):
        raise NoDocument("a header that names no tensors")
    return {name: entry for name, entry in header.items() if name != "__metadata__"}


def _require_tensors(path: Path, wanted: dict[str, Tensor], found: dict[str, Tensor]) -> None:
    for name in sorted(wanted.keys() | found.keys()):
        want = tuple(wanted[name].shape) if name in wanted else None
        have = tuple(found[name].shape) if name in found else None
        if want != have:
            raise ArchitectureMismatch(str(path), field=f"tensor {name}", wanted=want, found=have)
        if not torch.isfinite(found[name]).all():
            raise Corrupt(path, found=f"tensor {name} holds numbers not finite", advice="Take an older model")


# Begin a new network with what fits of another one, which may be of another game or number of players.


_TRUNK = "blocks."
_OF_THE_GAME = "mask"  # not learned: it says where the board is


class WarmStart(NamedTuple):
    """What was taken over, and from whom."""

    sha256: str
    config: str
    parameters: int
    of: int  # parameters of the network

    def as_json(self) -> dict[str, Any]:
        return self._asdict()


def take_over(net: ResidualNet, path: Path) -> WarmStart:
    """Copy every tensor of the model at *path* that has its like, of the same shape, in *net*.

    Raises `ConfigError` if the trunk does not fit: the networks are not of one size.
    """
    other, card = load_model(path)
    wanted, offered = net.state_dict(), other.state_dict()
    fitting = {
        name: tensor
        for name, tensor in offered.items()
        if name != _OF_THE_GAME and name in wanted and tensor.shape == wanted[name].shape
    }
    if any(name.startswith(_TRUNK) and name not in fitting for name in (*wanted, *offered)):
        raise ConfigError(f"{path}: the trunk of this model of {card.config} is of another size")
    with torch.no_grad():
        net.load_state_dict({**wanted, **fitting})
    taken = sum(tensor.numel() for tensor in fitting.values())
    return WarmStart(card.sha256, card.config, taken, net.parameter_count)
