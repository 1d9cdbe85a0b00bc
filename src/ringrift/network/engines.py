"""Ways to run a network for play: one interface, chosen by device and precision.

An engine takes planes as the game gives them and returns plain arrays. It owns a copy of the weights, so
training may go on with the model meanwhile.
"""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np
import torch

from ringrift.games.contract import Planes
from ringrift.network.model import ResidualNet
from ringrift.network.packing import Halves, RawOutput, pack_halves

Precision = Literal["float32", "bfloat16", "int8"]


class InferenceEngine(Protocol):
    """Runs one network."""

    @property
    def name(self) -> str: ...

    def judge(self, planes: Planes) -> RawOutput:
        """Judge a batch; what is said of a row must not depend on the others."""
        ...


class ModuleEngine:
    """The model as it is, on any device; compiled on a GPU, where a fixed batch size is then required."""

    def __init__(self, model: ResidualNet, *, dtype: torch.dtype, device: torch.device) -> None:
        self.name = f"{device.type} {str(dtype).removeprefix('torch.')}"
        self._dtype, self._device = dtype, device
        copy = copied(model).to(device=device, dtype=dtype)
        for parameter in copy.parameters():
            if parameter.ndim == 4:
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
        self._run = torch.compile(copy, mode="reduce-overhead") if device.type == "cuda" else copy

    @torch.inference_mode()
    def judge(self, planes: Planes) -> RawOutput:
        given = torch.from_numpy(planes).to(self._device, non_blocking=True)
        judged = self._run(given.to(dtype=self._dtype, memory_format=torch.channels_last))
        return raw_output(judged.planes, judged.placeless, judged.values)


def raw_output(planes: torch.Tensor, placeless: torch.Tensor, values: torch.Tensor) -> RawOutput:
    return RawOutput(
        planes=as_halves(planes),
        placeless=placeless.float().cpu().numpy(),
        values=values.float().cpu().numpy(),
    )


def as_halves(planes: torch.Tensor) -> Halves:
    """Positions x planes x rows x columns to bfloat16 bits, cell by cell."""
    flat = planes.permute(0, 2, 3, 1).reshape(len(planes), -1).to(torch.bfloat16).cpu()
    return flat.contiguous().view(torch.int16).numpy().view(np.uint16)


def from_halves(halves: Halves) -> torch.Tensor:
    """Positions x rows x columns x planes of bfloat16 bits to a tensor with channels last in memory."""
    return torch.from_numpy(halves.view(np.int16)).view(torch.bfloat16).permute(0, 3, 1, 2)


def packed_planes(planes: Planes) -> torch.Tensor:
    count, channels, rows, columns = planes.shape
    halves = np.empty((count, rows, columns, channels), dtype=np.uint16)
    pack_halves(planes.view(np.uint32), halves)
    return from_halves(halves)


def copied(model: ResidualNet) -> ResidualNet:
    """The same network apart from the original, in float32 on the processor."""
    copy = ResidualNet(model.architecture, model.mask[0, 0].cpu().numpy() > 0)
    copy.load_state_dict({name: tensor.float().cpu() for name, tensor in model.state_dict().items()})
    return copy.eval().requires_grad_(False)
