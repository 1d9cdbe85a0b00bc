"""The compiled rules of connect four.

A state is four words: the stones of either player as bits, the number of stones played, and the winner
(0 while the game runs, 1 or 2, 3 for a draw). Bit `column * 7 + row` is a cell, row 0 at the bottom; the
seventh bit of a column stays empty, so that a shifted row of stones never runs over into the next column.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from ringrift.games.compiled import cached_kernel, compiled, source_fingerprint

COLUMNS, ROWS, STRIDE, CELLS = 7, 6, 7, 42
FIRST, SECOND, STONES, WINNER = 0, 1, 2, 3  # words of a state
WORDS, DRAW = 4, 3
BOTTOM_BITS = sum(1 << column * STRIDE for column in range(COLUMNS))
BOARD_BITS = BOTTOM_BITS * ((1 << ROWS) - 1)

Words = npt.NDArray[np.int64]
Actions = npt.NDArray[np.int32]
Planes = npt.NDArray[np.float32]

FINGERPRINT = source_fingerprint(Path(__file__))


@compiled
def column_open(s: Words, column: int) -> bool:
    return (s[FIRST] | s[SECOND]) >> (column * STRIDE + ROWS - 1) & 1 == 0


@compiled
def has_four(stones: int) -> bool:
    # Up, right and both diagonals: a shift by the step lays each stone on its neighbor.
    for step in (1, STRIDE, STRIDE - 1, STRIDE + 1):
        pairs = stones & (stones >> step)
        if pairs & (pairs >> (2 * step)) != 0:
            return True
    return False


@compiled
def drop_stone(s: Words, column: int) -> None:
    player = s[STONES] & 1
    filled = s[FIRST] | s[SECOND]
    row = 0
    while filled >> (column * STRIDE + row) & 1:
        row += 1
    s[player] |= 1 << (column * STRIDE + row)
    s[STONES] += 1
    if has_four(s[player]):
        s[WINNER] = player + 1
    elif s[STONES] == CELLS:
        s[WINNER] = DRAW


@cached_kernel(FINGERPRINT)
def legal_batch(states: Words, offsets: Words, out: Actions) -> None:
    n = 0
    for game in range(states.shape[0]):
        if states[game, WINNER] == 0:
            for column in range(COLUMNS):
                if column_open(states[game], column):
                    out[n] = column
                    n += 1
        offsets[game + 1] = n


@cached_kernel(FINGERPRINT)
def apply_batch(states: Words, actions: Actions) -> int:
    """Drop one stone per game; the first game with an illegal action instead, if any, and no change."""
    for game in range(states.shape[0]):
        if states[game, WINNER] != 0 or not column_open(states[game], actions[game]):
            return game
    for game in range(states.shape[0]):
        drop_stone(states[game], actions[game])
    return -1


@cached_kernel(FINGERPRINT)
def observe_batch(states: Words, out: Planes) -> None:
    """Own stones, the other's stones, and ones for the first player's turn."""
    for game in range(states.shape[0]):
        s = states[game]
        player = s[STONES] & 1
        for column in range(COLUMNS):
            for row in range(ROWS):
                bit = column * STRIDE + row
                out[game, 0, ROWS - 1 - row, column] = s[player] >> bit & 1
                out[game, 1, ROWS - 1 - row, column] = s[1 - player] >> bit & 1
                out[game, 2, ROWS - 1 - row, column] = 1 - player


@cached_kernel(FINGERPRINT)
def play_random_batch(states: Words, seed: int, totals: Words) -> None:
    # The generator of compiled code, which is apart from that of Python.
    np.random.seed(seed)
    for game in range(states.shape[0]):
        s = states[game]
        while s[WINNER] == 0:
            options = 0
            for column in range(COLUMNS):
                options += column_open(s, column)
            wanted = np.random.randint(options)
            column = 0
            while wanted > 0 or not column_open(s, column):  # the open column number *wanted*
                wanted -= column_open(s, column)
                column += 1
            drop_stone(s, column)
            totals[0] += 1
            totals[1] += options
