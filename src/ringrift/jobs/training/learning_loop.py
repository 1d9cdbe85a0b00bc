"""Self-play and training taking turns in one process: the shortest way from nothing to a player.

The parts are those of the jobs. New rows earn training steps, a fixed number of samples per row; after
some steps the games go on with the averaged weights. Everything is kept in memory, and a stopped loop goes
on from the state it saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from ringrift.games.contract import Game, LegalActions, States
from ringrift.jobs.samples.targets import Targets
from ringrift.jobs.samples.window import PowerWindow
from ringrift.jobs.sealing import read_json, seal_json, sealing
from ringrift.jobs.training.checkpoints import (
    learner_tensors,
    read_checkpoint,
    restore_learner,
    write_checkpoint,
)
from ringrift.jobs.training.learner import LOSSES, Learner, LearnerConfig
from ringrift.jobs.training.replay_window import ReplayWindow
from ringrift.jobs.training.rows import TrainingRows, make_batch
from ringrift.network.evaluator import NetEvaluator
from ringrift.network.model import ResidualNet, build
from ringrift.players.seeds import derived
from ringrift.search.contract import Evaluation, Evaluator
from ringrift.search.records import GameInProgress
from ringrift.search.selfplay import Selfplay, SelfplayConfig

GAMES_MAX = 10_000_000
LEARNER_FILE, WINDOW_FILE, GAMES_FILE = "learner.safetensors", "window.npz", "games.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningConfig:
    """How a run plays and learns."""

    selfplay: SelfplayConfig = field(default_factory=SelfplayConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    preset: str = "small"
    window: PowerWindow = field(default_factory=lambda: PowerWindow(c=10_000.0))
    samples_per_row: float = 4.0
    batch: int = 256
    steps_at_once: int = 32
    rows_first: int = 2_000  # before the first step
    lr: float = 2e-3
    lr_steps: int = 1_000  # after so many steps the rate falls with the root of the steps
    targets: Targets = field(default_factory=lambda: Targets(value_mix=0.8))


class CurrentEvaluator:
    """Passes on to whichever evaluator is current, so that games go on when the weights change."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.current = evaluator

    def evaluate(self, states: States, legal: LegalActions) -> Evaluation:
        return self.current.evaluate(states, legal)


class LearningLoop:
    """One run. `advance` plays and trains until told to pause."""

    def __init__(self, game: Game, config: LearningConfig, *, seed: int) -> None:
        self.game, self.config, self.seed = game, config, seed
        self.learner = Learner(build(game, config.preset, seed=seed), config.learner)
        self.window = ReplayWindow(game, config.targets)
        self.games = 0
        self.losses: dict[str, float] = {}
        self._owed = 0.0  # samples that new rows have earned
        self._evaluator = CurrentEvaluator(self._new_evaluator())
        self._pause: Callable[[], bool] = lambda: False
        self._begun = 0
        self._selfplay = self._new_selfplay([])

    def _new_selfplay(self, resume: list[GameInProgress]) -> Selfplay:
        return Selfplay(
            self.game,
            self._evaluator,
            self.config.selfplay,
            self._seeds(),
            resume=resume,
            stop=lambda: self._pause(),
        )

    def _seeds(self) -> Iterator[int]:
        while self._begun < GAMES_MAX:
            self._begun += 1
            yield int(derived(self.seed, self._begun - 1)[0])

    def advance(self, pause: Callable[[], bool]) -> None:
        """Go on until *pause* says so, which is asked between moves and between steps."""
        self._pause = pause
        for finished in self._selfplay:
            self.games += 1
            self._owed += self.window.add(finished) * self.config.samples_per_row
            self.window.forget(self.config.window.rows(self.window.added))
            if self.window.added < self.config.rows_first:
                self._owed = min(self._owed, self.config.rows_first * self.config.samples_per_row)
            elif self._owed >= self.config.batch * self.config.steps_at_once:
                self._train()

    def _train(self) -> None:
        config, total = self.config, np.zeros(len(LOSSES))
        for _ in range(config.steps_at_once):
            rng = np.random.default_rng([self.seed, self.learner.steps])
            rows = self.window.draw(rng, config.batch)
            turns = rng.integers(0, self.game.symmetries, config.batch)
            total += self.learner.step(make_batch(self.game, rows, turns), self._rate()).numpy()
        self._owed -= config.batch * config.steps_at_once
        self.losses = dict(zip(LOSSES, (total / config.steps_at_once).round(4).tolist(), strict=True))
        self._evaluator.current = self._new_evaluator()

    def _new_evaluator(self) -> NetEvaluator:
        return NetEvaluator(self.learner.averaged(), self.game)

    def _rate(self) -> float:
        steps, turning = self.learner.steps, self.config.lr_steps
        warm = min(1.0, (steps + 1) / 100)
        return self.config.lr * warm * (1.0 if steps < turning else sqrt(turning / steps))

    def network(self) -> ResidualNet:
        """The averaged weights as they are now."""
        return self.learner.averaged()

    def counts(self) -> dict[str, Any]:
        return {
            "games": self.games,
            "rows": self.window.added,
            "window_rows": len(self.window),
            "steps": self.learner.steps,
            "moves": self._selfplay.moves,
            "simulations": self._selfplay.simulations,
            **self.losses,
        }

    def save(self, folder: Path) -> None:
        """Write everything that `load` needs into an empty *folder*."""
        facts = {"steps": self.learner.steps, "games": self.games, "owed": self._owed, "begun": self._begun}
        write_checkpoint(folder / LEARNER_FILE, learner_tensors(self.learner), facts)
        if len(self.window):
            rows, firsts = self.window.contents()
            with sealing(folder / WINDOW_FILE) as part, part.open("wb") as file:
                np.savez(file, **_arrays(rows), firsts=firsts)
        seal_json(folder / GAMES_FILE, [each.to_json() for each in self._selfplay.in_progress()])

    def load(self, folder: Path) -> None:
        """Go on where the loop that wrote *folder* was; its config must be the same."""
        tensors, facts = read_checkpoint(folder / LEARNER_FILE)
        restore_learner(self.learner, tensors, steps=int(facts["steps"]))
        self.games, self._owed, self._begun = facts["games"], facts["owed"], facts["begun"]
        if (folder / WINDOW_FILE).exists():
            with np.load(folder / WINDOW_FILE, allow_pickle=False) as arrays:
                self.window.restore(_rows(dict(arrays)), arrays["firsts"])
        self._evaluator.current = self._new_evaluator()
        resumed = [GameInProgress.from_json(self.game, each) for each in read_json(folder / GAMES_FILE)]
        self._selfplay = self._new_selfplay(resumed)


def _arrays(rows: TrainingRows) -> dict[str, Any]:
    return {
        "states": rows.states,
        "offsets": rows.legal.offsets,
        "actions": rows.legal.actions,
        "policy": rows.policy,
        "seats": rows.seats,
        "values": rows.values,
        "weights": rows.weights,
    }


def _rows(arrays: dict[str, Any]) -> TrainingRows:
    legal = LegalActions(arrays["offsets"], arrays["actions"])
    return TrainingRows(
        arrays["states"], legal, arrays["policy"], arrays["seats"], arrays["values"], arrays["weights"]
    )
