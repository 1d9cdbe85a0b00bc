"""Where everything lies in a state row, how actions are numbered, and what reads and changes one cell.

A row is `CELLS` words of counters followed by one word per cell. A cell's word holds, from the lowest bit:
4 bits of code, 5 of height, 5 of cap, then two bits per ring, bottom first. The code is 0 for an empty
cell, 1-4 for a marker, 5-8 for a collapsed cell, 9-12 for a stack, each by owner or controller, so that
"may be passed" is `code < COLLAPSED` and "is a stack" is `code >= STACK`.

Actions are `plane * cells + cell`, and the last number is the pass. Planes: place 1, 2, 3; act by
direction and distance; line by axis (whole run, or minimum, starting here); region by border color
(none, or as seen from the player on turn) at its lowest cell; eliminate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ringrift.games.compiled import compiled

Words = npt.NDArray[np.int64]
Actions = npt.NDArray[np.int32]

# The one integer type of compiled code. Around a constant it also keeps the compiler from making a version
# of the called function for just that constant.
to_int: Callable[[Any], int] = np.int64  # type: ignore[assignment]

# Codes of a cell: code - base = owner.
MARKER, COLLAPSED, STACK = 0, 4, 8
FREE_BELOW = COLLAPSED + 1  # codes below it may be passed and landed on
STACK_FROM = STACK + 1
CODE_MASK, SIZE_MASK = 15, 31  # 4 bits of code, 5 of height and of cap
HEIGHT_BIT, CAP_BIT, RINGS_BIT = 4, 9, 14

# Counters.
# Samples hold whole rows: none of these numbers may change.
CUR, PHASE, MUST, ACTIVE, CHANGED, RECOVERED, DEBT = 0, 1, 2, 3, 4, 5, 6
WINNER, REASON, OPENER, ACTED, STREAK, HOLDER, DECISIONS = 7, 8, 9, 10, 11, 12, 13
# Counters per player: base + player, players from 1.
HAND, ELIM, TERR, ON_BOARD, CONTROLLED, MARKS, LOST_AT, GONE = 15, 19, 23, 27, 31, 35, 39, 43
CELLS = 48  # room for four players in each block, whatever the number of this game
NO_CELL = -1  # in a counter

PLACEMENT, MOVEMENT, CAPTURE, CHAIN, LINES, TERRITORY, FORCED, OVER = 0, 1, 2, 3, 4, 5, 6, 7
PHASE_NAMES = (
    "ring_placement",
    "movement",
    "capture",
    "chain_capture",
    "line_processing",
    "territory_processing",
    "forced_elimination",
    "game_over",
)
NO_DEBT, LINE_DEBT, TERRITORY_DEBT, RECOVERY_LINE, RECOVERY_DEBT = 0, 1, 2, 3, 4
DEBT_NAMES = (None, "line", "territory", "recovery_line", "recovery")
BY_ELIMINATION, BY_TERRITORY, BY_LAST_STANDING, BY_STALEMATE = 1, 2, 3, 4
REASON_NAMES = (None, "ring_elimination", "territory", "last_player_standing", "stalemate")

PLACE_PLANES, REGION_PLANES = 3, 5


# --- changes of single cells; they keep the counters of rings, stacks, markers and territory right ----


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
    """Ring colors, two bits each, bottom first, color 1 as 0."""
    # The mask cuts off the sign, which a stack of 25 rings reaches.
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
    # Stored and not counted each time: captures compare caps far more often than stacks change.
    cap = 1
    while cap < height and (rings >> (2 * (height - cap) - 2)) & 3 == top:
        cap += 1
    code = STACK_FROM + top
    s[CELLS + cell] = code | (height << HEIGHT_BIT) | (cap << CAP_BIT) | (rings << RINGS_BIT)
    s[CONTROLLED + 1 + top] += 1


@compiled
def credit_ring(s: Words, color: int, player: int) -> None:
    """One ring of *color* leaves the board for good, credited to *player*."""
    s[ON_BOARD + color] -= 1
    s[GONE + color] += 1
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
    """Collapse *cell*, empty or a marker, in the player's color."""
    clear_marker(s, cell)
    s[CELLS + cell] = COLLAPSED + player
    s[TERR + player] += 1
