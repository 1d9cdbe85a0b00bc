"""What every search for parameters is made of: its own parameters and findings, the study that keeps its
trials, the matches it judges by, and the training of one trial.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import optuna
import torch
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.storages import RDBStorage
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.pool import NullPool

from ringrift.errors import ConfigError
from ringrift.games.contract import Game
from ringrift.jobs.frame import Job, Params, StopNow
from ringrift.jobs.training.learner import Epochs, EpochsConfig, Learner, LearnerConfig, LearningRate
from ringrift.jobs.training.rows import Numbers, SampleFile, SampleSet
from ringrift.network.evaluator import NetEvaluator
from ringrift.network.model import ResidualNet, build, chosen_device
from ringrift.players.contract import Player
from ringrift.players.matches import MatchConfig, Tally, play_match
from ringrift.players.search_player import SearchPlayer
from ringrift.search.contract import SearchConfig

# Parameters and findings of the `tune` job.


SAMPLES_NEEDED = ("halving", "pbt", "nas")


class TuneParams(Params, frozen=True, kw_only=True):
    """Parameters of `tune`."""

    config: Annotated[str, msgspec.Meta(description="Game and players, such as square8_2p.")]
    kind: Annotated[
        Literal["cmaes", "halving", "pbt", "nas"],
        msgspec.Meta(description="A search's settings or heuristic weights, training (two ways), or size."),
    ]
    out: Annotated[Path, msgspec.Meta(description="Folder of the search; the same folder goes on with it.")]
    samples: Annotated[tuple[Path, ...], msgspec.Meta(description="NPZ files; not for cmaes.")] = ()
    subject: Annotated[
        Literal["auto", "search", "heuristic"],
        msgspec.Meta(description="What cmaes tunes; auto: the search of --model, without one the heuristic."),
    ] = "auto"
    model: Annotated[Path | None, msgspec.Meta(description="Weights whose search cmaes tunes.")] = None
    c_scale: Annotated[float, msgspec.Meta(ge=0, description="In use: weight of values.")] = 0.1
    c_visit: Annotated[float, msgspec.Meta(ge=0, description="In use: visits before values count.")] = 50.0
    considered: Annotated[int, msgspec.Meta(ge=1, description="In use: root actions that are tried.")] = 16
    rescale: Annotated[bool, msgspec.Meta(description="In use: values of a node stretched to 0..1.")] = True
    trials: Annotated[int, msgspec.Meta(ge=1, le=10_000, description="Sets to try by halving.")] = 16
    population: Annotated[int, msgspec.Meta(ge=4, le=256, description="Sets of a generation.")] = 8
    generations: Annotated[int, msgspec.Meta(ge=1, le=10_000, description="Generations.")] = 6
    games: Annotated[int, msgspec.Meta(ge=2, description="Games that judge one set.")] = 64
    verify_games: Annotated[
        int, msgspec.Meta(ge=0, description="Games of the best against what is used now; 0: none.")
    ] = 200
    simulations: Annotated[int, msgspec.Meta(ge=2, description="Of networks in matches.")] = 16
    rows: Annotated[int, msgspec.Meta(ge=0, description="Rows that one training sees; 0: 4 times all.")] = 0
    preset: Annotated[str, msgspec.Meta(description="Size of the network, but for nas.")] = "small"
    presets: Annotated[tuple[str, ...], msgspec.Meta(description="Sizes that nas compares.")] = (
        "small",
        "medium",
    )
    spread: Annotated[
        float, msgspec.Meta(gt=0, le=1, description="First spread of weights, as a share of them.")
    ] = 0.15
    quick: Annotated[bool, msgspec.Meta(description="Judge weights by the quick heuristic.")] = True
    hold_out: Annotated[float, msgspec.Meta(gt=0, le=0.5, description="Share of games held out.")] = 0.1
    lr: Annotated[float, msgspec.Meta(gt=0, description="Learning rate in use.")] = 2e-3
    batch: Annotated[int, msgspec.Meta(ge=1, description="Batch in use.")] = 256
    weight_decay: Annotated[float, msgspec.Meta(ge=0, description="Weight decay in use.")] = 1e-4
    seed: Annotated[int, msgspec.Meta(ge=0, description="Seed of everything.")] = 0
    device: Annotated[Literal["auto", "cpu", "cuda"], msgspec.Meta(description="Where to compute.")] = "auto"
    threads: Annotated[int, msgspec.Meta(ge=1, le=1024, description="Threads on a CPU.")] = 1

    def check(self) -> None:
        """Raise `ConfigError` for what only the fields together can tell."""
        if self.kind in SAMPLES_NEEDED and not self.samples:
            raise ConfigError(f"tune: {self.kind} needs --samples to train on")
        if self.subject == "search" and self.model is None:
            raise ConfigError("tune: a search is tuned with the network that it serves; name its --model")
        if self.subject == "heuristic" and self.model is not None:
            raise ConfigError("tune: the heuristic plays without the network of --model")
        if self.kind == "nas" and len(set(self.presets)) < 2:
            raise ConfigError("tune: nas needs two --presets to compare")


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """A match of what was found against what is used now, with games that the search never saw."""

    games: int
    score: float
    low: float
    high: float

    @property
    def improved(self) -> bool:
        """Whether the whole interval lies on the better side."""
        return self.low > 0.5


class TuningFinding(msgspec.Struct, frozen=True, kw_only=True):
    """What a search came to."""

    best_params: dict[str, Any]
    best_score: float  # higher is better
    evaluations: int
    generations: tuple[dict[str, Any], ...] = ()  # generation, best_score
    scores: dict[str, float] = {}  # of each candidate, where they have names
    verified: Verified | None = None

    @property
    def improved(self) -> bool:
        return self.verified is not None and self.verified.improved


# Optuna studies in the folder of a search: trials are stored as they end, so a killed search goes on.


FILE_NAME = "study.db"


@contextmanager
def open_study(
    folder: Path, name: str, *, sampler: BaseSampler, pruner: BasePruner | None = None
) -> Iterator[Study]:
    """The study *name* of *folder*, to be maximized. Trials that a killed process left are tried again."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    folder.mkdir(parents=True, exist_ok=True)
    # No connection outlives its use, so nothing is left open when the job is told to end.
    storage = RDBStorage(f"sqlite:///{folder / FILE_NAME}", engine_kwargs={"poolclass": NullPool})
    try:
        study = optuna.create_study(
            study_name=name,
            storage=storage,
            sampler=sampler,
            pruner=pruner,
            direction=StudyDirection.MAXIMIZE,
            load_if_exists=True,
        )
        for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            study.tell(trial.number, state=TrialState.FAIL)
            study.enqueue_trial(trial.params)
        yield study
    finally:
        storage.remove_session()
        storage.engine.dispose()


def judged(study: Study) -> list[FrozenTrial]:
    """The trials that came to a score, in order."""
    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))


def tried(study: Study) -> int:
    """How many trials ended with a result, early or not."""
    return len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)))


def generations_of(study: Study, size: int) -> tuple[dict[str, Any], ...]:
    """The best score so far after every *size* judged trials."""
    scores = [trial.value for trial in judged(study) if trial.value is not None]
    ends = range(size, len(scores) + 1, size)
    return tuple({"generation": end // size, "best_score": round(max(scores[:end]), 6)} for end in ends)


# Matches that a search judges by.


VERIFY_SEED = 1_000_003  # games that no trial saw


def match(job: Job, game: Game, players: tuple[Player, Player], *, games: int, seed: int) -> Tally:
    """Paired games of the first against the second; leaves the job if it is asked to stop."""
    openings = max(1, games // game.players)
    config = MatchConfig(openings=openings, seed=seed)
    found = play_match(game, players, config, interrupted=lambda: job.stop.requested)
    if job.stop.requested:
        raise StopNow
    return found.tally


def verify(job: Job, game: Game, players: tuple[Player, Player], *, games: int, seed: int) -> Verified | None:
    """The finding against what is used now, or None if nobody asked for it."""
    if not games:
        return None
    job.stage("verifying", total=games)
    tally = match(job, game, players, games=games, seed=seed + VERIFY_SEED)
    low, high = tally.interval
    return Verified(games=tally.games, score=round(tally.score, 4), low=round(low, 4), high=round(high, 4))


def net_player(name: str, net: ResidualNet, game: Game, *, simulations: int) -> SearchPlayer:
    return SearchPlayer(name, game, NetEvaluator(net, game), SearchConfig(simulations=simulations))


# One training under parameters that are being tried.


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
