"""Entry points: loops over a batch of games, compiled once for all boards and kept on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ringrift.games.compiled import cached_kernel, compiled, source_fingerprint
from ringrift.games.ringrift.core.geometry import (
    Table,
    axes,
    cells,
    directions,
    eliminate_plane,
    farthest,
    first_line_plane,
    first_region_plane,
    line_length,
    on_ray,
    pass_action,
    players,
    ray_from,
    turned_cell,
    turned_direction,
)
from ringrift.games.ringrift.core.layout import (
    ACTIVE,
    CELLS,
    CUR,
    MUST,
    NO_CELL,
    PLACE_PLANES,
    WINNER,
    Actions,
    Words,
)
from ringrift.games.ringrift.core.legal import any_decision, legal_moves, run_ahead
from ringrift.games.ringrift.core.moves import make_move, start_game
from ringrift.games.ringrift.core.observe import Planes, observe_state
from ringrift.games.ringrift.core.regions import clear_marks, flood

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
