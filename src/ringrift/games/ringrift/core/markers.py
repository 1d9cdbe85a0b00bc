"""Lines of markers, and the recovery slides that complete them."""

from __future__ import annotations

from ringrift.games.compiled import compiled
from ringrift.games.ringrift.core.cells import code_at
from ringrift.games.ringrift.core.geometry import (
    PAD,
    Table,
    axes,
    cells,
    directions,
    farthest,
    first_line_plane,
    line_length,
    on_ray,
    ray_from,
    ray_length,
)
from ringrift.games.ringrift.core.layout import (
    CONTROLLED,
    MARKER,
    MARKS,
    ON_BOARD,
    PLACE_PLANES,
    STACK_FROM,
    Actions,
    Words,
)


@compiled
def run_ahead(s: Words, t: Table, cell: int, direction: int, player: int) -> int:
    """Number of the player's markers in a row beyond *cell*."""
    ray = ray_from(t, cell, direction)
    length = ray_length(t, ray)
    step = 0
    while step < length and code_at(s, on_ray(t, ray, step)) == MARKER + player:
        step += 1
    return step


@compiled
def run_start(s: Words, t: Table, cell: int, axis: int, player: int) -> int:
    """First cell of the run through *cell* along *axis*."""
    behind = run_ahead(s, t, cell, axis + axes(t), player)
    return cell if behind == 0 else on_ray(t, ray_from(t, cell, axis + axes(t)), behind - 1)


@compiled
def line_moves_from(s: Words, t: Table, start: int, axis: int, out: Actions, n: int) -> int:
    """Append the choices for the line that starts on *start*; none if the run is too short."""
    player = code_at(s, start) - MARKER
    length = 1 + run_ahead(s, t, start, axis, player)
    if length < line_length(t):
        return n
    plane = first_line_plane(t) + 2 * axis
    out[n] = plane * cells(t) + start
    n += 1
    if length > line_length(t):
        for step in range(length - line_length(t) + 1):
            cell = start if step == 0 else on_ray(t, ray_from(t, start, axis), step - 1)
            out[n] = (plane + 1) * cells(t) + cell
            n += 1
    return n


@compiled
def line_moves(s: Words, t: Table, player: int, out: Actions, n: int) -> int:
    for cell in range(cells(t)):
        if code_at(s, cell) == MARKER + player:
            for axis in range(axes(t)):
                if run_ahead(s, t, cell, axis + axes(t), player) == 0:
                    n = line_moves_from(s, t, cell, axis, out, n)
    return n


@compiled
def any_line(s: Words, t: Table, player: int) -> bool:
    if s[MARKS + player] < line_length(t):
        return False
    for cell in range(cells(t)):
        if code_at(s, cell) == MARKER + player:
            for axis in range(axes(t)):
                if run_ahead(s, t, cell, axis, player) + 1 >= line_length(t):
                    return True
    return False


@compiled
def recovery_axis(s: Words, t: Table, start: int, end: int, player: int) -> int:
    """First axis on which a marker moved from *start* to *end* completes a line; -1 if none.

    *start* must not count; a negative cell says that the marker has moved already.
    """
    for axis in range(axes(t)):
        length = 1
        for direction in (axis, axis + axes(t)):
            ahead = run_ahead(s, t, end, direction, player)
            for step in range(ahead):
                if on_ray(t, ray_from(t, end, direction), step) == start:
                    ahead = step
                    break
            length += ahead
        if length >= line_length(t):
            return axis
    return -1


@compiled
def recovery_eligible(s: Words, player: int) -> bool:
    return s[CONTROLLED + player] == 0 and s[MARKS + player] > 0 and s[ON_BOARD + player] > 0


@compiled
def recovery_moves(s: Words, t: Table, player: int, out: Actions, n: int) -> int:
    """Append the recovery slides: those that complete a line, or without any all others."""
    before = n
    for cell in range(cells(t)):
        if code_at(s, cell) == MARKER + player:
            for direction in range(directions(t)):
                end = on_ray(t, ray_from(t, cell, direction), 0)
                if end != PAD and code_at(s, end) == 0 and recovery_axis(s, t, cell, end, player) >= 0:
                    out[n] = (PLACE_PLANES + direction * farthest(t)) * cells(t) + cell
                    n += 1
    return n if n > before else plain_recovery_moves(s, t, player, out, n)


@compiled
def plain_recovery_moves(s: Words, t: Table, player: int, out: Actions, n: int) -> int:
    """Append every step of a marker to an empty cell or onto a stack."""
    for cell in range(cells(t)):
        if code_at(s, cell) == MARKER + player:
            for direction in range(directions(t)):
                end = on_ray(t, ray_from(t, cell, direction), 0)
                if end != PAD and (code_at(s, end) == 0 or code_at(s, end) >= STACK_FROM):
                    out[n] = (PLACE_PLANES + direction * farthest(t)) * cells(t) + cell
                    n += 1
    return n


@compiled
def any_recovery(s: Words, t: Table, player: int) -> bool:
    for cell in range(cells(t)):
        if code_at(s, cell) == MARKER + player:
            for direction in range(directions(t)):
                end = on_ray(t, ray_from(t, cell, direction), 0)
                if end != PAD and (code_at(s, end) == 0 or code_at(s, end) >= STACK_FROM):
                    return True
    return False
