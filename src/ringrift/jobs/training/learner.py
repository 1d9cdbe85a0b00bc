"""One network being trained: loss, optimiser, averaged weights, learning rate, and all that a resume needs.

The average of the weights over the last steps plays better than the last step's and is what is kept. On a
GPU the network is compiled and computes in bfloat16.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import cos, pi
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.nn import functional

from ringrift.errors import ConfigError, Corrupt
from ringrift.foreign_files.documents import parse_json
from ringrift.jobs.files import sealing
from ringrift.jobs.training.rows import TrainingBatch
from ringrift.network.model import Judged, ResidualNet

Forward = Callable[[Tensor], Judged]

LOSSES = ("policy", "value", "entropy")
AVERAGE_WARMUP = 10.0  # the average follows the weights closely in the first steps


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerConfig:
    """How the weights move."""

    weight_decay: float = 1e-4
    clip_norm: float = 1.0
    value_weight: float = 1.0
    average_decay: float = 0.999
    bf16: bool = False
    compile: bool = False

    def __post_init__(self) -> None:
        if not (0 <= self.average_decay < 1 and self.clip_norm > 0 and self.weight_decay >= 0):
            raise ConfigError(f"learner: need 0 <= average_decay < 1, clip_norm > 0, got {self}")


class Learner:
    """Trains *net* in place and keeps the average of its weights beside it."""

    def __init__(self, net: ResidualNet, config: LearnerConfig, *, device: str = "cpu") -> None:
        self.device, self.config = torch.device(device), config
        self.net = net.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.steps = 0
        self.average = {name: value.detach().clone() for name, value in self.net.state_dict().items()}
        self.optimiser = torch.optim.AdamW(
            self.net.parameters(), lr=0.0, weight_decay=config.weight_decay, fused=True
        )
        self._forward: Forward = torch.compile(self.net) if config.compile else self.net

    def step(self, batch: TrainingBatch, lr: float) -> Tensor:
        """One step of descent; returns the losses named in `LOSSES`, before the step."""
        for group in self.optimiser.param_groups:
            group["lr"] = lr
        self.optimiser.zero_grad(set_to_none=True)
        policy, value, entropy = self._losses(self._forward, batch)
        (policy + self.config.value_weight * value).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), self.config.clip_norm)
        self.optimiser.step()
        self.steps += 1
        self._follow()
        return torch.stack((policy, value, entropy)).detach()

    def _follow(self) -> None:
        """Move the average towards the weights."""
        decay = min(self.config.average_decay, (1 + self.steps) / (AVERAGE_WARMUP + self.steps))
        weights = self.net.state_dict()
        with torch.no_grad():
            for name, mean in self.average.items():
                if mean.is_floating_point():
                    mean.lerp_(weights[name], 1 - decay)

    def averaged(self) -> ResidualNet:
        """A copy of the network with the averaged weights, on the CPU."""
        return net_with(self.net, self.average)

    @torch.no_grad()
    def judge(self, net: ResidualNet, batch: TrainingBatch) -> Tensor:
        """The losses of *net*, which may be another than the one trained."""
        return torch.stack(self._losses(net, batch))

    @torch.no_grad()
    def values(self, net: ResidualNet, batch: TrainingBatch) -> npt.NDArray[np.float32]:
        """The values that *net* gives, the player on turn first."""
        planes = self._tensor(batch.planes).contiguous(memory_format=torch.channels_last)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.config.bf16):
            judged = net(planes)
        said: npt.NDArray[np.float32] = judged.values.float().cpu().numpy()
        return said

    def _losses(self, forward: Forward, batch: TrainingBatch) -> tuple[Tensor, Tensor, Tensor]:
        planes = self._tensor(batch.planes).contiguous(memory_format=torch.channels_last)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.config.bf16):
            judged = forward(planes)
            logits = judged.logits()
        legal, target = self._tensor(batch.legal), self._tensor(batch.policy)
        weights = self._tensor(batch.weights)
        chosen = logits.float().gather(1, self._tensor(batch.slots)).masked_fill(~legal, -torch.inf)
        said = functional.log_softmax(chosen, dim=1).masked_fill(~legal, 0.0)
        policy = -(target * said).sum(dim=1)
        wanted = self._tensor(batch.values)
        value = functional.mse_loss(judged.values.float(), wanted, reduction="none").mean(dim=1)
        entropy = torch.special.entr(target).sum(dim=1)
        total = weights.sum()
        mean = ((each * weights).sum() / total for each in (policy, value, entropy))
        return tuple(mean)  # type: ignore[return-value]

    def _tensor(self, array: object) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self.device.type == "cpu" else tensor.pin_memory().to(self.device, non_blocking=True)


def net_with(net: ResidualNet, weights: Mapping[str, Tensor]) -> ResidualNet:
    """A new network of the same layers with other weights, on the CPU."""
    copy = ResidualNet(net.architecture, net.mask[0, 0].cpu().numpy() > 0)
    copy.load_state_dict({name: value.detach().cpu() for name, value in weights.items()})
    return copy


# The learning rate over the steps of a run: up in a line, then down along half a cosine.


@dataclass(frozen=True, slots=True)
class LearningRate:
    """Rises to *peak* over *warmup_steps*, then falls to *end* at *steps* and stays there."""

    peak: float
    end: float
    warmup_steps: int
    steps: int

    def __post_init__(self) -> None:
        if not (0 <= self.end <= self.peak and self.peak > 0 and self.warmup_steps >= 0 and self.steps >= 1):
            raise ConfigError(f"learning rate: need 0 <= end <= peak and steps from 1 up, not {self}")

    def at(self, step: int) -> float:
        """The rate of step number *step*, from 0."""
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        falling = max(1, self.steps - self.warmup_steps)
        share = min(1.0, (step - self.warmup_steps) / falling)
        return self.end + (self.peak - self.end) * (1 + cos(pi * share)) / 2


# All that a resume needs of a learner, as one sealed file of tensors with its facts in the header.


FACTS = "facts"
_OPTIMISER = ("step", "exp_avg", "exp_avg_sq")
_ADVICE = "Remove it to start this training anew"


def learner_tensors(learner: Learner) -> dict[str, Tensor]:
    """Weights, averaged weights and the optimiser's moments, by name."""
    tensors = {f"net.{name}": value for name, value in learner.net.state_dict().items()}
    tensors |= {f"average.{name}": value for name, value in learner.average.items()}
    state = learner.optimiser.state_dict()["state"]
    for number, moments in state.items():
        tensors |= {f"optimiser.{number}.{name}": moments[name] for name in _OPTIMISER}
    return {name: value.detach().cpu().contiguous() for name, value in tensors.items()}


def restore_learner(learner: Learner, tensors: Mapping[str, Tensor], *, steps: int) -> None:
    """Put a learner of the same architecture where the tensors were taken.

    Raises `RuntimeError`, `KeyError` or `ValueError` if they are another's.
    """
    learner.net.load_state_dict(_under("net.", tensors))
    average = _under("average.", tensors)
    for name, mean in learner.average.items():
        if average[name].shape != mean.shape:  # copying would repeat what is too short
            raise ValueError(f"the average of {name} has the shape {tuple(average[name].shape)}")
        mean.copy_(average[name])
    moments: dict[int, dict[str, Tensor]] = {}
    for name, value in _under("optimiser.", tensors).items():
        number, _, which = name.partition(".")
        moments.setdefault(int(number), {})[which] = value
    state = learner.optimiser.state_dict()
    learner.optimiser.load_state_dict({**state, "state": moments})
    # The fused step walks weights and moments side by side in memory, so they must lie there alike.
    for weights, kept in learner.optimiser.state.items():
        for name in ("exp_avg", "exp_avg_sq"):
            if kept[name].shape != weights.shape:  # copying would repeat what is too short
                raise ValueError(
                    f"{name} has the shape {tuple(kept[name].shape)}, not {tuple(weights.shape)}"
                )
            kept[name] = torch.empty_like(weights).copy_(kept[name])
    learner.steps = steps


def write_checkpoint(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Replace the checkpoint at *path* at once."""
    content = save(dict(tensors), metadata={FACTS: json.dumps(facts)})
    with sealing(path) as part:
        part.write_bytes(content)


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and facts of a checkpoint; raises `Corrupt` if it is none."""
    try:
        with safe_open(path, framework="pt") as file:
            facts = parse_json(file.metadata()[FACTS])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a mapping
    except (SafetensorError, KeyError, TypeError, ValueError) as fault:
        raise Corrupt(path, found=f"no checkpoint ({fault})", advice=_ADVICE) from fault
    if not isinstance(facts, dict):
        raise Corrupt(path, found="no checkpoint (its facts are no object)", advice=_ADVICE)
    return tensors, facts


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
