"""Where everything lies in a state row, and how actions are numbered.

A row is `CELLS` words of counters followed by one word per cell. A cell's word holds, from the lowest bit:
4 bits of code, 5 of height, 5 of cap, then two bits per ring, bottom first. The code is 0 for an empty
cell, 1-4 for a marker, 5-8 for a collapsed cell, 9-12 for a stack, each by owner or controller, so that
"may be passed" is `code < COLLAPSED` and "is a stack" is `code >= STACK`.

Actions are `plane * cells + cell`, and the last number is the pass. Planes: place 1, 2, 3; act by
direction and distance; line by axis (whole run, or minimum, starting here); region by border colour
(none, or as seen from the player on turn) at its lowest cell; eliminate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.int64]
Actions = npt.NDArray[np.int32]

# The one integer type of compiled code. Around a constant it also keeps the compiler from making a version
# of the called function for just that constant.
to_int: Callable[[Any], int] = np.int64  # type: ignore[assignment]

# Codes of a cell: code - base = owner.
MARKER, COLLAPSED, STACK = 0, 4, 8
FREE_BELOW = COLLAPSED + 1  # codes below it may be passed and landed on
STACK_FROM = STACK + 1
CODE_MASK, SIZE_MASK = 15, 31
HEIGHT_BIT, CAP_BIT, RINGS_BIT = 4, 9, 14

# Counters.
CUR, PHASE, MUST, ACTIVE, CHANGED, RECOVERED, DEBT = 0, 1, 2, 3, 4, 5, 6
WINNER, REASON, OPENER, ACTED, STREAK, HOLDER, DECISIONS = 7, 8, 9, 10, 11, 12, 13
# Counters per player: base + player, players from 1.
HAND, ELIM, TERR, ON_BOARD, CONTROLLED, MARKS, LOST_AT, GONE = 15, 19, 23, 27, 31, 35, 39, 43
CELLS = 48
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
