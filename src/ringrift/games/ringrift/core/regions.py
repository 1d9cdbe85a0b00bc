"""Regions: which the player on turn may process, and what processing one takes in.

*work* is scratch memory of `WORK_PER_CELL` words per cell: marks of the cells seen, then the cells
themselves in the order in which they were reached.
"""

from __future__ import annotations

from ringrift.games.compiled import compiled
from ringrift.games.ringrift.core.geometry import (
    BORDER_SIDES,
    PAD,
    TERRITORY_SIDES,
    Table,
    border_neighbor,
    cells,
    first_region_plane,
    players,
    territory_neighbor,
)
from ringrift.games.ringrift.core.layout import (
    COLLAPSED,
    CONTROLLED,
    CUR,
    FREE_BELOW,
    MARKER,
    MARKS,
    ON_BOARD,
    RECOVERED,
    STACK,
    STACK_FROM,
    TERR,
    Actions,
    Words,
    code_at,
    holds_buried,
    to_int,
)

WORK_PER_CELL = 2  # given by the caller, so that nothing is allocated for a region


@compiled
def clear_marks(t: Table, work: Words) -> None:
    for cell in range(cells(t)):
        work[cell] = 0


@compiled
def flood(s: Words, t: Table, start: int, border: int, work: Words) -> int:
    """Mark and list the component of *start*; return its size. 0 as *border* means no marker bounds it."""
    base = cells(t)
    work[start] = 1
    work[base] = start
    size, at = 1, 0
    while at < size:
        cell = work[base + at]
        at += 1
        for side in range(TERRITORY_SIDES):
            other = territory_neighbor(t, cell, side)
            if other == PAD:
                break
            if work[other] == 0 and is_open(s, other, border):
                work[other] = 1
                work[base + size] = other
                size += 1
    return size


@compiled
def is_open(s: Words, cell: int, border: int) -> bool:
    """Neither collapsed nor a marker of the border color."""
    code = code_at(s, cell)
    return code == 0 or code >= STACK_FROM or (code < FREE_BELOW and code != MARKER + border)


@compiled
def active_colors(s: Words, t: Table) -> int:
    """Bit per color that has a ring on the board."""
    bits = 0
    for player in range(1, players(t) + 1):
        if s[ON_BOARD + player] > 0:
            bits |= 1 << player
    return bits


@compiled
def marker_colors(s: Words, t: Table) -> int:
    bits = 0
    for player in range(1, players(t) + 1):
        if s[MARKS + player] > 0:
            bits |= 1 << player
    return bits


@compiled
def next_region(s: Words, t: Table, at: int, work: Words) -> int:
    """First region at or after *at* that the player on turn may process; -1 if there is none.

    Regions come in the order border * cells + lowest cell. The marks in *work* belong to the border, so
    that a search goes on where the last one ended.
    """
    owners, collapsed = marker_colors(s, t), collapsed_cells(s, t)
    while at < (players(t) + 1) * cells(t):
        border, cell = at // cells(t), at % cells(t)
        # What bounds a region of this color: the cells that a flood cannot enter.
        bounding = collapsed if border == 0 else collapsed + s[MARKS + border]
        if cell == 0:
            clear_marks(t, work)
            # One cell alone cuts nothing off.
            if bounding < 2 or (border > 0 and s[MARKS + border] == 0):
                at += cells(t)
                continue
        if work[cell] == 0 and is_open(s, cell, border):
            size = flood(s, t, cell, border, work)
            if size == cells(t) - bounding:  # it holds every stack: nothing is left outside to pay with
                at = (border + 1) * cells(t)
                continue
            if may_process(s, t, border, size, owners, work):
                return at
        at += 1
    return -1


@compiled
def collapsed_cells(s: Words, t: Table) -> int:
    total = 0
    for player in range(1, players(t) + 1):
        total += s[TERR + player]
    return total


@compiled
def any_region(s: Words, t: Table, work: Words) -> bool:
    return next_region(s, t, to_int(0), work) >= 0


@compiled
def region_moves(s: Words, t: Table, out: Actions, work: Words) -> int:
    """Write the regions that the player on turn may process; return their number."""
    n = 0
    at = next_region(s, t, to_int(0), work)
    while at >= 0:
        border, cell = at // cells(t), at % cells(t)
        relative = 0 if border == 0 else 1 + (border - s[CUR]) % players(t)
        out[n] = (first_region_plane(t) + relative) * cells(t) + cell
        n += 1
        at = next_region(s, t, at + 1, work)
    return n


@compiled
def may_process(s: Words, t: Table, border: int, size: int, owners: int, work: Words) -> bool:
    """Whether the component listed in *work* is a candidate, payable, and not listed under another border."""
    player = s[CUR]
    inside, marked, ours = 0, 0, 0  # controllers and marker colors inside as bits; stacks of the player
    for at in range(size):
        code = code_at(s, work[cells(t) + at])
        if code >= STACK_FROM:
            inside |= 1 << (code - STACK)
            if code == STACK + player:
                ours += 1
        elif code > 0:
            marked |= 1 << (code - MARKER)
    active = active_colors(s, t)
    alone = inside != 0 and inside & (inside - 1) == 0
    # A region counts only if some color on the board is missing in it; without a border of markers, only
    # if exactly one player is in it.
    if inside == active or (border == 0 and not alone):
        return False
    # The price is a stack outside: all of the own ones inside leave nothing to pay with.
    payable = ours < s[CONTROLLED + player]
    if not payable and (s[RECOVERED] == 0 or not buried_outside(s, t, player, work, size)):
        return False
    if border == 0 or touches_marker(s, t, border, size, work):
        return True
    # Bounded by collapsed cells alone, the same cells come up for every border color that has no marker
    # inside, and for none if one player is alone in it: only the first of them counts.
    earlier = owners & ~marked & ((1 << border) - 1)
    return not alone and earlier == 0


@compiled
def touches_marker(s: Words, t: Table, border: int, size: int, work: Words) -> bool:
    for at in range(size):
        cell = work[cells(t) + at]
        for side in range(TERRITORY_SIDES):
            other = territory_neighbor(t, cell, side)
            if other == PAD:
                break
            if code_at(s, other) == MARKER + border:
                return True
    return False


@compiled
def buried_outside(s: Words, t: Table, player: int, work: Words, size: int) -> bool:
    """Whether a stack outside the listed component holds a buried ring of *player*."""
    buried = 0
    for cell in range(cells(t)):
        if code_at(s, cell) >= STACK_FROM and holds_buried(s, cell, player):
            buried += 1
    for at in range(size):
        cell = work[cells(t) + at]
        if code_at(s, cell) >= STACK_FROM and holds_buried(s, cell, player):
            buried -= 1
    return buried > 0


@compiled
def add_border_markers(s: Words, t: Table, size: int, work: Words) -> int:
    """Extend the listed component by the markers that collapse with it; return the new size.

    Markers beside it first, then whatever touches a marker already taken, of any color.
    """
    total = size
    for at in range(size):
        cell = work[cells(t) + at]
        for side in range(TERRITORY_SIDES):
            other = territory_neighbor(t, cell, side)
            if other == PAD:
                break
            total = _take_marker(s, t, other, work, total)
    # The list grows while it is read: what touches a taken marker is behind it in the list.
    at = size
    while at < total:
        cell = work[cells(t) + at]
        at += 1
        for side in range(BORDER_SIDES):
            other = border_neighbor(t, cell, side)
            if other == PAD:
                break
            total = _take_marker(s, t, other, work, total)
    return total


@compiled
def _take_marker(s: Words, t: Table, cell: int, work: Words, total: int) -> int:
    code = code_at(s, cell)
    if work[cell] == 0 and 0 < code <= COLLAPSED:
        work[cell] = 1
        work[cells(t) + total] = cell
        return total + 1
    return total
