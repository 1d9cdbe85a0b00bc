"""Population-based training: members train side by side, the worst take over from the best and vary.

Optuna has samplers and pruners but no trainer that passes weights from one trial to another, so this small
loop is our own. A generation is kept whole before the next begins; a killed search repeats one at most.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import asdict
from math import exp, log
from pathlib import Path
from typing import Any

from ringrift.games.contract import Game
from ringrift.jobs.frame import Job
from ringrift.jobs.sealing import read_json, seal_json
from ringrift.jobs.training.checkpoints import (
    learner_tensors,
    read_checkpoint,
    restore_learner,
    write_checkpoint,
)
from ringrift.jobs.training.learner import Learner
from ringrift.jobs.training.schedule import LearningRate
from ringrift.jobs.tuning.halving import verify_knobs
from ringrift.jobs.tuning.params import TuneParams, TuningFinding
from ringrift.jobs.tuning.trainee import (
    DECAYS,
    RATES,
    WINDOW_MIN,
    Data,
    Knobs,
    new_learner,
    open_data,
    part_of_training,
    run_to_look,
    varied,
)

STATE_FILE = "population.json"
QUARTER = 4


def tune_population(job: Job, params: TuneParams, game: Game) -> TuningFinding:
    with open_data(job, params, game) as data:
        population = Population(data)
        job.stage("evolving", total=params.generations, done=population.generation)
        while population.generation < params.generations:
            population.advance(job)
            best = round(population.history[-1]["best_score"], 5)
            job.progress(population.generation, generation=population.generation, best_score=best)
        best_at = max(range(len(population.scores)), key=lambda at: population.scores[at])
        knobs = population.knobs[best_at]
        return TuningFinding(
            best_params=knobs.as_params(),
            best_score=round(population.scores[best_at], 5),
            evaluations=population.generation * params.population,
            generations=tuple(population.history),
            scores={str(at): round(score, 5) for at, score in enumerate(population.scores)},
            verified=verify_knobs(job, data, knobs),
        )


class Population:
    """The members of a search: their learners, parameters and last scores."""

    def __init__(self, data: Data) -> None:
        params = data.params
        self._data, self._folder = data, params.out
        self._steps_rows = max(1, data.budget_rows // params.generations)
        self.generation = 0
        self.history: list[dict[str, Any]] = []
        rng = random.Random(params.seed)
        self.knobs = [data.in_use(), *(_drawn(data, rng) for _ in range(params.population - 1))]
        self.scores = [float("-inf")] * params.population
        steps = data.budget_rows // self.knobs[0].batch
        self._learners: list[Learner] = [
            new_learner(data, params.preset, each, seed=params.seed, steps=steps) for each in self.knobs
        ]
        if (self._folder / STATE_FILE).exists():
            self._resume()

    def advance(self, job: Job) -> None:
        """Train everybody for one generation, then let the worst learn from the best."""
        number = self.generation + 1
        for member, (learner, knobs) in enumerate(zip(self._learners, self.knobs, strict=True)):
            self.scores[member] = self._train(job, learner, knobs, seed=number * 1000 + member)
        rng = random.Random(self._data.params.seed * 1_000_003 + number)
        self._exploit(rng)
        self.generation = number
        self.history.append({"generation": number, "best_score": round(max(self.scores), 6)})
        self._save()

    def _train(self, job: Job, learner: Learner, knobs: Knobs, *, seed: int) -> float:
        for group in learner.optimiser.param_groups:
            group["weight_decay"] = knobs.weight_decay
        steps = max(1, self._steps_rows // knobs.batch)
        rate = LearningRate(knobs.lr, knobs.lr, 0, steps)
        epochs = part_of_training(self._data, learner, knobs, rate, steps=steps, look_every=steps, seed=seed)
        try:
            return -run_to_look(job, epochs)
        finally:
            epochs.close()

    def _exploit(self, rng: random.Random) -> None:
        order = sorted(range(len(self.scores)), key=lambda member: self.scores[member])
        count = max(1, len(order) // QUARTER)
        for loser in order[:count]:
            winner = rng.choice(order[-count:])
            # Copies: two members that shared a tensor of the optimiser would count each other's steps.
            tensors = {name: value.clone() for name, value in learner_tensors(self._learners[winner]).items()}
            restore_learner(self._learners[loser], tensors, steps=self._learners[winner].steps)
            self.knobs[loser] = varied(self.knobs[winner], self._data.batches(), rng)
            self.scores[loser] = self.scores[winner]

    def _save(self) -> None:
        folder = self._folder / f"generation-{self.generation:04d}"
        for member, learner in enumerate(self._learners):
            write_checkpoint(
                folder / f"{member}.safetensors", learner_tensors(learner), {"steps": learner.steps}
            )
        state = {
            "generation": self.generation,
            "history": self.history,
            "scores": self.scores,
            "knobs": [asdict(each) for each in self.knobs],
        }
        seal_json(self._folder / STATE_FILE, state)
        for old in self._folder.glob("generation-*"):
            if old != folder:
                shutil.rmtree(old)

    def _resume(self) -> None:
        state = read_json(self._folder / STATE_FILE)
        self.generation, self.history = state["generation"], state["history"]
        self.scores = state["scores"]
        self.knobs = [Knobs(**each) for each in state["knobs"]]
        folder: Path = self._folder / f"generation-{self.generation:04d}"
        for member, learner in enumerate(self._learners):
            tensors, facts = read_checkpoint(folder / f"{member}.safetensors")
            restore_learner(learner, tensors, steps=int(facts["steps"]))


def _drawn(data: Data, rng: random.Random) -> Knobs:
    def between(low: float, high: float) -> float:
        return exp(rng.uniform(log(low), log(high)))

    return Knobs(between(*RATES), rng.choice(data.batches()), between(*DECAYS), rng.uniform(WINDOW_MIN, 1.0))
