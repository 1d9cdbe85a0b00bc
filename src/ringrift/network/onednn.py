"""Inference on a processor with oneDNN's fused convolutions.

Bias, rectifier and the way around a block are part of the convolution, and weights are laid out once. These
operators are what `torch.compile` generates, called directly: no compiler is needed and nothing is built at
the start. They are not documented, so the evaluator compares an engine with the plain model before use.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ringrift.games.contract import Planes
from ringrift.network.engines import as_halves, copied, packed_planes
from ringrift.network.model import ResidualNet
from ringrift.network.packing import RawOutput

UNIT = (1, 1)


@dataclass(frozen=True, slots=True)
class PackedConvolution:
    """Weights in oneDNN's own layout."""

    weight: Tensor
    bias: Tensor
    padding: tuple[int, int]

    def rectified(self, x: Tensor) -> Tensor:
        return self._run(x, "relu")

    def plain(self, x: Tensor) -> Tensor:
        return self._run(x, "none")

    def _run(self, x: Tensor, after: str) -> Tensor:
        out: Tensor = torch.ops.mkldnn._convolution_pointwise(
            x, self.weight, self.bias, self.padding, UNIT, UNIT, 1, after, [], ""
        )
        return out

    def added(self, x: Tensor, straight: Tensor) -> Tensor:
        """Rectified sum with *straight*, which is overwritten."""
        out: Tensor = torch.ops.mkldnn._convolution_pointwise_(
            straight, x, self.weight, self.bias, self.padding, UNIT, UNIT, 1, "add", 1.0, "relu", [], None
        )
        return out


def pack(layer: nn.Conv2d, model: ResidualNet, batch: int, dtype: torch.dtype) -> PackedConvolution:
    a = model.architecture
    padding = (layer.kernel_size[0] // 2, layer.kernel_size[1] // 2)
    weight = torch.ops.mkldnn._reorder_convolution_weight(
        layer.weight.to(dtype), padding, UNIT, UNIT, 1, [batch, layer.in_channels, a.rows, a.columns]
    )
    assert layer.bias is not None
    return PackedConvolution(weight, layer.bias.to(dtype), padding)


class Head:
    """The layers behind the neck, with the neck's channels of a cell together; the last ones in float32."""

    def __init__(self, model: ResidualNet, dtype: torch.dtype) -> None:
        a = model.architecture
        by_channel = model.hidden.weight.view(a.hidden, a.neck, a.rows * a.columns)
        self._weight = by_channel.permute(0, 2, 1).reshape(a.hidden, -1).to(dtype).contiguous()
        self._bias = model.hidden.bias.to(dtype)
        self._model = model

    def __call__(self, planes: Tensor | None, neck: Tensor) -> RawOutput:
        model, count = self._model, len(neck)
        flat = neck.permute(0, 2, 3, 1).reshape(count, -1)
        hidden = functional.linear(flat, self._weight, self._bias).float().relu_()
        placeless = np.zeros((count, 0), dtype=np.float32)
        if model.placeless is not None:
            placeless = model.placeless(hidden).numpy()
        halves = np.zeros((count, 0), dtype=np.uint16) if planes is None else as_halves(planes)
        return RawOutput(halves, placeless, model.to_values(model.outcome(hidden)).numpy())


class OneDnnEngine:
    """bfloat16 on one processor."""

    def __init__(self, model: ResidualNet, *, batch: int) -> None:
        self.name = "cpu bfloat16"
        dtype = torch.bfloat16
        model = copied(model)
        a = model.architecture
        self._stem = pack(model.stem, model, batch, dtype)
        self._blocks = [
            (pack(block.first, model, batch, dtype), pack(block.second, model, batch, dtype))
            for block in model.residual_blocks
        ]
        self._policy = None if model.policy is None else pack(model.policy, model, batch, dtype)
        self._neck = pack(model.neck, model, batch, dtype)
        self._head = Head(model, dtype)
        self._mask, self._neck_mask = None, None
        if model.masked:
            self._mask = spread(model.mask, a.channels).to(dtype)
            self._neck_mask = spread(model.mask, a.neck).to(dtype)

    @torch.inference_mode()
    def judge(self, planes: Planes) -> RawOutput:
        x = self._on_board(self._stem.rectified(packed_planes(planes)))
        for first, second in self._blocks:
            x = self._on_board(second.added(self._on_board(first.rectified(x)), x))
        neck = self._neck.rectified(x)
        if self._neck_mask is not None:
            neck.mul_(self._neck_mask)
        return self._head(None if self._policy is None else self._policy.plain(x), neck)

    def _on_board(self, x: Tensor) -> Tensor:
        return x if self._mask is None else x.mul_(self._mask)


def spread(mask: Tensor, channels: int) -> Tensor:
    """The mask once per channel, laid out like a layer's output."""
    return mask.expand(1, channels, *mask.shape[2:]).contiguous(memory_format=torch.channels_last)
