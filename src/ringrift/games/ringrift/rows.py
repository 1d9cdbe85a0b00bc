"""State rows as people and records see them: positions, moves, JSON, both ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ringrift.errors import ConfigError
from ringrift.games.contract import State, States
from ringrift.games.ringrift.boards import Board
from ringrift.games.ringrift.core import layout as at
from ringrift.games.ringrift.reference.position import BoardPosition, Stack, cap

Named = TypeVar("Named")
_COUNTER_MAX = 10**6  # of rings, cells or decisions; no game comes near


def read_position(board: Board, state: State) -> BoardPosition:
    """The cells of a row."""
    position = BoardPosition(board)
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
        if not 1 <= len(stack) <= board.farthest + 1:
            raise ConfigError(f"{board.key}: a stack of {len(stack)} rings on {name}")
        state[at.CELLS + cell] = _stack_word(stack)
        state[at.CONTROLLED + stack[-1]] += 1
        for ring in stack:
            state[at.ON_BOARD + ring] += 1


def _stack_word(stack: Stack) -> np.int64:
    rings = sum(ring - 1 << 2 * place for place, ring in enumerate(stack))
    word = at.STACK + stack[-1] | len(stack) << at.HEIGHT_BIT | cap(stack) << at.CAP_BIT
    return np.uint64(word | rings << at.RINGS_BIT).astype(np.int64)


def _write_seats(board: Board, fields: Mapping[str, Any], state: State) -> None:
    players = fields["players"]
    lost_at = fields.get("lost_at", (None,) * board.players)
    if len(players) != board.players or len(lost_at) != board.players:
        raise ConfigError(f"{board.key}: {len(players)} players in the state")
    for seat, (hand, elim, terr) in enumerate(players, start=1):
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
    for row in np.flatnonzero(fine & (debt == at.RECOVERY_LINE)):
        try:
            _check_turn(board, states[row])
        except ConfigError:
            fine[row] = False
    must_move = (phase == at.MOVEMENT) & (debt == at.NO_DEBT) & (states[:, at.MUST] != at.NO_CELL)
    for word, acting in ((at.ACTIVE, (phase == at.CAPTURE) | (phase == at.CHAIN)), (at.MUST, must_move)):
        rows = np.flatnonzero(fine & acting)
        acts, cell = states[rows], states[rows, word]
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
