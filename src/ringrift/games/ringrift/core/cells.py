"""Changes of single cells. They keep the counters of rings, stacks, markers and territory right."""

from __future__ import annotations

from ringrift.games.compiled import compiled
from ringrift.games.ringrift.core.layout import (
    CAP_BIT,
    CELLS,
    CODE_MASK,
    COLLAPSED,
    CONTROLLED,
    ELIM,
    FREE_BELOW,
    GONE,
    HEIGHT_BIT,
    MARKER,
    MARKS,
    ON_BOARD,
    RINGS_BIT,
    SIZE_MASK,
    STACK,
    STACK_FROM,
    TERR,
    Words,
)


@compiled
def code_at(s: Words, cell: int) -> int:
    return s[CELLS + cell] & CODE_MASK


@compiled
def height_at(s: Words, cell: int) -> int:
    return (s[CELLS + cell] >> HEIGHT_BIT) & SIZE_MASK


@compiled
def cap_at(s: Words, cell: int) -> int:
    return (s[CELLS + cell] >> CAP_BIT) & SIZE_MASK


@compiled
def rings_at(s: Words, cell: int) -> int:
    """Ring colours, two bits each, bottom first, colour 1 as 0."""
    return (s[CELLS + cell] >> RINGS_BIT) & ((1 << (2 * height_at(s, cell))) - 1)


@compiled
def lowest_ring(s: Words, cell: int, player: int) -> int:
    """Place of the player's lowest ring in the stack on *cell*, from 0; -1 if there is none."""
    rings = rings_at(s, cell)
    for place in range(height_at(s, cell)):
        if (rings >> (2 * place)) & 3 == player - 1:
            return place
    return -1


@compiled
def holds_buried(s: Words, cell: int, player: int) -> bool:
    place = lowest_ring(s, cell, player)
    return 0 <= place < height_at(s, cell) - 1


@compiled
def lift_stack(s: Words, cell: int) -> None:
    """Take the stack off *cell*; its rings stay counted as on the board."""
    s[CONTROLLED + code_at(s, cell) - STACK] -= 1
    s[CELLS + cell] = 0


@compiled
def stand_stack(s: Words, cell: int, rings: int, height: int) -> None:
    """Put a stack on *cell*, which holds none; no rings leave it empty."""
    if height == 0:
        s[CELLS + cell] = 0
        return
    top = (rings >> (2 * height - 2)) & 3
    cap = 1
    while cap < height and (rings >> (2 * (height - cap) - 2)) & 3 == top:
        cap += 1
    code = STACK_FROM + top
    s[CELLS + cell] = code | (height << HEIGHT_BIT) | (cap << CAP_BIT) | (rings << RINGS_BIT)
    s[CONTROLLED + 1 + top] += 1


@compiled
def credit_ring(s: Words, colour: int, player: int) -> None:
    """One ring of *colour* leaves the board for good, credited to *player*."""
    s[ON_BOARD + colour] -= 1
    s[GONE + colour] += 1
    s[ELIM + player] += 1


@compiled
def eliminate_top(s: Words, cell: int, count: int, player: int) -> None:
    rings, height = rings_at(s, cell), height_at(s, cell)
    for place in range(height - count, height):
        credit_ring(s, ((rings >> (2 * place)) & 3) + 1, player)
    lift_stack(s, cell)
    left = height - count
    stand_stack(s, cell, rings & ((1 << (2 * left)) - 1), left)


@compiled
def extract_lowest(s: Words, cell: int, player: int) -> None:
    """Remove the player's lowest ring; the rings above drop by one."""
    rings, height = rings_at(s, cell), height_at(s, cell)
    place = lowest_ring(s, cell, player)
    below = rings & ((1 << (2 * place)) - 1)
    above = (rings >> (2 * place + 2)) << (2 * place)
    lift_stack(s, cell)
    stand_stack(s, cell, above | below, height - 1)
    credit_ring(s, player, player)


@compiled
def set_marker(s: Words, cell: int, player: int) -> None:
    """Make *cell*, empty or a marker, a marker of *player*."""
    clear_marker(s, cell)
    s[CELLS + cell] = MARKER + player
    s[MARKS + player] += 1


@compiled
def clear_marker(s: Words, cell: int) -> bool:
    """Remove the marker on *cell* if there is one, and say whether there was."""
    owner = code_at(s, cell) - MARKER
    if owner < 1 or owner >= FREE_BELOW:
        return False
    s[MARKS + owner] -= 1
    s[CELLS + cell] = 0
    return True


@compiled
def collapse(s: Words, cell: int, player: int) -> None:
    """Collapse *cell*, empty or a marker, in the player's colour."""
    clear_marker(s, cell)
    s[CELLS + cell] = COLLAPSED + player
    s[TERR + player] += 1
