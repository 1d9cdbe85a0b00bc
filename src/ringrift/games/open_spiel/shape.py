"""What the contract asks beyond OpenSpiel's: where actions lie on the grid, and how the board turns.

OpenSpiel numbers the actions of its board games cell by cell, row by row, with any pass after them, and
lays observations out as planes, rows, columns. Games for which that does not add up have actions without
a place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ringrift.games.contract import ActionLayout

Grid: TypeAlias = npt.NDArray[np.int64]  # the cell that comes to lie on each cell, flattened

PLACELESS_MAX = 2
# Turns that keep rules and start; othello's first four stones leave only those that keep the diagonals.
_TURNS: tuple[Callable[[Grid], Grid], ...] = (
    lambda grid: grid,
    lambda grid: grid[::-1, ::-1],
    lambda grid: grid.T,
    lambda grid: grid[::-1, ::-1].T,
    lambda grid: grid[::-1],
    lambda grid: grid[:, ::-1],
    lambda grid: np.rot90(grid),
    lambda grid: np.rot90(grid, 3),
)
_KNOWN_TURNS = {"go": 8, "othello": 4, "tic_tac_toe": 8}


def observation_grid(shape: list[int]) -> tuple[int, int, int]:
    """Planes, rows, columns of a tensor of *shape*; a vector becomes planes of one cell."""
    if len(shape) == 3:
        return shape[0], shape[1], shape[2]
    if len(shape) == 2:
        return 1, shape[0], shape[1]
    return int(np.prod(shape)), 1, 1


def action_layout(actions: int, rows: int, columns: int) -> ActionLayout:
    """Cell by cell with the same number of planes on each, then up to two actions without a place."""
    cells = rows * columns
    planes, rest = divmod(actions, cells)
    if planes == 0 or rest > PLACELESS_MAX or cells == 1:
        planes, rest = 0, actions
    cell, plane = np.divmod(np.arange(actions - rest), max(planes, 1))
    slots = np.concatenate([plane * cells + cell, planes * cells + np.arange(rest)])
    return ActionLayout(
        planes=planes, rows=rows, columns=columns, placeless=rest, slots=slots.astype(np.int32)
    )


def known_turns(name: str, rows: int, columns: int) -> list[Grid]:
    """The turns of a game whose actions are the cells of a square board and a pass; at least the first."""
    grid = np.arange(rows * columns).reshape(rows, columns)
    count = _KNOWN_TURNS.get(name, 1) if rows == columns else 1
    return [np.ascontiguousarray(turn(grid)).ravel() for turn in _TURNS[:count]]
