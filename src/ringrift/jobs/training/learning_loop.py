"""Self-play and training taking turns in one process: the shortest way from nothing to a player.

The parts are those of the jobs. New rows earn training steps, a fixed number of samples per row; after
some steps the games go on with the averaged weights. Everything is kept in memory, and a stopped loop goes
on from the state it saved.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ringrift.games.contract import Game, LegalActions, States, ragged_index
from ringrift.jobs.files import read_json, seal_json, sealing
from ringrift.jobs.samples.npz_files import Targets, drawn, later_values
from ringrift.jobs.samples.plan import PowerWindow
from ringrift.jobs.training.learner import (
    LOSSES,
    Learner,
    LearnerConfig,
    learner_tensors,
    read_checkpoint,
    restore_learner,
    write_checkpoint,
)
from ringrift.jobs.training.rows import Numbers, TrainingRows, make_batch, some_rows
from ringrift.network.evaluator import NetEvaluator
from ringrift.network.model import ResidualNet, build
from ringrift.players.contract import derived
from ringrift.search.contract import Evaluation, Evaluator
from ringrift.search.records import FinishedGame, GameInProgress
from ringrift.search.selfplay import Selfplay, SelfplayConfig

# The newest rows of a run, in memory: a ring that forgets the oldest games.


RESULTS_ALONE = Targets()


class ReplayWindow:
    """Rows of finished games, with *targets*.

    All rows lie one after the other in a few arrays, so that a batch is a handful of lookups; what was
    forgotten is moved out when the arrays are full.
    """

    def __init__(self, game: Game, targets: Targets = RESULTS_ALONE) -> None:
        self._game, self._targets = game, targets
        self._games: deque[int] = deque()  # number of each game's first row, counted over the whole run
        self._rows: TrainingRows | None = None
        self._held, self._flat_held = 0, 0  # rows and their legal actions in the arrays
        self._skipped = 0  # rows at the front that were forgotten
        self.added = 0

    def __len__(self) -> int:
        return self._held - self._skipped

    def add(self, finished: FinishedGame) -> int:
        """Add the fully searched moves of a game; returns how many."""
        rows = game_rows(self._game, finished, self._targets)
        count = len(rows.states)
        if count:
            self._games.append(self.added)
            self._append(rows)
            self.added += count
        return count

    def contents(self) -> tuple[TrainingRows, Numbers]:
        """All rows, and the number of each game's first row."""
        return self.take(np.arange(len(self))), np.array(self._games, dtype=np.int64)

    def restore(self, rows: TrainingRows, firsts: Numbers) -> None:
        """Hold what `contents` gave."""
        self._rows, self._held, self._flat_held, self._skipped = None, 0, 0, 0
        self._append(rows)
        self._games = deque(firsts.tolist())
        self.added = int(firsts[0]) + len(rows.states)

    def forget(self, rows_max: int) -> None:
        """Drop the oldest games until at most *rows_max* rows are left, but never the last game."""
        while len(self) > rows_max and len(self._games) > 1:
            first = self._games.popleft()
            self._skipped += self._games[0] - first

    def take(self, rows: Numbers) -> TrainingRows:
        """Rows by their place in the window, 0 the oldest."""
        assert self._rows is not None
        return some_rows(self._rows, rows + self._skipped)

    def draw(self, rng: np.random.Generator, count: int) -> TrainingRows:
        """*count* rows, as often as their weights say; in training each counts the same."""
        if not self._targets.surprise:
            return self.take(rng.integers(0, len(self), count))
        assert self._rows is not None
        upto = np.cumsum(self._rows.weights[self._skipped : self._held], dtype=np.float64)
        return replace(self.take(drawn(upto, rng, count)), weights=np.ones(count, dtype=np.float32))

    def _append(self, new: TrainingRows) -> None:
        if self._rows is None:
            self._rows = _room_for(new, rows=len(new.states), flat=len(new.policy))
        held, flat = self._held + len(new.states), self._flat_held + len(new.policy)
        if held > len(self._rows.states) or flat > len(self._rows.policy):
            self._make_room(new)
            held, flat = self._held + len(new.states), self._flat_held + len(new.policy)
        rows, at, flat_at = self._rows, slice(self._held, held), slice(self._flat_held, flat)
        rows.states[at], rows.seats[at] = new.states, new.seats
        rows.values[at], rows.weights[at] = new.values, new.weights
        rows.legal.offsets[self._held + 1 : held + 1] = new.legal.offsets[1:] + self._flat_held
        rows.legal.actions[flat_at], rows.policy[flat_at] = new.legal.actions, new.policy
        self._held, self._flat_held = held, flat

    def _make_room(self, new: TrainingRows) -> None:
        """Move what is left to arrays twice as large as it takes, so that this is rare."""
        left = self.take(np.arange(len(self)))
        rows, flat = len(left.states) + len(new.states), len(left.policy) + len(new.policy)
        self._rows = _room_for(new, rows=2 * rows, flat=2 * flat)
        self._held, self._flat_held, self._skipped = 0, 0, 0
        self._append(left)


def _room_for(like: TrainingRows, *, rows: int, flat: int) -> TrainingRows:
    def empty(array: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
        return np.zeros((count, *array.shape[1:]), dtype=array.dtype)

    return TrainingRows(
        states=empty(like.states, rows),
        legal=LegalActions(empty(like.legal.offsets, rows + 1), empty(like.legal.actions, flat)),
        policy=empty(like.policy, flat),
        seats=empty(like.seats, rows),
        values=empty(like.values, rows),
        weights=empty(like.weights, rows),
    )


def game_rows(game: Game, finished: FinishedGame, targets: Targets) -> TrainingRows:
    """The fully searched moves of a game as rows."""
    states = game.new_states(1)
    kept = []
    for action, full in zip(finished.actions, finished.full, strict=True):
        if full:
            kept.append(states[0].copy())
        game.apply(states, np.array([action], dtype=np.int32), trusted=True)
    full_moves = np.flatnonzero(finished.full)
    flat, offsets = ragged_index(finished.legal.offsets, full_moves)
    results = np.repeat(finished.results[None, :], len(full_moves), axis=0)
    root_values = later_values(finished.root_values, np.array([len(finished.actions)]), targets.value_decay)
    return TrainingRows(
        states=np.array(kept, dtype=np.int64).reshape(len(kept), game.words),
        legal=LegalActions(offsets, finished.legal.actions[flat]),
        policy=finished.policy[flat],
        seats=finished.seats[full_moves].astype(np.int64),
        values=targets.values(results, root_values[full_moves]),
        weights=targets.draw_weights(finished.surprise[full_moves], np.zeros_like(full_moves)),
    )


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
