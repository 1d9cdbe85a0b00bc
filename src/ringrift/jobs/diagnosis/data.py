"""Are the samples and games what they should be: a hold-out apart, values that hold, games once and whole?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from ringrift.games.contract import Game, States
from ringrift.games.ringrift.game import RingRiftGame
from ringrift.jobs.shards.records import StoredGame
from ringrift.jobs.shards.storage import open_shard
from ringrift.jobs.training.epochs import ValueCalibration
from ringrift.jobs.training.learner import Learner, LearnerConfig
from ringrift.jobs.training.rows import Numbers, RowSource, make_batch
from ringrift.network.model import ResidualNet

# What an examination says, in the form that the doctor of a run passes on.


class Symptom(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one check; `fine` if nothing is wrong."""

    check: str
    level: Literal["fine", "notice", "warning", "problem"]
    text: str
    advice: str = ""
    config: str = ""
    evidence: dict[str, Any] = {}


COMPARED_ROWS_MAX = 20_000
HELD_ALSO_TRAINED = 0.5
CALIBRATION_WARNING, CALIBRATION_PROBLEM = 0.15, 0.30
CALIBRATION_ROWS_MIN = 200
GAMES_MIN = 50
GAMES_MAX = 5_000
DUPLICATES_WARNING, DUPLICATES_PROBLEM = 0.01, 0.10
CUT_WARNING, CUT_PROBLEM = 0.01, 0.10
DRAWS_ODD = 0.60


def check_hold_out(
    game: Game,
    source: RowSource,
    split: tuple[Numbers, Numbers],
    game_hashes: npt.NDArray[np.uint64],
    *,
    share: float,
) -> Symptom:
    """Are there held-out games, and do they share neither games nor most positions with the others?"""
    train, held = split
    about = {"check": "hold_out", "config": game.key}
    if not len(held):
        return Symptom(
            **about,
            level="problem",
            text=f"no game of {len(np.unique(game_hashes))} is held out of training (share {share:g})",
            advice="Set hold_out in [learning] to 0.05, or wait for more games.",
            evidence={"train_rows": len(train), "held_rows": 0},
        )
    both = np.intersect1d(game_hashes[train], game_hashes[held])
    late = _also_there(source, train, held)
    evidence = {
        "train_rows": len(train),
        "held_rows": len(held),
        "games_in_both": len(both),
        "positions_in_both": late,
    }
    if len(both):
        return Symptom(
            **about,
            level="problem",
            text=f"{len(both)} held-out games are also trained on",
            advice="Export the samples again; games are split as wholes.",
            evidence=evidence,
        )
    if late > HELD_ALSO_TRAINED:
        return Symptom(
            **about,
            level="warning",
            text=f"{late:.0%} of the held-out positions are trained on as well: games repeat each other",
            advice="Explore more in the first moves; such a hold-out is too hopeful.",
            evidence=evidence,
        )
    return Symptom(
        **about, level="fine", text=f"{len(held):,} rows of games apart are held out", evidence=evidence
    )


def _also_there(source: RowSource, train: Numbers, held: Numbers) -> float:
    """The share of held-out positions that are among those trained on."""
    there = {row.tobytes() for row in _states(source, train)}
    asked = [row.tobytes() for row in _states(source, held)]
    return sum(row in there for row in asked) / len(asked)


def _states(source: RowSource, rows: Numbers) -> States:
    return source.take(rows[:: max(1, len(rows) // COMPARED_ROWS_MAX)]).states


def check_calibration(game: Game, source: RowSource, held: Numbers, net: ResidualNet) -> Symptom | None:
    """Of positions called 0.6, do games end at 0.6 on average? None without enough held-out rows."""
    if len(held) < CALIBRATION_ROWS_MIN:
        return None
    judge, found = Learner(net, LearnerConfig()), ValueCalibration()
    for start in range(0, len(held), 256):
        batch = make_batch(game, source.take(held[start : start + 256]))
        found.add(judge.values(judge.net, batch)[:, 0], batch.values[:, 0])
    table: dict[str, Any] = found.as_json() or {}
    error = float(table.get("error", 0.0))
    grave = error >= CALIBRATION_PROBLEM
    return Symptom(
        check="calibration",
        level="problem" if grave else "warning" if error >= CALIBRATION_WARNING else "fine",
        config=game.key,
        text=f"values are {error:.2f} off on average on {len(held):,} held-out positions",
        advice=""
        if error < CALIBRATION_WARNING
        else "More and fresher games; look for a wrong sign or seat.",
        evidence=table,
    )


def check_games(game: Game, shards: Iterable[Path]) -> list[Symptom]:
    """Duplicates, games without an end, and draws among the games of *shards*."""
    seen: set[str] = set()
    games = twice = unfinished = drawn = 0
    for stored in _games(shards):
        games += 1
        twice += stored.fingerprint in seen
        seen.add(stored.fingerprint)
        unfinished += not _is_over(game, stored)
        drawn += stored.winner is None
        if games >= GAMES_MAX:
            break
    if games < GAMES_MIN:
        return []
    return [
        _share_symptom(
            game, "duplicates", twice, games, "are there twice", DUPLICATES_WARNING, DUPLICATES_PROBLEM
        ),
        _share_symptom(game, "cut_off", unfinished, games, "end before their end", CUT_WARNING, CUT_PROBLEM),
        _draws(game, drawn, games),
    ]


def _games(shards: Iterable[Path]) -> Iterator[StoredGame]:
    for path in shards:
        with open_shard(path) as shard:
            yield from (each for each in shard.games() if isinstance(each, StoredGame))


def _is_over(game: Game, stored: StoredGame) -> bool:
    if len(stored.game.actions) != stored.total_moves:
        return False
    state = game.new_states(1)
    for action in stored.game.actions:
        if game.terminal(state)[0]:
            return False
        game.apply(state, np.array([action], dtype=np.int32))
    return bool(game.terminal(state)[0]) or stored.game.termination == "resignation"


def _share_symptom(
    game: Game, check: str, count: int, games: int, what: str, warning: float, problem: float
) -> Symptom:
    share = count / games
    level = "problem" if share >= problem else "warning" if share >= warning else "fine"
    advice = {
        "duplicates": "Look for workers with the same seed, and shards handed in twice.",
        "cut_off": "Raise the limit of moves; look at the workers that wrote them.",
    }[check]
    return Symptom(
        check=check,
        level=level,  # type: ignore[arg-type]
        config=game.key,
        text=f"{share:.1%} of {games:,} games {what}",
        advice="" if level == "fine" else advice,
        evidence={"games": games, check: count},
    )


def _draws(game: Game, drawn: int, games: int) -> Symptom:
    share, evidence = drawn / games, {"games": games, "draws": drawn}
    text = f"{share:.1%} of {games:,} games are draws"
    if isinstance(game, RingRiftGame) and drawn:
        why = "RingRift has none: these games were cut off"
        return Symptom(
            check="draws",
            level="problem",
            config=game.key,
            text=f"{text}; {why}",
            advice="Raise the limit of moves of a game.",
            evidence=evidence,
        )
    odd = share > DRAWS_ODD
    return Symptom(
        check="draws",
        level="warning" if odd else "fine",
        config=game.key,
        text=text,
        advice="Explore more, or start from varied positions." if odd else "",
        evidence=evidence,
    )
