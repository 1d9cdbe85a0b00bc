"""Validating a recorded game again, move by move, under the rules as they are now."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ringrift.errors import IllegalAction
from ringrift.games.contract import Game, State

DIGEST_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A recorded game. Only the actions are needed; whatever else is there is compared."""

    actions: Sequence[int]
    seats: Sequence[int] | None = None  # who made each action, from 0
    digests: Sequence[str] | None = None  # `state_digest` after each action
    ranking: Sequence[int] | None = None  # of the finished game


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first place where the record and the rules part."""

    move: int  # from 0
    what: str

    def __str__(self) -> str:
        return f"move {self.move}: {self.what}"


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """How far the record holds, and the state up to which it does."""

    moves: int
    state: State
    divergence: Divergence | None


def state_digest(state: State) -> str:
    """A short name for a state: equal states, equal digests."""
    return hashlib.blake2b(state.tobytes(), digest_size=DIGEST_BYTES).hexdigest()


def validate_replay(game: Game, replay: Replay) -> ReplayReport:
    """Play *replay* again and stop at the first divergence."""
    state = game.new_states(1)[0]
    for move, action in enumerate(replay.actions):
        before = state.copy()
        what = _check_move(game, state, replay, move, action)
        if what:
            return ReplayReport(move, before, Divergence(move, what))
    what = _check_end(game, state, replay)
    moves = len(replay.actions)
    return ReplayReport(moves, state, Divergence(moves, what) if what else None)


def _check_move(game: Game, state: State, replay: Replay, move: int, action: int) -> str:
    """Make one move in place; what differs, or nothing."""
    seat = int(game.to_move(state[None, :])[0])
    if replay.seats is not None and (move >= len(replay.seats) or replay.seats[move] != seat):
        recorded = replay.seats[move] if move < len(replay.seats) else "nobody"
        return f"seat {seat} is on turn, the record says {recorded}"
    try:
        game.apply(state[None, :], np.array([action], dtype=np.int32))
    except IllegalAction as refused:
        return str(refused)
    if replay.digests is not None:
        digest = state_digest(state)
        recorded_digest = replay.digests[move] if move < len(replay.digests) else "nothing"
        if digest != recorded_digest:
            return f"the state after action {action} is {digest}, the record says {recorded_digest}"
    return ""


def _check_end(game: Game, state: State, replay: Replay) -> str:
    if replay.ranking is None:
        return ""
    if not game.terminal(state[None, :])[0]:
        return "the game is not over, but the record has a ranking"
    ranking = game.rankings(state[None, :])[0].tolist()
    return (
        ""
        if ranking == list(replay.ranking)
        else f"ranking {ranking}, the record says {list(replay.ranking)}"
    )
