"""Replaying recorded games by the rules, many at a time, with the first fault of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt

from ringrift.games.contract import ActionArray, Game, LegalActions, States, ragged_index
from ringrift.jobs.shards.records import SoftPolicies, StoredGame

Numbers = npt.NDArray[np.int64]


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
    rows: Numbers  # which of the replayed games
    states: States
    legal: LegalActions
    actions: ActionArray  # the recorded move of each


class RecordedMoves:
    """What was recorded of the moves of some games, as columns: one game after the other."""

    def __init__(self, games: Sequence[StoredGame]) -> None:
        lengths = np.array([0, *(len(each.game.actions) for each in games)], dtype=np.int64)
        self._starts = np.cumsum(lengths)[:-1]
        self.players = np.concatenate([each.moves.players for each in games])
        self.phases = [phase for each in games for phase in each.moves.phases]
        self.types = [kind for each in games for kind in each.moves.types]
        self.root_values = np.concatenate([each.game.root_values for each in games])
        self.surprise = np.concatenate([_surprise_of(each) for each in games])
        self.policies = SoftPolicies.joined([each.game.policies for each in games])
        self.named = np.diff(self.policies.offsets)  # actions in each policy

    def places(self, rows: Numbers, moves: Numbers | int) -> Numbers:
        """Where *moves* of the games *rows* lie in the columns."""
        places: Numbers = self._starts[rows] + moves
        return places

    def names_all(self, places: Numbers, legal: LegalActions) -> npt.NDArray[np.bool_]:
        """Which of the policies at *places* name exactly the *legal* actions, in the same order."""
        counts = self.named[places]
        alike: npt.NDArray[np.bool_] = counts == legal.counts
        rows = np.flatnonzero(alike)
        named, _ = ragged_index(self.policies.offsets, places[rows])
        allowed, _ = ragged_index(legal.offsets, rows)
        differ = self.policies.actions[named] != legal.actions[allowed]
        alike[np.repeat(rows, counts[rows])[differ]] = False
        return alike


def _surprise_of(stored: StoredGame) -> npt.NDArray[np.float32]:
    known = stored.game.surprise
    return np.full(len(stored.game.actions), np.nan, dtype=np.float32) if known is None else known


class BatchReplay:
    """Walks some games move by move; a game with a fault leaves the walk."""

    def __init__(self, game: Game, recorded: Sequence[ActionArray]) -> None:
        self._game = game
        self._lengths = np.array([len(actions) for actions in recorded], dtype=np.int64)
        self._starts = np.cumsum(self._lengths) - self._lengths
        self._actions = np.concatenate([np.empty(0, np.int32), *recorded])
        self._going_on = np.ones(len(recorded), dtype=bool)
        self.finals: States = game.new_states(len(recorded))
        self.faults: dict[int, Fault] = {}

    def steps(self) -> Iterator[ReplayStep]:
        """Each step in turn; afterwards `faults` is complete and `finals` holds the last positions."""
        for move in range(int(self._lengths.max(initial=0))):
            rows = np.flatnonzero(self._going_on & (self._lengths > move))
            if not rows.size:
                break
            step = self._step(move, rows)
            if step is not None:
                yield step
                self._advance(step)
        self._find_unfinished()

    def refuse(self, row: int, fault: Fault) -> None:
        """Take a game out of the walk; of several faults that of the earliest move stays."""
        before = self.faults.get(int(row))
        if before is None or _move_of(fault) < _move_of(before):
            self.faults[int(row)] = fault
        self._going_on[row] = False

    def _step(self, move: int, rows: Numbers) -> ReplayStep | None:
        """The step without the games whose move is against the rules."""
        states = self.finals[rows]
        actions = self._actions[self._starts[rows] + move]
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
        if not len(self._lengths):
            return
        for row in np.flatnonzero(~self._game.terminal(self.finals)):
            told = f"the game is not over after its {self._lengths[row]} moves"
            self.refuse(int(row), Fault("unfinished", told))


def _move_of(fault: Fault) -> float:
    """When it is found; what is wrong with a game as a whole comes after all of its moves."""
    return inf if fault.move is None else fault.move


def joined_steps(steps: Sequence[ReplayStep]) -> tuple[Numbers, Numbers, States, LegalActions]:
    """The rows, moves, positions and legal actions of several steps, one after the other."""
    counts = np.concatenate([np.zeros(1, np.int64), *(step.legal.counts for step in steps)])
    return (
        np.concatenate([step.rows for step in steps]),
        np.repeat([step.move for step in steps], [len(step.rows) for step in steps]),
        np.concatenate([step.states for step in steps]),
        LegalActions(np.cumsum(counts), np.concatenate([step.legal.actions for step in steps])),
    )


def is_legal(legal: LegalActions, actions: ActionArray) -> npt.NDArray[np.bool_]:
    """Whether each game's action is among its legal ones."""
    games = np.repeat(np.arange(len(actions)), legal.counts)
    hits = games[legal.actions == actions[games]]
    return np.bincount(hits, minlength=len(actions)) > 0
