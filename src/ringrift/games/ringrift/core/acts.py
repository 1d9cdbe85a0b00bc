"""Placements, slides and captures: which there are, and whether there are any."""

from __future__ import annotations

from ringrift.games.compiled import compiled
from ringrift.games.ringrift.core.cells import cap_at, code_at, height_at
from ringrift.games.ringrift.core.geometry import (
    Table,
    cells,
    directions,
    farthest,
    on_ray,
    ray_from,
    ray_length,
)
from ringrift.games.ringrift.core.layout import (
    CONTROLLED,
    FREE_BELOW,
    HAND,
    MOVEMENT,
    PHASE,
    PLACE_PLANES,
    STACK,
    STACK_FROM,
    Actions,
    Words,
    to_int,
)


@compiled
def free_until(s: Words, t: Table, ray: int, step: int) -> int:
    """First step of the ray, from *step* on, that may not be passed; the ray's length if there is none."""
    length = ray_length(t, ray)
    while step < length and code_at(s, on_ray(t, ray, step)) < FREE_BELOW:
        step += 1
    return step


@compiled
def capture_until(s: Words, t: Table, ray: int, stop: int, cap: int) -> int:
    """End of the landing steps beyond the first obstacle at *stop*; 0 if it cannot be captured."""
    if stop >= ray_length(t, ray):
        return 0
    target = on_ray(t, ray, stop)
    if code_at(s, target) < STACK_FROM or cap < cap_at(s, target):
        return 0
    return free_until(s, t, ray, stop + 1)


@compiled
def act_moves(s: Words, t: Table, cell: int, out: Actions, n: int) -> int:
    """Append the captures of the stack on *cell*, in movement also its slides; return the new length."""
    height, cap = height_at(s, cell), cap_at(s, cell)
    for direction in range(directions(t)):
        ray = ray_from(t, cell, direction)
        if ray_length(t, ray) < height:
            continue
        base = (PLACE_PLANES + direction * farthest(t)) * cells(t) + cell
        stop = free_until(s, t, ray, to_int(0))
        if s[PHASE] == MOVEMENT:
            for step in range(height - 1, stop):
                out[n] = base + step * cells(t)
                n += 1
        for step in range(max(stop + 1, height - 1), capture_until(s, t, ray, stop, cap)):
            out[n] = base + step * cells(t)
            n += 1
    return n


@compiled
def longest_slide(s: Words, t: Table, cell: int, enough: int) -> int:
    """Most free steps from *cell* along any ray, counted no further than *enough*."""
    longest = 0
    for direction in range(directions(t)):
        ray = ray_from(t, cell, direction)
        length = min(enough, ray_length(t, ray))
        step = 0
        while step < length and code_at(s, on_ray(t, ray, step)) < FREE_BELOW:
            step += 1
        if step > longest:
            longest = step
            if longest == enough:
                break
    return longest


@compiled
def could_capture(s: Words, t: Table, cell: int, height: int, cap: int) -> bool:
    """Whether a stack of that height and cap could capture if it stood on *cell*."""
    for direction in range(directions(t)):
        ray = ray_from(t, cell, direction)
        if ray_length(t, ray) >= height:
            stop = free_until(s, t, ray, to_int(0))
            if capture_until(s, t, ray, stop, cap) > max(stop + 1, height - 1):
                return True
    return False


@compiled
def could_act(s: Words, t: Table, cell: int, height: int, cap: int) -> bool:
    """Whether a stack of that height and cap could slide or capture if it stood on *cell*."""
    return longest_slide(s, t, cell, height) == height or could_capture(s, t, cell, height, cap)


@compiled
def placeable(s: Words, t: Table, player: int, cell: int) -> int:
    """Bit per number of rings that *player* may put on *cell*."""
    hand, code = s[HAND + player], code_at(s, cell)
    if hand == 0:
        return 0
    if code >= STACK_FROM:
        cap = cap_at(s, cell) + 1 if code == STACK + player else 1
        return 2 if could_act(s, t, cell, height_at(s, cell) + 1, cap) else 0
    if code != 0:
        return 0
    most = min(hand, PLACE_PLANES)
    longest = longest_slide(s, t, cell, most)
    counts = (1 << (longest + 1)) - 2
    for count in range(longest + 1, most + 1):
        if could_capture(s, t, cell, count, count):
            counts |= 1 << count
    return counts


@compiled
def place_moves(s: Words, t: Table, player: int, out: Actions, n: int) -> int:
    """Append every legal placement."""
    for cell in range(cells(t)):
        counts = placeable(s, t, player, cell)
        for count in range(1, PLACE_PLANES + 1):
            if counts >> count & 1:
                out[n] = (count - 1) * cells(t) + cell
                n += 1
    return n


@compiled
def any_placement(s: Words, t: Table, player: int) -> bool:
    for cell in range(cells(t)):
        if placeable(s, t, player, cell) != 0:
            return True
    return False


@compiled
def any_act(s: Words, t: Table, player: int) -> bool:
    """Whether some stack that *player* controls can slide or capture."""
    if s[CONTROLLED + player] == 0:
        return False
    for cell in range(cells(t)):
        if code_at(s, cell) == STACK + player and could_act(s, t, cell, height_at(s, cell), cap_at(s, cell)):
            return True
    return False


@compiled
def real_action(s: Words, t: Table, player: int) -> bool:
    """A placement, slide or capture exists for *player*, whoever is on turn."""
    return any_placement(s, t, player) or any_act(s, t, player)
