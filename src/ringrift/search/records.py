"""Games that self-play makes: move by move while they run, as arrays once they are whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ringrift.errors import ConfigError
from ringrift.games.contract import ActionArray, Game, LegalActions, State
from ringrift.search.contract import Floats, Numbers

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """One decision and what the search said about it."""

    seat: int  # whose decision it was
    action: int
    legal: ActionArray
    policy: Floats  # aligned with `legal`, sums to 1
    root_values: Floats  # per seat
    simulations: int
    full: bool  # whether the policy is a target of training


@dataclass(slots=True)
class GameInProgress:
    """All that is needed to play a game on: its seed, where it stands, and its moves so far."""

    seed: int
    state: State
    moves: list[MoveRecord] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The state follows from the moves and is left out."""
        return {
            "seed": self.seed,
            "moves": [
                {
                    "seat": move.seat,
                    "action": move.action,
                    "legal": move.legal.tolist(),
                    "policy": move.policy.tolist(),
                    "root_values": move.root_values.tolist(),
                    "simulations": move.simulations,
                    "full": move.full,
                }
                for move in self.moves
            ],
        }

    @classmethod
    def from_json(cls, game: Game, record: Mapping[str, Any]) -> GameInProgress:
        """Play the moves again; raises `ConfigError` or `IllegalAction` if they are none of *game*."""
        states = game.new_states(1)
        progress = cls(seed=int(record["seed"]), state=states[0])
        for fields in record["moves"]:
            move = MoveRecord(
                seat=int(fields["seat"]),
                action=int(fields["action"]),
                legal=np.array(fields["legal"], dtype=np.int32),
                policy=np.array(fields["policy"], dtype=np.float32),
                root_values=np.array(fields["root_values"], dtype=np.float32),
                simulations=int(fields["simulations"]),
                full=bool(fields["full"]),
            )
            ply = len(progress.moves)
            if move.seat != game.to_move(states)[0] or not np.array_equal(
                move.legal, game.legal(states).actions
            ):
                raise ConfigError(
                    f"{game.key}: move {ply + 1} of game {progress.seed} does not fit the rules"
                )
            game.apply(states, np.array([move.action], dtype=np.int32))
            progress.moves.append(move)
        return progress


@dataclass(frozen=True, slots=True)
class FinishedGame:
    """A whole game. Arrays about moves have one row per move; policies lie flat from `legal.offsets` on."""

    seed: int
    seats: npt.NDArray[np.int32]
    actions: ActionArray
    legal: LegalActions
    policy: Floats
    root_values: Floats  # moves x players, per seat
    simulations: npt.NDArray[np.int32]
    full: Flags  # moves whose policy is a target of training
    results: Floats  # per seat
    rankings: Numbers  # per seat, from 1; 0 if the game was cut off
    final_state: State
    resigned_by: int | None  # seat that gave up
    cut_off: bool  # too long; there is no result


def finish(game: Game, progress: GameInProgress, *, resigned_by: int | None = None) -> FinishedGame:
    """Close a game: by its end, by *resigned_by* giving up, or else by cutting it off."""
    moves, state = progress.moves, progress.state[None, :]
    results, rankings = game.results(state)[0], game.rankings(state)[0]
    if resigned_by is not None:
        rankings = np.where(np.arange(game.players) == resigned_by, 2, 1)
        results = np.where(rankings == 1, 1.0, -1.0).astype(np.float32)
    offsets = np.cumsum([0, *(len(move.legal) for move in moves)])
    return FinishedGame(
        seed=progress.seed,
        seats=np.array([move.seat for move in moves], dtype=np.int32),
        actions=np.array([move.action for move in moves], dtype=np.int32),
        legal=LegalActions(offsets, np.concatenate([move.legal for move in moves])),
        policy=np.concatenate([move.policy for move in moves]),
        root_values=np.stack([move.root_values for move in moves]),
        simulations=np.array([move.simulations for move in moves], dtype=np.int32),
        full=np.array([move.full for move in moves], dtype=bool),
        results=results,
        rankings=rankings,
        final_state=progress.state,
        resigned_by=resigned_by,
        cut_off=resigned_by is None and not game.terminal(state)[0],
    )
