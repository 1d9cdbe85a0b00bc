"""The decisions of the player on turn: all of them, or whether there is one."""

from __future__ import annotations

from ringrift.games.compiled import compiled
from ringrift.games.ringrift.core.acts import (
    act_moves,
    any_act,
    any_placement,
    place_moves,
)
from ringrift.games.ringrift.core.cells import code_at, holds_buried, lowest_ring
from ringrift.games.ringrift.core.geometry import Table, cells, eliminate_plane, pass_action
from ringrift.games.ringrift.core.layout import (
    ACTIVE,
    CAPTURE,
    CHAIN,
    CHANGED,
    CONTROLLED,
    CUR,
    DEBT,
    FORCED,
    HAND,
    LINE_DEBT,
    LINES,
    MOVEMENT,
    MUST,
    NO_CELL,
    NO_DEBT,
    PHASE,
    PLACEMENT,
    RECOVERED,
    RECOVERY_DEBT,
    RECOVERY_LINE,
    STACK,
    STACK_FROM,
    TERRITORY,
    TERRITORY_DEBT,
    WINNER,
    Actions,
    Words,
    to_int,
)
from ringrift.games.ringrift.core.markers import (
    any_line,
    any_recovery,
    line_moves,
    line_moves_from,
    recovery_axis,
    recovery_eligible,
    recovery_moves,
    run_start,
)
from ringrift.games.ringrift.core.regions import any_region, region_moves


@compiled
def legal_moves(s: Words, t: Table, out: Actions, work: Words) -> int:
    """Write the legal actions to *out* and return their number; 0 only when the game is over."""
    if s[WINNER] != 0:
        return 0
    if s[DEBT] != NO_DEBT:
        return _debt_moves(s, t, out)
    phase, player = s[PHASE], s[CUR]
    skippable = False
    n = 0
    if phase == PLACEMENT:
        n = place_moves(s, t, player, out, to_int(0))
        skippable = _may_skip_placement(s, t, player)
    elif phase == MOVEMENT:
        n = _movement_moves(s, t, player, out)
    elif phase == CAPTURE or phase == CHAIN:
        n = act_moves(s, t, s[ACTIVE], out, to_int(0))
        skippable = phase == CAPTURE
    elif phase == LINES:
        n = line_moves(s, t, player, out, to_int(0))
    elif phase == TERRITORY:
        n = region_moves(s, t, out, work)
        skippable = True
    else:
        n = _controlled_cells(s, t, player, out)
    if skippable:
        out[n] = pass_action(t)
        n += 1
    return n


@compiled
def _movement_moves(s: Words, t: Table, player: int, out: Actions) -> int:
    if s[MUST] != NO_CELL:
        return act_moves(s, t, s[MUST], out, to_int(0))
    n = to_int(0)
    for cell in range(cells(t)):
        if code_at(s, cell) == STACK + player:
            n = act_moves(s, t, cell, out, n)
    if n == 0:
        n = recovery_moves(s, t, player, out, to_int(0))
        out[n] = pass_action(t)
        n += 1
    return n


@compiled
def _may_skip_placement(s: Words, t: Table, player: int) -> bool:
    return any_act(s, t, player) or recovery_eligible(s, player)


@compiled
def _debt_moves(s: Words, t: Table, out: Actions) -> int:
    player = s[CUR]
    if s[DEBT] == RECOVERY_LINE:
        axis = recovery_axis(s, t, to_int(NO_CELL), s[ACTIVE], player)
        return line_moves_from(s, t, run_start(s, t, s[ACTIVE], axis, player), axis, out, to_int(0))
    if s[DEBT] == RECOVERY_DEBT:
        return _ring_holders(s, t, player, out)
    if s[DEBT] == TERRITORY_DEBT and pays_buried(s, t):
        return _ring_holders(s, t, player, out)
    return _controlled_cells(s, t, player, out)


@compiled
def pays_buried(s: Words, t: Table) -> bool:
    """A territory elimination after a recovery slide takes a buried ring, as long as there is one."""
    if s[RECOVERED] == 0:
        return False
    for cell in range(cells(t)):
        if code_at(s, cell) >= STACK_FROM and holds_buried(s, cell, s[CUR]):
            return True
    return False


@compiled
def _ring_holders(s: Words, t: Table, player: int, out: Actions) -> int:
    """Stacks to extract a ring of *player* from; for territory it must lie buried."""
    n = 0
    for cell in range(cells(t)):
        if code_at(s, cell) < STACK_FROM or lowest_ring(s, cell, player) < 0:
            continue
        if s[DEBT] != TERRITORY_DEBT or holds_buried(s, cell, player):
            out[n] = eliminate_plane(t) * cells(t) + cell
            n += 1
    return n


@compiled
def _controlled_cells(s: Words, t: Table, player: int, out: Actions) -> int:
    n = 0
    for cell in range(cells(t)):
        if code_at(s, cell) == STACK + player:
            out[n] = eliminate_plane(t) * cells(t) + cell
            n += 1
    return n


@compiled
def any_decision(s: Words, t: Table, work: Words) -> bool:
    """Whether the phase, or the debt, offers the player on turn a decision."""
    player, phase = s[CUR], s[PHASE]
    if s[DEBT] != NO_DEBT:
        return s[DEBT] != LINE_DEBT or s[CONTROLLED + player] > 0
    if phase == PLACEMENT:
        return s[HAND + player] > 0 and (any_placement(s, t, player) or _may_skip_placement(s, t, player))
    if phase == MOVEMENT:
        if s[MUST] != NO_CELL or any_act(s, t, player):
            return True
        return recovery_eligible(s, player) and any_recovery(s, t, player)
    if phase == LINES:
        return any_line(s, t, player)
    if phase == TERRITORY:
        return any_region(s, t, work)
    if phase == FORCED:
        return s[CHANGED] == 0 and s[CONTROLLED + player] > 0
    return True
