"""A played game as it goes into a shard and comes out of one.

The actions are the truth: everything else that the rules can tell (whose turn, which phase, the result) is
stored for readers and checked against a replay before anybody learns from it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ringrift.games.contract import ActionArray, Game

Floats = npt.NDArray[np.float32]
RESIGNATION = "resignation"  # the one end of a game that the rules do not see


@dataclass(frozen=True, slots=True)
class SoftPolicies:
    """A search's distribution per move; empty where the move was chosen without a full search."""

    offsets: npt.NDArray[np.int64]  # moves + 1
    actions: ActionArray
    probabilities: Floats

    def of(self, move: int) -> tuple[ActionArray, Floats]:
        span = slice(self.offsets[move], self.offsets[move + 1])
        return self.actions[span], self.probabilities[span]

    @property
    def searched(self) -> npt.NDArray[np.bool_]:
        return np.diff(self.offsets) > 0

    def between(self, start: int, end: int) -> SoftPolicies:
        """Those of the moves from *start* to *end*."""
        offsets = self.offsets[start : end + 1]
        span = slice(offsets[0], offsets[-1])
        return SoftPolicies(offsets - offsets[0], self.actions[span], self.probabilities[span])

    @classmethod
    def joined(cls, parts: Sequence[SoftPolicies]) -> SoftPolicies:
        """Those of several games, one game after the other."""
        counts = np.concatenate([np.zeros(1, np.int64), *(np.diff(part.offsets) for part in parts)])
        return cls(
            np.cumsum(counts),
            np.concatenate([np.empty(0, np.int32), *(part.actions for part in parts)]),
            np.concatenate([np.empty(0, np.float32), *(part.probabilities for part in parts)]),
        )

    @classmethod
    def none(cls, moves: int) -> SoftPolicies:
        return cls(np.zeros(moves + 1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))


@dataclass(frozen=True, slots=True)
class SeatRecord:
    """Who sat at a seat, and how it ended for them."""

    ai_type: str  # gumbel, puct, mcts, heuristic, random, human, …
    name: str
    result: float
    ranking: int
    model_sha256: str | None = None
    simulations: int | None = None


@dataclass(frozen=True, slots=True)
class PlayedGame:
    """A whole game."""

    game_id: str
    config_key: str
    seed: int
    run_id: str
    run_index: int
    source: str  # selfplay, evaluation, tournament, human
    engine_mode: str  # how the moves were chosen, if one way for all seats; else mixed
    started_s: float
    completed_s: float
    termination: str
    seats: tuple[SeatRecord, ...]
    actions: ActionArray
    policies: SoftPolicies
    root_values: Floats  # moves x players; NaN where there was no search
    generator_sha256: str | None = None
    search_budget: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    surprise: Floats | None = None  # per move: how far the policy was from the network's; NaN: unknown

    @property
    def winner(self) -> int | None:
        """Player, from 1, who is alone in first place."""
        first = [number for number, seat in enumerate(self.seats, start=1) if seat.ranking == 1]
        return first[0] if len(first) == 1 else None

    @property
    def results(self) -> Floats:
        return np.array([seat.result for seat in self.seats], dtype=np.float32)

    @property
    def rows(self) -> int:
        """Training rows that it holds."""
        return int(np.count_nonzero(self.policies.searched))

    def fingerprint(self) -> str:
        """The same for two games with the same moves and policies, whatever they are called."""
        digest = hashlib.sha256(self.config_key.encode())
        for array in (
            self.actions,
            self.policies.offsets,
            self.policies.actions,
            self.policies.probabilities,
        ):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class MoveColumns:
    """What the rules say about each move, taken before it is made."""

    players: npt.NDArray[np.int64]  # from 1
    turns: npt.NDArray[np.int64]  # counts changes of the player on turn, from 1
    phases: tuple[str | None, ...]
    types: tuple[str, ...]
    texts: tuple[str, ...]

    def part(self, span: slice) -> MoveColumns:
        """Those of some of the moves."""
        words = (self.phases[span], self.types[span], self.texts[span])
        return MoveColumns(self.players[span], self.turns[span], *words)


@dataclass(frozen=True, slots=True)
class StoredGame:
    """A game read from a shard, with what was claimed about its moves."""

    game: PlayedGame
    moves: MoveColumns
    total_moves: int
    winner: int | None
    fingerprint: str


def describe_moves(game: Game, actions: ActionArray) -> MoveColumns:
    """Replay a finished game; the phase is that of the state before the move."""
    state = game.new_states(1)
    phases_of = getattr(game, "phases", None)  # an ability that a game may have
    players, phases, texts = [], [], []
    for action in actions:
        players.append(int(game.to_move(state)[0]) + 1)
        phases.append(phases_of(state)[0] if phases_of is not None else None)
        texts.append(game.action_texts(state[0], [int(action)])[0])
        game.apply(state, np.array([action], dtype=np.int32))
    movers = np.array(players, dtype=np.int64)
    return MoveColumns(
        players=movers,
        turns=1 + np.cumsum(np.diff(movers, prepend=movers[:1]) != 0),
        phases=tuple(phases),
        types=tuple(text.split()[0] for text in texts),
        texts=tuple(texts),
    )


def termination_of(game: Game, final: npt.NDArray[np.int64]) -> str:
    """How a game ended, in the game's own word if it has one."""
    reasons_of = getattr(game, "reasons", None)
    if reasons_of is None:
        return "finished"
    return str(reasons_of(final[None, :])[0])
