"""Ways to run a network for play: one interface, chosen by device and precision.

An engine takes planes as the game gives them and returns plain arrays. It owns a copy of the weights, so
training may go on with the model meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from ringrift.errors import ConfigError
from ringrift.games.compiled import cached_kernel, compiled, source_fingerprint
from ringrift.games.contract import ActionArray, Planes
from ringrift.network.model import ResidualNet

# --- packing ------------------------------------------------------------------------------------------
#
# Compiled copies between the game's arrays and the network's: planes in, logits and values out.
#
# Inside a network a position lies cell by cell, all channels of a cell together. bfloat16 numbers travel as
# the upper halves of 32-bit ones, since NumPy does not know them.


Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Halves = npt.NDArray[np.uint16]
Words32 = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]

FINGERPRINT = source_fingerprint(Path(__file__))


class RawOutput(NamedTuple):
    """What a network says of a batch."""

    planes: Halves  # positions x (cells x action planes), as bfloat16
    placeless: Floats  # positions x placeless actions
    values: Floats  # positions x players, the player on turn first


class Request(NamedTuple):
    """Which states of a larger batch the output belongs to, and their legal actions."""

    states: Longs
    movers: Longs
    offsets: Longs
    actions: ActionArray


@cached_kernel(FINGERPRINT)
def pack_halves(planes: Words32, out: Halves) -> None:
    """Planes (given as the bits of their numbers) to bfloat16, rounded to nearest even, channels last."""
    for at in range(planes.shape[0]):
        for plane in range(planes.shape[1]):
            for row in range(planes.shape[2]):
                for column in range(planes.shape[3]):
                    bits = np.int64(planes[at, plane, row, column])
                    out[at, row, column, plane] = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


@cached_kernel(FINGERPRINT)
def pack_bytes(planes: Floats, scale: float, out: Bytes) -> None:
    """Planes in steps of *scale*, from 0 to 255, channels last."""
    inverse = np.float32(1.0 / scale)
    for at in range(planes.shape[0]):
        for plane in range(planes.shape[1]):
            for row in range(planes.shape[2]):
                for column in range(planes.shape[3]):
                    steps = planes[at, plane, row, column] * inverse + np.float32(0.5)
                    out[at, row, column, plane] = np.uint8(
                        min(max(steps, np.float32(0.0)), np.float32(255.0))
                    )


@compiled
def _half_as_word(half: np.uint16) -> np.uint32:
    return np.uint32(half) << np.uint32(16)


@cached_kernel(FINGERPRINT)
def write_placed(asked: Request, places: ActionArray, planes: Halves, logits: Words32) -> None:
    """Pick the logits of legal actions that have a place on the board; *logits* are bits of numbers."""
    for number in range(asked.states.shape[0]):
        state = asked.states[number]
        for at in range(asked.offsets[state], asked.offsets[state + 1]):
            place = places[asked.actions[at]]
            if place >= 0:
                logits[at] = _half_as_word(planes[number, place])


@cached_kernel(FINGERPRINT)
def write_others(
    asked: Request, places: ActionArray, output: RawOutput, logits: Floats, values: Floats
) -> None:
    """Pick the logits of actions without a place, and turn values from the player on turn to seats."""
    players = output.values.shape[1]
    for number in range(asked.states.shape[0]):
        state = asked.states[number]
        for at in range(asked.offsets[state], asked.offsets[state + 1]):
            place = places[asked.actions[at]]
            if place < 0:
                logits[at] = output.placeless[number, -1 - place]
        for ahead in range(players):
            values[state, (asked.movers[number] + ahead) % players] = output.values[number, ahead]


# --- the engines --------------------------------------------------------------------------------------


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


# Inference on a processor with oneDNN's fused convolutions.
#
# Bias, rectifier and the way around a block are part of the convolution, and weights are laid out once. These
# operators are what `torch.compile` generates, called directly: no compiler is needed and nothing is built at
# the start. They are not documented, so the evaluator compares an engine with the plain model before use.


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


# Inference with 8-bit whole numbers: about twice as fast as bfloat16 where the processor has VNNI.
#
# Weights have one scale per output channel; every layer's output, which a rectifier keeps from 0 up, one
# scale that comes from running the network on sample positions. The last layers are float32.


STEPS = 255
WEIGHT_STEPS = 127
TINY = 1e-8


@dataclass(frozen=True, slots=True)
class QuantizedConvolution:
    """Packed weights and the scales on both sides."""

    weight: Tensor
    weight_scales: Tensor
    weight_zeros: Tensor
    bias: Tensor
    padding: list[int]
    scale_in: float
    scale_out: float

    def rectified(self, x: Tensor, dtype: torch.dtype = torch.uint8) -> Tensor:
        return self._run(x, dtype, "relu")

    def plain(self, x: Tensor) -> Tensor:
        """Not quantized again."""
        return self._run(x, torch.bfloat16, "none")

    def _run(self, x: Tensor, dtype: torch.dtype, after: str) -> Tensor:
        scale = self.scale_out if dtype == torch.uint8 else 1.0
        out: Tensor = torch.ops.onednn.qconv2d_pointwise(
            *self._given(x), self.bias, UNIT, self.padding, UNIT, 1, scale, 0, dtype, after, [], ""
        )
        return out

    def added(self, x: Tensor, straight: Tensor, straight_scale: float) -> Tensor:
        """Rectified sum with *straight*, which is overwritten."""
        out: Tensor = torch.ops.onednn.qconv2d_pointwise.binary(
            *(*self._given(x), straight, self.bias, UNIT, self.padding, UNIT, 1),
            *(self.scale_out, 0, torch.uint8, straight_scale, 0, "sum", 1.0, "relu", [], ""),
        )
        return out

    def _given(self, x: Tensor) -> tuple[object, ...]:
        return x, self.scale_in, 0, self.weight, self.weight_scales, self.weight_zeros


class QuantizedEngine:
    """8-bit numbers on one processor."""

    def __init__(self, model: ResidualNet, *, batch: int, samples: Planes) -> None:
        self.name = "cpu int8"
        model = copied(model)
        self._batch, self._shape = batch, (model.architecture.rows, model.architecture.columns)
        scales = _scales(model, samples)
        self._scale_in = scales[0]
        self._stem = self._pack(model.stem, scales[0], scales[1])
        self._blocks = []
        at = 1
        for block in model.residual_blocks:
            first = self._pack(block.first, scales[at], scales[at + 1])
            self._blocks.append((first, self._pack(block.second, scales[at + 1], scales[at + 2])))
            at += 2
        self._policy = None if model.policy is None else self._pack(model.policy, scales[at], 1.0)
        self._neck = self._pack(model.neck, scales[at], 1.0)
        self._head = Head(model, torch.bfloat16)
        self._mask, self._neck_mask = None, None
        if model.masked:
            self._mask = spread(model.mask, model.architecture.channels).to(torch.uint8)
            self._neck_mask = spread(model.mask, model.architecture.neck).to(torch.bfloat16)

    def _pack(self, layer: nn.Conv2d, scale_in: float, scale_out: float) -> QuantizedConvolution:
        weight = layer.weight
        scales = weight.abs().amax(dim=(1, 2, 3)).clamp_min(TINY) / WEIGHT_STEPS
        whole = (weight / scales[:, None, None, None]).round().to(torch.int8)
        padding = [layer.kernel_size[0] // 2, layer.kernel_size[1] // 2]
        assert layer.bias is not None
        return QuantizedConvolution(
            weight=torch.ops.onednn.qconv_prepack(
                whole,
                scales,
                scale_in,
                0,
                UNIT,
                padding,
                UNIT,
                1,
                [self._batch, layer.in_channels, *self._shape],
            ),
            weight_scales=scales,
            weight_zeros=torch.zeros(len(scales), dtype=torch.int64),
            bias=layer.bias,
            padding=padding,
            scale_in=scale_in,
            scale_out=scale_out,
        )

    @torch.inference_mode()
    def judge(self, planes: Planes) -> RawOutput:
        x = self._on_board(self._stem.rectified(self._quantized(planes)))
        scale = self._stem.scale_out
        for first, second in self._blocks:
            x = self._on_board(second.added(self._on_board(first.rectified(x)), x, scale))
            scale = second.scale_out
        neck = self._neck.rectified(x, torch.bfloat16)
        if self._neck_mask is not None:
            neck.mul_(self._neck_mask)
        return self._head(None if self._policy is None else self._policy.plain(x), neck)

    def _quantized(self, planes: Planes) -> Tensor:
        count, channels, rows, columns = planes.shape
        steps = np.empty((count, rows, columns, channels), dtype=np.uint8)
        pack_bytes(planes, self._scale_in, steps)
        return torch.from_numpy(steps).permute(0, 3, 1, 2)

    def _on_board(self, x: Tensor) -> Tensor:
        return x if self._mask is None else x.mul_(self._mask)


@torch.inference_mode()
def _scales(model: ResidualNet, samples: Planes) -> list[float]:
    """One step of the input and of the output of each layer of the trunk, in order."""
    x = torch.from_numpy(samples)
    if float(x.min()) < 0:
        raise ConfigError("network: 8-bit inference needs observations from 0 up")
    mask = model.mask
    tops = [x.max()]
    x = functional.relu(model.stem(x)) * mask
    tops.append(x.max())
    for block in model.residual_blocks:
        inner = functional.relu(block.first(x)) * mask
        x = functional.relu(block.second(inner) + x) * mask
        tops += [inner.max(), x.max()]
    return [max(float(top), TINY) / STEPS for top in tops]
