"""RingRift behind the contract of a game."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ringrift.errors import ConfigError, IllegalAction
from ringrift.foreign_files.paths import parse_config_key
from ringrift.games.contract import (
    ActionArray,
    ActionLayout,
    LegalActions,
    Planes,
    RandomPlay,
    State,
    States,
    check_actions,
    check_batch,
    find_action,
    results_from_rankings,
)
from ringrift.games.ringrift.boards import Board, BoardPosition, Move, Stack, board_for, cap
from ringrift.games.ringrift.core import geometry, kernels
from ringrift.games.ringrift.core import layout as at
from ringrift.games.ringrift.core.kernels import plane_count

# --- state rows as people and records see them --------------------------------------------------------
#
# Positions, moves, JSON, both ways; names of actions; drawings.


Named = TypeVar("Named")
_COUNTER_MAX = 10**6  # of rings, cells or decisions; no game comes near


def read_position(board: Board, state: State) -> BoardPosition:
    """The cells of a row."""
    position = BoardPosition(board)
    # Python's integers: a word of 25 rings uses the sign bit of numpy's.
    for cell, word in enumerate(int(word) for word in state[at.CELLS :]):
        code = word & at.CODE_MASK
        if code > at.STACK:
            height = word >> at.HEIGHT_BIT & at.SIZE_MASK
            rings = word >> at.RINGS_BIT
            position.stacks[cell] = tuple((rings >> 2 * place & 3) + 1 for place in range(height))
        elif code > at.COLLAPSED:
            position.collapsed[cell] = code - at.COLLAPSED
        elif code:
            position.markers[cell] = code - at.MARKER
    return position


def state_to_json(board: Board, state: State) -> dict[str, Any]:
    """A row in the fields of recorded games, and what else is needed to go on from it."""
    position, names = read_position(board, state), board.names
    seats = range(1, board.players + 1)
    winner = int(state[at.WINNER])
    return {
        "config": str(board.key),
        "cur": int(state[at.CUR]),
        "phase": at.PHASE_NAMES[state[at.PHASE]],
        "status": "completed" if winner else "active",
        "winner": winner or None,
        "reason": at.REASON_NAMES[state[at.REASON]],
        # The field names and their order are those of the recorded games.
        "players": [[int(state[base + seat]) for base in (at.HAND, at.ELIM, at.TERR)] for seat in seats],
        "stacks": {names[cell]: list(stack) for cell, stack in position.stacks.items()},
        "markers": {names[cell]: owner for cell, owner in position.markers.items()},
        "collapsed": {names[cell]: owner for cell, owner in position.collapsed.items()},
        "turn": {
            "must_move": _cell_name(board, int(state[at.MUST])),
            "active": _cell_name(board, int(state[at.ACTIVE])),
            "changed": bool(state[at.CHANGED]),
            "recovered": bool(state[at.RECOVERED]),
            "debt": at.DEBT_NAMES[state[at.DEBT]],
        },
        "last_standing": {
            "opener": int(state[at.OPENER]) or None,
            "acted": [seat for seat in seats if state[at.ACTED] >> seat & 1],
            "streak": int(state[at.STREAK]),
            "holder": int(state[at.HOLDER]) or None,
        },
        "decisions": int(state[at.DECISIONS]),
        "lost_at": [int(state[at.LOST_AT + seat]) or None for seat in seats],
    }


def state_from_json(board: Board, fields: Mapping[str, Any]) -> State:
    """A row from its JSON; raises `ConfigError` for anything that no game could have reached.

    The fields of recorded games are enough; what they leave out starts as at the beginning of a turn.
    """
    try:
        return _build(board, fields)
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as fault:
        raise ConfigError(f"{board.key}: not a state: {type(fault).__name__} {fault}") from fault


def _build(board: Board, fields: Mapping[str, Any]) -> State:
    if fields.get("config", str(board.key)) != str(board.key):
        raise ConfigError(f"state of {fields['config']}, not of {board.key}")
    state = np.zeros(at.CELLS + board.cells, dtype=np.int64)
    _write_cells(board, fields, state)
    _write_seats(board, fields, state)
    state[at.CUR] = _seat(board, fields["cur"])
    state[at.PHASE] = _number_of(fields["phase"], at.PHASE_NAMES, "phase")
    state[at.WINNER] = _optional_seat(board, fields.get("winner"))
    state[at.REASON] = _number_of(fields.get("reason"), at.REASON_NAMES, "reason")
    turn = fields.get("turn", {})
    state[at.MUST] = _cell_number(board, turn.get("must_move"))
    state[at.ACTIVE] = _cell_number(board, turn.get("active"))
    state[at.CHANGED] = bool(turn.get("changed", False))
    state[at.RECOVERED] = bool(turn.get("recovered", False))
    state[at.DEBT] = _number_of(turn.get("debt"), at.DEBT_NAMES, "debt")
    record = fields.get("last_standing", {})
    state[at.OPENER] = _optional_seat(board, record.get("opener"))
    # a set: a player named twice would count as another bit
    state[at.ACTED] = sum(1 << _seat(board, seat) for seat in set(record.get("acted", ())))
    state[at.STREAK] = int(record.get("streak", 0))
    state[at.HOLDER] = _optional_seat(board, record.get("holder"))
    state[at.DECISIONS] = int(fields.get("decisions", 0))
    _check_turn(board, state)
    return state


def _write_cells(board: Board, fields: Mapping[str, Any], state: State) -> None:
    used: set[int] = set()
    for table, base, count in (("markers", at.MARKER, at.MARKS), ("collapsed", at.COLLAPSED, at.TERR)):
        for name, owner in fields[table].items():
            cell = _fresh_cell(board, name, used)
            state[at.CELLS + cell] = base + _seat(board, owner)
            state[count + owner] += 1
    for name, rings in fields["stacks"].items():
        cell = _fresh_cell(board, name, used)
        stack = tuple(_seat(board, ring) for ring in rings)
        # A taller stack could never have moved onto its cell, and its rings would not fit into a word.
        if not 1 <= len(stack) <= board.farthest + 1:
            raise ConfigError(f"{board.key}: a stack of {len(stack)} rings on {name}")
        state[at.CELLS + cell] = _stack_word(stack)
        state[at.CONTROLLED + stack[-1]] += 1
        for ring in stack:
            state[at.ON_BOARD + ring] += 1


def _stack_word(stack: Stack) -> np.int64:
    rings = sum(ring - 1 << 2 * place for place, ring in enumerate(stack))
    word = at.STACK + stack[-1] | len(stack) << at.HEIGHT_BIT | cap(stack) << at.CAP_BIT
    # Through the unsigned type, as the rings of a tall stack reach the sign bit.
    return np.uint64(word | rings << at.RINGS_BIT).astype(np.int64)


def _write_seats(board: Board, fields: Mapping[str, Any], state: State) -> None:
    players = fields["players"]
    lost_at = fields.get("lost_at", (None,) * board.players)
    if len(players) != board.players or len(lost_at) != board.players:
        raise ConfigError(f"{board.key}: {len(players)} players in the state")
    for seat, (hand, elim, terr) in enumerate(players, start=1):
        # Not in the record, but it follows: a ring is in hand, on the board or gone.
        gone = board.rings - hand - int(state[at.ON_BOARD + seat])
        if hand < 0 or elim < 0 or gone < 0:
            raise ConfigError(
                f"{board.key}: player {seat} has more than {board.rings} rings, or fewer than none"
            )
        if terr != state[at.TERR + seat]:
            raise ConfigError(f"{board.key}: player {seat} has {state[at.TERR + seat]} cells, not {terr}")
        state[at.HAND + seat], state[at.ELIM + seat], state[at.GONE + seat] = hand, elim, gone
        state[at.LOST_AT + seat] = lost_at[seat - 1] or 0
    credited, gone_all = sum(elim for _, elim, _ in players), int(state[at.GONE + 1 : at.GONE + 5].sum())
    # Rings of one color may be credited to another player, so only the sums can be compared.
    if credited != gone_all:
        raise ConfigError(f"{board.key}: {gone_all} rings are gone but {credited} are credited")


def _check_turn(board: Board, state: State) -> None:
    """Refuse turn data that compiled code would follow off the board."""
    phase, debt = state[at.PHASE], state[at.DEBT]
    if (phase == at.OVER) != (state[at.WINNER] != 0):
        raise ConfigError(f"{board.key}: a game is over exactly when it has a winner")
    acting = []
    if phase in (at.CAPTURE, at.CHAIN):
        acting.append((at.ACTIVE, at.STACK))
    if debt == at.RECOVERY_LINE:
        acting.append((at.ACTIVE, at.MARKER))
    if phase == at.MOVEMENT and debt == at.NO_DEBT and state[at.MUST] != at.NO_CELL:
        acting.append((at.MUST, at.STACK))
    if debt == at.RECOVERY_LINE and not _completed_line(board, state):
        raise ConfigError(f"{board.key}: a recovery line is owed, but there is no line")
    for word, base in acting:
        cell = state[word]
        if cell == at.NO_CELL or state[at.CELLS + cell] & at.CODE_MASK != base + state[at.CUR]:
            raise ConfigError(
                f"{board.key}: the cell that must act in {at.PHASE_NAMES[phase]} is not the player's"
            )


def possible_rows(board: Board, states: States) -> npt.NDArray[np.bool_]:
    """Which rows compiled code can be given: every word in its range, and an own piece where one must act."""
    seats, cells = board.players, board.cells
    ranges = (
        *((word, 0, seats) for word in (at.WINNER, at.OPENER, at.HOLDER)),
        *((word, at.NO_CELL, cells - 1) for word in (at.MUST, at.ACTIVE)),
        *((word, 0, 1) for word in (at.CHANGED, at.RECOVERED)),
        (at.CUR, 1, seats),
        (at.PHASE, 0, at.OVER),
        (at.DEBT, 0, at.RECOVERY_DEBT),
        (at.REASON, 0, at.BY_STALEMATE),
        (at.ACTED, 0, 2 << seats),
        *((word, 0, _COUNTER_MAX) for word in (at.STREAK, at.DECISIONS, *range(at.HAND + 1, at.CELLS))),
    )
    low, high = (np.array([each[place] for each in ranges]) for place in (1, 2))
    words = states[:, [each[0] for each in ranges]]
    fine: npt.NDArray[np.bool_] = np.logical_and.reduce((words >= low) & (words <= high), axis=1)
    fine &= _possible_cells(board, states[:, at.CELLS :]).all(axis=1)
    fine &= (states[:, at.PHASE] == at.OVER) == (states[:, at.WINNER] != 0)
    phase, debt = states[:, at.PHASE], states[:, at.DEBT]
    # Rare, and too involved for arrays: those rows one by one.
    for row in np.flatnonzero(fine & (debt == at.RECOVERY_LINE)):
        try:
            _check_turn(board, states[row])
        except ConfigError:
            fine[row] = False
    must_move = (phase == at.MOVEMENT) & (debt == at.NO_DEBT) & (states[:, at.MUST] != at.NO_CELL)
    for word, acting in ((at.ACTIVE, (phase == at.CAPTURE) | (phase == at.CHAIN)), (at.MUST, must_move)):
        rows = np.flatnonzero(fine & acting)
        acts, cell = states[rows], states[rows, word]
        # `NO_CELL` would read the last counter; it is refused below
        piece = acts[np.arange(len(rows)), at.CELLS + cell.clip(0)] & at.CODE_MASK
        fine[rows] = (cell != at.NO_CELL) & (piece == at.STACK + acts[:, at.CUR])
    return fine


def _possible_cells(board: Board, words: States) -> npt.NDArray[np.bool_]:
    code = words & at.CODE_MASK
    height, cap_size = words >> at.HEIGHT_BIT & at.SIZE_MASK, words >> at.CAP_BIT & at.SIZE_MASK
    owned = (code <= at.STACK + 4) & ((code == 0) | ((code - 1) % 4 < board.players))
    tall = (cap_size >= 1) & (cap_size <= height) & (height <= board.farthest + 1)
    fine: npt.NDArray[np.bool_] = owned & np.where(code >= at.STACK_FROM, tall, words == code)
    return fine


def _completed_line(board: Board, state: State) -> bool:
    position, cell, player = read_position(board, state), int(state[at.ACTIVE]), int(state[at.CUR])
    runs = (position.run_through(cell, axis, player) for axis in range(board.axes))
    return cell != at.NO_CELL and any(len(run) >= board.line_length for run in runs)


def _fresh_cell(board: Board, name: str, used: set[int]) -> int:
    cell = _cell_number(board, name)
    if cell in used:
        raise ConfigError(f"{board.key}: two things on {name}")
    used.add(cell)
    return cell


def _cell_number(board: Board, name: str | None) -> int:
    if name is None:
        return at.NO_CELL
    if name not in board.by_name:
        raise ConfigError(f"{board.key}: no cell {name!r}")
    return board.by_name[name]


def _cell_name(board: Board, cell: int) -> str | None:
    return None if cell == at.NO_CELL else board.names[cell]


def _seat(board: Board, seat: int) -> int:
    if isinstance(seat, bool) or not isinstance(seat, int) or not 1 <= seat <= board.players:
        raise ConfigError(f"{board.key}: no player {seat!r}")
    return seat


def _optional_seat(board: Board, seat: int | None) -> int:
    return 0 if seat is None else _seat(board, seat)


def _number_of(name: Named, names: Sequence[Named], what: str) -> int:
    if name not in names:
        raise ConfigError(f"no {what} {name!r}")
    return names.index(name)


# Actions as moves that people can read, in the words of recorded games.


_SKIPS = {at.PLACEMENT: "SP", at.MOVEMENT: "SR", at.CAPTURE: "SC", at.TERRITORY: "ST"}


def action_moves(board: Board, state: State, actions: Iterable[int]) -> list[Move]:
    """The moves that legal *actions* of *state* stand for."""
    reader = _ActionReader(board, state)
    return [reader.move(int(action)) for action in actions]


class _ActionReader:
    """Reads actions of one state; the planes are those of `core.layout`."""

    def __init__(self, board: Board, state: State) -> None:
        self._board = board
        self._position: BoardPosition = read_position(board, state)
        self._player, self._phase = int(state[at.CUR]), int(state[at.PHASE])
        self._lines = at.PLACE_PLANES + len(board.directions) * board.farthest
        self._regions = self._lines + 2 * board.axes
        self._eliminate = self._regions + at.REGION_PLANES

    def move(self, action: int) -> Move:
        plane, cell = divmod(action, self._board.cells)
        if plane > self._eliminate:
            return Move(_SKIPS[self._phase])
        if plane == self._eliminate:
            return Move("F" if self._phase == at.FORCED else "E", (cell,))
        if plane >= self._regions:
            return self._region(cell, plane - self._regions)
        if plane >= self._lines:
            return self._line(cell, *divmod(plane - self._lines, 2))
        if plane >= at.PLACE_PLANES:
            return self._act(cell, *divmod(plane - at.PLACE_PLANES, self._board.farthest))
        return Move("P", (cell,), str(plane + 1))

    def _act(self, cell: int, direction: int, steps: int) -> Move:
        ray, stacks = self._board.rays[cell][direction], self._position.stacks
        end = ray[steps]
        if cell not in stacks:
            return Move("R", (cell, end), self._recovery_mode(cell, end))
        target = next((other for other in ray[:steps] if other in stacks), None)
        return Move("M", (cell, end)) if target is None else Move("C", (cell, target, end))

    def _recovery_mode(self, start: int, end: int) -> str:
        if end in self._position.stacks:
            return "stack_strike"
        # For the look only: a marker that moves away does not count in the line at its end.
        owner = self._position.markers.pop(start)
        runs = [self._position.run_through(end, axis, owner) for axis in range(self._board.axes)]
        self._position.markers[start] = owner
        return "line" if any(len(run) >= self._board.line_length for run in runs) else "fallback"

    def _line(self, cell: int, axis: int, part: int) -> Move:
        if part:
            rest = self._board.rays[cell][axis][: self._board.line_length - 1]
            return Move("L", (cell, *rest), "min")
        return Move("L", self._position.run_through(cell, axis, self._player), "full")

    def _region(self, cell: int, relative: int) -> Move:
        border = (self._player + relative - 2) % self._board.players + 1 if relative else None
        region = next(region for region in self._position.components(border) if cell in region)
        return Move("T", tuple(sorted(region)))


# A position drawn with characters.
#
# `.` empty, `o2` marker and `#2` collapsed cell of player 2, `2:5` a stack of height 5 that player 2
# controls, on small boards `2:5/3` if only the 3 top rings are of its color. Stacks of several colors are
# listed ring by ring below the board.


WIDE_FROM = 12  # side of a board that leaves no room for caps
LEGEND = ". empty   oP marker   #P collapsed   P:H stack of height H   P:H/C with a cap of C   (P = player)"


def draw_state(board: Board, state: State) -> str:
    """Counters, board and legend, ready to print."""
    position = read_position(board, state)
    caps = board.grid_side < WIDE_FROM
    marks = [_mark(position, cell, caps=caps) for cell in range(board.cells)]
    width = max(4, *(len(mark) + 1 for mark in marks))
    width += width % 2  # half a cell of indentation per row of hexes
    lines = _square(board, marks, width) if not board.shape.hexagonal else _hexagon(board, marks, width)
    return "\n".join(
        [_heading(board, state), "", *lines, "", *_seats(board, state), *_mixed(board, position), LEGEND]
    )


def _mark(position: BoardPosition, cell: int, *, caps: bool) -> str:
    if cell in position.stacks:
        stack = position.stacks[cell]
        mixed = f"/{cap(stack)}" if caps and cap(stack) < len(stack) else ""
        return f"{stack[-1]}:{len(stack)}{mixed}"
    if cell in position.markers:
        return f"o{position.markers[cell]}"
    if cell in position.collapsed:
        return f"#{position.collapsed[cell]}"
    return "."


def _square(board: Board, marks: list[str], width: int) -> list[str]:
    side = board.grid_side
    header = " " * 5 + "".join(f"{x}".ljust(width) for x in range(side)).rstrip() + "   x"
    rows = [
        f"{y:>3}  " + "".join(mark.ljust(width) for mark in marks[y * side : (y + 1) * side]).rstrip()
        for y in range(side)
    ]
    return [header, *rows, "  y"]


def _hexagon(board: Board, marks: list[str], width: int) -> list[str]:
    """Rows of equal y; x grows to the right, and the row's label names its first and last x."""
    lines = []
    for y in range(-board.shape.extent, board.shape.extent + 1):
        row = [(x, marks[cell]) for cell, (x, cell_y) in enumerate(board.points) if cell_y == y]
        body = " " * (abs(y) * width // 2) + "".join(mark.ljust(width) for _, mark in row).rstrip()
        lines.append(f"y {y:>3}  x {row[0][0]:>3} to {row[-1][0]:>3}   {body}")
    return lines


def _heading(board: Board, state: State) -> str:
    if state[at.WINNER]:
        reason = at.REASON_NAMES[state[at.REASON]] or "unknown reason"
        return f"{board.key}: player {state[at.WINNER]} won ({reason.replace('_', ' ')})"
    phase = at.PHASE_NAMES[state[at.PHASE]].replace("_", " ")
    debt = at.DEBT_NAMES[state[at.DEBT]]
    owed = f", owes: {debt.replace('_', ' ')}" if debt else ""
    return (
        f"{board.key}: player {state[at.CUR]} to decide, {phase}{owed} (decision {state[at.DECISIONS] + 1})"
    )


def _mixed(board: Board, position: BoardPosition) -> list[str]:
    stacks = [(cell, stack) for cell, stack in sorted(position.stacks.items()) if cap(stack) < len(stack)]
    listed = "; ".join(f"{board.names[cell]} {''.join(map(str, stack))}" for cell, stack in stacks)
    return [f"mixed stacks, bottom ring first: {listed}"] if stacks else []


def _seats(board: Board, state: State) -> list[str]:
    return [
        f"player {seat}: hand {state[at.HAND + seat]}, eliminated {state[at.ELIM + seat]} of "
        f"{board.elimination_target}, territory {state[at.TERR + seat]} of {board.territory_target}, "
        f"markers {state[at.MARKS + seat]}, stacks {state[at.CONTROLLED + seat]}"
        for seat in range(1, board.players + 1)
    ]


# --- the game -----------------------------------------------------------------------------------------


# More than any game can take: every decision but the few of a turn without change adds to a bounded sum.
DECISIONS_MAX = 1_000_000
LEGAL_ROOM_PER_GAME = 64  # actions at first; middle games of the small boards have about 45


@lru_cache(maxsize=16)
def make_game(key: str) -> RingRiftGame:
    """The game that a config key names; the same one again, since making the tables takes a while."""
    config = parse_config_key(key)
    return RingRiftGame(board_for(config.board, config.players))


class RingRiftGame:
    """One board and number of players; holds tables only, never a state."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.key = str(board.key)
        self.players = board.players
        self.words = at.CELLS + board.cells
        self._table = geometry.make_table(board)
        self._planes = at.PLACE_PLANES + len(board.directions) * board.farthest
        self._planes += 2 * board.axes + at.REGION_PLANES + 1
        self.action_count = self._planes * board.cells + 1
        self.symmetries = len(board.symmetries)

    @property
    def observation_shape(self) -> tuple[int, int, int]:
        return plane_count(self.players), self.board.grid_side, self.board.grid_side

    @cached_property
    def action_layout(self) -> ActionLayout:
        side = self.board.grid_side
        # A hex board lies on a square grid, so its actions have to name places of the grid.
        places = np.array([row * side + column for row, column in self.board.grid_positions])
        slots = (np.arange(self._planes)[:, None] * side * side + places[None, :]).ravel()
        return ActionLayout(
            planes=self._planes,
            rows=side,
            columns=side,
            placeless=1,
            slots=np.append(slots, self._planes * side * side).astype(np.int32),
        )

    def new_states(self, count: int) -> States:
        states = np.empty((count, self.words), dtype=np.int64)
        kernels.start_batch(states, self._table)
        return states

    def legal(self, states: States) -> LegalActions:
        check_batch(self, states)
        games = states.shape[0]
        offsets = np.zeros(games + 1, dtype=np.int64)
        actions = np.empty(games * LEGAL_ROOM_PER_GAME + 2 * self.action_count, dtype=np.int32)
        done = 0
        while True:
            done = kernels.legal_batch(states, self._table, done, offsets, actions)
            if done == games:
                return LegalActions(offsets, actions[: offsets[games]].copy())
            # Twice the room, and on from the game that had none: the large boards need several rounds at
            # most.
            actions = np.append(actions, np.empty_like(actions))

    def apply(self, states: States, actions: ActionArray, *, trusted: bool = False) -> None:
        check_batch(self, states)
        actions = check_actions(self, states, actions)
        refused = kernels.apply_batch(states, self._table, actions, not trusted)
        if refused >= 0:
            state = states[refused]
            phase = at.PHASE_NAMES[state[at.PHASE]]
            why = f"game {refused}, player {state[at.CUR]} in {phase}"
            raise IllegalAction(str(int(actions[refused])), why=why)

    def possible(self, states: States) -> npt.NDArray[np.bool_]:
        check_batch(self, states)
        return possible_rows(self.board, states)

    def terminal(self, states: States) -> npt.NDArray[np.bool_]:
        return np.not_equal(states[:, at.WINNER], 0)

    def to_move(self, states: States) -> npt.NDArray[np.int64]:
        return states[:, at.CUR] - 1

    def results(self, states: States) -> npt.NDArray[np.float32]:
        return results_from_rankings(self.rankings(states))

    def rankings(self, states: States) -> npt.NDArray[np.int64]:
        """Winner first; then territory, rings eliminated, markers, and who kept a ring for longer."""
        seats = np.arange(1, self.players + 1)
        lost_at = states[:, at.LOST_AT + seats]
        standing = (
            states[:, at.WINNER, None] == seats,
            states[:, at.TERR + seats],
            states[:, at.ELIM + seats],
            states[:, at.MARKS + seats],
            np.where(lost_at == 0, DECISIONS_MAX, lost_at),  # 0 is "never": later than anybody
        )
        ahead = np.zeros((len(states), self.players, self.players), dtype=bool)
        equal = np.ones_like(ahead)
        for values in standing:
            ahead |= equal & (values[:, None, :] > values[:, :, None])
            equal &= values[:, None, :] == values[:, :, None]
        return np.where(self.terminal(states)[:, None], 1 + ahead.sum(axis=2), 0)

    def reasons(self, states: States) -> list[str | None]:
        """How each game ended."""
        return [at.REASON_NAMES[reason] for reason in states[:, at.REASON]]

    def phases(self, states: States) -> list[str]:
        """The part of the turn that each game is in."""
        return [at.PHASE_NAMES[phase] for phase in states[:, at.PHASE]]

    def observe(self, states: States) -> Planes:
        check_batch(self, states)
        planes = np.empty((states.shape[0], *self.observation_shape), dtype=np.float32)
        kernels.observe_batch(states, self._table, planes)
        return planes

    def turned(self, states: States, symmetry: int) -> States:
        check_batch(self, states)
        self._check_symmetry(symmetry)
        out = np.empty_like(states)
        kernels.turn_batch(states, self._table, symmetry, out)
        return out

    def turned_actions(self, states: States, legal: LegalActions, symmetry: int) -> ActionArray:
        check_batch(self, states)
        self._check_symmetry(symmetry)
        turned: ActionArray = kernels.turn_actions_batch(
            states, self._table, symmetry, legal.offsets, legal.actions
        )
        return turned

    def turned_grid(self, symmetry: int) -> npt.NDArray[np.int64]:
        self._check_symmetry(symmetry)
        side, turn = self.board.grid_side, self.board.symmetries[symmetry]
        index = np.arange(side * side)
        places = self.board.grid_positions
        for cell, point in enumerate(self.board.points):
            row, column = places[self.board.index[turn(point)]]
            index[row * side + column] = places[cell][0] * side + places[cell][1]
        return index

    def _check_symmetry(self, symmetry: int) -> None:
        if not 0 <= symmetry < self.symmetries:
            raise ConfigError(f"{self.key}: symmetries are 0 to {self.symmetries - 1}, not {symmetry}")

    def play_random(self, states: States, *, seed: int) -> RandomPlay:
        check_batch(self, states)
        totals = np.zeros(2, dtype=np.int64)
        kernels.play_random_batch(states, self._table, seed, DECISIONS_MAX, totals)
        return RandomPlay(decisions=int(totals[0]), options=int(totals[1]))

    def action_texts(self, state: State, actions: Sequence[int] | ActionArray) -> list[str]:
        return [move.text(self.board) for move in action_moves(self.board, state, actions)]

    def parse_action(self, state: State, text: str) -> int:
        return find_action(self, state, text)

    def to_json(self, state: State) -> dict[str, Any]:
        return state_to_json(self.board, state)

    def from_json(self, fields: Mapping[str, Any]) -> State:
        state = state_from_json(self.board, fields)
        if not state[at.WINNER] and not self._decidable(state):
            raise ConfigError(f"{self.key}: nobody has anything to decide in {fields['phase']}")
        return state

    def _decidable(self, state: State) -> bool:
        # Both are asked: a phase may offer a decision by its counters and list no action.
        return kernels.at_decision(state, self._table) and len(self.legal(state[None, :]).actions) > 0

    def draw(self, state: State) -> str:
        return draw_state(self.board, state)
