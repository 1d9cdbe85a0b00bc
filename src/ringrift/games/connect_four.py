"""Connect four: the compiled rules, and the game behind the contract.

A state is four words: the stones of either player as bits, the number of stones played, and the winner
(0 while the game runs, 1 or 2, 3 for a draw). Bit `column * 7 + row` is a cell, row 0 at the bottom; the
seventh bit of a column stays empty, so that a shifted row of stones never runs over into the next column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ringrift.errors import ConfigError, IllegalAction
from ringrift.foreign_files.paths import parse_config_key
from ringrift.games.compiled import cached_kernel, compiled, source_fingerprint
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

# --- the compiled rules -------------------------------------------------------------------------------


COLUMNS, ROWS, STRIDE, CELLS = 7, 6, 7, 42
FIRST, SECOND, STONES, WINNER = 0, 1, 2, 3  # words of a state
WORDS, DRAW = 4, 3
BOTTOM_BITS = sum(1 << column * STRIDE for column in range(COLUMNS))
BOARD_BITS = BOTTOM_BITS * ((1 << ROWS) - 1)

Words = npt.NDArray[np.int64]
Actions = npt.NDArray[np.int32]

FINGERPRINT = source_fingerprint(Path(__file__))


@compiled
def column_open(s: Words, column: int) -> bool:
    is_open: bool = (s[FIRST] | s[SECOND]) >> (column * STRIDE + ROWS - 1) & 1 == 0
    return is_open


@compiled
def has_four(stones: int) -> bool:
    # Up, right and both diagonals: a shift by the step lays each stone on its neighbor.
    for step in (1, STRIDE, STRIDE - 1, STRIDE + 1):
        pairs = stones & (stones >> step)
        if pairs & (pairs >> (2 * step)) != 0:
            return True
    return False


@compiled
def drop_stone(s: Words, column: int) -> None:
    player = s[STONES] & 1
    filled = s[FIRST] | s[SECOND]
    row = 0
    while filled >> (column * STRIDE + row) & 1:
        row += 1
    s[player] |= 1 << (column * STRIDE + row)
    s[STONES] += 1
    if has_four(s[player]):
        s[WINNER] = player + 1
    elif s[STONES] == CELLS:
        s[WINNER] = DRAW


@cached_kernel(FINGERPRINT)
def legal_batch(states: Words, offsets: Words, out: Actions) -> None:
    n = 0
    for game in range(states.shape[0]):
        if states[game, WINNER] == 0:
            for column in range(COLUMNS):
                if column_open(states[game], column):
                    out[n] = column
                    n += 1
        offsets[game + 1] = n


@cached_kernel(FINGERPRINT)
def apply_batch(states: Words, actions: Actions) -> int:
    """Drop one stone per game; the first game with an illegal action instead, if any, and no change."""
    for game in range(states.shape[0]):
        if states[game, WINNER] != 0 or not column_open(states[game], actions[game]):
            return game
    for game in range(states.shape[0]):
        drop_stone(states[game], actions[game])
    return -1


@cached_kernel(FINGERPRINT)
def observe_batch(states: Words, out: Planes) -> None:
    """Own stones, the other's stones, and ones for the first player's turn."""
    for game in range(states.shape[0]):
        s = states[game]
        player = s[STONES] & 1
        for column in range(COLUMNS):
            for row in range(ROWS):
                bit = column * STRIDE + row
                out[game, 0, ROWS - 1 - row, column] = s[player] >> bit & 1
                out[game, 1, ROWS - 1 - row, column] = s[1 - player] >> bit & 1
                out[game, 2, ROWS - 1 - row, column] = 1 - player


@cached_kernel(FINGERPRINT)
def play_random_batch(states: Words, seed: int, totals: Words) -> None:
    # The generator of compiled code, which is apart from that of Python.
    np.random.seed(seed)
    for game in range(states.shape[0]):
        s = states[game]
        while s[WINNER] == 0:
            options = 0
            for column in range(COLUMNS):
                options += column_open(s, column)
            wanted = np.random.randint(options)
            column = 0
            while wanted > 0 or not column_open(s, column):  # the open column number *wanted*
                wanted -= column_open(s, column)
                column += 1
            drop_stone(s, column)
            totals[0] += 1
            totals[1] += options


# --- the game -----------------------------------------------------------------------------------------


MIRROR = 1
SYMBOLS = ".xo"


def make_game(key: str) -> ConnectFourGame:
    config = parse_config_key(key)
    if config.players != 2:
        raise ConfigError(f"{key!r}: connect four is for 2 players")
    return ConnectFourGame()


class ConnectFourGame:
    """Seven columns of six; an action is a column."""

    key = "connect_four_2p"
    players = 2
    words = WORDS
    action_count = COLUMNS
    observation_shape = (3, ROWS, COLUMNS)
    symmetries = 2  # as it is, and mirrored

    @property
    def action_layout(self) -> ActionLayout:
        """No plane but seven actions without a place: a column is no cell of the grid."""
        return ActionLayout(
            planes=0, rows=ROWS, columns=COLUMNS, placeless=COLUMNS, slots=np.arange(COLUMNS, dtype=np.int32)
        )

    def new_states(self, count: int) -> States:
        return np.zeros((count, self.words), dtype=np.int64)

    def legal(self, states: States) -> LegalActions:
        check_batch(self, states)
        offsets = np.zeros(len(states) + 1, dtype=np.int64)
        actions = np.empty(len(states) * COLUMNS, dtype=np.int32)
        legal_batch(states, offsets, actions)
        return LegalActions(offsets, actions[: offsets[-1]].copy())

    def apply(self, states: States, actions: ActionArray, *, trusted: bool = False) -> None:
        """The test costs next to nothing here, so *trusted* changes nothing."""
        del trusted
        check_batch(self, states)
        actions = check_actions(self, states, actions)
        refused = apply_batch(states, actions)
        if refused >= 0:
            over = bool(states[refused, WINNER])
            why = f"game {refused}: {'the game is over' if over else 'the column is full'}"
            raise IllegalAction(str(int(actions[refused])), why=why)

    def possible(self, states: States) -> npt.NDArray[np.bool_]:
        check_batch(self, states)
        first, second, stones = states[:, FIRST], states[:, SECOND], states[:, STONES]
        filled = first | second
        fine: npt.NDArray[np.bool_] = (
            (first & second == 0) & (filled & ~BOARD_BITS == 0) & (states[:, WINNER] >= 0)
        )
        fine &= np.bitwise_count(filled.astype(np.uint64)) == stones
        fine &= np.bitwise_count(second.astype(np.uint64)) == stones // 2  # the first player drops first
        # A stone lies on another one, or at the bottom.
        fine &= filled & ~(filled << 1 | BOTTOM_BITS) == 0
        fine &= states[:, WINNER] <= DRAW
        return fine

    def terminal(self, states: States) -> npt.NDArray[np.bool_]:
        return np.not_equal(states[:, WINNER], 0)

    def to_move(self, states: States) -> npt.NDArray[np.int64]:
        return np.bitwise_and(states[:, STONES], 1)

    def rankings(self, states: States) -> npt.NDArray[np.int64]:
        """A draw is a shared first rank."""
        winner = states[:, WINNER, None]
        ranks = np.where((winner == DRAW) | (winner == np.arange(1, 3)), 1, 2)
        return np.where(winner == 0, 0, ranks)

    def results(self, states: States) -> npt.NDArray[np.float32]:
        return results_from_rankings(self.rankings(states))

    def observe(self, states: States) -> Planes:
        check_batch(self, states)
        planes = np.empty((len(states), *self.observation_shape), dtype=np.float32)
        observe_batch(states, planes)
        return planes

    def turned(self, states: States, symmetry: int) -> States:
        check_batch(self, states)
        self._check_symmetry(symmetry)
        turned = states.copy()
        if symmetry == MIRROR:
            column_bits = (1 << STRIDE) - 1
            for player in (FIRST, SECOND):
                columns = [states[:, player] >> column * STRIDE & column_bits for column in range(COLUMNS)]
                turned[:, player] = sum(
                    bits << (COLUMNS - 1 - column) * STRIDE for column, bits in enumerate(columns)
                )
        return turned

    def turned_actions(self, states: States, legal: LegalActions, symmetry: int) -> ActionArray:
        del states
        self._check_symmetry(symmetry)
        return legal.actions if symmetry != MIRROR else (COLUMNS - 1 - legal.actions).astype(np.int32)

    def turned_grid(self, symmetry: int) -> npt.NDArray[np.int64]:
        self._check_symmetry(symmetry)
        grid = np.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS)
        return (grid[:, ::-1] if symmetry == MIRROR else grid).ravel()

    def _check_symmetry(self, symmetry: int) -> None:
        if not 0 <= symmetry < self.symmetries:
            raise ConfigError(f"{self.key}: symmetries are 0 and 1, not {symmetry}")

    def play_random(self, states: States, *, seed: int) -> RandomPlay:
        check_batch(self, states)
        totals = np.zeros(2, dtype=np.int64)
        play_random_batch(states, seed, totals)
        return RandomPlay(decisions=int(totals[0]), options=int(totals[1]))

    def action_texts(self, state: State, actions: Sequence[int] | ActionArray) -> list[str]:
        del state
        return [str(int(action) + 1) for action in actions]

    def parse_action(self, state: State, text: str) -> int:
        return find_action(self, state, text)

    def to_json(self, state: State) -> dict[str, Any]:
        winner = int(state[WINNER])
        return {
            "config": self.key,
            "rows": self._rows(state),
            "cur": int(state[STONES]) % 2 + 1,
            "status": "completed" if winner else "active",
            "winner": winner if winner in (1, 2) else None,
        }

    def from_json(self, fields: Mapping[str, Any]) -> State:
        """Rebuild a state from its rows, by dropping the stones again."""
        rows = fields.get("rows")
        if not isinstance(rows, list) or [len(row) for row in rows] != [COLUMNS] * ROWS:
            raise ConfigError(f"{self.key}: a state has {ROWS} rows of {COLUMNS} characters")
        state: State = np.zeros(self.words, dtype=np.int64)
        for column in range(COLUMNS):
            for row in range(ROWS):
                symbol = rows[ROWS - 1 - row][column]
                if symbol not in SYMBOLS:
                    raise ConfigError(f"{self.key}: {symbol!r} in a row, expected one of {SYMBOLS}")
                if symbol != "." and row and rows[ROWS - row][column] == ".":
                    raise ConfigError(f"{self.key}: a stone hangs in column {column + 1}")
                if symbol != ".":
                    state[SYMBOLS.index(symbol) - 1] |= 1 << column * STRIDE + row
        counts = [int(state[player]).bit_count() for player in (FIRST, SECOND)]
        if counts[0] - counts[1] not in (0, 1):
            raise ConfigError(f"{self.key}: {counts[0]} stones against {counts[1]}")
        state[STONES] = sum(counts)
        state[WINNER] = self._winner(state)
        return state

    def _winner(self, state: State) -> int:
        won = [player + 1 for player in (FIRST, SECOND) if _has_four(int(state[player]))]
        # A game ends with the stone that makes four, so the winner is who dropped last.
        last_to_drop = 2 - int(state[STONES]) % 2
        if won and won != [last_to_drop]:
            raise ConfigError(f"{self.key}: player {won[0]} has four in a row, but the game went on")
        full = state[STONES] == CELLS
        return won[0] if won else DRAW if full else 0

    def _rows(self, state: State) -> list[str]:
        def symbol(column: int, row: int) -> str:
            bit = column * STRIDE + row
            return SYMBOLS[int(state[FIRST] >> bit & 1) + 2 * int(state[SECOND] >> bit & 1)]

        return ["".join(symbol(column, row) for column in range(COLUMNS)) for row in reversed(range(ROWS))]

    def draw(self, state: State) -> str:
        winner = int(state[WINNER])
        turn = f"{SYMBOLS[int(state[STONES]) % 2 + 1]} to drop"
        heading = turn if not winner else "draw" if winner == DRAW else f"{SYMBOLS[winner]} won"
        rows = [" ".join(row) for row in self._rows(state)]
        return "\n".join([f"{self.key}: {heading}", "", *rows, "1 2 3 4 5 6 7"])


# In Python, since one state is read from JSON: compiling for that would take seconds.
def _has_four(stones: int) -> bool:
    pairs = [(stones & stones >> step, step) for step in (1, STRIDE, STRIDE - 1, STRIDE + 1)]
    return any(both & both >> 2 * step for both, step in pairs)
