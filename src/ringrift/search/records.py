"""Games that self-play makes: move by move while they run, as arrays once they are whole."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan, nan
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from ringrift.decoding import convert_to
from ringrift.errors import ConfigError
from ringrift.games.contract import ActionArray, Game, LegalActions, State
from ringrift.search.contract import SIMULATIONS_MAX, SURPRISE_MAX, Floats, Numbers

Flags = npt.NDArray[np.bool_]
VALUE_MAX = 1.001
POLICY_SUM_TOLERANCE = 1e-3
_INT32_MAX = 2**31 - 1


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
    surprise: float = nan  # how far the policy is from the network's; NaN in older files


class NotedMove(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A decision in a file. Which actions were legal follows from the rules and is left out."""

    seat: Annotated[int, msgspec.Meta(ge=0, le=_INT32_MAX)]
    action: Annotated[int, msgspec.Meta(ge=0, le=_INT32_MAX)]
    policy: str | list[float]  # 32-bit floats, little end first, in base64; a list in older files
    root_values: list[float]
    simulations: Annotated[int, msgspec.Meta(ge=0, le=SIMULATIONS_MAX)]
    full: bool
    surprise: Annotated[float, msgspec.Meta(ge=0, le=SURPRISE_MAX)] | None = None  # older files have none


class NotedGame(msgspec.Struct, frozen=True, kw_only=True):
    """A game in progress in a file."""

    seed: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
    moves: list[NotedMove]


@dataclass(slots=True)
class GameInProgress:
    """All that is needed to play a game on: its seed, where it stands, and its moves so far."""

    seed: int
    state: State
    moves: list[MoveRecord] = field(default_factory=list)

    def noted_moves(self) -> list[NotedMove]:
        return [
            NotedMove(
                seat=move.seat,
                action=move.action,
                policy=base64.b64encode(move.policy.astype("<f4").tobytes()).decode(),
                root_values=move.root_values.tolist(),
                simulations=move.simulations,
                full=move.full,
                surprise=None if isnan(move.surprise) else move.surprise,
            )
            for move in self.moves
        ]

    def to_json(self) -> dict[str, Any]:
        """The state follows from the moves and is left out."""
        noted: dict[str, Any] = msgspec.to_builtins(NotedGame(seed=self.seed, moves=self.noted_moves()))
        return noted

    @classmethod
    def from_json(cls, game: Game, record: Mapping[str, Any]) -> GameInProgress:
        """Play the moves again; raises `ConfigError` if they are none of *game*."""
        try:
            noted = convert_to(record, NotedGame)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{game.key}: this is no game in progress: {error}") from None
        return games_in_progress(game, [(noted.seed, noted.moves)])[0]


def games_in_progress(game: Game, noted: Sequence[tuple[int, Sequence[NotedMove]]]) -> list[GameInProgress]:
    """Play the moves of all games again, side by side; each is a seed and moves.

    Raises `ConfigError` for a move that does not fit the rules, and for a game that is over: whoever wrote
    the moves down is not believed.
    """
    states = game.new_states(len(noted))
    played: list[list[MoveRecord]] = [[] for _ in noted]
    for ply in range(max((len(moves) for _, moves in noted), default=0)):
        rows = [row for row, (_, moves) in enumerate(noted) if len(moves) > ply]
        here = states[rows]
        legal, movers = game.legal(here), game.to_move(here)
        for at, row in enumerate(rows):
            seed, moves = noted[row]
            try:
                played[row].append(_move(game, moves[ply], int(movers[at]), legal.of(at)))
            except ValueError as error:
                what = f"{game.key}: move {ply + 1} of game {seed} does not fit the rules: {error}"
                raise ConfigError(what) from None
        game.apply(here, np.array([played[row][ply].action for row in rows], dtype=np.int32))
        states[rows] = here
    if len(noted) and (over := np.flatnonzero(game.terminal(states))).size:
        raise ConfigError(f"{game.key}: game {noted[int(over[0])][0]} is over")
    return [
        GameInProgress(seed, states[row], moves)
        for row, ((seed, _), moves) in enumerate(zip(noted, played, strict=True))
    ]


def _move(game: Game, noted: NotedMove, mover: int, legal: ActionArray) -> MoveRecord:
    """Raises `ValueError` that says what does not fit."""
    if noted.seat != mover:
        raise ValueError(f"seat {noted.seat} is recorded, seat {mover} is on turn")
    if noted.action not in legal:
        raise ValueError(f"action {noted.action} is not legal")
    policy = _floats(noted.policy)
    if len(policy) != len(legal):
        raise ValueError(f"its policy is over {len(policy)} actions; {len(legal)} are legal")
    total = float(policy.sum())
    if not np.isfinite(policy).all() or (policy < 0).any() or abs(total - 1) > POLICY_SUM_TOLERANCE:
        raise ValueError("its policy is no distribution")
    values = np.array(noted.root_values, dtype=np.float32)
    if len(values) != game.players or not (np.abs(values) <= VALUE_MAX).all():
        raise ValueError(f"its values are not {game.players} numbers from -1 to 1")
    return MoveRecord(
        seat=noted.seat,
        action=noted.action,
        legal=legal.copy(),
        policy=policy,
        root_values=values,
        simulations=noted.simulations,
        full=noted.full,
        surprise=nan if noted.surprise is None else noted.surprise,
    )


def _floats(noted: str | list[float]) -> Floats:
    if isinstance(noted, list):
        return np.array(noted, dtype=np.float32)
    try:
        content = base64.b64decode(noted, validate=True)
    except binascii.Error as error:
        raise ValueError(f"its policy is no base64: {error}") from None
    if len(content) % 4:
        raise ValueError(f"its policy has {len(content)} bytes")
    return np.frombuffer(content, "<f4").astype(np.float32)


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
    surprise: Floats  # how far the policies are from the network's; NaN if not known
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
        surprise=np.array([move.surprise for move in moves], dtype=np.float32),
        results=results,
        rankings=rankings,
        final_state=progress.state,
        resigned_by=resigned_by,
        cut_off=resigned_by is None and not game.terminal(state)[0],
    )
