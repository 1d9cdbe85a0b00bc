"""Games as rows of a shard, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from ringrift.decoding import decode_as
from ringrift.games.contract import ActionArray
from ringrift.jobs.shards.records import (
    Floats,
    MoveColumns,
    PlayedGame,
    SeatRecord,
    SoftPolicies,
    StoredGame,
)
from ringrift.jobs.shards.schema import PLAYERS_MAX, SCHEMA_VERSION

Row = tuple[Any, ...]

MOVE_COLUMNS = 9  # that are read of each move
VALUE_MAX = 1.001


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
        msgspec.json.encode(dict(played.metadata)).decode(),
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


def decode_policy(blob: bytes | None) -> tuple[ActionArray, Floats]:
    if blob is None:
        return np.empty(0, np.int32), np.empty(0, np.float32)
    if len(blob) % 8 or not blob:
        raise Undecodable(f"a policy of {len(blob)} bytes")
    half = len(blob) // 2
    return np.frombuffer(blob[:half], "<i4"), np.frombuffer(blob[half:], "<f4")


def stored_game(game: Row, players: Sequence[Row], moves: Sequence[Row]) -> StoredGame:
    """Put the rows of one game together; raises `Undecodable`."""
    try:
        return _stored_game(game, players, moves)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.DecodeError) as fault:
        raise Undecodable(str(fault)) from fault


def _stored_game(game: Row, players: Sequence[Row], moves: Sequence[Row]) -> StoredGame:
    if not 1 <= game[2] <= PLAYERS_MAX:
        raise Undecodable(f"a game of {game[2]} players")
    _check_words(game, players)
    if [row[0] for row in moves] != list(range(len(moves))):
        raise Undecodable("move numbers have gaps")
    if [row[0] for row in players] != list(range(1, game[2] + 1)):
        raise Undecodable(f"{len(players)} players are recorded for a game of {game[2]}")
    _, turns, movers, phases, types, actions, texts, probabilities, values = _columns(moves)
    policies = [decode_policy(blob) for blob in probabilities]
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
        metadata=decode_as(game[16], dict[str, Any]),
        seats=tuple(
            SeatRecord(
                ai_type=row[1],
                name=row[2],
                model_sha256=row[3],
                simulations=row[4],
                result=float(row[5]),
                ranking=int(row[6]),
            )
            for row in players
        ),
        actions=np.array(actions, dtype=np.int32),
        policies=SoftPolicies(
            offsets=np.cumsum([0] + [len(named) for named, _ in policies], dtype=np.int64),
            actions=_joined([named for named, _ in policies], np.dtype(np.int32)),
            probabilities=_joined([shares for _, shares in policies], np.dtype(np.float32)),
        ),
        root_values=_root_values(values, players=game[2]),
    )
    columns = MoveColumns(
        players=np.array(movers, dtype=np.int64),
        turns=np.array(turns, dtype=np.int64),
        phases=phases,
        types=types,
        texts=texts,
    )
    return StoredGame(played, columns, total_moves=game[10], winner=game[8], fingerprint=game[15])


def _columns(moves: Sequence[Row]) -> Sequence[tuple[Any, ...]]:
    return list(zip(*moves, strict=True)) or [()] * MOVE_COLUMNS


def _joined(parts: Sequence[Any], dtype: np.dtype[Any]) -> Any:
    return np.concatenate([np.empty(0, dtype), *parts]).astype(dtype, copy=False)


def _root_values(blobs: Sequence[bytes | None], *, players: int) -> Floats:
    values = np.full((len(blobs), players), np.nan, dtype=np.float32)
    for number, blob in enumerate(blobs):
        if blob is not None:
            if len(blob) != 4 * players:
                raise Undecodable(f"values of {len(blob)} bytes for {players} players")
            values[number] = np.frombuffer(blob, "<f4")
            if not (np.abs(values[number]) <= VALUE_MAX).all():
                raise Undecodable(f"the values of move {number} are not from -1 to 1")
    return values


def _check_words(game: Row, players: Sequence[Row]) -> None:
    """Names end up in reports, in logs and on terminals."""
    for words in (game[:2], game[4:5], game[9:10], game[11:14], *(row[1:4] for row in players)):
        if odd := [word for word in words if word is not None and not word.isprintable()]:
            raise Undecodable(f"a name with characters that cannot be printed: {odd[0][:40]!r}")
