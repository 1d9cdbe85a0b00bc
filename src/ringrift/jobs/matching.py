"""Matches of a job: every game goes into a shard, and a match that was stopped goes on where it was.

A match is played in parts of a few openings, each with a seed of its own. Openings count in their order.
What an earlier run wrote is counted first and not played again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ringrift.games.contract import Game
from ringrift.jobs.frame import Job
from ringrift.jobs.params import Params, params_as_json
from ringrift.jobs.sealing import alone
from ringrift.jobs.shards.records import PlayedGame, SeatRecord, SoftPolicies, StoredGame, termination_of
from ringrift.jobs.shards.writer import ShardWriter
from ringrift.network.card import card_path, read_card
from ringrift.players.contract import Player
from ringrift.players.matches import MatchConfig, play_match
from ringrift.players.ringrift_heuristic.player import HeuristicPlayer
from ringrift.players.seeds import derived
from ringrift.players.tally import GameRecord, Tally
from ringrift.players.texts import parse_player

NOT_IDENTITY = {"out", "heartbeat_s", "log_level", "games_per_shard", "device"}
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


class RecordedMatch:
    """A match whose games are written as they end."""

    def __init__(self, job: Job, game: Game, plan: MatchPlan, writer: ShardWriter, *, run_id: str) -> None:
        self._job, self._game, self._plan, self._writer, self._run_id = job, game, plan, writer, run_id
        self._part_openings = max(1, plan.batch // game.players)
        self.tally = Tally()
        self.records: list[dict[str, Any]] = []  # the games that count, in their order
        self._written: set[int] = set()  # also of openings that a killed run left half-written

    def play(self, decided: Callable[[Tally], bool], told: Callable[[Tally], None]) -> bool:
        """Play until decided, or until the openings are used up; false if the job was asked to stop."""
        known = self._known()
        for opening in range(self._plan.openings):
            if decided(self.tally):
                return True
            if self._job.stop.requested:
                return False
            if opening not in known and not self._play_part(opening // self._part_openings, known):
                return False
            self.tally.add_opening(known[opening])
            self.records += [self._as_json(record) for record in known[opening]]
            told(self.tally)
        return True

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

    def _play_part(self, part: int, known: dict[int, tuple[GameRecord, ...]]) -> bool:
        """Play one part and write the openings that are not known; false if asked to stop before its end."""
        first = part * self._part_openings
        plan = self._plan
        config = MatchConfig(
            openings=min(self._part_openings, plan.openings - first),
            seed=int(derived(plan.seed, part)[0]),
            opening_plies=plan.opening_plies,
            batch=plan.batch,
        )
        began_s = self._job.runtime.now_s()

        def keep(group: Sequence[GameRecord]) -> None:
            numbered = tuple(replace(record, opening=first + record.opening) for record in group)
            if numbered[0].opening not in known:
                self._write(numbered, began_s)
                known[numbered[0].opening] = numbered

        players = [entrant.player for entrant in plan.entrants]
        # Asked between decisions: until the first opening is over, a deep search takes longer than a
        # worker waits before it kills a job.
        play_match(self._game, players, config, watch=keep, interrupted=lambda: self._job.stop.requested)
        return not self._job.stop.requested

    def _write(self, group: Sequence[GameRecord], began_s: float) -> None:
        for record in group:
            if self._number(record) in self._written:
                continue
            artifact = self._writer.add(self._played(record, began_s))
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

    def _played(self, record: GameRecord, began_s: float) -> PlayedGame:
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
            started_s=began_s,
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
