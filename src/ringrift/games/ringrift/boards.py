"""The four boards: cells, rays, neighbors, the numbers of board and players, and what can lie on a board.

Cells are numbered row by row (by y, then x). Directions come in opposite pairs: direction `d` and
`d + axes` point against each other, and the first `axes` directions are the line axes in the order in
which the rules list them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from itertools import permutations
from typing import TypeAlias

from ringrift.errors import ConfigError
from ringrift.foreign_files.paths import PLAYERS_MAX, PLAYERS_MIN, ConfigKey

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
    def territory_neighbors(self) -> tuple[tuple[int, ...], ...]:
        """Cells that connect a region: four on squares, six on hexes."""
        steps = self.directions if self.shape.hexagonal else ((1, 0), (0, 1), (-1, 0), (0, -1))
        return self._neighbors(steps)

    @cached_property
    def border_neighbors(self) -> tuple[tuple[int, ...], ...]:
        """Cells to which the collapse of a border marker runs on.

        Eight offsets in (x, y) on every board that spreads, hex8 included, where two of the eight are no
        hex neighbors: the recorded games were played so, and this table is the only place that knows.
        """
        return self._neighbors(_EIGHT if self.shape.border_spreads else ())

    def _neighbors(self, steps: tuple[Point, ...]) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(self.index[x + dx, y + dy] for dx, dy in steps if (x + dx, y + dy) in self.index)
            for x, y in self.points
        )

    @cached_property
    def symmetries(self) -> tuple[Turn, ...]:
        """Maps of the board onto itself that keep every table of neighbors; the first changes nothing.

        hex8 keeps four of a hexagon's twelve, because its border collapse runs on along (1, 1).
        """
        turns = _hex_turns() if self.shape.hexagonal else _square_turns(self.shape.extent - 1)
        # Lines and regions keep under any turn of the shape; only the border table may not.
        return tuple(turn for turn in turns if self._keeps_border(turn))

    def _keeps_border(self, turn: Turn) -> bool:
        cell_of = [self.index[turn(point)] for point in self.points]
        return all(
            {cell_of[other] for other in others} == set(self.border_neighbors[cell_of[cell]])
            for cell, others in enumerate(self.border_neighbors)
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


# What lies on the board, and what can be read off it: moves of a stack, lines, regions.
#
# Nothing here knows whose turn it is or what phase the game is in; `reference` does.


Stack = tuple[int, ...]  # ring colors, bottom to top
Region = frozenset[int]


def cap(stack: Stack) -> int:
    """Length of the run of the controller's rings at the top."""
    height = len(stack)
    while height and stack[height - 1] == stack[-1]:
        height -= 1
    return len(stack) - height


@dataclass(frozen=True, slots=True)
class Segment:
    """A slide or a capture: from, over the target of a capture, to."""

    start: int
    target: int | None
    end: int
    between: tuple[int, ...]  # cells strictly between, without the target


@dataclass(slots=True)
class BoardPosition:
    """The cells. Each is in at most one of the three tables; in none it is empty."""

    board: Board
    stacks: dict[int, Stack] = field(default_factory=dict)
    markers: dict[int, int] = field(default_factory=dict)
    collapsed: dict[int, int] = field(default_factory=dict)

    def empty(self, cell: int) -> bool:
        return cell not in self.stacks and cell not in self.markers and cell not in self.collapsed

    def passable(self, cell: int) -> bool:
        """A stack may pass or land here: empty, or a marker."""
        return cell not in self.stacks and cell not in self.collapsed

    def controlled(self, player: int) -> list[int]:
        return [cell for cell, stack in self.stacks.items() if stack[-1] == player]

    def holding_buried(self, player: int) -> list[int]:
        return [cell for cell, stack in self.stacks.items() if player in stack[:-1]]

    def holding(self, player: int) -> list[int]:
        return [cell for cell, stack in self.stacks.items() if player in stack]

    def rings_of(self, player: int) -> int:
        return sum(stack.count(player) for stack in self.stacks.values())

    def slides(self, cell: int, stack: Stack) -> Iterator[Segment]:
        """Slides that *stack* could make if it stood on *cell*."""
        for ray in self.board.rays[cell]:
            for steps, end in enumerate(ray, start=1):
                if not self.passable(end):
                    break
                if steps >= len(stack):
                    yield Segment(cell, None, end, ray[: steps - 1])

    def captures(self, cell: int, stack: Stack) -> Iterator[Segment]:
        """Capture segments that *stack* could make if it stood on *cell*."""
        for ray in self.board.rays[cell]:
            # The first thing that stops a slide is the only possible target.
            blocker = next((at for at, other in enumerate(ray) if not self.passable(other)), None)
            if blocker is None or ray[blocker] in self.collapsed:
                continue
            target = ray[blocker]
            if cap(stack) < cap(self.stacks[target]):
                continue
            for at in range(blocker + 1, len(ray)):
                if not self.passable(ray[at]):
                    break
                if at + 1 >= len(stack):
                    yield Segment(cell, target, ray[at], ray[:blocker] + ray[blocker + 1 : at])

    def can_act(self, cell: int, stack: Stack) -> bool:
        return any(True for _ in self.slides(cell, stack)) or any(True for _ in self.captures(cell, stack))

    def placements(self, player: int, hand: int) -> Iterator[tuple[int, int]]:
        """Legal (cell, count): the resulting stack must be able to act."""
        for cell in range(self.board.cells):
            if cell in self.markers or cell in self.collapsed:
                continue
            standing = self.stacks.get(cell, ())
            # §4: up to three rings on an empty cell, one on a stack.
            for count in range(1, min(hand, 1 if standing else 3) + 1):
                if self.can_act(cell, standing + (player,) * count):
                    yield cell, count

    def run_through(self, cell: int, axis: int, player: int) -> tuple[int, ...]:
        """The maximal run of the player's markers through *cell* along *axis*, in the axis's direction."""
        rays = self.board.rays[cell]
        ahead, behind = rays[axis], rays[axis + self.board.axes]
        run = [cell]
        for side, put in ((ahead, run.append), (behind, lambda other: run.insert(0, other))):
            for other in side:
                if self.markers.get(other) != player:
                    break
                put(other)
        return tuple(run)

    def lines(self, player: int) -> list[tuple[int, ...]]:
        """Every maximal run of the player's markers that is long enough."""
        found = []
        for cell in sorted(self.markers):
            if self.markers[cell] != player:
                continue
            for axis in range(self.board.axes):
                run = self.run_through(cell, axis, player)
                if run[0] == cell and len(run) >= self.board.line_length:  # each run once, where it starts
                    found.append(run)
        return found

    def components(self, border: int | None) -> Iterator[Region]:
        """Connected cells that are neither collapsed nor markers of *border*."""
        left = {
            cell
            for cell in range(self.board.cells)
            if cell not in self.collapsed and (border is None or self.markers.get(cell) != border)
        }
        while left:
            region, frontier = set[int](), [left.pop()]
            while frontier:
                cell = frontier.pop()
                region.add(cell)
                reached = left.intersection(self.board.territory_neighbors[cell])
                left -= reached
                frontier.extend(reached)
            yield frozenset(region)

    def candidate_regions(self) -> set[Region]:
        """Regions in which not every color on the board controls a stack."""
        active = {color for stack in self.stacks.values() for color in stack}
        found = set()
        for border in (None, *sorted(set(self.markers.values()))):
            for region in self.components(border):
                inside = {stack[-1] for cell, stack in self.stacks.items() if cell in region}
                # a proper part: some color on the board is missing inside
                if inside < active and (border is not None or len(inside) == 1):
                    found.add(region)
        return found

    def border_markers(self, region: Region) -> set[int]:
        """Markers that collapse with *region*: those beside it, and what touches them in turn."""
        neighbors = self.board.territory_neighbors
        taken: set[int] = set()
        frontier = [c for cell in region for c in neighbors[cell] if c in self.markers and c not in region]
        while frontier:
            cell = frontier.pop()
            if cell in taken:
                continue
            taken.add(cell)
            touching = self.board.border_neighbors[cell]
            frontier.extend(other for other in touching if other in self.markers and other not in region)
        return taken


# A move, and the text that records use for it.


@dataclass(frozen=True, slots=True)
class Move:
    """One decision. *kind* is the first word of its text, *tag* what the cells do not say.

    P cell count · M from>to · C from>over>to · L full|min cells · T cells · E cell · F cell ·
    R line|fallback|stack_strike from>to · SP, SC, SR, ST (skip placement, capture, recovery, territory)
    """

    kind: str
    cells: tuple[int, ...] = ()
    tag: str = ""

    def text(self, board: Board) -> str:
        names = [board.names[cell] for cell in self.cells]
        match self.kind:
            case "P":
                return f"P {names[0]} {self.tag}"
            case "M" | "C":
                return f"{self.kind} {'>'.join(names)}"
            case "R":
                return f"R {self.tag} {'>'.join(names)}"
            case "L":
                return f"L {self.tag} {'|'.join(sorted(names))}"
            case "T":
                return f"T {'|'.join(sorted(names))}"
            case "E" | "F":
                return f"{self.kind} {names[0]}"
        return self.kind
