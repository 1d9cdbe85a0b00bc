"""The newest rows of a run, in memory: a ring that forgets the oldest games."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from ringrift.errors import ConfigError
from ringrift.games.contract import Game, LegalActions
from ringrift.jobs.training.rows import Numbers, TrainingRows, joined, ragged_index, some_rows
from ringrift.search.records import FinishedGame


@dataclass(frozen=True, slots=True)
class _GameRows:
    rows: TrainingRows
    first: int  # number of its first row, counted over the whole run


class ReplayWindow:
    """Rows of finished games; *value_mix* is the search's share in the value target."""

    def __init__(self, game: Game, *, value_mix: float = 0.0) -> None:
        if not 0 <= value_mix <= 1:
            raise ConfigError(f"window: value_mix must lie between 0 and 1, not {value_mix}")
        self._game, self._value_mix = game, value_mix
        self._games: deque[_GameRows] = deque()
        self._firsts = np.zeros(0, dtype=np.int64)
        self.added = 0

    def __len__(self) -> int:
        return self.added - (self._games[0].first if self._games else self.added)

    def add(self, finished: FinishedGame) -> int:
        """Add the fully searched moves of a game; returns how many."""
        rows = game_rows(self._game, finished, value_mix=self._value_mix)
        count = len(rows.states)
        if count:
            self._games.append(_GameRows(rows, self.added))
            self.added += count
            self._firsts = np.append(self._firsts, self._games[-1].first)
        return count

    def contents(self) -> tuple[TrainingRows, Numbers]:
        """All rows, and the number of each game's first row."""
        return self.take(np.arange(len(self))), self._firsts

    def restore(self, rows: TrainingRows, firsts: Numbers) -> None:
        """Hold what `contents` gave."""
        ends = np.append(firsts[1:], firsts[0] + len(rows.states)) - firsts[0]
        spans = [np.arange(first - firsts[0], end) for first, end in zip(firsts, ends, strict=True)]
        games = zip(spans, firsts.tolist(), strict=True)
        self._games = deque(_GameRows(some_rows(rows, span), first) for span, first in games)
        self._firsts = firsts
        self.added = int(firsts[0]) + len(rows.states)

    def forget(self, rows_max: int) -> None:
        """Drop the oldest games until at most *rows_max* rows are left, but never the last game."""
        dropped = 0
        while len(self) > rows_max and len(self._games) > 1:
            self._games.popleft()
            dropped += 1
        self._firsts = self._firsts[dropped:]

    def take(self, rows: Numbers) -> TrainingRows:
        """Rows by their place in the window, 0 the oldest."""
        numbers = rows + self._games[0].first
        owners = np.searchsorted(self._firsts, numbers, side="right") - 1
        parts = []
        order = np.argsort(owners, kind="stable")
        for owner, places in _runs(owners[order]):
            held = self._games[owner]
            parts.append(some_rows(held.rows, numbers[order[places]] - held.first))
        return joined(parts)

    def draw(self, rng: np.random.Generator, count: int) -> TrainingRows:
        """*count* rows, uniformly."""
        return self.take(rng.integers(0, len(self), count))


def game_rows(game: Game, finished: FinishedGame, *, value_mix: float) -> TrainingRows:
    """The fully searched moves of a game as rows."""
    states = game.new_states(1)
    kept = []
    for action, full in zip(finished.actions, finished.full, strict=True):
        if full:
            kept.append(states[0].copy())
        game.apply(states, np.array([action], dtype=np.int32), trusted=True)
    full_moves = np.flatnonzero(finished.full)
    flat, offsets = ragged_index(finished.legal.offsets, full_moves)
    values = np.repeat(finished.results[None, :], len(full_moves), axis=0)
    if value_mix:
        values = (1 - value_mix) * values + value_mix * finished.root_values[full_moves]
    return TrainingRows(
        states=np.array(kept, dtype=np.int64).reshape(len(kept), game.words),
        legal=LegalActions(offsets, finished.legal.actions[flat]),
        policy=finished.policy[flat],
        seats=finished.seats[full_moves].astype(np.int64),
        values=np.clip(values, -1, 1).astype(np.float32),
        weights=np.ones(len(full_moves), dtype=np.float32),
    )


def _runs(owners: Numbers) -> list[tuple[int, slice]]:
    """Spans of equal numbers in a sorted array."""
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    ends = np.append(starts[1:], len(owners))
    return [(int(owners[start]), slice(start, end)) for start, end in zip(starts, ends, strict=True)]
