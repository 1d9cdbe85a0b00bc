"""RingRift behind the contract of a game."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ringrift.errors import ConfigError, IllegalAction
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
from ringrift.games.registry import parse_config_key
from ringrift.games.ringrift.boards import Board, board_for
from ringrift.games.ringrift.core import geometry, kernels
from ringrift.games.ringrift.core import layout as at
from ringrift.games.ringrift.core.observe import plane_count
from ringrift.games.ringrift.rows import (
    action_moves,
    draw_state,
    possible_rows,
    state_from_json,
    state_to_json,
)

# More than any game can take: every decision but the few of a turn without change adds to a bounded sum.
DECISIONS_MAX = 1_000_000
LEGAL_ROOM_PER_GAME = 64


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
            np.where(lost_at == 0, DECISIONS_MAX, lost_at),
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
        return kernels.at_decision(state, self._table) and len(self.legal(state[None, :]).actions) > 0

    def draw(self, state: State) -> str:
        return draw_state(self.board, state)
