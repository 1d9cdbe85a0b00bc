"""Matches of a job: every game goes into a shard, and a match that was stopped goes on where it was.

Many games go on at a time, and where one ends the next begins. Each opening has a seed of its own, so its
games are the same whatever goes on beside them, and openings count in their order. What an earlier run wrote
is counted and not played again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ringrift.games.contract import Game
from ringrift.jobs.files import alone
from ringrift.jobs.frame import Job, Params, params_as_json
from ringrift.jobs.shards.records import PlayedGame, SeatRecord, SoftPolicies, StoredGame, termination_of
from ringrift.jobs.shards.storage import ShardWriter
from ringrift.network.architecture import card_path, read_card
from ringrift.players.contract import Player
from ringrift.players.matches import GameRecord, MatchConfig, Tally, finished_openings
from ringrift.players.ringrift_heuristic import HeuristicPlayer
from ringrift.players.specs import parse_player

NOT_IDENTITY = {"out", "heartbeat_s", "log_level", "games_per_shard", "device", "batch", "seconds"}
PAIRING_STRIDE = 10_000_000  # games of one pairing before the numbers of the next begin


@dataclass(frozen=True, slots=True)
class Entrant:
    """A player, and what records say of it."""

    player: Player
    ai_type: str
    model_sha256: str | None
    simulations: int | None

    @property
    def sha256(self) -> str:
        """The same for players that play alike, whatever their files are called."""
        player = self.player
        facts: list[Any] = [self.ai_type, self.model_sha256, self.simulations]
        if isinstance(player, HeuristicPlayer):
            facts += [player.quick, asdict(player.weights)]
        elif self.model_sha256 is None:
            facts.append(player.name)
        return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()

    def as_json(self) -> dict[str, Any]:
        return {
            "player": self.player.name,
            "sha256": self.sha256,
            "ai_type": self.ai_type,
            "model_sha256": self.model_sha256,
            "simulations": self.simulations,
        }


def make_entrant(text: str, game: Game, *, device: str = "cpu") -> Entrant:
    """The player that *text* names, with what its name tells: kind, weights, budget."""
    kind, _, rest = text.strip().partition(":")
    source, _, budget = rest.rpartition("@")
    simulations = budget if kind in ("model", "untrained", "mcts") else ""
    digest = read_card(card_path(Path(source))).sha256 if kind == "model" else None
    player = parse_player(text, game, device=device)
    return Entrant(player, kind, digest, int(simulations) if simulations else None)


def match_identity(params: Params, entrants: Sequence[Entrant]) -> str:
    """The same for two runs that play the same games."""
    fields = {key: value for key, value in params_as_json(params).items() if key not in NOT_IDENTITY}
    digests = [entrant.sha256 for entrant in entrants]
    text = msgspec.json.encode({**fields, "entrants": digests}, order="sorted")
    return hashlib.sha256(text).hexdigest()[:16]


@contextmanager
def game_book(
    job: Job, game: Game, folder: Path, *, run_id: str, games_per_shard: int
) -> Iterator[ShardWriter]:
    """Where the games of a run go; sealed when it ends, however it ends."""
    name = f"{re.sub(r'[^a-z0-9_]+', '-', game.key)}-{run_id}"
    facts = {"config_key": game.key, "run_id": run_id}
    with alone(folder / f"{name}.lock"):
        writer = ShardWriter(folder, name, game, games_per_shard=games_per_shard, facts=facts)
        for before in writer.sealed_before():
            job.sealed(before)
        yield writer
        if (artifact := writer.seal()) is not None:
            job.sealed(artifact)
        writer.close()


@dataclass(frozen=True, slots=True)
class MatchPlan:
    """One pairing: who, how many openings at most, and from which seed."""

    number: int
    entrants: tuple[Entrant, ...]
    openings: int
    seed: int
    opening_plies: int
    batch: int


class MatchEnd(StrEnum):
    """Why a match came to its end."""

    DECIDED = "decided"  # or all openings were played
    OUT_OF_TIME = "out_of_time"
    STOPPED = "stopped"  # the job was asked to


class RecordedMatch:
    """A match whose games are written as they end."""

    def __init__(self, job: Job, game: Game, plan: MatchPlan, writer: ShardWriter, *, run_id: str) -> None:
        self._job, self._game, self._plan, self._writer, self._run_id = job, game, plan, writer, run_id
        self.tally = Tally()
        self.records: list[dict[str, Any]] = []  # the games that count, in their order
        self._written: set[int] = set()  # also of openings that a killed run left half-written
        self._began_s: dict[int, float] = {}  # of each opening that began in this run

    def play(
        self,
        decided: Callable[[Tally], bool],
        report: Callable[[Tally], None],
        *,
        out_of_time: Callable[[], bool] | None = None,
    ) -> MatchEnd:
        """Play until decided, until the openings are used up, or until there is no time left.

        As many openings as go on at a time are begun in any case; all that have begun are played to their
        end, so that which of them count does not depend on how long a game takes.
        """
        if decided(self.tally):
            return MatchEnd.DECIDED
        known = self._known()
        source = self._finished(frozenset(known), out_of_time)
        for opening in range(self._plan.openings):
            if self._job.stop.requested:
                return MatchEnd.STOPPED
            while opening not in known:
                group = next(source, None)
                if group is None:
                    return MatchEnd.STOPPED if self._job.stop.requested else MatchEnd.OUT_OF_TIME
                self._write(group)
                known[group[0].opening] = group
            self.tally.add_opening(known[opening])
            self.records += [self._as_json(record) for record in known[opening]]
            report(self.tally)
            if decided(self.tally):
                break
        return MatchEnd.DECIDED

    def _finished(
        self, known: frozenset[int], out_of_time: Callable[[], bool] | None
    ) -> Iterator[tuple[GameRecord, ...]]:
        plan = self._plan
        at_a_time = max(1, plan.batch // self._game.players)

        def begin(opening: int) -> bool:
            if out_of_time is not None and len(self._began_s) >= at_a_time and out_of_time():
                return False
            self._began_s[opening] = self._job.runtime.now_s()
            return True

        config = MatchConfig(
            openings=plan.openings, seed=plan.seed, opening_plies=plan.opening_plies, batch=plan.batch
        )
        players = [entrant.player for entrant in plan.entrants]
        # Asked between decisions: until the first opening is over, a deep search takes longer than a
        # worker waits before it kills a job.
        return finished_openings(
            self._game,
            players,
            config,
            skip=known,
            begin=begin,
            interrupted=lambda: self._job.stop.requested,
        )

    def _known(self) -> dict[int, tuple[GameRecord, ...]]:
        """Openings all of whose games an earlier run wrote."""
        groups: dict[int, list[GameRecord]] = {}
        first = self._plan.number * PAIRING_STRIDE
        for stored in self._writer.games():
            if first <= stored.game.run_index < first + PAIRING_STRIDE:
                self._written.add(stored.game.run_index)
                record = _record(stored)
                groups.setdefault(record.opening, []).append(record)
        return {
            opening: tuple(sorted(group, key=lambda record: record.rotation))
            for opening, group in groups.items()
            if len(group) == self._game.players
        }

    def _write(self, group: Sequence[GameRecord]) -> None:
        for record in group:
            if self._number(record) in self._written:
                continue
            artifact = self._writer.add(self._played(record))
            if artifact is not None:
                self._job.sealed(artifact)

    def _number(self, record: GameRecord) -> int:
        opening = record.opening * self._game.players + record.rotation
        return self._plan.number * PAIRING_STRIDE + opening

    def _name(self, record: GameRecord) -> str:
        return f"{self._game.key}-{self._run_id}-{self._number(record):09d}"

    def _as_json(self, record: GameRecord) -> dict[str, Any]:
        return {
            "game_id": self._name(record),
            "opening": record.opening,
            "rotation": record.rotation,
            "seed": record.seed,
            "seats": record.seats,
            "results": record.results,
            "ranking": record.ranking,
            "moves": len(record.moves),
        }

    def _played(self, record: GameRecord) -> PlayedGame:
        plan, players = self._plan, self._game.players
        who = [plan.entrants[entrant] for entrant in record.seats]
        kinds = {entrant.ai_type for entrant in who}
        return PlayedGame(
            game_id=self._name(record),
            config_key=self._game.key,
            seed=record.seed,
            run_id=self._run_id,
            run_index=self._number(record),
            source=self._job.kind if self._job.kind == "tournament" else "evaluation",
            engine_mode=kinds.pop() if len(kinds) == 1 else "mixed",
            started_s=self._began_s[record.opening],
            completed_s=self._job.runtime.now_s(),
            termination=termination_of(self._game, self._final(record)),
            seats=tuple(
                SeatRecord(
                    entrant.ai_type,
                    entrant.player.name,
                    result,
                    rank,
                    entrant.model_sha256,
                    entrant.simulations,
                )
                for entrant, result, rank in zip(who, record.results, record.ranking, strict=True)
            ),
            actions=np.array(record.moves, dtype=np.int32),
            policies=SoftPolicies.none(len(record.moves)),
            root_values=np.full((len(record.moves), players), np.nan, dtype=np.float32),
            metadata={
                "pairing": plan.number,
                "opening": record.opening,
                "rotation": record.rotation,
                "opening_plies": record.opening_plies,
                "seats": list(record.seats),
            },
        )

    def _final(self, record: GameRecord) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        states = self._game.new_states(1)
        for move in record.moves:
            self._game.apply(states, np.array([move], dtype=np.int32))
        final: np.ndarray[tuple[int], np.dtype[np.int64]] = states[0]
        return final


def _record(stored: StoredGame) -> GameRecord:
    played, notes = stored.game, stored.game.metadata
    return GameRecord(
        opening=notes["opening"],
        rotation=notes["rotation"],
        seed=played.seed,
        seats=tuple(notes["seats"]),
        opening_plies=notes["opening_plies"],
        moves=tuple(played.actions.tolist()),
        results=tuple(seat.result for seat in played.seats),
        ranking=tuple(seat.ranking for seat in played.seats),
    )


def pairings(count: int) -> Iterator[tuple[int, int]]:
    """All pairs of *count* players, the later one first named."""
    for second in range(count):
        for first in range(second):
            yield second, first
