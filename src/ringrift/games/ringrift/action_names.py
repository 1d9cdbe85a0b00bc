"""Actions as moves that people can read, in the words of recorded games."""

from __future__ import annotations

from collections.abc import Iterable

from ringrift.games.contract import State
from ringrift.games.ringrift.boards import Board
from ringrift.games.ringrift.core import layout as at
from ringrift.games.ringrift.reference.moves import Move
from ringrift.games.ringrift.reference.position import BoardPosition
from ringrift.games.ringrift.rows import read_position

_SKIPS = {at.PLACEMENT: "SP", at.MOVEMENT: "SR", at.CAPTURE: "SC", at.TERRITORY: "ST"}


def action_moves(board: Board, state: State, actions: Iterable[int]) -> list[Move]:
    """The moves that legal *actions* of *state* stand for."""
    reader = _ActionReader(board, state)
    return [reader.move(int(action)) for action in actions]


class _ActionReader:
    """Reads actions of one state; the planes are those of `core.layout`."""

    def __init__(self, board: Board, state: State) -> None:
        self._board = board
        self._position: BoardPosition = read_position(board, state)
        self._player, self._phase = int(state[at.CUR]), int(state[at.PHASE])
        self._lines = at.PLACE_PLANES + len(board.directions) * board.farthest
        self._regions = self._lines + 2 * board.axes
        self._eliminate = self._regions + at.REGION_PLANES

    def move(self, action: int) -> Move:
        plane, cell = divmod(action, self._board.cells)
        if plane > self._eliminate:
            return Move(_SKIPS[self._phase])
        if plane == self._eliminate:
            return Move("F" if self._phase == at.FORCED else "E", (cell,))
        if plane >= self._regions:
            return self._region(cell, plane - self._regions)
        if plane >= self._lines:
            return self._line(cell, *divmod(plane - self._lines, 2))
        if plane >= at.PLACE_PLANES:
            return self._act(cell, *divmod(plane - at.PLACE_PLANES, self._board.farthest))
        return Move("P", (cell,), str(plane + 1))

    def _act(self, cell: int, direction: int, steps: int) -> Move:
        ray, stacks = self._board.rays[cell][direction], self._position.stacks
        end = ray[steps]
        if cell not in stacks:
            return Move("R", (cell, end), self._recovery_mode(cell, end))
        target = next((other for other in ray[:steps] if other in stacks), None)
        return Move("M", (cell, end)) if target is None else Move("C", (cell, target, end))

    def _recovery_mode(self, start: int, end: int) -> str:
        if end in self._position.stacks:
            return "stack_strike"
        owner = self._position.markers.pop(start)
        runs = [self._position.run_through(end, axis, owner) for axis in range(self._board.axes)]
        self._position.markers[start] = owner
        return "line" if any(len(run) >= self._board.line_length for run in runs) else "fallback"

    def _line(self, cell: int, axis: int, part: int) -> Move:
        if part:
            rest = self._board.rays[cell][axis][: self._board.line_length - 1]
            return Move("L", (cell, *rest), "min")
        return Move("L", self._position.run_through(cell, axis, self._player), "full")

    def _region(self, cell: int, relative: int) -> Move:
        border = (self._player + relative - 2) % self._board.players + 1 if relative else None
        region = next(region for region in self._position.components(border) if cell in region)
        return Move("T", tuple(sorted(region)))
