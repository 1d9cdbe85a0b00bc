"""A played game as it goes into a shard and comes out of one, and as the rows of its tables.

The actions are the truth: everything else that the rules can tell (whose turn, which phase, the result) is
stored for readers and checked against a replay before anybody learns from it.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ringrift.decoding import decode_as
from ringrift.games.contract import ActionArray, Game
from ringrift.jobs.shards.schema import PLAYERS_MAX, SCHEMA_VERSION
from ringrift.search.contract import SURPRISE_MAX

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
        offsets = self.policies.offsets
        return int(np.count_nonzero(offsets[1:] != offsets[:-1]))

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


@dataclass(frozen=True, slots=True)
class StoredMoves:
    """What a shard claims about each move; its texts are for people."""

    players: npt.NDArray[np.int64]  # from 1
    phases: tuple[str | None, ...]
    types: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoredGame:
    """A game read from a shard, with what was claimed about its moves."""

    game: PlayedGame
    moves: StoredMoves
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


# Games as rows of a shard, and back.


Row = tuple[Any, ...]

TOTAL_MOVES = 10  # the column of a game's row that claims how many there are
_MOVE_COLUMNS = 8  # that are read of each move
VALUE_MAX = 1.001
SURPRISE = "surprise"  # in the metadata of a game: 32-bit floats, little end first, in base64
_ENTRY_BYTES = 8  # of an action and its probability


class Undecodable(ValueError):
    """The rows of a game do not make a game; the message says what is wrong."""


def game_row(played: PlayedGame, moves: MoveColumns) -> Row:
    return (
        played.game_id,
        played.config_key,
        len(played.seats),
        played.seed,
        played.run_id,
        played.run_index,
        played.started_s,
        played.completed_s,
        round(1000 * (played.completed_s - played.started_s)),
        "completed",
        played.winner,
        played.termination,
        len(played.actions),
        int(moves.turns[-1]),
        played.rows,
        played.source,
        played.engine_mode,
        played.generator_sha256,
        played.search_budget,
        SCHEMA_VERSION,
        played.fingerprint(),
        msgspec.json.encode({**played.metadata, **_surprise_text(played.surprise)}).decode(),
    )


def player_rows(played: PlayedGame) -> list[Row]:
    return [
        (
            played.game_id,
            number,
            "human" if seat.ai_type == "human" else "ai",
            seat.ai_type,
            seat.name,
            seat.model_sha256,
            seat.simulations,
            seat.result,
            seat.ranking,
        )
        for number, seat in enumerate(played.seats, start=1)
    ]


def move_rows(played: PlayedGame, moves: MoveColumns) -> Iterable[Row]:
    for number, action in enumerate(played.actions):
        values = played.root_values[number]
        yield (
            played.game_id,
            number,
            int(moves.turns[number]),
            int(moves.players[number]),
            moves.phases[number],
            moves.types[number],
            int(action),
            moves.texts[number],
            encode_policy(*played.policies.of(number)),
            None if np.isnan(values).any() else values.astype("<f4").tobytes(),
        )


def encode_policy(actions: ActionArray, probabilities: Floats) -> bytes | None:
    """All actions as 32-bit integers, then all probabilities as 32-bit floats, little end first."""
    if not len(actions):
        return None
    return actions.astype("<i4").tobytes() + probabilities.astype("<f4").tobytes()


def stored_games(games: Sequence[Row], players: Sequence[Row], moves: Sequence[Row]) -> list[StoredGame]:
    """Put some games of as many players together; raises `Undecodable` if one is no game.

    All rows are in the order of the ids. All moves are decoded at once: of short games there are many, and
    each by itself would take far longer.
    """
    try:
        return _stored_games(games, players, moves)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.DecodeError) as fault:
        raise Undecodable(str(fault)) from fault


def _stored_games(games: Sequence[Row], players: Sequence[Row], moves: Sequence[Row]) -> list[StoredGame]:
    seats = _seats_of(games, players)
    ids, numbers, movers, phases, types, actions, blobs, values = _columns(moves)
    counts = Counter(ids)
    lengths = [counts[game[0]] for game in games]
    ends = list(accumulate(lengths))
    starts = [0, *ends[:-1]]
    expected = np.arange(ends[-1]) - np.repeat(starts, lengths)
    if not np.array_equal(np.array(numbers, dtype=np.int64), expected):
        raise Undecodable("move numbers have gaps")
    by_player, made = np.array(movers, dtype=np.int64), np.array(actions, dtype=np.int32)
    policies, root_values = decode_policies(blobs), _root_values(values, players=len(seats[0]))
    metadata = [decode_as(game[16], dict[str, Any]) for game in games]
    surprises = _surprises([each.pop(SURPRISE, None) for each in metadata], lengths)
    found = []
    for at, (game, start, end) in enumerate(zip(games, starts, ends, strict=True)):
        span = slice(start, end)
        played = PlayedGame(
            game_id=game[0],
            config_key=game[1],
            seed=game[3],
            run_id=game[4],
            run_index=game[5],
            started_s=game[6],
            completed_s=game[7],
            termination=game[9],
            source=game[11],
            engine_mode=game[12],
            generator_sha256=game[13],
            search_budget=game[14],
            metadata=metadata[at],
            seats=seats[at],
            actions=made[span],
            policies=policies.between(start, end),
            root_values=root_values[span],
            surprise=surprises[at],
        )
        stored = StoredMoves(by_player[span], phases[span], types[span])
        found.append(
            StoredGame(played, stored, total_moves=game[TOTAL_MOVES], winner=game[8], fingerprint=game[15])
        )
    return found


def _seats_of(games: Sequence[Row], players: Sequence[Row]) -> list[tuple[SeatRecord, ...]]:
    """Who sat at the table of each game."""
    count = games[0][2]
    if not 1 <= count <= PLAYERS_MAX or any(game[2] != count for game in games):
        raise Undecodable(f"games of {count} players and others")
    if [(row[0], row[1]) for row in players] != [(game[0], n) for game in games for n in range(1, count + 1)]:
        raise Undecodable(f"{len(players)} players are recorded for {len(games)} games of {count}")
    _check_words(games, players)
    seats = [
        SeatRecord(ai_type, name, float(result), int(ranking), model, simulations)
        for _, _, ai_type, name, model, simulations, result, ranking in players
    ]
    return [tuple(seats[at : at + count]) for at in range(0, len(seats), count)]


def _surprise_text(surprise: Floats | None) -> dict[str, str]:
    """In the metadata, where older readers leave it alone."""
    if surprise is None:
        return {}
    return {SURPRISE: base64.b64encode(surprise.astype("<f4").tobytes()).decode()}


def _surprises(texts: Sequence[object], lengths: Sequence[int]) -> list[Floats | None]:
    """Of each game one number a move, from 0 to the most there is, or NaN; None where nothing is told."""
    contents = [_surprise_bytes(text, moves) for text, moves in zip(texts, lengths, strict=True)]
    surprise = np.frombuffer(b"".join(contents), "<f4").astype(np.float32)
    if not (np.isnan(surprise) | ((surprise >= 0) & (surprise <= SURPRISE_MAX))).all():
        raise Undecodable(f"its surprise is not from 0 to {SURPRISE_MAX:g}")
    ends = list(accumulate(len(content) // 4 for content in contents))
    return [
        None if text is None else surprise[end - moves : end]
        for text, end, moves in zip(texts, ends, lengths, strict=True)
    ]


def _surprise_bytes(text: object, moves: int) -> bytes:
    if text is None:
        return b""
    if not isinstance(text, str):
        raise Undecodable("its surprise is no text")
    content = base64.b64decode(text, validate=True)
    if len(content) != 4 * moves:
        raise Undecodable(f"its surprise has {len(content)} bytes for {moves} moves")
    return content


def decode_policies(blobs: Sequence[bytes | None]) -> SoftPolicies:
    """The policies of some moves; each is all actions as 32-bit integers, then all probabilities."""
    sizes = np.array([0 if blob is None else len(blob) or -1 for blob in blobs], dtype=np.int64)
    if (odd := np.flatnonzero((sizes < 0) | (sizes % _ENTRY_BYTES != 0))).size:
        raise Undecodable(f"a policy of {max(0, sizes[odd[0]])} bytes")
    counts = sizes // _ENTRY_BYTES
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    words = np.frombuffer(b"".join([blob for blob in blobs if blob is not None]), "<i4")
    # Behind the actions and probabilities of all moves before come the move's own actions.
    places = np.arange(offsets[-1]) + np.repeat(offsets[:-1], counts)
    return SoftPolicies(offsets, words[places], words.view("<f4")[places + np.repeat(counts, counts)])


def _columns(moves: Sequence[Row]) -> Sequence[tuple[Any, ...]]:
    return list(zip(*moves, strict=True)) or [()] * _MOVE_COLUMNS


def _root_values(blobs: Sequence[bytes | None], *, players: int) -> Floats:
    values = np.full((len(blobs), players), np.nan, dtype=np.float32)
    there = np.array([blob is not None for blob in blobs], dtype=bool)
    known = [blob for blob in blobs if blob is not None]
    if odd := set(map(len, known)) - {4 * players}:
        raise Undecodable(f"values of {min(odd)} bytes for {players} players")
    values[there] = np.frombuffer(b"".join(known), "<f4").reshape(-1, players)
    if (outside := np.flatnonzero(there & ~(np.abs(values) <= VALUE_MAX).all(axis=1))).size:
        raise Undecodable(f"the values of move {outside[0]} are not from -1 to 1")
    return values


def _check_words(games: Sequence[Row], players: Sequence[Row]) -> None:
    """Names end up in reports, in logs and on terminals."""
    words = [word for game in games for word in (*game[:2], game[4], game[9], *game[11:14])]
    words += [word for row in players for word in row[2:5]]
    # Each once: most games say the same.
    known = {word for word in words if word is not None}
    if not "".join(known).isprintable():
        odd = next(word for word in words if word is not None and not word.isprintable())
        raise Undecodable(f"a name with characters that cannot be printed: {odd[:40]!r}")
