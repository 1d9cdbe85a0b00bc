"""Files of unfinished games: what a self-play job hands over to the next one, on any machine.

Such a file comes from another machine and another job, so nothing in it is believed: every field has a type
and a bound, and every move is made again by the rules.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from ringrift.decoding import decode_as
from ringrift.errors import ConfigError, Corrupt, ForeignFile
from ringrift.foreign_files.paths import read_regular
from ringrift.games.contract import Game
from ringrift.jobs.files import SealedFile, describe, sealing
from ringrift.search.records import GameInProgress, NotedMove, games_in_progress

KIND = "unfinished"
SUFFIX = ".unfinished.json"
FORMAT: Final = "ringrift-unfinished-games"
BYTES_MAX = 512 << 20
GAMES_MAX = 65_536
MOVES_MAX = 50_000
TURNS_MAX = 1_000
INDEX_MAX = 10_000_000
_ADVICE = "Take the file out of the inputs; its games are lost, and others are played in their place"
_RUN_ID = re.compile(r"[0-9a-f]{16}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class PlayedTurn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which run played a game from a move on, and with which weights."""

    run_id: str
    model: str | None  # digest of the weights
    from_move: Annotated[int, msgspec.Meta(ge=0, le=MOVES_MAX)]


class UnfinishedGame(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A game in progress, by the name that it has for good."""

    game_id: str
    run_id: str  # of the run that began it
    run_index: Annotated[int, msgspec.Meta(ge=0, le=INDEX_MAX)]
    seed: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
    started_s: Annotated[float, msgspec.Meta(ge=0, le=1e12)]
    turns: Annotated[tuple[PlayedTurn, ...], msgspec.Meta(min_length=1, max_length=TURNS_MAX)]
    moves: Annotated[list[NotedMove], msgspec.Meta(max_length=MOVES_MAX)]


class UnfinishedGames(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    format: Literal["ringrift-unfinished-games"]
    version: Literal[1]
    config: str
    run_id: str  # of the run that wrote it
    games: Annotated[tuple[UnfinishedGame, ...], msgspec.Meta(max_length=GAMES_MAX)]


@dataclass(frozen=True, slots=True)
class ResumedGame:
    """A game of such a file, played again up to where it stands."""

    about: UnfinishedGame
    progress: GameInProgress


def seal_unfinished(path: Path, config: str, run_id: str, games: Iterable[UnfinishedGame]) -> None:
    """Write the file at once, replacing what was there."""
    whole = UnfinishedGames(format=FORMAT, version=1, config=config, run_id=run_id, games=tuple(games))
    with sealing(path) as part:
        part.write_bytes(msgspec.json.encode(whole) + b"\n")


def describe_unfinished(path: Path, games: Sequence[GameInProgress]) -> SealedFile:
    return describe(path, KIND, games=len(games), moves=sum(len(each.moves) for each in games))


def read_unfinished(path: Path, game: Game) -> tuple[list[ResumedGame], str]:
    """The games of a file, and its digest.

    Raises `ConfigError` if there is no such file, `ForeignFile` if it is something else or of another game,
    and `Corrupt` if it does not agree with the rules or with itself.
    """
    try:
        content = read_regular(path, bytes_max=BYTES_MAX)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    try:
        found = decode_as(content, UnfinishedGames)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(path, found=f"no file of unfinished games: {error}", advice=_ADVICE) from None
    if found.config != game.key:
        told = f"its games are of {found.config[:80]!r}, not of {game.key}"
        raise ForeignFile(path, found=told, advice="Name files of unfinished games of this config")
    if problem := _problem(found):
        raise Corrupt(path, found=problem, advice=_ADVICE)
    try:
        played = games_in_progress(game, [(each.seed, each.moves) for each in found.games])
    except ConfigError as error:
        raise Corrupt(path, found=str(error), advice=_ADVICE) from None
    games = [ResumedGame(about, progress) for about, progress in zip(found.games, played, strict=True)]
    return games, hashlib.sha256(content).hexdigest()


def read_all_unfinished(paths: Sequence[Path], game: Game) -> tuple[list[ResumedGame], list[str]]:
    """The games and the digests of all files; raises as `read_unfinished`, also if a game is there twice."""
    read = [(path, *read_unfinished(path, game)) for path in paths]
    found = [(path, each) for path, games, _ in read for each in games]
    for what in ("game_id", "seed"):
        seen: set[object] = set()
        for path, each in found:
            name = getattr(each.about, what)
            if name in seen:
                raise Corrupt(path, found=f"the {what} {name} is there twice", advice=_ADVICE)
            seen.add(name)
    return [each for _, each in found], [digest for _, _, digest in read]


def turns_with(turns: Sequence[PlayedTurn], own: PlayedTurn) -> tuple[PlayedTurn, ...]:
    """*turns* and one more; of very many the oldest but the first are left out."""
    return (*turns, own) if len(turns) < TURNS_MAX else (turns[0], *turns[2 - TURNS_MAX :], own)


def _problem(found: UnfinishedGames) -> str:
    """What does not agree with itself; empty if all does."""
    if not _RUN_ID.fullmatch(found.run_id):
        return "its run is no run"
    for number, each in enumerate(found.games, start=1):
        if not _RUN_ID.fullmatch(each.run_id) or each.game_id != game_id_of(
            found.config, each.run_id, each.run_index
        ):
            return f"the id of game {number} is not that of its run and number"
        starts = [turn.from_move for turn in each.turns]
        if starts[0] != 0 or starts != sorted(starts) or starts[-1] > len(each.moves):
            return f"the turns of {each.game_id} do not follow each other"
        for turn in each.turns:
            if not _RUN_ID.fullmatch(turn.run_id) or not (
                turn.model is None or _SHA256.fullmatch(turn.model)
            ):
                return f"a turn of {each.game_id} names no run or no weights"
    return ""


def game_id_of(config: str, run_id: str, index: int) -> str:
    return f"{config}-{run_id}-{index:07d}"
