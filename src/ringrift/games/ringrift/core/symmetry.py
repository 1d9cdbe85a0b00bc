"""Turning and mirroring: states, and actions as seen from their state.

A run or a region is named by one of its cells, and which one changes when the board is turned. So an
action can only be turned together with the state in which it is legal.
"""

from __future__ import annotations

from ringrift.games.compiled import compiled
from ringrift.games.ringrift.core.geometry import (
    Table,
    axes,
    cells,
    eliminate_plane,
    farthest,
    first_line_plane,
    first_region_plane,
    line_length,
    on_ray,
    pass_action,
    players,
    ray_from,
    turned_cell,
    turned_direction,
)
from ringrift.games.ringrift.core.layout import (
    ACTIVE,
    CELLS,
    CUR,
    MUST,
    NO_CELL,
    PLACE_PLANES,
    Words,
)
from ringrift.games.ringrift.core.markers import run_ahead
from ringrift.games.ringrift.core.regions import clear_marks, flood


@compiled
def turn_state(s: Words, t: Table, symmetry: int, out: Words) -> None:
    """Write the state turned by *symmetry* to *out*."""
    for word in range(CELLS):
        out[word] = s[word]
    if s[MUST] != NO_CELL:
        out[MUST] = turned_cell(t, symmetry, s[MUST])
    if s[ACTIVE] != NO_CELL:
        out[ACTIVE] = turned_cell(t, symmetry, s[ACTIVE])
    for cell in range(cells(t)):
        out[CELLS + turned_cell(t, symmetry, cell)] = s[CELLS + cell]


@compiled
def turn_action(s: Words, t: Table, action: int, symmetry: int, work: Words) -> int:
    """The number of *action*, legal in *s*, in the turned state."""
    if action == pass_action(t):
        return action
    plane, cell = action // cells(t), action % cells(t)
    lines = first_line_plane(t)
    regions = first_region_plane(t)
    turned = turned_cell(t, symmetry, cell)
    if PLACE_PLANES <= plane < lines:
        direction, step = (plane - PLACE_PLANES) // farthest(t), (plane - PLACE_PLANES) % farthest(t)
        plane = PLACE_PLANES + turned_direction(t, symmetry, direction) * farthest(t) + step
    elif lines <= plane < regions:
        return _turn_line(s, t, plane - lines, cell, symmetry)
    elif regions <= plane < eliminate_plane(t):
        relative = plane - regions
        border = 0 if relative == 0 else (s[CUR] - 1 + relative - 1) % players(t) + 1
        clear_marks(t, work)
        size = flood(s, t, cell, border, work)
        for at in range(size):
            turned = min(turned, turned_cell(t, symmetry, work[cells(t) + at]))
    return plane * cells(t) + turned


@compiled
def _turn_line(s: Words, t: Table, plane: int, start: int, symmetry: int) -> int:
    """A line keeps its cells, but its first cell may become its last."""
    axis, part = plane // 2, plane % 2
    steps = run_ahead(s, t, start, axis, s[CUR]) if part == 0 else line_length(t) - 1
    direction = turned_direction(t, symmetry, axis)
    first = start if direction < axes(t) else on_ray(t, ray_from(t, start, axis), steps - 1)
    turned_plane = first_line_plane(t) + 2 * (direction % axes(t)) + part
    return turned_plane * cells(t) + turned_cell(t, symmetry, first)
