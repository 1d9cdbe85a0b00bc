"""One network being trained: loss, optimiser, averaged weights.

The average of the weights over the last steps plays better than the last step's and is what is kept. On a
GPU the network is compiled and computes in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from ringrift.errors import ConfigError
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
