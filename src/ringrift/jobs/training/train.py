"""The `train` job: samples to a model.

Stopped and started again, or killed and started again, it ends with the same weights as a run that was
left alone (on a CPU, with the same number of threads). The model is the average of the weights at the best
look at the held-out games; its card names its parent, its data and the rows that it has seen. Beside it
lies a checkpoint: a training that is given both goes on as if there had been no end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import structlog
import torch

from ringrift.errors import AlreadyExists, ConfigError, Corrupt
from ringrift.files import file_sha256
from ringrift.games.contract import Game
from ringrift.games.registry import load_game
from ringrift.jobs.files import alone, describe, scratch_folder, sealing
from ringrift.jobs.frame import Job, JobSpec, Outcome, Params, params_as_json, run_job
from ringrift.jobs.kinds import ExitCode
from ringrift.jobs.samples.plan import HOLD_OUT
from ringrift.jobs.training.learner import (
    Epochs,
    EpochsConfig,
    EpochsState,
    Learner,
    LearnerConfig,
    LearningRate,
    learner_tensors,
    read_checkpoint,
    restore_learner,
    state_facts,
    write_checkpoint,
)
from ringrift.jobs.training.rows import SampleFile, SampleSet
from ringrift.network.architecture import ModelCard, card_path, read_card
from ringrift.network.evaluator import has_bfloat16
from ringrift.network.model import ResidualNet, build, chosen_device
from ringrift.network.storage import SUFFIX, load_model, save_model, take_over
from ringrift.statistics.line_plot import line_plot

# What has no influence on the weights.
NOT_IDENTITY = {
    *("out", "samples", "parent", "checkpoint", "warm_start", "threads", "loaders"),
    *("checkpoint_s", "heartbeat_s", "log_level"),
}
BEST = "best."
GPU_LOADERS = 14  # threads that make batches: one alone cannot keep a GPU busy
STEPS_MAX = 10**12  # a number out of a file; far beyond any training

log = structlog.get_logger()


class TrainParams(Params, frozen=True, kw_only=True):
    """Parameters of `train`."""

    config: Annotated[str, msgspec.Meta(description="Game and players, such as square8_2p.")]
    samples: Annotated[tuple[Path, ...], msgspec.Meta(min_length=1, description="NPZ files of `export`.")]
    out: Annotated[Path, msgspec.Meta(description="The model to write, ending in .safetensors.")]
    parent: Annotated[Path | None, msgspec.Meta(description="Model to start from; from nothing if none.")] = (
        None
    )
    checkpoint: Annotated[
        Path | None,
        msgspec.Meta(
            description="With the parent: its weights, averages and optimizer, to go on exactly there."
        ),
    ] = None
    warm_start: Annotated[
        Path | None, msgspec.Meta(description="Without a parent: a model of another config to begin with.")
    ] = None
    preset: Annotated[str, msgspec.Meta(description="Size, without a parent: small, medium, large.")] = (
        "small"
    )
    seed: Annotated[int, msgspec.Meta(ge=0, description="Seed of weights, order and symmetries.")] = 0
    epochs: Annotated[float, msgspec.Meta(gt=0, description="Passes over the rows.")] = 4.0
    steps: Annotated[int, msgspec.Meta(ge=0, description="Steps in all; 0: as the epochs say.")] = 0
    seconds: Annotated[float, msgspec.Meta(ge=0, description="End after so long; 0: no limit.")] = 0.0
    batch: Annotated[int, msgspec.Meta(ge=1, le=65536, description="Rows of a step.")] = 256
    lr: Annotated[float, msgspec.Meta(gt=0, description="Highest learning rate.")] = 2e-3
    lr_end: Annotated[float, msgspec.Meta(ge=0, description="Learning rate of the last step.")] = 2e-4
    warmup_steps: Annotated[int, msgspec.Meta(ge=0, description="Steps up to the highest rate.")] = 100
    weight_decay: Annotated[float, msgspec.Meta(ge=0, description="Pull of all weights to zero.")] = 1e-4
    clip_norm: Annotated[float, msgspec.Meta(gt=0, description="Largest norm of a gradient.")] = 1.0
    value_weight: Annotated[float, msgspec.Meta(gt=0, description="Weight of values beside policies.")] = 1.0
    average_decay: Annotated[
        float, msgspec.Meta(ge=0, lt=1, description="Memory of the averaged weights.")
    ] = 0.999
    hold_out: Annotated[float, msgspec.Meta(ge=0, le=0.5, description="Share of games held out.")] = HOLD_OUT
    held_rows: Annotated[
        int, msgspec.Meta(ge=0, description="Newest held-out rows that a look takes; 0: all.")
    ] = 0
    check_every: Annotated[int, msgspec.Meta(ge=0, description="Steps between looks; 0: an epoch.")] = 0
    patience: Annotated[
        int, msgspec.Meta(ge=0, description="Looks without gain before the end; 0: never.")
    ] = 5
    augment: Annotated[bool, msgspec.Meta(description="Turn every sample at random.")] = True
    device: Annotated[Literal["auto", "cpu", "cuda"], msgspec.Meta(description="Where to compute.")] = "auto"
    bf16: Annotated[
        bool | None, msgspec.Meta(description="Compute in bfloat16; where that is fast if not said.")
    ] = None
    compile: Annotated[
        bool | None, msgspec.Meta(description="Compile the network; on a GPU if not said.")
    ] = None
    threads: Annotated[int, msgspec.Meta(ge=1, le=1024, description="Threads on a CPU.")] = 1
    loaders: (
        Annotated[int, msgspec.Meta(ge=0, le=64, description="Batches made ahead; on a GPU if not said.")]
        | None
    ) = None
    checkpoint_s: Annotated[float, msgspec.Meta(gt=0, description="Save a checkpoint so often.")] = 300.0


def run_train(job: Job, params: TrainParams) -> Outcome:
    if params.out.suffix != SUFFIX:
        raise ConfigError(f"--out {params.out}: a model's file ends in {SUFFIX}")
    game = load_game(params.config)
    set_up_torch(params)
    with (
        alone(params.out.with_suffix(".lock")),
        scratch_folder(params.out.parent, f".{params.out.stem}.train-") as scratch,
    ):
        job.stage("reading", total=len(params.samples))
        files = []
        for number, path in enumerate(params.samples):
            files.append(SampleFile(path, game, Path(scratch) / str(number)))
            job.progress(number + 1)
        run = _Run(job, params, game, SampleSet(files))
        # The same order may come twice, after a crash between its end and its report.
        if run.is_done():
            return run.finished()
        return run.train()


def set_up_torch(params: TrainParams) -> None:
    torch.set_num_threads(params.threads)
    if chosen_device(params.device) == "cpu":
        # A training that is resumed must end with the same weights as one that was never stopped.
        torch.use_deterministic_algorithms(True)
    else:
        torch.set_float32_matmul_precision("high")


class _Run:
    """One training run and its files."""

    def __init__(self, job: Job, params: TrainParams, game: Game, rows: SampleSet) -> None:
        self._job, self._params, self._game = job, params, game
        self._net, self._parent = _starting_network(params, game)
        self._warm = None if params.warm_start is None else take_over(self._net, params.warm_start)
        self._data = [file_sha256(path) for path in params.samples]
        self._identity = self._fingerprint()
        self._checkpoint = params.out.with_suffix(".checkpoint")
        train_rows, held_rows = rows.split(params.hold_out)
        split = (train_rows, held_rows[-params.held_rows :])  # 0 takes all: `[-0:]` is the whole
        device = chosen_device(params.device)
        on_gpu = device != "cpu"
        config = LearnerConfig(
            weight_decay=params.weight_decay,
            clip_norm=params.clip_norm,
            value_weight=params.value_weight,
            average_decay=params.average_decay,
            bf16=on_gpu or has_bfloat16() if params.bf16 is None else params.bf16,
            compile=on_gpu if params.compile is None else params.compile,
        )
        learner = Learner(self._net, config, device=device)
        if params.checkpoint is not None:
            _go_on_from(params.checkpoint, learner)
        self._steps_before = learner.steps
        per_epoch = max(1, len(split[0]) // params.batch)  # fewer rows than a batch are still one step
        steps = params.steps or max(1, round(params.epochs * per_epoch))
        self._epochs = Epochs(
            game,
            rows,
            learner,
            EpochsConfig(
                seed=params.seed,
                batch=params.batch,
                steps=steps,
                check_every=params.check_every or per_epoch,
                patience=params.patience,
                augment=params.augment,
                batches_ahead=params.loaders if params.loaders is not None else GPU_LOADERS * on_gpu,
            ),
            LearningRate(
                params.lr, min(params.lr_end, params.lr), min(params.warmup_steps, 1 + steps // 10), steps
            ),
            split=split,
            draw_weights=rows.draw_weights,
        )
        self._rows, self._held = len(split[0]), len(split[1])

    def _fingerprint(self) -> str:
        """The same for two runs that end with the same weights."""
        fields = {
            name: value for name, value in params_as_json(self._params).items() if name not in NOT_IDENTITY
        }
        parent = self._parent.sha256 if self._parent is not None else None
        begun: dict[str, Any] = {"data": self._data, "parent": parent}
        if self._params.checkpoint is not None:
            begun["checkpoint"] = file_sha256(self._params.checkpoint)
        if self._warm is not None:
            begun["warm_start"] = self._warm.sha256
        text = msgspec.json.encode({**fields, **begun}, order="sorted")
        return hashlib.sha256(text).hexdigest()

    def is_done(self) -> bool:
        """Whether this very run has written its model; raises if another one has."""
        if not card_path(self._params.out).exists():
            return False
        card = read_card(card_path(self._params.out))
        if card.notes.get("run") != self._identity:
            raise AlreadyExists(str(self._params.out))  # another training's model is never written over
        return True

    def train(self) -> Outcome:
        epochs, job = self._epochs, self._job
        self._resume()
        job.stage("training", total=epochs.config.steps, done=epochs.state.step)
        began_s = saved_s = job.runtime.monotonic_s()
        line: dict[str, Any] = {}
        pace = _Pace(self._params.batch)
        try:
            while not epochs.done:
                # a look at held-out rows comes only now and then; its numbers are told until the next
                line = epochs.step() or line
                now_s = job.runtime.monotonic_s()
                if 0 < self._params.seconds <= now_s - began_s:
                    line = epochs.end("its time is up") or line
                job.progress(epochs.state.step, samples_per_s=pace.after_step(now_s), **line)
                # Also when asked to stop: the next start goes on from this very step.
                if job.stop.requested or now_s - saved_s >= self._params.checkpoint_s:
                    self._save()
                    saved_s = now_s
                if job.stop.requested:
                    return Outcome(ExitCode.STOPPED, {"steps": epochs.state.step})
        finally:
            epochs.close()
        self._write()
        return self.finished(samples_per_s=pace.samples_per_s)

    def _resume(self) -> None:
        if not self._checkpoint.exists():
            return
        tensors, facts = read_checkpoint(self._checkpoint)
        if facts["run"] != self._identity:
            raise ConfigError(
                f"{self._checkpoint} is of a training with other data or parameters; finish it, or remove it"
            )
        epochs = self._epochs
        epochs.state = EpochsState(**facts["state"])
        # The steps of the parent count, as the average of the weights knows how many went before.
        restore_learner(epochs.learner, tensors, steps=self._steps_before + epochs.state.step)
        for name, value in epochs.best.items():
            value.copy_(tensors[BEST + name])
        log.info("train.resumed", step=epochs.state.step)

    def _save(self) -> None:
        epochs = self._epochs
        tensors = learner_tensors(epochs.learner)
        tensors |= {BEST + name: value.cpu().contiguous() for name, value in epochs.best.items()}
        write_checkpoint(
            self._checkpoint, tensors, {"run": self._identity, "state": state_facts(epochs.state)}
        )

    def _write(self) -> None:
        params, state = self._params, self._epochs.state
        net = self._epochs.best_network()
        before = self._parent.rows_seen if self._parent is not None else 0
        card = ModelCard(
            config=self._game.key,
            architecture=net.architecture,
            parent=self._parent.sha256 if self._parent is not None else None,
            rows_seen=before + state.best_step * params.batch,
            notes={"run": self._identity, "data": self._data, **self._training_notes(net)},
        )
        self._write_curve(state)
        learner = self._epochs.learner
        write_checkpoint(checkpoint_path(params.out), learner_tensors(learner), {"steps": learner.steps})
        save_model(net, card, params.out)

    def _write_curve(self, state: EpochsState) -> None:
        with sealing(self._params.out.with_suffix(".curve.jsonl")) as part:
            part.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in state.curve))
        names = [name for name in state.curve[-1] if name.partition("_")[0] in ("train", "held")]
        lines = {name: [(line["step"], line[name]) for line in state.curve] for name in names}
        with sealing(self._params.out.with_suffix(".curve.svg")) as part:
            title = f"{self._params.out.stem}: losses"
            part.write_text(line_plot(title, lines, x_label="step", y_label="loss"), encoding="utf8")

    def _training_notes(self, net: ResidualNet) -> dict[str, Any]:
        """What the card says of the run: losses at the last look, and how far values are off."""
        state = self._epochs.state
        last = state.curve[-1]
        return {
            "steps": state.step,
            "epochs": round(state.step / self._epochs.steps_per_epoch, 3),
            "best_step": state.best_step,
            "ended": state.ended or "all steps made",
            "rows": self._rows,
            "held_rows": self._held,
            "train": _losses_of("train_", last),
            "held": _losses_of("held_", last),
            "best_held": state.best_loss,
            "calibration": self._epochs.calibration(net),
            **({} if self._warm is None else {"warm_start": self._warm.as_json()}),
        }

    def finished(self, *, samples_per_s: float | None = None) -> Outcome:
        """The result, read from what is on disk."""
        self._checkpoint.unlink(missing_ok=True)
        card = read_card(card_path(self._params.out))
        self._job.sealed(describe(self._params.out, "model", config=card.config, rows_seen=card.rows_seen))
        self._job.sealed(describe(card_path(self._params.out), "card"))
        self._job.sealed(describe(checkpoint_path(self._params.out), "checkpoint"))
        for suffix in (".curve.jsonl", ".curve.svg"):
            self._job.sealed(describe(self._params.out.with_suffix(suffix), "curve"))
        notes = {name: value for name, value in card.notes.items() if name not in ("run", "data")}
        about = {
            "config": card.config,
            "model": str(self._params.out),
            "model_sha256": card.sha256,
            "parent": card.parent,
            "rows_seen": card.rows_seen,
            "samples_per_s": samples_per_s,
        }
        return Outcome(ExitCode.DONE, {**about, **notes})


class _Pace:
    """Samples per second of this process, without its first step, which compiles and loads."""

    def __init__(self, batch: int) -> None:
        self._batch, self._steps, self._began_s = batch, -1, 0.0
        self.samples_per_s: float | None = None

    def after_step(self, now_s: float) -> float | None:
        self._steps += 1
        if not self._steps:
            self._began_s = now_s
        elif now_s > self._began_s:
            self.samples_per_s = round(self._steps * self._batch / (now_s - self._began_s), 1)
        return self.samples_per_s


def _losses_of(prefix: str, line: dict[str, float]) -> dict[str, float] | None:
    """The losses of one look; None if there was nothing to look at."""
    found = {name.removeprefix(prefix): loss for name, loss in line.items() if name.startswith(prefix)}
    return found or None


def checkpoint_path(model: Path) -> Path:
    """Where the learner of a finished model is kept, for whoever trains on from it."""
    return model.with_suffix(f".checkpoint{SUFFIX}")


def _go_on_from(path: Path, learner: Learner) -> None:
    """Put *learner* where the training that wrote *path* ended."""
    tensors, facts = read_checkpoint(path)
    steps = facts.get("steps")
    if not isinstance(steps, int) or isinstance(steps, bool) or not 0 <= steps <= STEPS_MAX:
        raise Corrupt(path, found=f"no number of steps ({steps!r})", advice="Train on without it")
    try:
        restore_learner(learner, tensors, steps=steps)
    except (RuntimeError, KeyError, ValueError) as fault:  # torch says so of names and shapes that do not fit
        raise Corrupt(path, found=f"another network's ({fault})", advice="Train on without it") from None


def _starting_network(params: TrainParams, game: Game) -> tuple[ResidualNet, ModelCard | None]:
    if params.parent is not None and params.warm_start is not None:
        raise ConfigError("train: a network begins with --parent or with --warm-start, not with both")
    if params.checkpoint is not None and params.parent is None:
        raise ConfigError("train: a checkpoint goes with the --parent that it was written with")
    if params.parent is None:
        return build(game, params.preset, seed=params.seed), None
    return load_model(params.parent, config=game.key)


TRAIN = JobSpec("train", "Train a network from samples.", TrainParams, run_train)


def main(argv: Sequence[str]) -> int:
    return run_job(TRAIN, argv)
