"""A bounded memory of evaluations, looked up by the whole state row.

The table is cut into sets of a few places. A row belongs to one set by its hash and is compared word by
word, so an answer is always that of the very same state. A full set gives up its longest unused place.
States with more legal actions than a place has room for are not kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ringrift.games.compiled import cached_kernel, compiled, source_fingerprint
from ringrift.games.contract import Game, LegalActions, States
from ringrift.search.contract import Evaluation

Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

FINGERPRINT = source_fingerprint(Path(__file__))
PLACES_PER_SET = 4
LOGITS_MAX = 96
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MULTIPLIER = np.uint64(0xFF51AFD7ED558CCD)
NONE = -1


class Table(NamedTuple):
    rows: Longs  # places x words
    hashes: npt.NDArray[np.uint64]
    used_at: Longs  # 0 for an empty place, else when it was used last
    logits: Floats
    values: Floats
    clock: Longs  # one number that counts lookups


class Lookup(NamedTuple):
    """Per state: its hash, and its number among the states to evaluate or NONE if the table knew it."""

    hashes: npt.NDArray[np.uint64]
    wanted: Longs


@compiled
def hash_row(row: Longs) -> np.uint64:
    word = GOLDEN
    for at in range(row.shape[0]):
        word = (word ^ np.uint64(row[at])) * MULTIPLIER
        word ^= word >> np.uint64(32)
    return word


@compiled
def same_row(one: Longs, other: Longs) -> bool:
    differs = False
    for at in range(one.shape[0]):
        differs |= one[at] != other[at]
    return not differs


@compiled
def find_place(table: Table, hashed: np.uint64, row: Longs) -> int:
    sets = table.hashes.shape[0] // PLACES_PER_SET
    first = np.int64(hashed & np.uint64(sets - 1)) * PLACES_PER_SET
    for place in range(first, first + PLACES_PER_SET):
        if table.used_at[place] != 0 and table.hashes[place] == hashed and same_row(table.rows[place], row):
            return place
    return NONE


@cached_kernel(FINGERPRINT)
def look_up(
    table: Table, states: Longs, offsets: Longs, out: Lookup, logits: Floats, values: Floats
) -> Longs:
    """Copy what is known to *logits* and *values*; returns the other states, each different one once."""
    count = states.shape[0]
    missing = np.empty(count, dtype=np.int64)
    missed = 0
    size = 16
    while size < 2 * count:
        size *= 2
    seen = np.full(size, NONE, dtype=np.int64)
    table.clock[0] += 1
    for state in range(count):
        hashed = hash_row(states[state])
        out.hashes[state] = hashed
        place = find_place(table, hashed, states[state])
        if place != NONE:
            out.wanted[state] = NONE
            table.used_at[place] = table.clock[0]
            for at in range(offsets[state], offsets[state + 1]):
                logits[at] = table.logits[place, at - offsets[state]]
            for seat in range(values.shape[1]):
                values[state, seat] = table.values[place, seat]
            continue
        slot = np.int64(hashed >> np.uint64(20)) & (size - 1)
        while seen[slot] != NONE and not same_row(states[missing[seen[slot]]], states[state]):
            slot = (slot + 1) & (size - 1)
        if seen[slot] == NONE:
            seen[slot] = missed
            missing[missed] = state
            missed += 1
        out.wanted[state] = seen[slot]
    return missing[:missed]


@compiled
def remember(table: Table, hashed: np.uint64, row: Longs, logits: Floats, values: Floats) -> None:
    sets = table.hashes.shape[0] // PLACES_PER_SET
    first = np.int64(hashed & np.uint64(sets - 1)) * PLACES_PER_SET
    oldest = int(first)
    for place in range(first + 1, first + PLACES_PER_SET):
        if table.used_at[place] < table.used_at[oldest]:
            oldest = place
    table.used_at[oldest] = table.clock[0]
    table.hashes[oldest] = hashed
    for at in range(row.shape[0]):
        table.rows[oldest, at] = row[at]
    for at in range(logits.shape[0]):
        table.logits[oldest, at] = logits[at]
    for seat in range(values.shape[0]):
        table.values[oldest, seat] = values[seat]


@cached_kernel(FINGERPRINT)
def fill_in(
    table: Table,
    states: Longs,
    offsets: Longs,
    looked: Lookup,
    missing: Longs,
    logits: Floats,
    values: Floats,
) -> None:
    """Spread new evaluations, given at the *missing* states, to their repetitions, and remember them."""
    for number in range(missing.shape[0]):
        state = missing[number]
        start, end = offsets[state], offsets[state + 1]
        if end - start <= table.logits.shape[1]:
            remember(table, looked.hashes[state], states[state], logits[start:end], values[state])
    for state in range(states.shape[0]):
        wanted = looked.wanted[state]
        if wanted == NONE or missing[wanted] == state:
            continue
        source = missing[wanted]
        for at in range(offsets[state + 1] - offsets[state]):
            logits[offsets[state] + at] = logits[offsets[source] + at]
        for seat in range(values.shape[1]):
            values[state, seat] = values[source, seat]


class EvaluationCache:
    """The memory of one network for one game."""

    def __init__(self, game: Game, *, size_bytes_max: int) -> None:
        width = min(LOGITS_MAX, game.action_count)
        place_bytes = 8 * game.words + 4 * width + 4 * game.players + 16
        sets = 1
        while 2 * sets * PLACES_PER_SET * place_bytes <= size_bytes_max:
            sets *= 2
        places = sets * PLACES_PER_SET
        self.places = places
        self._players = game.players
        self._table = Table(
            rows=np.zeros((places, game.words), dtype=np.int64),
            hashes=np.zeros(places, dtype=np.uint64),
            used_at=np.zeros(places, dtype=np.int64),
            logits=np.zeros((places, width), dtype=np.float32),
            values=np.zeros((places, game.players), dtype=np.float32),
            clock=np.zeros(1, dtype=np.int64),
        )

    def look_up(self, states: States, legal: LegalActions) -> tuple[Lookup, Longs, Evaluation]:
        """What is known, and which states are not: the caller fills those in and calls `fill_in`."""
        looked = Lookup(np.empty(len(states), dtype=np.uint64), np.empty(len(states), dtype=np.int64))
        logits = np.empty(len(legal.actions), dtype=np.float32)
        values = np.empty((len(states), self._players), dtype=np.float32)
        missing: Longs = look_up(self._table, states, legal.offsets, looked, logits, values)
        return looked, missing, Evaluation(logits, values)

    def fill_in(
        self, states: States, legal: LegalActions, looked: Lookup, missing: Longs, evaluation: Evaluation
    ) -> None:
        fill_in(self._table, states, legal.offsets, looked, missing, evaluation.logits, evaluation.values)

    def clear(self) -> None:
        self._table.used_at[:] = 0
