"""A position drawn with characters.

`.` empty, `o2` marker and `#2` collapsed cell of player 2, `2:5` a stack of height 5 that player 2
controls, on small boards `2:5/3` if only the 3 top rings are of its colour. Stacks of several colours are
listed ring by ring below the board.
"""

from __future__ import annotations

from ringrift.games.contract import State
from ringrift.games.ringrift.boards import Board
from ringrift.games.ringrift.core import layout as at
from ringrift.games.ringrift.reference.position import BoardPosition, cap
from ringrift.games.ringrift.rows import read_position

WIDE_FROM = 12  # side of a board that leaves no room for caps
LEGEND = ". empty   oP marker   #P collapsed   P:H stack of height H   P:H/C with a cap of C   (P = player)"


def draw_state(board: Board, state: State) -> str:
    """Counters, board and legend, ready to print."""
    position = read_position(board, state)
    caps = board.grid_side < WIDE_FROM
    marks = [_mark(position, cell, caps=caps) for cell in range(board.cells)]
    width = max(4, *(len(mark) + 1 for mark in marks))
    width += width % 2  # half a cell of indentation per row of hexes
    lines = _square(board, marks, width) if not board.shape.hexagonal else _hexagon(board, marks, width)
    return "\n".join(
        [_heading(board, state), "", *lines, "", *_seats(board, state), *_mixed(board, position), LEGEND]
    )


def _mark(position: BoardPosition, cell: int, *, caps: bool) -> str:
    if cell in position.stacks:
        stack = position.stacks[cell]
        mixed = f"/{cap(stack)}" if caps and cap(stack) < len(stack) else ""
        return f"{stack[-1]}:{len(stack)}{mixed}"
    if cell in position.markers:
        return f"o{position.markers[cell]}"
    if cell in position.collapsed:
        return f"#{position.collapsed[cell]}"
    return "."


def _square(board: Board, marks: list[str], width: int) -> list[str]:
    side = board.grid_side
    header = " " * 5 + "".join(f"{x}".ljust(width) for x in range(side)).rstrip() + "   x"
    rows = [
        f"{y:>3}  " + "".join(mark.ljust(width) for mark in marks[y * side : (y + 1) * side]).rstrip()
        for y in range(side)
    ]
    return [header, *rows, "  y"]


def _hexagon(board: Board, marks: list[str], width: int) -> list[str]:
    """Rows of equal y; x grows to the right, and the row's label names its first and last x."""
    lines = []
    for y in range(-board.shape.extent, board.shape.extent + 1):
        row = [(x, marks[cell]) for cell, (x, cell_y) in enumerate(board.points) if cell_y == y]
        body = " " * (abs(y) * width // 2) + "".join(mark.ljust(width) for _, mark in row).rstrip()
        lines.append(f"y {y:>3}  x {row[0][0]:>3} to {row[-1][0]:>3}   {body}")
    return lines


def _heading(board: Board, state: State) -> str:
    if state[at.WINNER]:
        reason = at.REASON_NAMES[state[at.REASON]] or "unknown reason"
        return f"{board.key}: player {state[at.WINNER]} won ({reason.replace('_', ' ')})"
    phase = at.PHASE_NAMES[state[at.PHASE]].replace("_", " ")
    debt = at.DEBT_NAMES[state[at.DEBT]]
    owed = f", owes: {debt.replace('_', ' ')}" if debt else ""
    return (
        f"{board.key}: player {state[at.CUR]} to decide, {phase}{owed} (decision {state[at.DECISIONS] + 1})"
    )


def _mixed(board: Board, position: BoardPosition) -> list[str]:
    stacks = [(cell, stack) for cell, stack in sorted(position.stacks.items()) if cap(stack) < len(stack)]
    listed = "; ".join(f"{board.names[cell]} {''.join(map(str, stack))}" for cell, stack in stacks)
    return [f"mixed stacks, bottom ring first: {listed}"] if stacks else []


def _seats(board: Board, state: State) -> list[str]:
    return [
        f"player {seat}: hand {state[at.HAND + seat]}, eliminated {state[at.ELIM + seat]} of "
        f"{board.elimination_target}, territory {state[at.TERR + seat]} of {board.territory_target}, "
        f"markers {state[at.MARKS + seat]}, stacks {state[at.CONTROLLED + seat]}"
        for seat in range(1, board.players + 1)
    ]
