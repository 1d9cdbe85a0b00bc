"""What lies on the board, and what can be read off it: moves of a stack, lines, regions.

Nothing here knows whose turn it is or what phase the game is in; `reference` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ringrift.games.ringrift.boards import Board

Stack = tuple[int, ...]  # ring colours, bottom to top
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
                reached = left.intersection(self.board.territory_neighbours[cell])
                left -= reached
                frontier.extend(reached)
            yield frozenset(region)

    def candidate_regions(self) -> set[Region]:
        """Regions in which not every colour on the board controls a stack."""
        active = {colour for stack in self.stacks.values() for colour in stack}
        found = set()
        for border in (None, *sorted(set(self.markers.values()))):
            for region in self.components(border):
                inside = {stack[-1] for cell, stack in self.stacks.items() if cell in region}
                # a proper part: some colour on the board is missing inside
                if inside < active and (border is not None or len(inside) == 1):
                    found.add(region)
        return found

    def border_markers(self, region: Region) -> set[int]:
        """Markers that collapse with *region*: those beside it, and what touches them in turn."""
        neighbours = self.board.territory_neighbours
        taken: set[int] = set()
        frontier = [c for cell in region for c in neighbours[cell] if c in self.markers and c not in region]
        while frontier:
            cell = frontier.pop()
            if cell in taken:
                continue
            taken.add(cell)
            touching = self.board.border_neighbours[cell]
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
