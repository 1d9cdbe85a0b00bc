"""One training under parameters that are being tried."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ringrift.errors import ConfigError
from ringrift.games.contract import Game
from ringrift.jobs.frame import Job
from ringrift.jobs.training.epochs import Epochs, EpochsConfig
from ringrift.jobs.training.learner import Learner, LearnerConfig
from ringrift.jobs.training.rows import Numbers
from ringrift.jobs.training.sample_files import SampleFile, SampleSet
from ringrift.jobs.training.schedule import LearningRate
from ringrift.jobs.tuning.params import TuneParams
from ringrift.network.devices import chosen_device
from ringrift.network.model import ResidualNet, build

BATCHES = (16, 32, 64, 128, 256, 512, 1024)
RATES = (3e-4, 1e-2)
DECAYS = (1e-6, 1e-2)
WINDOW_MIN = 0.25
LAST_RATE_SHARE = 0.1
AVERAGED_SHARE = 8  # the average remembers about an eighth of a run
STEPS_PER_EPOCH_MIN = 4


@dataclass(frozen=True, slots=True)
class Knobs:
    """What is tuned: learning rate, batch, weight decay, and the share of the newest rows that is used."""

    lr: float
    batch: int
    weight_decay: float
    window: float = 1.0

    def as_params(self) -> dict[str, Any]:
        """Short enough to read."""
        return {
            "lr": float(f"{self.lr:.4g}"),
            "batch": self.batch,
            "weight_decay": float(f"{self.weight_decay:.4g}"),
            "window": round(self.window, 3),
        }


class Data:
    """The rows of a search: which are held out is the same for every trial."""

    def __init__(self, game: Game, rows: SampleSet, params: TuneParams) -> None:
        self.game, self.rows, self.params = game, rows, params
        self.train, self.held = rows.split(params.hold_out)
        if not len(self.held):
            raise ConfigError("tune: no game is held out; give more samples, or a larger --hold-out")
        self.budget_rows = params.rows or 4 * len(self.train)
        self.device = chosen_device(params.device)

    def window(self, share: float) -> Numbers:
        """The newest rows to train on."""
        return self.train[-max(1, round(share * len(self.train))) :]

    def batches(self) -> list[int]:
        """Batches of which the smallest window holds a few."""
        fitting = len(self.train) * WINDOW_MIN / STEPS_PER_EPOCH_MIN
        return [batch for batch in BATCHES if batch <= fitting] or [max(1, int(fitting))]

    def in_use(self) -> Knobs:
        """The parameters that are used now, as far as the rows allow them."""
        batch = max((each for each in self.batches() if each <= self.params.batch), default=self.batches()[0])
        return Knobs(self.params.lr, batch, max(DECAYS[0], self.params.weight_decay))


@contextmanager
def open_data(job: Job, params: TuneParams, game: Game) -> Iterator[Data]:
    torch.set_num_threads(params.threads)
    params.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tune-", dir=params.out) as scratch:
        job.stage("reading", total=len(params.samples))
        files = []
        for number, path in enumerate(params.samples):
            files.append(SampleFile(path, game, Path(scratch) / str(number)))
            job.progress(number + 1)
        yield Data(game, SampleSet(files), params)


def new_learner(data: Data, preset: str, knobs: Knobs, *, seed: int, steps: int) -> Learner:
    decay = max(0.0, 1.0 - AVERAGED_SHARE / max(steps, 1))
    config = LearnerConfig(weight_decay=knobs.weight_decay, average_decay=min(0.999, decay))
    return Learner(build(data.game, preset, seed=seed), config, device=data.device)


class Trainee:
    """Trains in *looks* equal parts; after each there is a loss on the held-out games."""

    def __init__(self, data: Data, knobs: Knobs, *, preset: str, seed: int, looks: int) -> None:
        self.knobs, self._data = knobs, data
        steps = max(looks, data.budget_rows // knobs.batch)
        self._per_look = steps // looks
        self.learner = new_learner(data, preset, knobs, seed=seed, steps=steps)
        rate = LearningRate(knobs.lr, knobs.lr * LAST_RATE_SHARE, min(20, steps // 10), steps)
        self._epochs = part_of_training(
            data,
            self.learner,
            knobs,
            rate,
            steps=self._per_look * looks,
            look_every=self._per_look,
            seed=seed,
        )
        self.best_loss, self.best_rows = float("inf"), 0

    def advance(self, job: Job) -> float:
        """Go on to the next look; returns the loss. Leaves the job if it is asked to stop."""
        loss = run_to_look(job, self._epochs)
        if loss < self.best_loss:
            self.best_loss, self.best_rows = loss, self._epochs.state.step * self.knobs.batch
        return loss

    def network(self) -> ResidualNet:
        return self._epochs.best_network()

    @property
    def samples_per_row(self) -> float:
        """How often each row of the window was seen when the loss was best."""
        return self.best_rows / len(self._data.window(self.knobs.window))

    def close(self) -> None:
        self._epochs.close()


def part_of_training(
    data: Data,
    learner: Learner,
    knobs: Knobs,
    rate: LearningRate,
    *,
    steps: int,
    look_every: int,
    seed: int,
) -> Epochs:
    config = EpochsConfig(
        seed=seed, batch=knobs.batch, steps=steps, check_every=look_every, patience=0, augment=True
    )
    split = (data.window(knobs.window), data.held)
    return Epochs(
        data.game, data.rows, learner, config, rate, split=split, draw_weights=data.rows.draw_weights
    )


def run_to_look(job: Job, epochs: Epochs) -> float:
    while not epochs.done:
        job.stop_point()
        line = epochs.step()
        if line is not None:
            return line["held_policy"] + line["held_value"]
    line = epochs.state.curve[-1]
    return line["held_policy"] + line["held_value"]


def varied(knobs: Knobs, batches: list[int], rng: random.Random) -> Knobs:
    """The same with every number moved a little, within its bounds."""
    at = batches.index(knobs.batch) if knobs.batch in batches else 0
    step = rng.choice((-1, 0, 0, 1))
    return replace(
        knobs,
        lr=float(np.clip(knobs.lr * rng.choice((0.8, 1.25)), *RATES)),
        weight_decay=float(np.clip(knobs.weight_decay * rng.choice((0.8, 1.25)), *DECAYS)),
        window=float(np.clip(knobs.window * rng.choice((0.8, 1.25)), WINDOW_MIN, 1.0)),
        batch=batches[min(len(batches) - 1, max(0, at + step))],
    )
