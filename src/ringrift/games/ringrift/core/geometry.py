"""A board in one flat table, and the functions that read it.

One small array instead of a record of many keeps calls between compiled functions cheap, and gives every
board the same type, so that one compilation serves all of them. Entries are unsigned, so that no index
needs a test for counting from the end, and come out as one integer type, so that callers compile once.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ringrift.games.compiled import compiled
from ringrift.games.ringrift.boards import Board
from ringrift.games.ringrift.core.layout import PLACE_PLANES, REGION_PLANES, to_int

Table: TypeAlias = npt.NDArray[np.uint16]

PAD = 0xFFFF  # no cell; lists are filled up with it and read until it comes
# Width of each list, the same on all boards, so that a place is a product and no lookup.
DIRECTIONS_MAX, TERRITORY_SIDES, BORDER_SIDES = 8, 6, 8
# Numbers of the board, then where its tables start.
CELL_COUNT, PLAYERS, DIRECTIONS, AXES, FARTHEST, RINGS_EACH = 0, 1, 2, 3, 4, 5
LINE_LENGTH, ELIMINATION_TARGET, TERRITORY_TARGET = 6, 7, 8
TERRITORY_AT, BORDER_AT, ROWS_AT, COLUMNS_AT, TURNED_CELL_AT, TURNED_DIRECTION_AT, RAYS_AT = range(9, 16)
HEADER = 16


def make_table(board: Board) -> Table:
    """Lay *board* out. The rays come last: all other tables start within reach of a 16-bit number."""
    turned_cell, turned_direction = _symmetries(board)
    rows, columns = zip(*board.grid_positions, strict=True)
    numbers = (
        *(board.cells, board.players, len(board.directions), board.axes, board.farthest, board.rings),
        *(board.line_length, board.elimination_target, board.territory_target),
    )
    tables = (
        _padded(board.territory_neighbors, TERRITORY_SIDES),
        _padded(board.border_neighbors, BORDER_SIDES),
        list(rows),
        list(columns),
        turned_cell,
        turned_direction,
        _rays(board),
    )
    starts, at = [], HEADER
    for table in tables:
        starts.append(at)
        at += len(table)
    return np.array([*numbers, *starts, *(entry for table in tables for entry in table)], dtype=np.uint16)


def _padded(lists: tuple[tuple[int, ...], ...], width: int) -> list[int]:
    return [entry for others in lists for entry in (*others, *(PAD,) * (width - len(others)))]


def _rays(board: Board) -> list[int]:
    """Each ray's length, then its cells."""
    entries: list[int] = []
    for by_direction in board.rays:
        for direction in range(DIRECTIONS_MAX):
            ray = by_direction[direction] if direction < len(by_direction) else ()
            entries += (len(ray), *ray, *(PAD,) * (board.farthest - len(ray)))
    return entries


def _symmetries(board: Board) -> tuple[list[int], list[int]]:
    cells: list[int] = []
    directions: list[int] = []
    for turn in board.symmetries:
        cells += (board.index[turn(point)] for point in board.points)
        x, y = turn((0, 0))
        for step in board.directions:
            turned_x, turned_y = turn(step)
            directions.append(board.directions.index((turned_x - x, turned_y - y)))
    return cells, directions


@compiled
def cells(t: Table) -> int:
    return to_int(t[CELL_COUNT])


@compiled
def players(t: Table) -> int:
    return to_int(t[PLAYERS])


@compiled
def directions(t: Table) -> int:
    return to_int(t[DIRECTIONS])


@compiled
def axes(t: Table) -> int:
    return to_int(t[AXES])


@compiled
def farthest(t: Table) -> int:
    return to_int(t[FARTHEST])


@compiled
def rings_each(t: Table) -> int:
    return to_int(t[RINGS_EACH])


@compiled
def line_length(t: Table) -> int:
    return to_int(t[LINE_LENGTH])


@compiled
def elimination_target(t: Table) -> int:
    return to_int(t[ELIMINATION_TARGET])


@compiled
def territory_target(t: Table) -> int:
    return to_int(t[TERRITORY_TARGET])


@compiled
def ray_from(t: Table, cell: int, direction: int) -> int:
    """Where the ray from *cell* in *direction* starts in the table."""
    return to_int(t[RAYS_AT]) + (cell * DIRECTIONS_MAX + direction) * (to_int(t[FARTHEST]) + 1)


@compiled
def ray_length(t: Table, ray: int) -> int:
    return to_int(t[ray])


@compiled
def on_ray(t: Table, ray: int, step: int) -> int:
    """The cell *step* + 1 steps along *ray*; `PAD` beyond the edge."""
    return to_int(t[ray + 1 + step])


@compiled
def territory_neighbor(t: Table, cell: int, side: int) -> int:
    return to_int(t[to_int(t[TERRITORY_AT]) + cell * TERRITORY_SIDES + side])


@compiled
def border_neighbor(t: Table, cell: int, side: int) -> int:
    return to_int(t[to_int(t[BORDER_AT]) + cell * BORDER_SIDES + side])


@compiled
def grid_row(t: Table, cell: int) -> int:
    return to_int(t[to_int(t[ROWS_AT]) + cell])


@compiled
def grid_column(t: Table, cell: int) -> int:
    return to_int(t[to_int(t[COLUMNS_AT]) + cell])


@compiled
def turned_cell(t: Table, symmetry: int, cell: int) -> int:
    return to_int(t[to_int(t[TURNED_CELL_AT]) + symmetry * cells(t) + cell])


@compiled
def turned_direction(t: Table, symmetry: int, direction: int) -> int:
    return to_int(t[to_int(t[TURNED_DIRECTION_AT]) + symmetry * directions(t) + direction])


@compiled
def first_line_plane(t: Table) -> int:
    return PLACE_PLANES + directions(t) * farthest(t)


@compiled
def first_region_plane(t: Table) -> int:
    return first_line_plane(t) + 2 * axes(t)


@compiled
def eliminate_plane(t: Table) -> int:
    return first_region_plane(t) + REGION_PLANES


@compiled
def pass_action(t: Table) -> int:
    return (eliminate_plane(t) + 1) * cells(t)
