"""What counts in a position, as numbers per seat. All are shares, so that one set of weights fits all boards.

Row *player* of the features belongs to that player, counted from 1; row 0 is unused.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ringrift.games.compiled import compiled
from ringrift.games.ringrift.core.acts import capture_until
from ringrift.games.ringrift.core.cells import cap_at, code_at, height_at, rings_at
from ringrift.games.ringrift.core.geometry import (
    Table,
    axes,
    cells,
    directions,
    elimination_target,
    line_length,
    on_ray,
    players,
    ray_from,
    ray_length,
    rings_each,
    territory_target,
)
from ringrift.games.ringrift.core.layout import (
    CAPTURE,
    CHAIN,
    CONTROLLED,
    CUR,
    DEBT,
    ELIM,
    FREE_BELOW,
    HAND,
    LINE_DEBT,
    LINES,
    MARKS,
    MOVEMENT,
    MUST,
    NO_CELL,
    ON_BOARD,
    PHASE,
    STACK,
    STACK_FROM,
    TERR,
    TERRITORY,
    TERRITORY_DEBT,
    Words,
)
from ringrift.games.ringrift.core.regions import active_colours, clear_marks, flood, is_open

# Regions as a value: who could take how much, and who would lose it.


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


Features = npt.NDArray[np.float64]  # players + 1 x FEATURE_COUNT

FEATURE_NAMES = (
    "eliminated",  # of the target
    "eliminated_squared",
    "territory",  # of the target
    "territory_squared",
    "hand",  # rings, of those a player starts with
    "stacks",
    "caps",
    "captives",  # rings under a cap the player controls
    "buried",  # own rings that are not in an own cap
    "tallest_cap",
    "lone",  # nearly out of stacks: 1 without any, ½ with one, a third with two
    "fuel",  # rings in hand and in controlled stacks, per ring still to be eliminated, up to 2
    "shortage",  # rings still to be eliminated beyond those, of the target
    "idle",  # no placement left and no stack that can act
    "win_threat",  # the best region, its payment or a single shot would reach a target
    "markers",
    "line_ready",  # windows of a line's length, by own markers in them; the rest can still become one
    "line_but_one",
    "line_but_two",
    "slides",
    "stuck_stacks",
    "shots",  # stacks that can land on a marker, and so eliminate a ring
    "sweep",  # own markers that the best slide would collapse
    "attacks",  # stacks of others that own ones can overtake
    "attacked",  # own stacks that others can overtake
    "enclosed_rings",  # in the best region to process
    "enclosed_cells",
    "trapped_rings",  # own rings in a region that somebody else may process
    "turn",  # is on turn
    "turn_enclosed_rings",
    "turn_enclosed_cells",
    "turn_capture",
    "turn_line",
    "turn_region",
    "turn_line_debt",
    "turn_region_debt",
    "must_shot",  # the stack that must move
    "must_attacks",
    "must_slides",
)
FEATURE_COUNT = len(FEATURE_NAMES)
(
    ELIMINATED,
    ELIMINATED_SQUARED,
    TERRITORY_SHARE,
    TERRITORY_SQUARED,
    IN_HAND,
    STACKS,
    CAPS,
    CAPTIVES,
    BURIED,
    TALLEST_CAP,
    LONE,
    FUEL,
    SHORTAGE,
    IDLE,
    WIN_THREAT,
    MARKERS,
    LINE_READY,
    LINE_BUT_ONE,
    LINE_BUT_TWO,
    SLIDES,
    STUCK_STACKS,
    SHOTS,
    SWEEP,
    ATTACKS,
    ATTACKED,
    ENCLOSED_RINGS,
    ENCLOSED_CELLS,
    TRAPPED_RINGS,
    TURN,
    TURN_ENCLOSED_RINGS,
    TURN_ENCLOSED_CELLS,
    TURN_CAPTURE,
    TURN_LINE,
    TURN_REGION,
    TURN_LINE_DEBT,
    TURN_REGION_DEBT,
    MUST_SHOT,
    MUST_ATTACKS,
    MUST_SLIDES,
) = range(FEATURE_COUNT)


@compiled
def read_features(s: Words, t: Table, work: Words, out: Features) -> None:
    """Write the features of every seat."""
    out[:] = 0.0
    _count_stacks(s, t, out)
    _count_lines(s, t, out)
    find_enclosures(s, t, work, out[:, ENCLOSED_RINGS : TRAPPED_RINGS + 1])
    for player in range(1, players(t) + 1):
        _scale(s, t, player, out[player])
    _describe_turn(s, t, out[s[CUR]])


@compiled
def _scale(s: Words, t: Table, player: int, row: Features) -> None:
    rings, most = rings_each(t), cells(t)
    eliminated, territory = s[ELIM + player] / elimination_target(t), s[TERR + player] / territory_target(t)
    row[ELIMINATED], row[ELIMINATED_SQUARED] = eliminated, eliminated * eliminated
    row[TERRITORY_SHARE], row[TERRITORY_SQUARED] = territory, territory * territory
    row[IN_HAND] = s[HAND + player] / rings
    row[STACKS] = s[CONTROLLED + player] / rings
    row[BURIED] = (s[ON_BOARD + player] - row[CAPS]) / rings
    row[LONE] = 1.0 / (1 + s[CONTROLLED + player])
    _judge_reserves(s, t, player, row)
    row[MARKERS] = s[MARKS + player] / most
    for feature in (CAPS, CAPTIVES, TALLEST_CAP, STUCK_STACKS, SHOTS, ATTACKS, ATTACKED):
        row[feature] /= rings
    for feature in (LINE_READY, LINE_BUT_ONE, LINE_BUT_TWO, SLIDES):
        row[feature] /= most
    for feature in (ENCLOSED_RINGS, TRAPPED_RINGS):
        row[feature] /= elimination_target(t)
    for feature in (SWEEP, ENCLOSED_CELLS):
        row[feature] /= territory_target(t)


@compiled
def _judge_reserves(s: Words, t: Table, player: int, row: Features) -> None:
    """Whether the rings at hand can still win, or win at once; *row* still holds counts."""
    needed = elimination_target(t) - s[ELIM + player]
    rings = s[HAND + player] + row[CAPS] + row[CAPTIVES]
    row[FUEL] = min(2.0, rings / max(1, needed))
    row[SHORTAGE] = max(0.0, needed - rings) / elimination_target(t)
    row[IDLE] = 1.0 if s[HAND + player] == 0 and row[STUCK_STACKS] == s[CONTROLLED + player] else 0.0
    at_once = 1.0 if row[SHOTS] > 0 else 0.0
    if row[ENCLOSED_CELLS] > 0:
        at_once = max(at_once, row[ENCLOSED_RINGS] + row[TALLEST_CAP])
    enough_cells = s[TERR + player] + row[ENCLOSED_CELLS] >= territory_target(t)
    row[WIN_THREAT] = 1.0 if at_once >= needed or (row[ENCLOSED_CELLS] > 0 and enough_cells) else 0.0


@compiled
def _describe_turn(s: Words, t: Table, row: Features) -> None:
    """What the player on turn has before it."""
    phase, debt = s[PHASE], s[DEBT]
    row[TURN] = 1.0
    row[TURN_ENCLOSED_RINGS] = row[ENCLOSED_RINGS]
    row[TURN_ENCLOSED_CELLS] = row[ENCLOSED_CELLS]
    row[TURN_CAPTURE] = 1.0 if phase in (CAPTURE, CHAIN) else 0.0
    row[TURN_LINE] = 1.0 if phase == LINES else 0.0
    row[TURN_REGION] = 1.0 if phase == TERRITORY else 0.0
    row[TURN_LINE_DEBT] = 1.0 if debt == LINE_DEBT else 0.0
    row[TURN_REGION_DEBT] = 1.0 if debt == TERRITORY_DEBT else 0.0
    if phase == MOVEMENT and s[MUST] != NO_CELL:
        for direction in range(directions(t)):
            slides, shot, _, target = reach(s, t, s[MUST], direction)
            row[MUST_SLIDES] += slides / cells(t)
            row[MUST_SHOT] = max(row[MUST_SHOT], shot)
            row[MUST_ATTACKS] += 0.25 if target != NO_CELL else 0.0


@compiled
def _count_stacks(s: Words, t: Table, out: Features) -> None:
    for cell in range(cells(t)):
        code = code_at(s, cell)
        if code >= STACK_FROM:
            row = out[code - STACK]
            row[CAPS] += cap_at(s, cell)
            row[TALLEST_CAP] = max(row[TALLEST_CAP], cap_at(s, cell))
            row[CAPTIVES] += height_at(s, cell) - cap_at(s, cell)
            _count_reach(s, t, cell, row, out)


@compiled
def _count_reach(s: Words, t: Table, cell: int, row: Features, out: Features) -> None:
    can_act, can_shoot = False, False
    for direction in range(directions(t)):
        slides, shot, passed, target = reach(s, t, cell, direction)
        can_act |= slides > 0 or target != NO_CELL
        can_shoot |= shot > 0
        row[SLIDES] += slides
        row[SWEEP] = max(row[SWEEP], passed)
        if target != NO_CELL:
            row[ATTACKS] += 1
            out[code_at(s, target) - STACK, ATTACKED] += 1
    if not can_act:
        row[STUCK_STACKS] += 1
    if can_shoot:
        row[SHOTS] += 1


@compiled
def reach(s: Words, t: Table, cell: int, direction: int) -> tuple[int, int, int, int]:
    """What the stack on *cell* can do in one direction.

    Number of slides, 1 if one ends on a marker, own markers that the longest passes, and the cell of
    another player's stack that it can overtake.
    """
    ray, own, height = ray_from(t, cell, direction), code_at(s, cell) - STACK, height_at(s, cell)
    length = ray_length(t, ray)
    if length < height:
        return 0, 0, 0, NO_CELL
    slides, shot, passed, last_own, step = 0, 0, 0, 0, 0
    while step < length:
        code = code_at(s, on_ray(t, ray, step))
        if code >= FREE_BELOW:
            break
        step += 1
        passed += last_own
        last_own = 1 if code == own else 0
        if step >= height:
            slides += 1
            if code != 0:
                shot = 1
    target = NO_CELL
    if step < length:
        stop = on_ray(t, ray, step)
        if code_at(s, stop) != STACK + own and capture_until(s, t, ray, step, cap_at(s, cell)) > max(
            step + 1, height - 1
        ):
            target = stop
    return slides, shot, passed if slides > 0 else 0, target


@compiled
def _count_lines(s: Words, t: Table, out: Features) -> None:
    """Count windows of a line's length by the markers of the one player who has any in them."""
    length = line_length(t)
    for cell in range(cells(t)):
        for axis in range(axes(t)):
            ray = ray_from(t, cell, axis)
            if ray_length(t, ray) >= length - 1:
                owner, own = window_owner(s, t, cell, ray, length)
                if own > length - 3:
                    out[owner, LINE_READY + length - own] += 1


@compiled
def window_owner(s: Words, t: Table, cell: int, ray: int, length: int) -> tuple[int, int]:
    """Whose markers lie in the window from *cell* along *ray*, and how many; 0 if it cannot be a line."""
    owner, own = 0, 0
    for step in range(length):
        code = code_at(s, cell if step == 0 else on_ray(t, ray, step - 1))
        if code == 0:
            continue
        if code < FREE_BELOW:
            if owner != 0 and owner != code:
                return 0, 0
            owner = code
            own += 1
        elif code < STACK_FROM:
            return 0, 0
    return owner, own
