"""The four boards: cells, rays, neighbours, and the numbers that follow from board and players.

Cells are numbered row by row (by y, then x). Directions come in opposite pairs: direction `d` and
`d + axes` point against each other, and the first `axes` directions are the line axes in the order in
which the rules list them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import permutations
from typing import TypeAlias

from ringrift.errors import ConfigError
from ringrift.games.registry import PLAYERS_MAX, PLAYERS_MIN, ConfigKey

Point: TypeAlias = tuple[int, int]  # x, y; a hex cell's z is -x-y
Turn: TypeAlias = Callable[[Point], Point]

_SQUARE_AXES: tuple[Point, ...] = ((1, 0), (1, 1), (0, 1), (1, -1))
# The order is that of the rules: a recovery takes the first axis that has a line.
_HEX_AXES: tuple[Point, ...] = ((1, 0), (1, -1), (0, -1))
_EIGHT: tuple[Point, ...] = tuple((dx, dy) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if (dx, dy) != (0, 0))


@dataclass(frozen=True, slots=True)
class Shape:
    """What tells one board from another."""

    name: str
    hexagonal: bool
    extent: int  # side of a square, radius of a hexagon
    rings: int  # per player
    short_lines: bool  # lines of 3 with more than two players
    border_spreads: bool  # collapse of border markers runs on along touching markers


SHAPES: dict[str, Shape] = {
    shape.name: shape
    for shape in (
        Shape("square8", hexagonal=False, extent=8, rings=18, short_lines=True, border_spreads=True),
        Shape("hex8", hexagonal=True, extent=4, rings=18, short_lines=True, border_spreads=True),
        Shape("square19", hexagonal=False, extent=19, rings=72, short_lines=False, border_spreads=True),
        Shape("hexagonal", hexagonal=True, extent=12, rings=96, short_lines=False, border_spreads=False),
    )
}


@dataclass(frozen=True)
class Board:
    """One board for one number of players."""

    shape: Shape
    players: int

    @property
    def key(self) -> ConfigKey:
        return ConfigKey(self.shape.name, self.players)

    @cached_property
    def points(self) -> tuple[Point, ...]:
        size = self.shape.extent
        if not self.shape.hexagonal:
            return tuple((x, y) for y in range(size) for x in range(size))
        span = range(-size, size + 1)  # all |x|, |y|, |z| <= size, with z = -x - y
        return tuple((x, y) for y in span for x in span if abs(x + y) <= size)

    @cached_property
    def index(self) -> dict[Point, int]:
        return {point: cell for cell, point in enumerate(self.points)}

    @cached_property
    def names(self) -> tuple[str, ...]:
        if self.shape.hexagonal:
            return tuple(f"{x},{y},{-x - y}" for x, y in self.points)
        return tuple(f"{x},{y}" for x, y in self.points)

    @cached_property
    def by_name(self) -> dict[str, int]:
        return {name: cell for cell, name in enumerate(self.names)}

    @property
    def cells(self) -> int:
        return len(self.points)

    @property
    def grid_side(self) -> int:
        """Side of the square grid that holds the board."""
        return 2 * self.shape.extent + 1 if self.shape.hexagonal else self.shape.extent

    @cached_property
    def grid_positions(self) -> tuple[tuple[int, int], ...]:
        """Row and column of each cell on the grid."""
        shift = self.shape.extent if self.shape.hexagonal else 0
        return tuple((y + shift, x + shift) for x, y in self.points)

    @property
    def axes(self) -> int:
        return len(_HEX_AXES if self.shape.hexagonal else _SQUARE_AXES)

    @cached_property
    def directions(self) -> tuple[Point, ...]:
        axes = _HEX_AXES if self.shape.hexagonal else _SQUARE_AXES
        return axes + tuple((-dx, -dy) for dx, dy in axes)

    @property
    def farthest(self) -> int:
        """Most steps between two cells of a ray."""
        return self.grid_side - 1

    @cached_property
    def rays(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """`rays[cell][direction]` lists the cells from the first step to the edge."""
        return tuple(tuple(self._ray(point, step) for step in self.directions) for point in self.points)

    def _ray(self, point: Point, step: Point) -> tuple[int, ...]:
        found: list[int] = []
        x, y = point[0] + step[0], point[1] + step[1]
        while (x, y) in self.index:
            found.append(self.index[x, y])
            x, y = x + step[0], y + step[1]
        return tuple(found)

    @cached_property
    def territory_neighbours(self) -> tuple[tuple[int, ...], ...]:
        """Cells that connect a region: four on squares, six on hexes."""
        steps = self.directions if self.shape.hexagonal else ((1, 0), (0, 1), (-1, 0), (0, -1))
        return self._neighbours(steps)

    @cached_property
    def border_neighbours(self) -> tuple[tuple[int, ...], ...]:
        """Cells to which the collapse of a border marker runs on.

        Eight offsets in (x, y) on every board that spreads, hex8 included, where two of the eight are no
        hex neighbours: the recorded games were played so, and this table is the only place that knows.
        """
        return self._neighbours(_EIGHT if self.shape.border_spreads else ())

    def _neighbours(self, steps: tuple[Point, ...]) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(self.index[x + dx, y + dy] for dx, dy in steps if (x + dx, y + dy) in self.index)
            for x, y in self.points
        )

    @cached_property
    def symmetries(self) -> tuple[Turn, ...]:
        """Maps of the board onto itself that keep every table of neighbours; the first changes nothing.

        hex8 keeps four of a hexagon's twelve, because its border collapse runs on along (1, 1).
        """
        turns = _hex_turns() if self.shape.hexagonal else _square_turns(self.shape.extent - 1)
        # Lines and regions keep under any turn of the shape; only the border table may not.
        return tuple(turn for turn in turns if self._keeps_border(turn))

    def _keeps_border(self, turn: Turn) -> bool:
        cell_of = [self.index[turn(point)] for point in self.points]
        return all(
            {cell_of[other] for other in others} == set(self.border_neighbours[cell_of[cell]])
            for cell, others in enumerate(self.border_neighbours)
        )

    @property
    def rings(self) -> int:
        return self.shape.rings

    @property
    def line_length(self) -> int:
        return 3 if self.shape.short_lines and self.players > PLAYERS_MIN else 4

    @property
    def elimination_target(self) -> int:
        # two thirds of the own rings and a third of those of all others
        return round(self.rings * (2 + (self.players - 1)) / 3)

    @property
    def territory_target(self) -> int:
        return self.cells // self.players + 1  # more than an equal share


def _square_turns(edge: int) -> Iterator[Turn]:
    for flip in (False, True):
        for quarters in range(4):
            yield partial(_turn_square, edge=edge, quarters=quarters, flip=flip)


def _turn_square(point: Point, *, edge: int, quarters: int, flip: bool) -> Point:
    x, y = point
    for _ in range(quarters):
        x, y = edge - y, x
    return (edge - x if flip else x), y


def _hex_turns() -> Iterator[Turn]:
    for sign in (1, -1):
        for order in permutations(range(3)):
            yield partial(_turn_hex, order=order, sign=sign)


def _turn_hex(point: Point, *, order: tuple[int, ...], sign: int) -> Point:
    # In cube coordinates the twelve turns are the orders of the axes, with or without a sign.
    cube = (*point, -sum(point))
    return sign * cube[order[0]], sign * cube[order[1]]


@cache
def board_for(board: str, players: int) -> Board:
    """Return the board of that name; raises `ConfigError` for a name or player count there is not."""
    shape = SHAPES.get(board)
    if shape is None:
        raise ConfigError(f"no RingRift board {board!r}; there are {', '.join(sorted(SHAPES))}")
    if not PLAYERS_MIN <= players <= PLAYERS_MAX:
        raise ConfigError(f"players must be {PLAYERS_MIN} to {PLAYERS_MAX}, not {players}")
    return Board(shape, players)
