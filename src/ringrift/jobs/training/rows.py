"""Positions with their targets, and batches made of them.

A batch is observed from the states themselves, so that a row can be turned into any symmetry when it is
used; nothing is stored eight times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ringrift.errors import ConfigError, Corrupt
from ringrift.games.contract import ActionArray, Game, LegalActions, Planes, States, ragged_index
from ringrift.jobs.samples.npz_files import DRAW_WEIGHTS, Unpacking, check_samples
from ringrift.jobs.samples.plan import is_held_out

Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TrainingRows:
    """Some positions: legal actions with the search's policy, and the outcome per seat."""

    states: States
    legal: LegalActions
    policy: Floats  # aligned with `legal.actions`
    seats: Numbers  # on turn
    values: Floats  # rows x players, per seat
    weights: Floats


class RowSource(Protocol):
    """Something to learn from."""

    def __len__(self) -> int: ...

    def take(self, rows: Numbers) -> TrainingRows: ...


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """What a network is shown, and what it should have said."""

    planes: Planes
    slots: Numbers  # rows x widest: where each legal action lies in the network's output
    legal: npt.NDArray[np.bool_]  # rows x widest: which of the places are taken
    policy: Floats  # rows x widest
    values: Floats  # rows x players, the player on turn first
    weights: Floats


def make_batch(game: Game, rows: TrainingRows, symmetries: Numbers | None = None) -> TrainingBatch:
    """Observe *rows*, each turned by its symmetry if given."""
    actions = rows.legal.actions
    if symmetries is None or not symmetries.any():
        planes = game.observe(rows.states)
    else:
        planes, actions = _turned(game, rows, symmetries)
    counts = rows.legal.counts
    legal = np.arange(counts.max()) < counts[:, None]
    slots = np.zeros(legal.shape, dtype=np.int64)
    slots[legal] = game.action_layout.slots[actions]
    policy = np.zeros(legal.shape, dtype=np.float32)
    policy[legal] = rows.policy
    ahead = (rows.seats[:, None] + np.arange(game.players)) % game.players
    values = np.take_along_axis(rows.values, ahead, axis=1)
    return TrainingBatch(planes, slots, legal, policy, values, rows.weights)


def _turned(game: Game, rows: TrainingRows, symmetries: Numbers) -> tuple[Planes, ActionArray]:
    planes = np.empty((len(rows.states), *game.observation_shape), dtype=np.float32)
    actions = rows.legal.actions.copy()
    for symmetry in np.unique(symmetries):
        here = np.flatnonzero(symmetries == symmetry)
        states = np.ascontiguousarray(rows.states[here])
        if symmetry:
            flat, offsets = ragged_index(rows.legal.offsets, here)
            legal = LegalActions(offsets, rows.legal.actions[flat])
            actions[flat] = game.turned_actions(states, legal, int(symmetry))
            states = game.turned(states, int(symmetry))
        planes[here] = game.observe(states)
    return planes, actions


def some_rows(rows: TrainingRows, places: Numbers) -> TrainingRows:
    """The rows at *places*."""
    flat, offsets = ragged_index(rows.legal.offsets, places)
    return TrainingRows(
        states=rows.states[places],
        legal=LegalActions(offsets, rows.legal.actions[flat]),
        policy=rows.policy[flat],
        seats=rows.seats[places],
        values=rows.values[places],
        weights=rows.weights[places],
    )


def joined(parts: Sequence[TrainingRows]) -> TrainingRows:
    """All rows of *parts*, one part after the other."""
    counts = np.concatenate([part.legal.counts for part in parts])
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
    return TrainingRows(
        states=np.concatenate([part.states for part in parts]),
        legal=LegalActions(offsets, np.concatenate([part.legal.actions for part in parts])),
        policy=np.concatenate([part.policy for part in parts]),
        seats=np.concatenate([part.seats for part in parts]),
        values=np.concatenate([part.values for part in parts]),
        weights=np.concatenate([part.weights for part in parts]),
    )


# Sample files as something to learn from: checked, of one config, split by game, and never whole in memory.
#
# The arrays that training needs are unpacked into a scratch folder while they are checked, and mapped from
# there. Whether a game is held out follows from the game itself, so that it stays held out in every later
# file and window.


WANTED = (
    *("states", "policy_offsets", "policy_indices", "policy_values"),
    *("seats", "values_mp", "sample_weights", "game_hashes"),
)


class SampleFile:
    """One opened file."""

    def __init__(self, path: Path, game: Game, scratch: Path) -> None:
        if not path.exists():
            raise ConfigError(f"{path}: no such file")
        scratch.mkdir(parents=True)
        found = check_samples(path, game=game, unpack=Unpacking(scratch, (*WANTED, DRAW_WEIGHTS)))
        if found.config not in (None, game.key):
            raise ConfigError(f"{path}: the samples are of {found.config}, not of {game.key}")
        if not found.valid:
            raise Corrupt(path, found="; ".join(found.errors), advice="Export the samples again")
        missing = [name for name in WANTED if name not in found.array_shapes]
        if missing:
            raise Corrupt(path, found=f"no {', '.join(missing)}", advice="Export the samples again")
        arrays: dict[str, np.ndarray[Any, Any]] = {
            name: np.memmap(
                scratch / name,
                dtype=np.dtype(found.array_dtypes[name]),
                mode="r",
                shape=found.array_shapes[name],
            )
            for name in (*WANTED, DRAW_WEIGHTS)
            if name in found.array_shapes
        }
        self._players = game.players
        self._states, self._values = arrays["states"], arrays["values_mp"]
        self._indices, self._policy = arrays["policy_indices"], arrays["policy_values"]
        self._offsets = np.array(arrays["policy_offsets"])
        self._seats, self._weights = (
            np.array(arrays["seats"], dtype=np.int64),
            np.array(arrays["sample_weights"]),
        )
        self.game_hashes = np.array(arrays["game_hashes"])
        drawn = arrays.get(DRAW_WEIGHTS)
        self.draw_weights = np.ones(len(self), np.float32) if drawn is None else np.array(drawn)

    def __len__(self) -> int:
        return len(self._seats)

    def take(self, rows: Numbers) -> TrainingRows:
        flat, offsets = ragged_index(self._offsets, rows)
        return TrainingRows(
            states=np.ascontiguousarray(self._states[rows]),
            legal=LegalActions(offsets, np.asarray(self._indices[flat])),
            policy=np.asarray(self._policy[flat]),
            seats=self._seats[rows],
            values=np.asarray(self._values[rows, : self._players]),
            weights=self._weights[rows],
        )


class SampleSet:
    """Several files as one source, in a fixed order."""

    def __init__(self, files: Sequence[SampleFile]) -> None:
        self._files = files
        self._starts = np.concatenate([np.zeros(1, np.int64), np.cumsum([len(file) for file in files])])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def take(self, rows: Numbers) -> TrainingRows:
        """The rows, in the order of the files rather than that of *rows*."""
        owners = np.searchsorted(self._starts, rows, side="right") - 1
        parts = [
            self._files[owner].take(rows[owners == owner] - self._starts[owner])
            for owner in np.unique(owners)
        ]
        return joined(parts)

    @property
    def draw_weights(self) -> Floats:
        """How often each row is drawn, beside the others."""
        return np.concatenate([file.draw_weights for file in self._files])

    def split(self, hold_out: float) -> tuple[Numbers, Numbers]:
        """Rows to train on, and rows of games that are held out."""
        hashes = np.concatenate([file.game_hashes for file in self._files])
        held = is_held_out(hashes, hold_out)
        return np.flatnonzero(~held), np.flatnonzero(held)
