"""What a network sees: planes on the board's grid, from the side of the player on turn.

Seats are counted from the player on turn (0), in seat order. Cells off the board stay zero in every plane,
so the first plane doubles as the mask of a hex board. Per seat: controlled stacks, rings of that colour in
the stack, the ring just below the cap, markers, collapsed cells; then height, cap and the cell that must
act; then values that are the same everywhere.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ringrift.games.compiled import compiled
from ringrift.games.ringrift.core.geometry import (
    Table,
    cells,
    elimination_target,
    grid_column,
    grid_row,
    players,
    rings_each,
    territory_target,
)
from ringrift.games.ringrift.core.layout import (
    ACTIVE,
    CAPTURE,
    CHAIN,
    CHANGED,
    COLLAPSED,
    CUR,
    DEBT,
    ELIM,
    HAND,
    HOLDER,
    MARKER,
    MUST,
    NO_CELL,
    PHASE,
    RECOVERED,
    RECOVERY_LINE,
    STACK,
    STACK_FROM,
    STREAK,
    TERR,
    Words,
    cap_at,
    code_at,
    height_at,
    rings_at,
)

Planes = npt.NDArray[np.float32]
PER_SEAT_CELL_PLANES, OTHER_CELL_PLANES = 5, 4
PER_SEAT_FLAT_PLANES, PHASE_PLANES, DEBT_PLANES, OTHER_FLAT_PLANES = 3, 7, 4, 4


def plane_count(players: int) -> int:
    per_seat = PER_SEAT_CELL_PLANES + PER_SEAT_FLAT_PLANES
    return per_seat * players + OTHER_CELL_PLANES + PHASE_PLANES + DEBT_PLANES + OTHER_FLAT_PLANES


@compiled
def observe_state(s: Words, t: Table, out: Planes) -> None:
    """Fill *out* (planes, rows, columns)."""
    out[:] = 0.0
    for cell in range(cells(t)):
        _observe_cell(s, t, cell, out[:, grid_row(t, cell), grid_column(t, cell)])
    focus = focus_cell(s)
    if focus != NO_CELL:
        out[3, grid_row(t, focus), grid_column(t, focus)] = 1.0
    flat = np.zeros(out.shape[0], dtype=np.float32)
    first = OTHER_CELL_PLANES + PER_SEAT_CELL_PLANES * players(t)
    _observe_counters(s, t, flat[first:])
    for plane in range(first, out.shape[0]):
        if flat[plane] != 0.0:
            for cell in range(cells(t)):
                out[plane, grid_row(t, cell), grid_column(t, cell)] = flat[plane]


@compiled
def focus_cell(s: Words) -> int:
    """The cell that the decision is about: the stack that must act or may capture, the moved marker."""
    if s[PHASE] == CAPTURE or s[PHASE] == CHAIN or s[DEBT] == RECOVERY_LINE:
        return s[ACTIVE]
    return s[MUST]


@compiled
def _observe_cell(s: Words, t: Table, cell: int, out: Planes) -> None:
    out[0] = 1.0
    code, seats = code_at(s, cell), players(t)
    if code == 0:
        return
    first = OTHER_CELL_PLANES
    if code >= STACK_FROM:
        height, cap, rings = height_at(s, cell), cap_at(s, cell), rings_at(s, cell)
        out[1] = height / 8.0
        out[2] = cap / 8.0
        out[first + _seat(s, t, code - STACK)] = 1.0
        for place in range(height):
            colour = ((rings >> (2 * place)) & 3) + 1
            out[first + seats + _seat(s, t, colour)] += 0.25
        if cap < height:
            below = ((rings >> (2 * (height - cap) - 2)) & 3) + 1
            out[first + 2 * seats + _seat(s, t, below)] = 1.0
    elif code > COLLAPSED:
        out[first + 4 * seats + _seat(s, t, code - COLLAPSED)] = 1.0
    else:
        out[first + 3 * seats + _seat(s, t, code - MARKER)] = 1.0


@compiled
def _seat(s: Words, t: Table, player: int) -> int:
    """Seat of *player* counted from the player on turn."""
    return (player - s[CUR]) % players(t)


@compiled
def _observe_counters(s: Words, t: Table, out: Planes) -> None:
    seats = players(t)
    for player in range(1, seats + 1):
        seat = _seat(s, t, player)
        out[seat] = s[HAND + player] / rings_each(t)
        out[seats + seat] = s[ELIM + player] / elimination_target(t)
        out[2 * seats + seat] = s[TERR + player] / territory_target(t)
    at = 3 * seats
    if s[PHASE] < PHASE_PLANES:
        out[at + s[PHASE]] = 1.0
    at += PHASE_PLANES
    if s[DEBT] > 0:
        out[at + s[DEBT] - 1] = 1.0
    at += DEBT_PLANES
    out[at] = s[CHANGED]
    out[at + 1] = s[RECOVERED]
    if s[HOLDER] != 0:
        out[at + 2 if s[HOLDER] == s[CUR] else at + 3] = s[STREAK] / 3.0
