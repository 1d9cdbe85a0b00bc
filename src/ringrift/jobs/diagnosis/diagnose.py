"""The `diagnose` job: examines a game, a network and their data, and says in plain words what is wrong.

It checks what the control side cannot see: whether symmetries agree, a fresh network can learn a batch by
heart, labels follow from positions, the hold-out is apart, values hold, games are distinct and whole, and
how many solved positions a model keeps. Findings are no failure: the exit code is 0 with any of them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import torch

from ringrift.games.contract import Game, LegalActions
from ringrift.games.registry import load_game
from ringrift.jobs.diagnosis.checks import (
    Symptom,
    check_calibration,
    check_games,
    check_hold_out,
    check_labels,
    check_network_symmetry,
    check_overfit,
    check_symmetries,
    judge_canary,
    solved_positions,
)
from ringrift.jobs.files import describe, seal_json
from ringrift.jobs.frame import Job, JobSpec, Outcome, Params, run_job
from ringrift.jobs.samples.plan import HOLD_OUT
from ringrift.jobs.training.rows import SampleFile, SampleSet, TrainingRows
from ringrift.network.architecture import ModelCard
from ringrift.network.evaluator import sample_positions
from ringrift.network.model import ResidualNet
from ringrift.network.storage import load_model

# Rows to learn from before there are any: positions of random games with the moves and results of these.


def random_rows(game: Game, count: int, *, seed: int) -> TrainingRows:
    """Each position with one random action as its policy, and the end of one random game from there."""
    rng = np.random.default_rng(seed)
    states = sample_positions(game, count, seed=seed)
    legal: LegalActions = game.legal(states)
    policy = np.zeros(len(legal.actions), dtype=np.float32)
    policy[legal.offsets[:-1] + (rng.random(count) * legal.counts).astype(np.int64)] = 1.0
    ends = states.copy()
    game.play_random(ends, seed=seed)
    return TrainingRows(
        states=states,
        legal=legal,
        policy=policy,
        seats=np.asarray(game.to_move(states), dtype=np.int64),
        values=game.results(ends),
        weights=np.ones(count, dtype=np.float32),
    )


DIAGNOSIS_VERSION = 1
BATCH_ROWS = 512  # enough that learning them by heart proves something, few enough for a minute
CANARY_CHANCE = 0.05  # a trained model keeps at least so much more than chance


class DiagnoseParams(Params, frozen=True, kw_only=True):
    """Parameters of `diagnose`."""

    config: Annotated[str, msgspec.Meta(description="Game and players, such as square8_2p.")]
    out: Annotated[Path, msgspec.Meta(description="The diagnosis to write, as JSON.")]
    model: Annotated[Path | None, msgspec.Meta(description="Model to examine.")] = None
    samples: Annotated[tuple[Path, ...], msgspec.Meta(description="NPZ files of `export`.")] = ()
    shards: Annotated[tuple[Path, ...], msgspec.Meta(description="Shards whose games are examined.")] = ()
    preset: Annotated[str, msgspec.Meta(description="Size of fresh networks.")] = "small"
    hold_out: Annotated[float, msgspec.Meta(ge=0, le=0.5, description="Share of games held out.")] = HOLD_OUT
    canary: Annotated[int, msgspec.Meta(ge=0, le=10_000, description="Solved positions to try.")] = 64
    seed: Annotated[int, msgspec.Meta(ge=0, description="Seed of positions and fresh networks.")] = 1


def run_diagnose(job: Job, params: DiagnoseParams) -> Outcome:
    game = load_game(params.config)
    torch.set_num_threads(1)  # beside a run that uses the other cores
    found = _Examination(job, params, game)
    # The cheap ones first; what they find explains what the later ones say.
    steps = (found.symmetries, found.learning, found.games, found.canary)
    job.stage("examining", total=len(steps))
    for number, step in enumerate(steps, start=1):
        job.stop_point()
        step()
        job.progress(number)
    document = found.document()
    seal_json(params.out, document)
    counts = {
        level: sum(each.level == level for each in found.symptoms)
        for level in ("fine", "notice", "warning", "problem")
    }
    job.sealed(describe(params.out, "diagnosis", config=game.key, model=document["model"], **counts))
    return Outcome(fields=document)


class _Examination:
    """The checks of one run of the job, and what they found."""

    def __init__(self, job: Job, params: DiagnoseParams, game: Game) -> None:
        self._job, self._params, self._game = job, params, game
        self._net: ResidualNet | None = None
        self._card: ModelCard | None = None
        if params.model is not None:
            self._net, self._card = load_model(params.model, config=game.key)
        self.symptoms: list[Symptom] = []
        self._canary: dict[str, Any] | None = None

    def symmetries(self) -> None:
        self._add(check_symmetries(self._game, seed=self._params.seed))
        if self._net is not None:
            self._add(check_network_symmetry(self._game, self._net, seed=self._params.seed))

    def learning(self) -> None:
        """Everything about samples; without any, only whether a network can learn a batch of random games."""
        params, game = self._params, self._game
        if not params.samples:
            self._overfit(random_rows(game, BATCH_ROWS, seed=params.seed))
            return
        # Beside the result: the usual folder for temporary files may be small, or in memory.
        with tempfile.TemporaryDirectory(prefix=".diagnose-", dir=_made(params.out.parent)) as scratch:
            files = [SampleFile(path, game, Path(scratch) / str(n)) for n, path in enumerate(params.samples)]
            source = SampleSet(files)
            hashes = np.concatenate([file.game_hashes for file in files])
            split = source.split(params.hold_out)
            rng = np.random.default_rng(params.seed)
            # sorted, as rows that lie together are read together
            some = np.sort(rng.permutation(split[0])[:BATCH_ROWS])
            if len(some):
                self._overfit(source.take(some))
            stop_point, seed = self._job.stop_point, params.seed
            self._add(
                check_labels(game, source, split, preset=params.preset, seed=seed, stop_point=stop_point)
            )
            self._add(check_hold_out(game, source, split, hashes, share=params.hold_out))
            if self._net is not None:
                self._add(check_calibration(game, source, split[1], self._net))

    def games(self) -> None:
        self.symptoms += check_games(self._game, self._params.shards)

    def canary(self) -> None:
        params, game = self._params, self._game
        if self._net is None or not params.canary:
            return
        positions = solved_positions(game, params.canary, seed=params.seed, stop_point=self._job.stop_point)
        if not positions:
            text = "no late position of this game is small enough to be solved"
            self._add(Symptom(check="canary", level="fine", config=game.key, text=text))
            return
        found = self._canary = judge_canary(game, self._net, positions, seed=params.seed)
        # The search and not the network alone: it is what plays.
        poor = found["kept_by_search"] < found["by_chance"] + CANARY_CHANCE
        self._add(
            Symptom(
                check="canary",
                level="problem" if poor else "fine",
                config=game.key,
                text=f"of {found['positions']} solved positions the network keeps {found['kept']:.0%}, "
                f"search with it {found['kept_by_search']:.0%}, chance {found['by_chance']:.0%}",
                advice="It plays late positions as if blind: look at labels, seats and signs."
                if poor
                else "",
                evidence=found,
            )
        )

    def document(self) -> dict[str, Any]:
        return {
            "version": DIAGNOSIS_VERSION,
            "config": self._game.key,
            "model": None if self._card is None else self._card.sha256,
            "at_s": self._job.runtime.now_s(),
            "findings": [msgspec.to_builtins(each) for each in self.symptoms],
            "canary": self._canary,
        }

    def _overfit(self, rows: TrainingRows) -> None:
        params = self._params
        self._add(
            check_overfit(
                self._game, rows, preset=params.preset, seed=params.seed, stop_point=self._job.stop_point
            )
        )

    def _add(self, symptom: Symptom | None) -> None:
        if symptom is not None:
            self.symptoms.append(symptom)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


DIAGNOSE = JobSpec(
    "diagnose",
    "Examine a game, a network and their data, and say what is wrong.",
    DiagnoseParams,
    run_diagnose,
)


def main(argv: Sequence[str]) -> int:
    return run_job(DIAGNOSE, argv)
