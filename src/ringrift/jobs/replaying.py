"""Replaying recorded games by the rules, many at a time, with the first fault of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringrift.games.contract import ActionArray, Game, LegalActions, States


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a game is refused; *move* counts from 0."""

    reason: str  # one of `docs/formats.md`
    detail: str
    move: int | None = None


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """The positions before one move of every game that has such a move."""

    move: int
    rows: npt.NDArray[np.int64]  # which of the replayed games
    states: States
    legal: LegalActions
    actions: ActionArray  # the recorded move of each


class BatchReplay:
    """Walks some games move by move; a game with a fault leaves the walk."""

    def __init__(self, game: Game, recorded: Sequence[ActionArray]) -> None:
        self._game, self._recorded = game, recorded
        self._lengths = np.array([len(actions) for actions in recorded], dtype=np.int64)
        self.finals: States = game.new_states(len(recorded))
        self.faults: dict[int, Fault] = {}

    def steps(self) -> Iterator[ReplayStep]:
        """Each step in turn; afterwards `faults` is complete and `finals` holds the last positions."""
        for move in range(int(self._lengths.max(initial=0))):
            rows = np.array([row for row in np.flatnonzero(self._lengths > move) if row not in self.faults])
            if not rows.size:
                break
            step = self._step(move, rows)
            if step is not None:
                yield step
                self._advance(step)
        self._find_unfinished()

    def refuse(self, row: int, fault: Fault) -> None:
        """Take a game out of the walk; its first fault stays."""
        self.faults.setdefault(int(row), fault)

    def _step(self, move: int, rows: npt.NDArray[np.int64]) -> ReplayStep | None:
        """The step without the games whose move is against the rules."""
        states = self.finals[rows]
        actions = np.array([self._recorded[row][move] for row in rows], dtype=np.int32)
        legal = self._game.legal(states)
        fine = is_legal(legal, actions)
        if not fine.all():
            over = self._game.terminal(states)
            for at in np.flatnonzero(~fine):
                reason = "moves_after_end" if over[at] else "illegal_move"
                told = "the game was over before" if over[at] else f"action {actions[at]} is not legal"
                self.refuse(rows[at], Fault(reason, told, move))
            if not fine.any():
                return None
            rows, states, actions = rows[fine], states[fine], actions[fine]
            legal = self._game.legal(states)
        return ReplayStep(move, rows, states, legal, actions)

    def _advance(self, step: ReplayStep) -> None:
        after = step.states.copy()
        self._game.apply(after, step.actions, trusted=True)
        self.finals[step.rows] = after

    def _find_unfinished(self) -> None:
        if not len(self._recorded):
            return
        for row in np.flatnonzero(~self._game.terminal(self.finals)):
            told = f"the game is not over after its {self._lengths[row]} moves"
            self.refuse(int(row), Fault("unfinished", told))


def is_legal(legal: LegalActions, actions: ActionArray) -> npt.NDArray[np.bool_]:
    """Whether each game's action is among its legal ones."""
    games = np.repeat(np.arange(len(actions)), legal.counts)
    hits = games[legal.actions == actions[games]]
    return np.bincount(hits, minlength=len(actions)) > 0
