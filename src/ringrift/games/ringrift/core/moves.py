"""What an action does to a state."""

from __future__ import annotations

from ringrift.games.compiled import compiled
from ringrift.games.ringrift.core.acts import could_capture
from ringrift.games.ringrift.core.cells import (
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
)
from ringrift.games.ringrift.core.geometry import (
    Table,
    cells,
    eliminate_plane,
    farthest,
    first_line_plane,
    first_region_plane,
    line_length,
    on_ray,
    pass_action,
    players,
    ray_from,
    rings_each,
)
from ringrift.games.ringrift.core.layout import (
    ACTIVE,
    CAPTURE,
    CELLS,
    CHAIN,
    CHANGED,
    CUR,
    DEBT,
    DECISIONS,
    FORCED,
    HAND,
    LINE_DEBT,
    LINES,
    MARKER,
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
    Words,
    to_int,
)
from ringrift.games.ringrift.core.legal import pays_buried
from ringrift.games.ringrift.core.markers import recovery_axis, run_ahead, run_start
from ringrift.games.ringrift.core.regions import add_border_markers, clear_marks, flood
from ringrift.games.ringrift.core.turn import judge, note_losses, settle


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
        rings |= (player - 1) << (2 * height)
        height += 1
    stand_stack(s, cell, rings, height)
    s[HAND + player] -= count
    s[ON_BOARD + player] += count
    s[MUST] = cell
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
            rings = (rings << 2) | (code - STACK_FROM)
            height += 1
            _drop_top(s, cell)
        elif code > 0:
            set_marker(s, cell, player)
    landed_on_marker = clear_marker(s, end)
    stand_stack(s, end, rings, height)
    if landed_on_marker:
        eliminate_top(s, end, to_int(1), player)
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
        s[DEBT] = RECOVERY_DEBT if whole else NO_DEBT
        if not whole:
            s[PHASE] = LINES
    elif whole:
        s[DEBT] = LINE_DEBT


@compiled
def _take_region(s: Words, t: Table, cell: int, relative: int, work: Words) -> None:
    player = s[CUR]
    border = 0 if relative == 0 else (player - 1 + relative - 1) % players(t) + 1
    clear_marks(t, work)
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
