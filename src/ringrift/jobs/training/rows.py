"""Positions with their targets, and batches made of them.

A batch is observed from the states themselves, so that a row can be turned into any symmetry when it is
used; nothing is stored eight times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ringrift.games.contract import ActionArray, Game, LegalActions, Planes, States, ragged_index

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
