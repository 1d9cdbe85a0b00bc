"""States as rows: the actions so far, four to a word, after a word that says how many there are."""

from __future__ import annotations

import numpy as np

from ringrift.games.contract import State

LENGTH, ACTIONS = 0, 1
PER_WORD, ACTION_BITS = 4, 16
ACTION_COUNT_MAX = 1 << ACTION_BITS


def words_for(length_max: int) -> int:
    """Words of a row that holds up to *length_max* actions."""
    return ACTIONS + -(-length_max // PER_WORD)


def read_history(row: State) -> list[int]:
    length = int(row[LENGTH])
    return [int(action) for action in row[ACTIONS:].view(np.uint16)[:length]]


def append_action(row: State, action: int) -> None:
    row[ACTIONS:].view(np.uint16)[int(row[LENGTH])] = action
    row[LENGTH] += 1


def write_history(actions: list[int], words: int) -> State:
    row = np.zeros(words, dtype=np.int64)
    row[ACTIONS:].view(np.uint16)[: len(actions)] = actions
    row[LENGTH] = len(actions)
    return row
