"""The residual network.

There is no batch normalization: what the network says of a position depends on that position alone, in
training and in play. The last convolution of each block starts at zero and the others are scaled down with
depth, so that a deep network starts as a shallow one.

Values come per seat counted from the player on turn. For two players there is one number, since what one
wins the other loses.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from ringrift.errors import ConfigError
from ringrift.games.contract import Game
from ringrift.machine import gpu_use
from ringrift.network.architecture import Architecture, Preset, architecture_for, board_mask


class Judged(NamedTuple):
    """Output for a batch of positions."""

    planes: Tensor  # positions x action planes x rows x columns
    placeless: Tensor  # positions x placeless actions
    values: Tensor  # positions x players, the player on turn first, in [-1, 1]

    def logits(self) -> Tensor:
        """All actions in the order of the action layout's slots."""
        return torch.cat((self.planes.flatten(1), self.placeless), dim=1)


class ResidualBlock(nn.Module):
    """Two convolutions beside a way straight through."""

    def __init__(self, channels: int, *, depth: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        nn.init.kaiming_normal_(self.first.weight, nonlinearity="relu")
        with torch.no_grad():
            self.first.weight.mul_(depth**-0.5)
        nn.init.zeros_(self.first.bias)  # type: ignore[arg-type]
        nn.init.zeros_(self.second.weight)
        nn.init.zeros_(self.second.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        inner = functional.relu(self.first(x))
        if mask is not None:
            inner = inner * mask
        out = functional.relu(self.second(inner) + x)
        return out if mask is None else out * mask


class ResidualNet(nn.Module):
    """Trunk of residual blocks; a policy of planes from every cell, and one layer that sees the board."""

    mask: Tensor

    def __init__(self, architecture: Architecture, mask: npt.NDArray[np.bool_]) -> None:
        super().__init__()
        a = self.architecture = architecture
        self.stem = nn.Conv2d(a.input_planes, a.channels, 3, padding=1)
        self.blocks = nn.ModuleList(
            ResidualBlock(a.channels, depth=max(a.blocks, 1)) for _ in range(a.blocks)
        )
        self.policy = nn.Conv2d(a.channels, a.action_planes, 1) if a.action_planes else None
        self.neck = nn.Conv2d(a.channels, a.neck, 1)
        self.hidden = nn.Linear(a.neck * a.rows * a.columns, a.hidden)
        self.outcome = nn.Linear(a.hidden, a.players)
        self.placeless = nn.Linear(a.hidden, a.placeless) if a.placeless else None
        for layer in (self.policy, self.outcome, self.placeless):
            if layer is not None:  # a new network knows nothing: all actions alike, all positions even
                nn.init.zeros_(layer.weight)
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        for layer in (self.stem, self.neck, self.hidden):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        shape = (1, 1, a.rows, a.columns)
        self.register_buffer("mask", torch.from_numpy(mask.reshape(shape).astype(np.float32)))
        self.masked = not bool(mask.all())

    def forward(self, planes: Tensor) -> Judged:
        mask = self.mask.to(planes.dtype) if self.masked else None
        x = functional.relu(self.stem(planes))
        if mask is not None:
            x = x * mask
        for block in self.blocks:
            x = block(x, mask)
        neck = functional.relu(self.neck(x))
        if mask is not None:
            neck = neck * mask
        hidden = functional.relu(self.hidden(neck.flatten(1)))
        empty = x.new_zeros((len(x), 0))
        return Judged(
            planes=self.policy(x) if self.policy is not None else empty[:, :, None, None],
            placeless=self.placeless(hidden) if self.placeless is not None else empty,
            values=self.to_values(self.outcome(hidden)),
        )

    def to_values(self, outcome: Tensor) -> Tensor:
        if self.architecture.players == 2:
            value = torch.tanh(outcome[:, 0] - outcome[:, 1])
            return torch.stack((value, -value), dim=1)
        return torch.tanh(outcome)

    @property
    def residual_blocks(self) -> list[ResidualBlock]:
        return [block for block in self.blocks if isinstance(block, ResidualBlock)]

    @property
    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())


def build(game: Game, preset: str | Preset, *, seed: int) -> ResidualNet:
    """A new network for *game*; the same for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ResidualNet(architecture_for(game, preset), board_mask(game))


# Where a network computes.


def chosen_device(wanted: str) -> str:
    """`cpu` or `cuda` for `auto`, `cpu` or `cuda`; raises `ConfigError` if there is no such thing here.

    A GPU counts as used from here on.
    """
    there = wanted != "cpu" and torch.cuda.is_available()
    if wanted == "cuda" and not there:
        raise ConfigError("--device cuda: this machine has no GPU that PyTorch can use")
    if there:
        gpu_use().begin()
    return "cuda" if there else "cpu"
