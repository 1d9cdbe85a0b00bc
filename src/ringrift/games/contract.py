"""The contract of a game: everything that search, self-play, export and evaluation ask of one.

States are rows of 64-bit words and every call takes a batch of rows, so that a thousand games cost one
call and no object each. What the words mean is the game's own business; a row may be copied, stored and
compared as it is. Seats are counted from 0 in arrays; texts and JSON count players from 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from ringrift.errors import ConfigError, IllegalAction

States: TypeAlias = npt.NDArray[np.int64]  # games x words
State: TypeAlias = npt.NDArray[np.int64]  # words
ActionArray: TypeAlias = npt.NDArray[np.int32]
Planes: TypeAlias = npt.NDArray[np.float32]  # games x planes x rows x columns


@dataclass(frozen=True, slots=True)
class LegalActions:
    """Legal actions of a batch, one game after the other; a finished game has none."""

    offsets: npt.NDArray[np.int64]  # games + 1
    actions: ActionArray

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        return np.diff(self.offsets)

    def of(self, game: int) -> ActionArray:
        return self.actions[self.offsets[game] : self.offsets[game + 1]]


@dataclass(frozen=True, slots=True)
class ActionLayout:
    """Where actions lie on planes over the grid, for a policy head that is a convolution.

    `slots[action]` is `(plane * rows + row) * columns + column`, or `planes * rows * columns + k` for the
    k-th action without a place, such as a pass.
    """

    planes: int
    rows: int
    columns: int
    placeless: int
    slots: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class RandomPlay:
    """What a run of random games took."""

    decisions: int
    options: int  # legal actions summed over the decisions


class Game(Protocol):
    """Rules of one game for one number of players."""

    @property
    def key(self) -> str:
        """The config key that names it."""
        ...

    @property
    def players(self) -> int: ...

    @property
    def words(self) -> int:
        """Words of a state."""
        ...

    @property
    def action_count(self) -> int: ...

    @property
    def action_layout(self) -> ActionLayout: ...

    @property
    def observation_shape(self) -> tuple[int, int, int]:
        """Planes, rows, columns."""
        ...

    @property
    def symmetries(self) -> int:
        """Number of ways to turn or mirror the board; number 0 changes nothing."""
        ...

    def new_states(self, count: int) -> States: ...

    def legal(self, states: States) -> LegalActions: ...

    def apply(self, states: States, actions: ActionArray, *, trusted: bool = False) -> None:
        """Make one action per game, in place.

        Raises `IllegalAction` and changes no game if any action is illegal. *trusted* skips the test, for
        callers who took the actions from `legal` of these very states.
        """
        ...

    def terminal(self, states: States) -> npt.NDArray[np.bool_]: ...

    def possible(self, states: States) -> npt.NDArray[np.bool_]:
        """Which rows, of whatever origin, the other calls can be given without harm."""
        ...

    def to_move(self, states: States) -> npt.NDArray[np.int64]:
        """Seat on turn, from 0."""
        ...

    def results(self, states: States) -> npt.NDArray[np.float32]:
        """Value per seat, games x players, 1 for the winner to -1 for the last; 0 while a game runs."""
        ...

    def rankings(self, states: States) -> npt.NDArray[np.int64]:
        """Rank per seat from 1, equal seats share one (1, 2, 2, 4); 0 while a game runs."""
        ...

    def observe(self, states: States) -> Planes:
        """What the player on turn sees."""
        ...

    def turned(self, states: States, symmetry: int) -> States: ...

    def turned_actions(self, states: States, legal: LegalActions, symmetry: int) -> ActionArray:
        """The numbers that *legal* actions of *states* have in the turned states, in the same order."""
        ...

    def turned_grid(self, symmetry: int) -> npt.NDArray[np.int64]:
        """Index into the flattened grid: turned planes are `planes[..., index]`."""
        ...

    def play_random(self, states: States, *, seed: int) -> RandomPlay:
        """Play every game to its end with uniformly random actions, in place; deterministic for a seed."""
        ...

    def action_texts(self, state: State, actions: Sequence[int] | ActionArray) -> list[str]: ...

    def parse_action(self, state: State, text: str) -> int:
        """The legal action that *text* names; raises `IllegalAction` if none does."""
        ...

    def to_json(self, state: State) -> dict[str, Any]: ...

    def from_json(self, fields: Mapping[str, Any]) -> State:
        """Rebuild a state; raises `ConfigError` if it breaks an invariant of the game."""
        ...

    def draw(self, state: State) -> str:
        """The position as text for a terminal."""
        ...


def ragged_index(
    offsets: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Places of all entries of *rows* in a flat array, and the offsets of the entries taken out."""
    starts, counts = offsets[rows], offsets[rows + 1] - offsets[rows]
    taken = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
    flat = np.arange(taken[-1]) + np.repeat(starts - taken[:-1], counts)
    return flat, taken


def check_batch(game: Game, states: States) -> None:
    """Raise `ConfigError` unless *states* is a batch of this game; compiled code trusts shapes blindly."""
    if states.ndim != 2 or states.shape[1] != game.words or states.dtype != np.int64:
        raise ConfigError(
            f"{game.key}: states must be int64 of shape (games, {game.words}), "
            f"not {states.dtype} of shape {states.shape}"
        )
    if not states.flags.c_contiguous:
        raise ConfigError(f"{game.key}: states must be contiguous")


def check_actions(game: Game, states: States, actions: ActionArray) -> ActionArray:
    """Return *actions* in the form compiled code takes; raises if there is not one number per game."""
    if actions.shape != (states.shape[0],):
        raise ConfigError(f"{game.key}: {states.shape[0]} games need as many actions, not {actions.shape}")
    outside = np.flatnonzero((actions < 0) | (actions >= game.action_count))
    if outside.size:
        first = int(outside[0])
        raise IllegalAction(
            str(int(actions[first])), why=f"game {first}: actions are 0 to {game.action_count - 1}"
        )
    return np.ascontiguousarray(actions, dtype=np.int32)


def find_action(game: Game, state: State, text: str) -> int:
    """The legal action whose text is *text*."""
    actions = game.legal(state[None, :]).actions
    names = game.action_texts(state, actions)
    wanted = " ".join(text.split())
    for action, name in zip(actions, names, strict=True):
        if name == wanted:
            return int(action)
    examples = ", ".join(names[:3]) or "none, the game is over"
    raise IllegalAction(repr(text), why=f"not among the {len(names)} legal ones ({examples}, …)")


def results_from_rankings(rankings: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Spread the ranks evenly from 1 to -1; seats that share a rank share its values."""
    players = rankings.shape[1]
    ties = (rankings[:, :, None] == rankings[:, None, :]).sum(axis=2)
    place = rankings - 1 + (ties - 1) / 2
    values = np.where(rankings > 0, 1 - 2 * place / (players - 1), 0.0)
    return values.astype(np.float32)


# --- a record against the rules -----------------------------------------------------------------------
#
# Validating a recorded game again, move by move, under the rules as they are now.


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
