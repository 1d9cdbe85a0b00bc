"""Sample files as something to learn from: checked, of one config, split by game, and never whole in memory.

The arrays that training needs are unpacked into a scratch folder while they are checked, and mapped from
there. Whether a game is held out follows from the game itself, so that it stays held out in every later file
and window.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ringrift.errors import ConfigError, Corrupt
from ringrift.games.contract import Game, LegalActions, ragged_index
from ringrift.jobs.samples.hold_out import is_held_out
from ringrift.jobs.samples.layout import DRAW_WEIGHTS
from ringrift.jobs.samples.npz_check import Unpacking, check_samples
from ringrift.jobs.training.rows import Floats, Numbers, TrainingRows, joined

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
