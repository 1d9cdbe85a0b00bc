"""Games of OpenSpiel behind our contract: perfect information, no chance, one player at a time.

A row is the history of its game. Positions are rebuilt from it, and the latest are kept, because whoever
asks about a position has usually just asked about the one before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from random import Random
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ringrift.errors import ConfigError, IllegalAction
from ringrift.foreign_files.paths import PLAYERS_MAX, PLAYERS_MIN
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

# States as rows: the actions so far, four to a word, after a word that says how many there are.


LENGTH, ACTIONS = 0, 1
PER_WORD, ACTION_BITS = 4, 16
ACTION_COUNT_MAX = 1 << ACTION_BITS


def words_for(length_max: int) -> int:
    """Words of a row that holds up to *length_max* actions."""
    return ACTIONS + -(-length_max // PER_WORD)


def read_history(row: State) -> list[int]:
    length = int(row[LENGTH])
    return [int(action) for action in row[ACTIONS:].view(np.uint16)[:length]]


def append_action(row: State, action: int) -> None:
    row[ACTIONS:].view(np.uint16)[int(row[LENGTH])] = action
    row[LENGTH] += 1


def write_history(actions: list[int], words: int) -> State:
    row = np.zeros(words, dtype=np.int64)
    row[ACTIONS:].view(np.uint16)[: len(actions)] = actions
    row[LENGTH] = len(actions)
    return row


# What the contract asks beyond OpenSpiel's: where actions lie on the grid, and how the board turns.
#
# OpenSpiel numbers the actions of its board games cell by cell, row by row, with any pass after them, and
# lays observations out as planes, rows, columns. Games for which that does not add up have actions without
# a place.


Grid: TypeAlias = npt.NDArray[np.int64]  # the cell that comes to lie on each cell, flattened

PLACELESS_MAX = 2
# Turns that keep rules and start; othello's first four stones leave only those that keep the diagonals.
_TURNS: tuple[Callable[[Grid], Grid], ...] = (
    lambda grid: grid,
    lambda grid: grid[::-1, ::-1],
    lambda grid: grid.T,
    lambda grid: grid[::-1, ::-1].T,
    lambda grid: grid[::-1],
    lambda grid: grid[:, ::-1],
    lambda grid: np.rot90(grid),
    lambda grid: np.rot90(grid, 3),
)
_KNOWN_TURNS = {"go": 8, "othello": 4, "tic_tac_toe": 8}


def observation_grid(shape: list[int]) -> tuple[int, int, int]:
    """Planes, rows, columns of a tensor of *shape*; a vector becomes planes of one cell."""
    if len(shape) == 3:
        return shape[0], shape[1], shape[2]
    if len(shape) == 2:
        return 1, shape[0], shape[1]
    return int(np.prod(shape)), 1, 1


def action_layout(actions: int, rows: int, columns: int) -> ActionLayout:
    """Cell by cell with the same number of planes on each, then up to two actions without a place."""
    cells = rows * columns
    planes, rest = divmod(actions, cells)
    if planes == 0 or rest > PLACELESS_MAX or cells == 1:
        planes, rest = 0, actions
    cell, plane = np.divmod(np.arange(actions - rest), max(planes, 1))
    slots = np.concatenate([plane * cells + cell, planes * cells + np.arange(rest)])
    return ActionLayout(
        planes=planes, rows=rows, columns=columns, placeless=rest, slots=slots.astype(np.int32)
    )


def known_turns(name: str, rows: int, columns: int) -> list[Grid]:
    """The turns of a game whose actions are the cells of a square board and a pass; at least the first."""
    grid = np.arange(rows * columns).reshape(rows, columns)
    count = _KNOWN_TURNS.get(name, 1) if rows == columns else 1
    return [np.ascontiguousarray(turn(grid)).ravel() for turn in _TURNS[:count]]


try:
    import pyspiel
except ModuleNotFoundError:  # the extra is optional; `make_game` says so
    pyspiel = None

FAMILY = "open_spiel"
POSITIONS_KEPT = 8192
LENGTH_MAX = 32_768


def make_game(key: str) -> OpenSpielGame:
    """The game after the colon of *key*, in OpenSpiel's words: `open_spiel:hex(board_size=8)`."""
    if pyspiel is None:
        raise ConfigError(f"{key!r} needs OpenSpiel: pip install 'ringrift[openspiel]'")
    family, _, name = key.partition(":")
    if family != FAMILY or not name.strip():
        raise ConfigError(f"{key!r}: expected {FAMILY}:GAME, such as {FAMILY}:hex(board_size=8)")
    try:
        game = pyspiel.load_game(name.strip())
    except pyspiel.SpielError as fault:
        reason = str(fault).splitlines()[0].removesuffix(". Available games are:")
        raise ConfigError(f"{key!r}: OpenSpiel says: {reason}") from fault
    _check_kind(key, game)
    return OpenSpielGame(game)


def _check_kind(key: str, game: Any) -> None:
    """Refuse a game that the contract cannot express."""
    kind = game.get_type()
    demands = (
        (kind.dynamics == pyspiel.GameType.Dynamics.SEQUENTIAL, "players move at the same time"),
        (kind.chance_mode == pyspiel.GameType.ChanceMode.DETERMINISTIC, "it has chance"),
        (kind.information == pyspiel.GameType.Information.PERFECT_INFORMATION, "it hides information"),
        (PLAYERS_MIN <= game.num_players() <= PLAYERS_MAX, f"it is for {game.num_players()} players"),
        (kind.provides_observation_tensor, "it gives no observation tensor"),
        (game.num_distinct_actions() <= ACTION_COUNT_MAX, f"{game.num_distinct_actions()} actions"),
        (game.max_game_length() <= LENGTH_MAX, f"games of {game.max_game_length()} moves"),
    )
    for met, problem in demands:
        if not met:
            raise ConfigError(f"{key!r}: not a game we can play: {problem}")


class OpenSpielGame:
    """One game with its parameters."""

    def __init__(self, game: Any) -> None:
        self._game = game
        self.key = f"{FAMILY}:{str(game).removesuffix('()')}"
        self.players = int(game.num_players())
        self.words = words_for(game.max_game_length())
        self.action_count = int(game.num_distinct_actions())
        planes, rows, columns = observation_grid(game.observation_tensor_shape())
        # One plane more says who is on turn: not every game's own planes do.
        self.observation_shape = (planes + 1, rows, columns)
        self._turns = known_turns(game.get_type().short_name, rows, columns)
        self.symmetries = len(self._turns)
        self._kept: OrderedDict[bytes, Any] = OrderedDict()

    @cached_property
    def action_layout(self) -> ActionLayout:
        return action_layout(self.action_count, *self.observation_shape[1:])

    def new_states(self, count: int) -> States:
        return np.zeros((count, self.words), dtype=np.int64)

    def legal(self, states: States) -> LegalActions:
        check_batch(self, states)
        per_game = [[] if at.is_terminal() else at.legal_actions() for at in map(self._position, states)]
        offsets = np.cumsum([0, *map(len, per_game)], dtype=np.int64)
        return LegalActions(offsets, np.array([a for each in per_game for a in each], dtype=np.int32))

    def possible(self, states: States) -> npt.NDArray[np.bool_]:
        """Rows whose actions were legal in turn; what one row shares with the last is not redone."""
        check_batch(self, states)
        fine = np.zeros(len(states), dtype=np.bool_)
        position, done = self._game.new_initial_state(), list[int]()
        for row, state in enumerate(states):
            history = read_history(state) if 0 <= state[LENGTH] <= self._game.max_game_length() else None
            if history is None:
                continue
            if history[: len(done)] != done:
                position, done = self._game.new_initial_state(), []
            for action in history[len(done) :]:
                if position.is_terminal() or action not in position.legal_actions():
                    break
                position.apply_action(action)
                done.append(action)
            fine[row] = len(done) == len(history)
        return fine

    def apply(self, states: States, actions: ActionArray, *, trusted: bool = False) -> None:
        check_batch(self, states)
        actions = check_actions(self, states, actions)
        positions = [self._position(row) for row in states]
        if not trusted:
            for game, (position, action) in enumerate(zip(positions, actions, strict=True)):
                if position.is_terminal() or int(action) not in position.legal_actions():
                    raise IllegalAction(str(int(action)), why=f"game {game}: not among the legal ones")
        for row, position, action in zip(states, positions, actions, strict=True):
            after = position.clone()
            after.apply_action(int(action))
            append_action(row, int(action))
            self._keep(row, after)

    def terminal(self, states: States) -> npt.NDArray[np.bool_]:
        return np.array([self._position(row).is_terminal() for row in states], dtype=np.bool_)

    def to_move(self, states: States) -> npt.NDArray[np.int64]:
        """Seat on turn; in a finished game the first, because somebody has to be named."""
        seats = [self._position(row).current_player() for row in states]
        return np.maximum(np.array(seats, dtype=np.int64), 0)

    def results(self, states: States) -> npt.NDArray[np.float32]:
        return results_from_rankings(self.rankings(states))

    def rankings(self, states: States) -> npt.NDArray[np.int64]:
        ranks = np.zeros((len(states), self.players), dtype=np.int64)
        for game, row in enumerate(states):
            position = self._position(row)
            if position.is_terminal():
                returns = position.returns()
                ranks[game] = [1 + sum(other > own for other in returns) for own in returns]
        return ranks

    def observe(self, states: States) -> Planes:
        check_batch(self, states)
        planes = np.empty((len(states), *self.observation_shape), dtype=np.float32)
        seats = self.to_move(states)
        for game, (row, seat) in enumerate(zip(states, seats, strict=True)):
            tensor = self._position(row).observation_tensor(int(seat))
            planes[game, :-1] = np.reshape(tensor, planes[game, :-1].shape)
            planes[game, -1] = seat / (self.players - 1)
        return planes

    def turned(self, states: States, symmetry: int) -> States:
        check_batch(self, states)
        new_number = self._turned_numbers(symmetry)
        turned = self.new_states(len(states))
        for row, out in zip(states, turned, strict=True):
            out[:] = write_history([int(new_number[action]) for action in read_history(row)], self.words)
        return turned

    def turned_actions(self, states: States, legal: LegalActions, symmetry: int) -> ActionArray:
        del states
        turned: ActionArray = self._turned_numbers(symmetry)[legal.actions].astype(np.int32)
        return turned

    def turned_grid(self, symmetry: int) -> npt.NDArray[np.int64]:
        if not 0 <= symmetry < self.symmetries:
            raise ConfigError(f"{self.key}: symmetries are 0 to {self.symmetries - 1}, not {symmetry}")
        return self._turns[symmetry]

    def _turned_numbers(self, symmetry: int) -> npt.NDArray[np.int64]:
        numbers = np.arange(self.action_count)
        if symmetry != 0:
            grid = self.turned_grid(symmetry)
            numbers[grid] = np.arange(len(grid))
        return numbers

    def play_random(self, states: States, *, seed: int) -> RandomPlay:
        check_batch(self, states)
        decisions, options = 0, 0
        for game, row in enumerate(states):
            random, position = Random(f"{seed} {game}"), self._position(row).clone()
            while not position.is_terminal():
                legal = position.legal_actions()
                action = legal[int(random.random() * len(legal))]
                position.apply_action(action)
                append_action(row, action)
                decisions, options = decisions + 1, options + len(legal)
            self._keep(row, position)
        return RandomPlay(decisions=decisions, options=options)

    def action_texts(self, state: State, actions: Sequence[int] | ActionArray) -> list[str]:
        position = self._position(state)
        return [" ".join(position.action_to_string(int(action)).split()) for action in actions]

    def parse_action(self, state: State, text: str) -> int:
        return find_action(self, state, text)

    def to_json(self, state: State) -> dict[str, Any]:
        position, over = self._position(state), self._position(state).is_terminal()
        ranks = self.rankings(state[None, :])[0]
        return {
            "config": self.key,
            "actions": read_history(state),
            "cur": int(self.to_move(state[None, :])[0]) + 1,
            "status": "completed" if over else "active",
            "winner": int(np.argmin(ranks)) + 1 if over and (ranks == 1).sum() == 1 else None,
            "board": str(position),
        }

    def from_json(self, fields: Mapping[str, Any]) -> State:
        if fields.get("config", self.key) != self.key:
            raise ConfigError(f"state of {fields['config']}, not of {self.key}")
        actions = fields.get("actions")
        if not isinstance(actions, list) or not all(type(action) is int for action in actions):
            raise ConfigError(f"{self.key}: not a state: actions must be a list of numbers")
        states = self.new_states(1)
        for action in actions:
            try:
                self.apply(states, np.array([action]))
            except IllegalAction as fault:
                made = int(states[0, LENGTH])
                raise ConfigError(f"{self.key}: not a state: after {made} actions, {fault}") from fault
        row: State = states[0]
        return row

    def draw(self, state: State) -> str:
        seat = int(self.to_move(state[None, :])[0]) + 1
        turn = "over" if self._position(state).is_terminal() else f"player {seat} to move"
        board = str(self._position(state)).rstrip("\n")
        return f"{self.key}  {turn}\n{board}"

    def _position(self, row: State) -> Any:
        """OpenSpiel's state of *row*; not to be changed, for others see it too."""
        kept = self._kept.get(row.tobytes())
        if kept is not None:
            self._kept.move_to_end(row.tobytes())
            return kept
        position = self._game.new_initial_state()
        for action in read_history(row):
            position.apply_action(action)
        self._keep(row, position)
        return position

    def _keep(self, row: State, position: Any) -> None:
        self._kept[row.tobytes()] = position
        while len(self._kept) > POSITIONS_KEPT:
            self._kept.popitem(last=False)
