"""The newest rows of a run, in memory: a ring that forgets the oldest games."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ringrift.games.contract import Game, LegalActions, ragged_index
from ringrift.jobs.samples.targets import Targets, drawn, later_values
from ringrift.jobs.training.rows import Numbers, TrainingRows, some_rows
from ringrift.search.records import FinishedGame

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
