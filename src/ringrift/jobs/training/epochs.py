"""Training over a fixed set of rows: order, hold-out, early stop, and a state that a checkpoint holds
whole.

What a step sees follows from the seed and the number of the step, so a run that goes on from a checkpoint
makes the same steps as one that was never interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ringrift.errors import ConfigError, Corrupt
from ringrift.games.contract import Game
from ringrift.jobs.samples.layout import drawn
from ringrift.jobs.training.learner import LOSSES, Learner, LearningRate, net_with
from ringrift.jobs.training.rows import Floats, Numbers, RowSource, TrainingBatch, make_batch
from ringrift.network.model import ResidualNet

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
