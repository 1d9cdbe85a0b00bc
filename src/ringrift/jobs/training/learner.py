"""One network being trained: loss, optimizer, averaged weights, learning rate, and all that a resume needs.

The average of the weights over the last steps plays better than the last step's and is what is kept. On a
GPU the network is compiled and computes in bfloat16.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
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
from ringrift.games.contract import Game
from ringrift.jobs.files import sealing
from ringrift.jobs.samples.npz_files import drawn
from ringrift.jobs.training.rows import Floats, Numbers, RowSource, TrainingBatch, make_batch
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
        self.optimizer = torch.optim.AdamW(
            self.net.parameters(), lr=0.0, weight_decay=config.weight_decay, fused=True
        )
        self._forward: Forward = torch.compile(self.net) if config.compile else self.net

    def step(self, batch: TrainingBatch, lr: float) -> Tensor:
        """One step of descent; returns the losses named in `LOSSES`, before the step."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.zero_grad(set_to_none=True)
        policy, value, entropy = self._losses(self._forward, batch)
        (policy + self.config.value_weight * value).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), self.config.clip_norm)
        self.optimizer.step()
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
_OPTIMIZER = ("step", "exp_avg", "exp_avg_sq")
_ADVICE = "Remove it to start this training anew"


def learner_tensors(learner: Learner) -> dict[str, Tensor]:
    """Weights, averaged weights and the optimizer's moments, by name."""
    tensors = {f"net.{name}": value for name, value in learner.net.state_dict().items()}
    tensors |= {f"average.{name}": value for name, value in learner.average.items()}
    state = learner.optimizer.state_dict()["state"]
    for number, moments in state.items():
        tensors |= {f"optimiser.{number}.{name}": moments[name] for name in _OPTIMIZER}
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
    state = learner.optimizer.state_dict()
    learner.optimizer.load_state_dict({**state, "state": moments})
    # The fused step walks weights and moments side by side in memory, so they must lie there alike.
    for weights, kept in learner.optimizer.state.items():
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


# --- epochs -------------------------------------------------------------------------------------------
#
# Training over a fixed set of rows: order, hold-out, early stop, and a state that a checkpoint holds
# whole.
#
# What a step sees follows from the seed and the number of the step, so a run that goes on from a checkpoint
# makes the same steps as one that was never interrupted.


# Whether values mean what they say: of positions called 0.6, how did the games end on average?


BINS = 10

Values = npt.NDArray[np.float32]


class ValueCalibration:
    """Sums what was said and what was wanted, by what was said; values lie in [-1, 1]."""

    def __init__(self) -> None:
        self._rows = np.zeros(BINS, dtype=np.int64)
        self._said, self._wanted = np.zeros(BINS), np.zeros(BINS)

    def add(self, said: Values, wanted: Values) -> None:
        bins = np.clip(((said + 1) / 2 * BINS).astype(np.int64), 0, BINS - 1)
        self._rows += np.bincount(bins, minlength=BINS)
        self._said += np.bincount(bins, weights=said, minlength=BINS)
        self._wanted += np.bincount(bins, weights=wanted, minlength=BINS)

    def as_json(self) -> dict[str, Any] | None:
        """The mean distance of said from wanted, and every bin that has rows; None if nothing was added."""
        used = np.flatnonzero(self._rows)
        if not used.size:
            return None
        rows = self._rows[used]
        said, wanted = self._said[used] / rows, self._wanted[used] / rows
        bins = zip(rows.tolist(), said.round(4).tolist(), wanted.round(4).tolist(), strict=True)
        return {
            "error": round(float(np.average(np.abs(said - wanted), weights=rows)), 4),
            "bias": round(float(np.average(said - wanted, weights=rows)), 4),
            "bins": [{"rows": count, "said": mean, "was": result} for count, mean, result in bins],
        }


# Batches made by other threads while the network computes: a GPU is done before the next one is made.


LOADERS_MAX = 16


class BatchesAhead:
    """Batches by the number of their step, some of them made before they are asked for."""

    def __init__(self, make: Callable[[int], TrainingBatch], *, last: int, ahead: int) -> None:
        self._make, self._last, self._ahead = make, last, ahead
        self._pool = ThreadPoolExecutor(min(ahead, LOADERS_MAX), "batches") if ahead else None
        self._coming: dict[int, Future[TrainingBatch]] = {}

    def at(self, step: int) -> TrainingBatch:
        if self._pool is None:
            return self._make(step)
        for number in range(step, min(step + self._ahead + 1, self._last)):
            if number not in self._coming:
                self._coming[number] = self._pool.submit(self._make, number)
        return self._coming.pop(step).result()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


DIVERGED = 3.0  # times the training loss: the hold-out is forgotten, more steps make it worse


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochsConfig:
    """How long to train, and on what."""

    seed: int
    batch: int
    steps: int
    check_every: int  # steps between looks at the hold-out
    patience: int  # looks without a better one before the end; 0 for never
    augment: bool
    batches_ahead: int = 0  # made by other threads while the network computes; for GPUs


@dataclass(slots=True)
class EpochsState:
    """Where a run is; plain values, saved with every checkpoint."""

    step: int = 0
    checks: int = 0
    best_loss: float | None = None
    best_step: int = 0
    stale_checks: int = 0
    ended: str = ""  # why it ended before its last step
    sums: list[float] = field(default_factory=lambda: [0.0] * len(LOSSES))
    summed_steps: int = 0
    curve: list[dict[str, float]] = field(default_factory=list)


class Epochs:
    """A run over *rows*. `step` makes one step; the caller decides when to save."""

    def __init__(
        self,
        game: Game,
        rows: RowSource,
        learner: Learner,
        config: EpochsConfig,
        rate: LearningRate,
        *,
        split: tuple[Numbers, Numbers],
        draw_weights: Floats,
    ) -> None:
        self.config, self.rate, self.learner, self.state = config, rate, learner, EpochsState()
        self._game, self._rows = game, rows
        self._train, self._held = split
        if len(self._train) < config.batch:
            raise ConfigError(f"{len(self._train)} rows to train on do not fill a batch of {config.batch}")
        self.steps_per_epoch = len(self._train) // config.batch
        weights = draw_weights[self._train]
        self._upto = np.cumsum(weights, dtype=np.float64) if np.ptp(weights) else None
        self.best: dict[str, Tensor] = {name: value.clone() for name, value in learner.average.items()}
        self._batches = BatchesAhead(self._batch, last=config.steps, ahead=config.batches_ahead)
        self._order_of = lru_cache(maxsize=2)(self._order)

    @property
    def done(self) -> bool:
        return bool(self.state.ended) or self.state.step >= self.config.steps

    def step(self) -> dict[str, float] | None:
        """Make one step; returns a line of the curve when the hold-out was looked at."""
        state = self.state
        losses = self.learner.step(self._batches.at(state.step), self.rate.at(state.step)).tolist()
        state.step += 1
        state.sums = [total + loss for total, loss in zip(state.sums, losses, strict=True)]
        state.summed_steps += 1
        if not np.isfinite(losses).all():
            raise Corrupt(
                "the loss", found=f"step {state.step} gave {losses}", advice="Lower the learning rate"
            )
        if state.step % self.config.check_every and not self.done:
            return None
        return self._check()

    def end(self, reason: str) -> dict[str, float] | None:
        """Take no more steps; returns a line of the curve if there were steps since the last look."""
        if self.done:
            return None
        self.state.ended = reason
        return self._check() if self.state.summed_steps else None

    def close(self) -> None:
        """Let go of batches made ahead."""
        self._batches.close()

    def _order(self, epoch: int) -> Numbers:
        return np.random.default_rng([self.config.seed, epoch]).permutation(self._train)

    def _batch(self, step: int) -> TrainingBatch:
        size = self.config.batch
        rows = self._rows.take(np.sort(self._chosen(step)))
        if not self.config.augment:
            return make_batch(self._game, rows)
        rng = np.random.default_rng([self.config.seed, step, 1])
        return make_batch(self._game, rows, rng.integers(0, self._game.symmetries, size))

    def _chosen(self, step: int) -> Numbers:
        """The rows of a step: all in turn, or as often as their weights say."""
        size = self.config.batch
        if self._upto is not None:
            rng = np.random.default_rng([self.config.seed, step, 2])
            return self._train[drawn(self._upto, rng, size)]
        epoch, place = divmod(step, self.steps_per_epoch)
        return self._order_of(epoch)[place * size : (place + 1) * size]

    def _check(self) -> dict[str, float]:
        """Compare the averaged weights with the best ones on the hold-out."""
        state = self.state
        line = {"step": float(state.step), "epoch": state.step / self.steps_per_epoch}
        line["lr"] = self.rate.at(state.step - 1)
        trained = {
            f"train_{name}": total / state.summed_steps
            for name, total in zip(LOSSES, state.sums, strict=True)
        }
        held = {f"held_{name}": value for name, value in self._held_losses().items()}
        line |= trained | held
        state.sums, state.summed_steps = [0.0] * len(LOSSES), 0
        state.checks += 1
        state.curve.append({name: round(value, 6) for name, value in line.items()})
        self._judge(trained, held)
        return state.curve[-1]

    def _judge(self, trained: Mapping[str, float], held: Mapping[str, float]) -> None:
        state = self.state
        if not held:
            self._take_as_best(None)
            return
        loss, train_loss = (
            held["held_policy"] + held["held_value"],
            trained["train_policy"] + trained["train_value"],
        )
        if state.best_loss is None or loss < state.best_loss:
            self._take_as_best(loss)
            return
        state.stale_checks += 1
        if self.config.patience and state.stale_checks >= self.config.patience:
            state.ended = f"no better hold-out loss for {state.stale_checks} looks"
        elif loss > DIVERGED * train_loss:
            state.ended = f"the hold-out loss is {loss / train_loss:.1f} times the training loss"

    def _take_as_best(self, loss: float | None) -> None:
        self.state.best_loss, self.state.best_step, self.state.stale_checks = loss, self.state.step, 0
        for name, value in self.learner.average.items():
            self.best[name].copy_(value)

    def _held_losses(self) -> dict[str, float]:
        if not len(self._held):
            return {}
        net = net_with(self.learner.net, self.learner.average).to(self.learner.device)
        total, size = np.zeros(len(LOSSES)), self.config.batch
        for start in range(0, len(self._held), size):
            rows = self._rows.take(self._held[start : start + size])
            total += self.learner.judge(net, make_batch(self._game, rows)).cpu().numpy() * len(rows.states)
        return dict(zip(LOSSES, (total / len(self._held)).tolist(), strict=True))

    def calibration(self, net: ResidualNet) -> dict[str, Any] | None:
        """How far the values of *net* are off on the hold-out, for the player on turn; None without one."""
        placed, found, size = net.to(self.learner.device), ValueCalibration(), self.config.batch
        for start in range(0, len(self._held), size):
            batch = make_batch(self._game, self._rows.take(self._held[start : start + size]))
            found.add(self.learner.values(placed, batch)[:, 0], batch.values[:, 0])
        return found.as_json()

    def best_network(self) -> ResidualNet:
        return net_with(self.learner.net, self.best)


def state_facts(state: EpochsState) -> dict[str, Any]:
    return {name: getattr(state, name) for name in EpochsState.__dataclass_fields__}
