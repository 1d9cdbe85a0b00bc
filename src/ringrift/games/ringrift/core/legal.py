"""The decisions of the player on turn: all of them, or whether there is one."""

from __future__ import annotations

from ringrift.games.compiled import compiled
from ringrift.games.ringrift.core.geometry import (
    PAD,
    Table,
    axes,
    cells,
    directions,
    eliminate_plane,
    farthest,
    first_line_plane,
    line_length,
    on_ray,
    pass_action,
    ray_from,
    ray_length,
)
from ringrift.games.ringrift.core.layout import (
    ACTIVE,
    CAPTURE,
    CHAIN,
    CHANGED,
    CONTROLLED,
    CUR,
    DEBT,
    FORCED,
    FREE_BELOW,
    HAND,
    LINE_DEBT,
    LINES,
    MARKER,
    MARKS,
    MOVEMENT,
    MUST,
    NO_CELL,
    NO_DEBT,
    ON_BOARD,
    PHASE,
    PLACE_PLANES,
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
    cap_at,
    code_at,
    height_at,
    holds_buried,
    lowest_ring,
    to_int,
)
from ringrift.games.ringrift.core.regions import any_region, region_moves

# --- placements, slides and captures ------------------------------------------------------------------


@compiled
def free_until(s: Words, t: Table, ray: int, step: int) -> int:
    """First step of the ray, from *step* on, that may not be passed; the ray's length if there is none."""
    length = ray_length(t, ray)
    while step < length and code_at(s, on_ray(t, ray, step)) < FREE_BELOW:
        step += 1
    return step


@compiled
def capture_until(s: Words, t: Table, ray: int, stop: int, cap: int) -> int:
    """End of the landing steps beyond the first obstacle at *stop*; 0 if it cannot be captured."""
    if stop >= ray_length(t, ray):
        return 0
    target = on_ray(t, ray, stop)
    if code_at(s, target) < STACK_FROM or cap < cap_at(s, target):
        return 0
    return free_until(s, t, ray, stop + 1)


@compiled
def act_moves(s: Words, t: Table, cell: int, out: Actions, n: int) -> int:
    """Append the captures of the stack on *cell*, in movement also its slides; return the new length."""
    height, cap = height_at(s, cell), cap_at(s, cell)
    for direction in range(directions(t)):
        ray = ray_from(t, cell, direction)
        # A stack moves at least as far as it is high, so a short ray offers nothing.
        if ray_length(t, ray) < height:
            continue
        # Action of the first step; each step further is one plane, which is `cells` actions later.
        base = (PLACE_PLANES + direction * farthest(t)) * cells(t) + cell
        stop = free_until(s, t, ray, to_int(0))
        if s[PHASE] == MOVEMENT:
            for step in range(height - 1, stop):
                out[n] = base + step * cells(t)
                n += 1
        # Beyond the target, and again no nearer than the height.
        for step in range(max(stop + 1, height - 1), capture_until(s, t, ray, stop, cap)):
            out[n] = base + step * cells(t)
            n += 1
    return n


@compiled
def longest_slide(s: Words, t: Table, cell: int, enough: int) -> int:
    """Most free steps from *cell* along any ray, counted no further than *enough*."""
    longest = 0
    for direction in range(directions(t)):
        ray = ray_from(t, cell, direction)
        length = min(enough, ray_length(t, ray))
        step = 0
        while step < length and code_at(s, on_ray(t, ray, step)) < FREE_BELOW:
            step += 1
        if step > longest:
            longest = step
            if longest == enough:
                break
    return longest


@compiled
def could_capture(s: Words, t: Table, cell: int, height: int, cap: int) -> bool:
    """Whether a stack of that height and cap could capture if it stood on *cell*."""
    for direction in range(directions(t)):
        ray = ray_from(t, cell, direction)
        if ray_length(t, ray) >= height:
            stop = free_until(s, t, ray, to_int(0))
            if capture_until(s, t, ray, stop, cap) > max(stop + 1, height - 1):
                return True
    return False


@compiled
def could_act(s: Words, t: Table, cell: int, height: int, cap: int) -> bool:
    """Whether a stack of that height and cap could slide or capture if it stood on *cell*."""
    return longest_slide(s, t, cell, height) == height or could_capture(s, t, cell, height, cap)


@compiled
def placeable(s: Words, t: Table, player: int, cell: int) -> int:
    """Bit per number of rings that *player* may put on *cell*."""
    hand, code = s[HAND + player], code_at(s, cell)
    if hand == 0:
        return 0
    if code >= STACK_FROM:
        # On a stack only one ring may be put, and it joins the cap or starts one.
        cap = cap_at(s, cell) + 1 if code == STACK + player else 1
        return 2 if could_act(s, t, cell, height_at(s, cell) + 1, cap) else 0
    if code != 0:
        return 0
    most = min(hand, PLACE_PLANES)
    longest = longest_slide(s, t, cell, most)
    # A stack of n rings can slide if n steps are free: bits 1 to longest, without a look at each count.
    counts = (1 << (longest + 1)) - 2
    for count in range(longest + 1, most + 1):
        if could_capture(s, t, cell, count, count):
            counts |= 1 << count
    return counts


@compiled
def place_moves(s: Words, t: Table, player: int, out: Actions, n: int) -> int:
    """Append every legal placement."""
    for cell in range(cells(t)):
        counts = placeable(s, t, player, cell)
        for count in range(1, PLACE_PLANES + 1):
            if counts >> count & 1:
                out[n] = (count - 1) * cells(t) + cell
                n += 1
    return n


@compiled
def any_placement(s: Words, t: Table, player: int) -> bool:
    for cell in range(cells(t)):
        if placeable(s, t, player, cell) != 0:
            return True
    return False


@compiled
def any_act(s: Words, t: Table, player: int) -> bool:
    """Whether some stack that *player* controls can slide or capture."""
    if s[CONTROLLED + player] == 0:
        return False
    for cell in range(cells(t)):
        if code_at(s, cell) == STACK + player and could_act(s, t, cell, height_at(s, cell), cap_at(s, cell)):
            return True
    return False


@compiled
def real_action(s: Words, t: Table, player: int) -> bool:
    """A placement, slide or capture exists for *player*, whoever is on turn."""
    return any_placement(s, t, player) or any_act(s, t, player)


# --- lines of markers, and the recovery slides that complete them -------------------------------------


@compiled
def run_ahead(s: Words, t: Table, cell: int, direction: int, player: int) -> int:
    """Number of the player's markers in a row beyond *cell*."""
    ray = ray_from(t, cell, direction)
    length = ray_length(t, ray)
    step = 0
    while step < length and code_at(s, on_ray(t, ray, step)) == MARKER + player:
        step += 1
    return step


@compiled
def run_start(s: Words, t: Table, cell: int, axis: int, player: int) -> int:
    """First cell of the run through *cell* along *axis*."""
    behind = run_ahead(s, t, cell, axis + axes(t), player)
    return cell if behind == 0 else on_ray(t, ray_from(t, cell, axis + axes(t)), behind - 1)


@compiled
def line_moves_from(s: Words, t: Table, start: int, axis: int, out: Actions, n: int) -> int:
    """Append the choices for the line that starts on *start*; none if the run is too short."""
    player = code_at(s, start) - MARKER
    length = 1 + run_ahead(s, t, start, axis, player)
    if length < line_length(t):
        return n
    plane = first_line_plane(t) + 2 * axis
    out[n] = plane * cells(t) + start
    n += 1
    if length > line_length(t):
        for step in range(length - line_length(t) + 1):
            cell = start if step == 0 else on_ray(t, ray_from(t, start, axis), step - 1)
            out[n] = (plane + 1) * cells(t) + cell
            n += 1
    return n


@compiled
def line_moves(s: Words, t: Table, player: int, out: Actions, n: int) -> int:
    for cell in range(cells(t)):
        if code_at(s, cell) == MARKER + player:
            for axis in range(axes(t)):
                # Only where a run starts, so that each line is listed once.
                if run_ahead(s, t, cell, axis + axes(t), player) == 0:
                    n = line_moves_from(s, t, cell, axis, out, n)
    return n


@compiled
def any_line(s: Words, t: Table, player: int) -> bool:
    if s[MARKS + player] < line_length(t):
        return False
    for cell in range(cells(t)):
        if code_at(s, cell) == MARKER + player:
            for axis in range(axes(t)):
                if run_ahead(s, t, cell, axis, player) + 1 >= line_length(t):
                    return True
    return False


@compiled
def recovery_axis(s: Words, t: Table, start: int, end: int, player: int) -> int:
    """First axis on which a marker moved from *start* to *end* completes a line; -1 if none.

    *start* must not count; a negative cell says that the marker has moved already.
    """
    for axis in range(axes(t)):
        length = 1
        # Counted both ways from *end* as if the marker lay there; the run may pass through *start*, which
        # is empty then.
        for direction in (axis, axis + axes(t)):
            ahead = run_ahead(s, t, end, direction, player)
            for step in range(ahead):
                if on_ray(t, ray_from(t, end, direction), step) == start:
                    ahead = step
                    break
            length += ahead
        if length >= line_length(t):
            return axis
    return -1


@compiled
def recovery_eligible(s: Words, player: int) -> bool:
    return s[CONTROLLED + player] == 0 and s[MARKS + player] > 0 and s[ON_BOARD + player] > 0


@compiled
def recovery_moves(s: Words, t: Table, player: int, out: Actions, n: int) -> int:
    """Append the recovery slides: those that complete a line, or without any all others."""
    before = n
    for cell in range(cells(t)):
        if code_at(s, cell) == MARKER + player:
            for direction in range(directions(t)):
                end = on_ray(t, ray_from(t, cell, direction), 0)
                if end != PAD and code_at(s, end) == 0 and recovery_axis(s, t, cell, end, player) >= 0:
                    out[n] = (PLACE_PLANES + direction * farthest(t)) * cells(t) + cell
                    n += 1
    return n if n > before else plain_recovery_moves(s, t, player, out, n)


@compiled
def plain_recovery_moves(s: Words, t: Table, player: int, out: Actions, n: int) -> int:
    """Append every step of a marker to an empty cell or onto a stack."""
    for cell in range(cells(t)):
        if code_at(s, cell) == MARKER + player:
            for direction in range(directions(t)):
                end = on_ray(t, ray_from(t, cell, direction), 0)
                if end != PAD and (code_at(s, end) == 0 or code_at(s, end) >= STACK_FROM):
                    out[n] = (PLACE_PLANES + direction * farthest(t)) * cells(t) + cell
                    n += 1
    return n


@compiled
def any_recovery(s: Words, t: Table, player: int) -> bool:
    for cell in range(cells(t)):
        if code_at(s, cell) == MARKER + player:
            for direction in range(directions(t)):
                end = on_ray(t, ray_from(t, cell, direction), 0)
                if end != PAD and (code_at(s, end) == 0 or code_at(s, end) >= STACK_FROM):
                    return True
    return False


# --- all decisions of a phase, or whether there is one ------------------------------------------------


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
        skippable = _may_skip_placement(s, t, player)  # whoever could do nothing else has to place
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
        # Only who has no stack that can act may recover, and the choice not to is always there.
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
        # Only a turn without any change of the board ends with a forced elimination.
        return s[CHANGED] == 0 and s[CONTROLLED + player] > 0
    return True
