"""Regions as a value: who could take how much, and who would lose it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ringrift.games.compiled import compiled
from ringrift.games.ringrift.core.cells import code_at, height_at, rings_at
from ringrift.games.ringrift.core.geometry import Table, cells, players
from ringrift.games.ringrift.core.layout import CONTROLLED, MARKS, STACK, STACK_FROM, TERR, Words
from ringrift.games.ringrift.core.regions import active_colours, clear_marks, flood, is_open

Gains = npt.NDArray[np.float64]  # players + 1 x (rings, cells, trapped rings)
RINGS, CELLS, TRAPPED = 0, 1, 2


@compiled
def find_enclosures(s: Words, t: Table, work: Words, gains: Gains) -> None:
    """Note for each player the best region it could process if it were in that phase, and what it risks."""
    active = active_colours(s, t)
    collapsed = 0
    for player in range(1, players(t) + 1):
        collapsed += s[TERR + player]
    for border in range(players(t) + 1):
        bounding = collapsed if border == 0 else collapsed + s[MARKS + border]
        if bounding < 2 or (border > 0 and s[MARKS + border] == 0):
            continue
        clear_marks(t, work)
        for cell in range(cells(t)):
            if work[cell] == 0 and is_open(s, cell, border):
                size = flood(s, t, cell, border, work)
                if size == cells(t) - bounding:
                    break
                _weigh(s, t, border, size, active, work, gains)


@compiled
def _weigh(s: Words, t: Table, border: int, size: int, active: int, work: Words, gains: Gains) -> None:
    """Credit the region listed in *work* to everybody who could process it."""
    inside, rings, stacks, colours = contents(s, t, size, work)
    alone = inside != 0 and inside & (inside - 1) == 0
    if inside == active or (border == 0 and not alone):
        return
    takers = 0
    for player in range(1, players(t) + 1):
        if ((stacks >> (10 * player)) & 1023) < s[CONTROLLED + player]:
            takers |= 1 << player
            if 3 * rings + size > 3 * gains[player, RINGS] + gains[player, CELLS]:
                gains[player, RINGS], gains[player, CELLS] = rings, size
    for player in range(1, players(t) + 1):
        if takers & ~(1 << player):
            gains[player, TRAPPED] = max(gains[player, TRAPPED], (colours >> (10 * player)) & 1023)


@compiled
def contents(s: Words, t: Table, size: int, work: Words) -> tuple[int, int, int, int]:
    """Controllers inside as bits, rings, and stacks and rings by player in ten bits each."""
    inside, rings, stacks, colours = 0, 0, 0, 0
    for at in range(size):
        cell = work[cells(t) + at]
        code = code_at(s, cell)
        if code < STACK_FROM:
            continue
        inside |= 1 << (code - STACK)
        stacks += 1 << (10 * (code - STACK))
        height, tower = height_at(s, cell), rings_at(s, cell)
        rings += height
        for place in range(height):
            colours += 1 << (10 * (((tower >> (2 * place)) & 3) + 1))
    return inside, rings, stacks, colours
