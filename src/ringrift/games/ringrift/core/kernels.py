"""Entry points: loops over a batch of games, compiled once for all boards and kept on disk; with what only
they use: what a network sees, random playouts, turned boards.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from ringrift.games.compiled import cached_kernel, compiled, source_fingerprint
from ringrift.games.ringrift.core.geometry import (
    Table,
    axes,
    cells,
    directions,
    eliminate_plane,
    elimination_target,
    farthest,
    first_line_plane,
    first_region_plane,
    grid_column,
    grid_row,
    line_length,
    on_ray,
    pass_action,
    players,
    ray_from,
    rings_each,
    territory_target,
    turned_cell,
    turned_direction,
)
from ringrift.games.ringrift.core.layout import (
    ACTIVE,
    CAPTURE,
    CELLS,
    CHAIN,
    CHANGED,
    COLLAPSED,
    CUR,
    DEBT,
    ELIM,
    HAND,
    HOLDER,
    MARKER,
    MUST,
    NO_CELL,
    PHASE,
    PLACE_PLANES,
    RECOVERED,
    RECOVERY_LINE,
    STACK,
    STACK_FROM,
    STREAK,
    TERR,
    WINNER,
    Actions,
    Words,
    cap_at,
    code_at,
    height_at,
    rings_at,
)
from ringrift.games.ringrift.core.legal import any_decision, legal_moves, run_ahead
from ringrift.games.ringrift.core.moves import make_move, start_game
from ringrift.games.ringrift.core.regions import clear_marks, flood

# --- what a network sees of a state -------------------------------------------------------------------
#
# What a network sees: planes on the board's grid, from the side of the player on turn.
#
# Seats are counted from the player on turn (0), in seat order. Cells off the board stay zero in every plane,
# so the first plane doubles as the mask of a hex board. Per seat: controlled stacks, rings of that color in
# the stack, the ring just below the cap, markers, collapsed cells; then height, cap and the cell that must
# act; then values that are the same everywhere.


Planes = npt.NDArray[np.float32]
# The order of planes belongs to a trained network: a change makes every model unreadable.
PER_SEAT_CELL_PLANES, OTHER_CELL_PLANES = 5, 4
PER_SEAT_FLAT_PLANES, PHASE_PLANES, DEBT_PLANES, OTHER_FLAT_PLANES = 3, 7, 4, 4


def plane_count(players: int) -> int:
    per_seat = PER_SEAT_CELL_PLANES + PER_SEAT_FLAT_PLANES
    return per_seat * players + OTHER_CELL_PLANES + PHASE_PLANES + DEBT_PLANES + OTHER_FLAT_PLANES


@compiled
def observe_state(s: Words, t: Table, out: Planes) -> None:
    """Fill *out* (planes, rows, columns)."""
    out[:] = 0.0
    for cell in range(cells(t)):
        _observe_cell(s, t, cell, out[:, grid_row(t, cell), grid_column(t, cell)])
    focus = focus_cell(s)
    if focus != NO_CELL:
        out[3, grid_row(t, focus), grid_column(t, focus)] = 1.0
    flat = np.zeros(out.shape[0], dtype=np.float32)
    first = OTHER_CELL_PLANES + PER_SEAT_CELL_PLANES * players(t)
    _observe_counters(s, t, flat[first:])
    for plane in range(first, out.shape[0]):
        # Most counters and phases are zero, and the planes are zero already.
        if flat[plane] != 0.0:
            for cell in range(cells(t)):
                out[plane, grid_row(t, cell), grid_column(t, cell)] = flat[plane]


@compiled
def focus_cell(s: Words) -> int:
    """The cell that the decision is about: the stack that must act or may capture, the moved marker."""
    if s[PHASE] == CAPTURE or s[PHASE] == CHAIN or s[DEBT] == RECOVERY_LINE:
        return s[ACTIVE]
    return s[MUST]


@compiled
def _observe_cell(s: Words, t: Table, cell: int, out: Planes) -> None:
    out[0] = 1.0
    code, seats = code_at(s, cell), players(t)
    if code == 0:
        return
    first = OTHER_CELL_PLANES
    if code >= STACK_FROM:
        height, cap, rings = height_at(s, cell), cap_at(s, cell), rings_at(s, cell)
        # Usual heights stay near 1: a network learns badly from large numbers.
        out[1] = height / 8.0
        out[2] = cap / 8.0
        out[first + _seat(s, t, code - STACK)] = 1.0
        for place in range(height):
            color = ((rings >> (2 * place)) & 3) + 1
            out[first + seats + _seat(s, t, color)] += 0.25
        if cap < height:
            below = ((rings >> (2 * (height - cap) - 2)) & 3) + 1
            out[first + 2 * seats + _seat(s, t, below)] = 1.0
    elif code > COLLAPSED:
        out[first + 4 * seats + _seat(s, t, code - COLLAPSED)] = 1.0
    else:
        out[first + 3 * seats + _seat(s, t, code - MARKER)] = 1.0


@compiled
def _seat(s: Words, t: Table, player: int) -> int:
    """Seat of *player* counted from the player on turn."""
    return (player - s[CUR]) % players(t)


@compiled
def _observe_counters(s: Words, t: Table, out: Planes) -> None:
    seats = players(t)
    for player in range(1, seats + 1):
        seat = _seat(s, t, player)
        out[seat] = s[HAND + player] / rings_each(t)
        out[seats + seat] = s[ELIM + player] / elimination_target(t)
        out[2 * seats + seat] = s[TERR + player] / territory_target(t)
    at = 3 * seats
    if s[PHASE] < PHASE_PLANES:
        out[at + s[PHASE]] = 1.0
    at += PHASE_PLANES
    if s[DEBT] > 0:
        out[at + s[DEBT] - 1] = 1.0
    at += DEBT_PLANES
    out[at] = s[CHANGED]
    out[at + 1] = s[RECOVERED]
    if s[HOLDER] != 0:
        out[at + 2 if s[HOLDER] == s[CUR] else at + 3] = s[STREAK] / 3.0


# --- a small random generator for playouts: the same games for the same seed on every machine ---------


GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)


@compiled
def seed_random(seed: int, stream: int) -> np.uint64:
    """A start for stream number *stream* of *seed*."""
    word = (np.uint64(seed) + np.uint64(1)) * GOLDEN ^ (np.uint64(stream) + np.uint64(1)) * MIX_1
    word = (word ^ (word >> np.uint64(30))) * MIX_2
    word = word ^ (word >> np.uint64(31))
    return word | np.uint64(1)  # the generator must not start at zero


@compiled
def next_random(word: np.uint64) -> np.uint64:
    """The next word; its upper half is the better one."""
    word ^= word << np.uint64(13)
    word ^= word >> np.uint64(7)
    word ^= word << np.uint64(17)
    return word


# --- a board turned or mirrored -----------------------------------------------------------------------
#
# Turning and mirroring: states, and actions as seen from their state.
#
# A run or a region is named by one of its cells, and which one changes when the board is turned. So an
# action can only be turned together with the state in which it is legal.


@compiled
def turn_state(s: Words, t: Table, symmetry: int, out: Words) -> None:
    """Write the state turned by *symmetry* to *out*."""
    for word in range(CELLS):
        out[word] = s[word]
    if s[MUST] != NO_CELL:
        out[MUST] = turned_cell(t, symmetry, s[MUST])
    if s[ACTIVE] != NO_CELL:
        out[ACTIVE] = turned_cell(t, symmetry, s[ACTIVE])
    for cell in range(cells(t)):
        out[CELLS + turned_cell(t, symmetry, cell)] = s[CELLS + cell]


@compiled
def turn_action(s: Words, t: Table, action: int, symmetry: int, work: Words) -> int:
    """The number of *action*, legal in *s*, in the turned state."""
    if action == pass_action(t):
        return action
    plane, cell = action // cells(t), action % cells(t)
    lines = first_line_plane(t)
    regions = first_region_plane(t)
    turned = turned_cell(t, symmetry, cell)
    if PLACE_PLANES <= plane < lines:
        direction, step = (plane - PLACE_PLANES) // farthest(t), (plane - PLACE_PLANES) % farthest(t)
        plane = PLACE_PLANES + turned_direction(t, symmetry, direction) * farthest(t) + step
    elif lines <= plane < regions:
        return _turn_line(s, t, plane - lines, cell, symmetry)
    elif regions <= plane < eliminate_plane(t):
        relative = plane - regions
        border = 0 if relative == 0 else (s[CUR] - 1 + relative - 1) % players(t) + 1
        clear_marks(t, work)
        size = flood(s, t, cell, border, work)
        for at in range(size):
            turned = min(turned, turned_cell(t, symmetry, work[cells(t) + at]))
    return plane * cells(t) + turned


@compiled
def _turn_line(s: Words, t: Table, plane: int, start: int, symmetry: int) -> int:
    """A line keeps its cells, but its first cell may become its last."""
    axis, part = plane // 2, plane % 2
    steps = run_ahead(s, t, start, axis, s[CUR]) if part == 0 else line_length(t) - 1
    direction = turned_direction(t, symmetry, axis)
    first = start if direction < axes(t) else on_ray(t, ray_from(t, start, axis), steps - 1)
    turned_plane = first_line_plane(t) + 2 * (direction % axes(t)) + part
    return turned_plane * cells(t) + turned_cell(t, symmetry, first)


# --- entry points: loops over a batch of games --------------------------------------------------------


FINGERPRINT = source_fingerprint(Path(__file__).parent)


@cached_kernel(FINGERPRINT)
def start_batch(states: Words, t: Table) -> None:
    for game in range(states.shape[0]):
        start_game(states[game], t)


@cached_kernel(FINGERPRINT)
def legal_batch(states: Words, t: Table, first: int, offsets: Words, out: Actions) -> int:
    """List legal actions from game *first* on; returns the first game that *out* had no room for."""
    work = np.empty(3 * cells(t), dtype=np.int64)
    # More than any state has, so that no write needs a check: every act of every cell, and the rest.
    room = cells(t) * (directions(t) * farthest(t) + 16) + 1
    for game in range(first, states.shape[0]):
        at = offsets[game]
        if out.shape[0] - at < room:
            return game
        offsets[game + 1] = at + legal_moves(states[game], t, out[at:], work)
    return states.shape[0]


@cached_kernel(FINGERPRINT)
def at_decision(state: Words, t: Table) -> bool:
    """Whether a running game stands where somebody has to decide, as after every `apply_batch`."""
    return any_decision(state, t, np.empty(3 * cells(t), dtype=np.int64))


@cached_kernel(FINGERPRINT)
def apply_batch(states: Words, t: Table, actions: Actions, checked: bool) -> int:
    """Apply one action per game; if *checked*, returns the first game whose action is illegal, else -1.

    Nothing has changed if an illegal action is found. Negative actions leave their game alone.
    """
    work = np.empty(3 * cells(t), dtype=np.int64)
    if checked:
        out = np.empty(cells(t) * (directions(t) * farthest(t) + 16) + 1, dtype=np.int32)
        for game in range(states.shape[0]):
            count = legal_moves(states[game], t, out, work)
            found = False
            for at in range(count):
                found |= out[at] == actions[game]
            if not found:
                return game
    for game in range(states.shape[0]):
        make_move(states[game], t, actions[game], work)
    return -1


@cached_kernel(FINGERPRINT)
def play_random_batch(states: Words, t: Table, seed: int, decisions_max: int, totals: Words) -> None:
    """Play every game on with uniformly random actions; adds decisions and options to *totals*."""
    work = np.empty(3 * cells(t), dtype=np.int64)
    out = np.empty(cells(t) * (directions(t) * farthest(t) + 16) + 1, dtype=np.int32)
    for game in range(states.shape[0]):
        state = states[game]
        random = seed_random(seed, game)
        for _ in range(decisions_max):
            if state[WINNER] != 0:
                break
            count = legal_moves(state, t, out, work)
            random = next_random(random)
            # A multiplication of the upper half instead of a division: evenly spread, and much faster.
            make_move(state, t, out[((random >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32)], work)
            totals[0] += 1
            totals[1] += count


@cached_kernel(FINGERPRINT)
def observe_batch(states: Words, t: Table, out: Planes) -> None:
    for game in range(states.shape[0]):
        observe_state(states[game], t, out[game])


@cached_kernel(FINGERPRINT)
def turn_batch(states: Words, t: Table, symmetry: int, out: Words) -> None:
    for game in range(states.shape[0]):
        turn_state(states[game], t, symmetry, out[game])


@cached_kernel(FINGERPRINT)
def turn_actions_batch(states: Words, t: Table, symmetry: int, offsets: Words, actions: Actions) -> Actions:
    """Turn the actions of every game, listed flat with *offsets*, as seen from its state before the turn."""
    work = np.empty(3 * cells(t), dtype=np.int64)
    out = np.empty_like(actions)
    for game in range(states.shape[0]):
        for at in range(offsets[game], offsets[game + 1]):
            out[at] = turn_action(states[game], t, actions[at], symmetry, work)
    return out
