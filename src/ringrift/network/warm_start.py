"""Begin a new network with what fits of another one, which may be of another game or number of players."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch

from ringrift.errors import ConfigError
from ringrift.network.model import ResidualNet
from ringrift.network.storage import load_model

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
