"""What an action does to a state: the move itself, then who has won, which phases are passed through, and
whose turn it is.
"""

from __future__ import annotations

from ringrift.games.compiled import compiled
from ringrift.games.ringrift.core.geometry import (
    Table,
    cells,
    eliminate_plane,
    elimination_target,
    farthest,
    first_line_plane,
    first_region_plane,
    line_length,
    on_ray,
    pass_action,
    players,
    ray_from,
    rings_each,
    territory_target,
)
from ringrift.games.ringrift.core.layout import (
    ACTED,
    ACTIVE,
    BY_ELIMINATION,
    BY_LAST_STANDING,
    BY_STALEMATE,
    BY_TERRITORY,
    CAPTURE,
    CELLS,
    CHAIN,
    CHANGED,
    CONTROLLED,
    CUR,
    DEBT,
    DECISIONS,
    ELIM,
    FORCED,
    HAND,
    HOLDER,
    LINE_DEBT,
    LINES,
    LOST_AT,
    MARKER,
    MARKS,
    MOVEMENT,
    MUST,
    NO_CELL,
    NO_DEBT,
    ON_BOARD,
    OPENER,
    OVER,
    PHASE,
    PLACE_PLANES,
    PLACEMENT,
    REASON,
    RECOVERED,
    RECOVERY_DEBT,
    RECOVERY_LINE,
    STACK,
    STACK_FROM,
    STREAK,
    TERR,
    TERRITORY,
    TERRITORY_DEBT,
    WINNER,
    Words,
    cap_at,
    clear_marker,
    code_at,
    collapse,
    eliminate_top,
    extract_lowest,
    height_at,
    lift_stack,
    rings_at,
    set_marker,
    stand_stack,
    to_int,
)
from ringrift.games.ringrift.core.legal import (
    any_decision,
    any_placement,
    could_capture,
    pays_buried,
    real_action,
    recovery_axis,
    run_ahead,
    run_start,
)
from ringrift.games.ringrift.core.regions import add_border_markers, clear_marks, flood


@compiled
def make_move(s: Words, t: Table, action: int, work: Words) -> None:
    """Apply a legal action and go on to the next decision."""
    s[DECISIONS] += 1
    if action == pass_action(t):
        _skip(s)
    else:
        _act(s, t, action // cells(t), action % cells(t), work)
        note_losses(s, t)
        # The decisions of a recovery are one move of the rules: it is judged when all are made.
        if s[DEBT] != RECOVERY_LINE and s[DEBT] != RECOVERY_DEBT:
            judge(s, t)
    settle(s, t, work)


@compiled
def _skip(s: Words) -> None:
    if s[PHASE] == PLACEMENT:
        s[PHASE] = MOVEMENT
    elif s[PHASE] == TERRITORY:
        s[PHASE] = FORCED
    else:
        s[PHASE] = LINES


@compiled
def _act(s: Words, t: Table, plane: int, cell: int, work: Words) -> None:
    lines = first_line_plane(t)
    regions = first_region_plane(t)
    if plane < PLACE_PLANES:
        _place(s, cell, plane + 1)
    elif plane < lines:
        direction, step = (plane - PLACE_PLANES) // farthest(t), (plane - PLACE_PLANES) % farthest(t)
        if code_at(s, cell) >= STACK_FROM:
            _move_stack(s, t, cell, direction, step)
        else:
            _recover(s, t, cell, on_ray(t, ray_from(t, cell, direction), 0))
    elif plane < regions:
        _take_line(s, t, cell, (plane - lines) // 2, (plane - lines) % 2 == 0)
    elif plane < eliminate_plane(t):
        _take_region(s, t, cell, plane - regions, work)
    else:
        _pay(s, t, cell)
    s[CHANGED] = 1


@compiled
def _place(s: Words, cell: int, count: int) -> None:
    player = s[CUR]
    height, rings = 0, 0
    if code_at(s, cell) >= STACK_FROM:
        height, rings = height_at(s, cell), rings_at(s, cell)
        lift_stack(s, cell)
    for _ in range(count):
        rings |= (player - 1) << (2 * height)  # the new rings go on top
        height += 1
    stand_stack(s, cell, rings, height)
    s[HAND + player] -= count
    s[ON_BOARD + player] += count
    s[MUST] = cell  # the stack that was put down or added to has to act in this turn
    s[PHASE] = MOVEMENT


@compiled
def _move_stack(s: Words, t: Table, start: int, direction: int, last: int) -> None:
    """Slide or capture; a stack on the way is the target of a capture."""
    player, ray = s[CUR], ray_from(t, start, direction)
    end = on_ray(t, ray, last)
    height, rings = height_at(s, start), rings_at(s, start)
    lift_stack(s, start)
    set_marker(s, start, player)
    captured = False
    for step in range(last):
        cell = on_ray(t, ray, step)
        code = code_at(s, cell)
        if code == MARKER + player:
            collapse(s, cell, player)
        elif code >= STACK_FROM:
            captured = True
            # The captured ring goes to the bottom: all others move up by one place.
            rings = (rings << 2) | (code - STACK_FROM)
            height += 1
            _drop_top(s, cell)
        elif code > 0:
            set_marker(s, cell, player)
    # The rules remove the marker and take the top ring as its price, whoever owned it.
    landed_on_marker = clear_marker(s, end)
    stand_stack(s, end, rings, height)
    if landed_on_marker:
        eliminate_top(s, end, to_int(1), player)
    # The price may have changed who controls the stack, or left none.
    if code_at(s, end) == STACK + player and could_capture(s, t, end, height_at(s, end), cap_at(s, end)):
        s[PHASE] = CHAIN if captured else CAPTURE
        s[ACTIVE] = end
    else:
        s[PHASE] = LINES


@compiled
def _drop_top(s: Words, cell: int) -> None:
    """Take the top ring off a captured stack; the ring stays on the board."""
    rings, height = rings_at(s, cell), height_at(s, cell) - 1
    lift_stack(s, cell)
    stand_stack(s, cell, rings & ((1 << (2 * height)) - 1), height)


@compiled
def _take_line(s: Words, t: Table, start: int, axis: int, whole: bool) -> None:
    player = s[CUR]
    length = 1 + run_ahead(s, t, start, axis, player) if whole else line_length(t)
    collapse(s, start, player)
    for step in range(length - 1):
        collapse(s, on_ray(t, ray_from(t, start, axis), step), player)
    if s[DEBT] == RECOVERY_LINE:
        # The minimum of a long line is free; the whole of it costs a ring.
        s[DEBT] = RECOVERY_DEBT if whole else NO_DEBT
        if not whole:
            s[PHASE] = LINES
    elif whole:
        s[DEBT] = LINE_DEBT


@compiled
def _take_region(s: Words, t: Table, cell: int, relative: int, work: Words) -> None:
    player = s[CUR]
    # the plane counts colors from the player on turn
    border = 0 if relative == 0 else (player - 1 + relative - 1) % players(t) + 1
    clear_marks(t, work)
    # Made again instead of remembered: a state is one row, and has no room for a list of cells.
    size = flood(s, t, cell, border, work)
    total = add_border_markers(s, t, size, work)
    for at in range(total):
        taken = work[cells(t) + at]
        if code_at(s, taken) >= STACK_FROM:
            eliminate_top(s, taken, height_at(s, taken), player)
        collapse(s, taken, player)
    s[DEBT] = TERRITORY_DEBT


@compiled
def _recover(s: Words, t: Table, start: int, end: int) -> None:
    player = s[CUR]
    clear_marker(s, start)
    s[RECOVERED] = 1
    s[DEBT] = RECOVERY_DEBT
    if code_at(s, end) >= STACK_FROM:
        eliminate_top(s, end, to_int(1), player)
        return
    set_marker(s, end, player)
    axis = recovery_axis(s, t, to_int(NO_CELL), end, player)
    if axis < 0:
        return
    first = run_start(s, t, end, axis, player)
    length = 1 + run_ahead(s, t, first, axis, player)
    if length > line_length(t):
        s[DEBT] = RECOVERY_LINE
        s[ACTIVE] = end
        return
    collapse(s, first, player)
    for step in range(length - 1):
        collapse(s, on_ray(t, ray_from(t, first, axis), step), player)


@compiled
def _pay(s: Words, t: Table, cell: int) -> None:
    player, debt = s[CUR], s[DEBT]
    if debt == RECOVERY_DEBT or (debt == TERRITORY_DEBT and pays_buried(s, t)):
        extract_lowest(s, cell, player)
    else:
        eliminate_top(s, cell, 1 if debt == LINE_DEBT else cap_at(s, cell), player)
    if debt == RECOVERY_DEBT:
        s[PHASE] = LINES
    s[DEBT] = NO_DEBT


@compiled
def start_game(s: Words, t: Table) -> None:
    for word in range(CELLS + cells(t)):
        s[word] = 0
    s[CUR] = 1
    s[MUST] = NO_CELL
    s[ACTIVE] = NO_CELL
    for player in range(1, players(t) + 1):
        s[HAND + player] = rings_each(t)


# --- turns --------------------------------------------------------------------------------------------
#
# Turns: victory after a change of the board, phases without a decision, rotation, last standing.


STREAK_TO_WIN = 3  # rounds in a row, as the rules say


@compiled
def is_live(s: Words, player: int) -> bool:
    """Whether *player* has any ring: in hand, on top or buried."""
    return s[HAND + player] + s[ON_BOARD + player] > 0


@compiled
def note_losses(s: Words, t: Table) -> None:
    for player in range(1, players(t) + 1):
        if s[LOST_AT + player] == 0 and not is_live(s, player):
            s[LOST_AT + player] = s[DECISIONS]


@compiled
def judge(s: Words, t: Table) -> None:
    """End the game if somebody has won by the last change of the board."""
    for player in range(1, players(t) + 1):
        if s[ELIM + player] >= elimination_target(t):
            return end_game(s, player, to_int(BY_ELIMINATION))
    # One pass gives all that the other ends ask for.
    collapsed, live, controllers, last = 0, 0, 0, to_int(0)
    for player in range(1, players(t) + 1):
        collapsed += s[TERR + player]
        live += is_live(s, player)
        if s[CONTROLLED + player] > 0:
            controllers += 1
            last = player
    for player in range(1, players(t) + 1):
        if s[TERR + player] >= territory_target(t) and 2 * s[TERR + player] > collapsed:
            return end_game(s, player, to_int(BY_TERRITORY))
    if controllers == 1 and live == 1:
        return end_game(s, last, to_int(BY_LAST_STANDING))
    if controllers == 0 and not _anybody_can_place(s, t):
        return end_game(s, _stalemate_winner(s, t), to_int(BY_STALEMATE))
    return None


@compiled
def end_game(s: Words, winner: int, reason: int) -> None:
    s[WINNER] = winner
    s[REASON] = reason
    s[PHASE] = OVER


@compiled
def _anybody_can_place(s: Words, t: Table) -> bool:
    for player in range(1, players(t) + 1):
        if any_placement(s, t, player):
            return True
    return False


@compiled
def _stalemate_winner(s: Words, t: Table) -> int:
    """Best by territory, rings eliminated or in hand, markers, last move, lowest seat."""
    best = 1
    for player in range(2, players(t) + 1):
        rings, best_rings = s[ELIM + player] + s[HAND + player], s[ELIM + best] + s[HAND + best]
        if s[TERR + player] != s[TERR + best]:
            better = s[TERR + player] > s[TERR + best]
        elif rings != best_rings:
            better = rings > best_rings
        elif s[MARKS + player] != s[MARKS + best]:
            better = s[MARKS + player] > s[MARKS + best]
        else:
            better = player == s[CUR]
        if better:
            best = player
    return best


@compiled
def settle(s: Words, t: Table, work: Words) -> None:
    """Pass through everything that needs no decision; a line elimination nobody can pay is waived."""
    while s[WINNER] == 0 and not any_decision(s, t, work):
        if s[DEBT] != NO_DEBT:
            s[DEBT] = NO_DEBT
        elif s[PHASE] == PLACEMENT:
            s[PHASE] = MOVEMENT
        elif s[PHASE] == MOVEMENT:
            s[PHASE] = LINES
        elif s[PHASE] == LINES:
            s[PHASE] = TERRITORY
        elif s[PHASE] == TERRITORY:
            s[PHASE] = FORCED
        else:
            _next_turn(s, t)


@compiled
def _next_turn(s: Words, t: Table) -> None:
    player = s[CUR] % players(t) + 1
    while not is_live(s, player):  # somebody is: a game in which nobody has a ring has ended before
        player = player % players(t) + 1
    s[CUR] = player
    s[PHASE] = PLACEMENT
    s[MUST] = NO_CELL
    s[ACTIVE] = NO_CELL
    s[CHANGED] = 0
    s[RECOVERED] = 0
    _record_turn_start(s, t, player)


@compiled
def _record_turn_start(s: Words, t: Table, player: int) -> None:
    if s[OPENER] == 0 or not is_live(s, s[OPENER]):
        s[OPENER] = player
        s[ACTED] = 0
        if s[HOLDER] == 0 or not is_live(s, s[HOLDER]):
            s[STREAK] = 0
            s[HOLDER] = 0
    elif s[OPENER] == player:
        _close_round(s, t)
    acts = real_action(s, t, player)
    if acts:
        s[ACTED] |= 1 << player
    # The others are asked only now, because looking for their placements takes long.
    if s[STREAK] < STREAK_TO_WIN or s[HOLDER] != player or not acts:
        return
    for other in range(1, players(t) + 1):
        if other != player and is_live(s, other) and real_action(s, t, other):
            return
    end_game(s, player, to_int(BY_LAST_STANDING))


@compiled
def _close_round(s: Words, t: Table) -> None:
    acted, last = 0, 0
    for player in range(1, players(t) + 1):
        if s[ACTED] >> player & 1 and is_live(s, player):
            acted += 1
            last = player
    if acted != 1:
        s[STREAK] = 0
        s[HOLDER] = 0
    elif s[HOLDER] == last:
        s[STREAK] += 1
    else:
        s[STREAK] = 1
        s[HOLDER] = last
    s[ACTED] = 0
