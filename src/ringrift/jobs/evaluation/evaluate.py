"""The `evaluate` job: a whole judgment of a candidate, gate by gate.

Each gate is a match against one opponent with a test that ends it: a sequential test against a champion, a
floor against the random player, or none. Every opening is played once from each seat, many games at a time.
The first gate that is not passed ends the job; out of time it ends undecided, and a later job goes on from
what it brought. Every game is written into a shard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from ringrift.errors import ConfigError
from ringrift.games.contract import Game
from ringrift.games.registry import load_game
from ringrift.jobs.evaluation.matches import (
    Entrant,
    MatchEnd,
    MatchPlan,
    RecordedMatch,
    game_book,
    make_entrant,
    match_identity,
)
from ringrift.jobs.files import describe, seal_json
from ringrift.jobs.frame import Job, JobSpec, Outcome, Params, params_as_json, run_job
from ringrift.jobs.kinds import ExitCode
from ringrift.jobs.shards.storage import ShardWriter
from ringrift.players.matches import Tally
from ringrift.players.specs import baselines
from ringrift.statistics.match_evidence import (
    PAIR_OUTCOMES,
    AllGames,
    EloScale,
    Evidence,
    FloorTest,
    MatchTest,
    MatchVerdict,
    SequentialTest,
    SprtConfig,
    Verdict,
)
from ringrift.statistics.ratings import elo_difference

Count = Annotated[int, msgspec.Meta(ge=0)]
Rate = Annotated[float, msgspec.Meta(gt=0, lt=0.5)]


class GamesBefore(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What earlier jobs have counted of the same match."""

    games: Count = 0
    wins: Count = 0
    draws: Count = 0
    losses: Count = 0
    pairs: tuple[Count, ...] = ()
    places: tuple[Count, ...] = ()

    def evidence(self, players: int) -> Evidence:
        pairs = list(self.pairs) or [0] * PAIR_OUTCOMES  # earlier jobs may have counted nothing
        places = list(self.places) if players > 2 else []
        if len(pairs) != PAIR_OUTCOMES or (places and len(places) != players):
            raise ConfigError(f"evaluate: counts of {players} players expected, not {pairs} and {places}")
        return Evidence(players, self.games, self.wins, self.draws, self.losses, pairs, places)


class GateParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One match of a judgment."""

    opponent: str
    test: Literal["sprt", "floor", "none"] = "sprt"
    games: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 400  # at most, those of *prior* included
    elo0: float = 0.0
    elo1: float = 35.0
    alpha: Rate = 0.05
    beta: Rate = 0.05
    elo_scale: Literal["logistic", "normalised"] = "logistic"
    clear_gains: bool = False  # whether one who is far ahead passes sooner
    floor: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.85  # the least share
    games_min: Annotated[int, msgspec.Meta(ge=1)] = 16  # before the floor is decided
    prior: GamesBefore = GamesBefore()
    purpose: str = ""  # what the games are for; only whoever ordered them reads it

    def match_test(self, players: int) -> MatchTest:
        if self.test == "sprt":
            scale = EloScale(self.elo_scale)
            config = SprtConfig(self.elo0, self.elo1, self.alpha, self.beta, scale)
            return SequentialTest(config, self.games, self.clear_gains)
        if self.test == "floor":
            return FloorTest(self.floor, self.games_min, self.games)
        # Whole rounds only: each opening is played once from every seat.
        return AllGames(max(players, self.games // players * players))


class EvaluateParams(Params, frozen=True, kw_only=True):
    """Parameters of `evaluate`."""

    config: Annotated[str, msgspec.Meta(description="Game and players, such as square8_2p.")]
    candidate: Annotated[str, msgspec.Meta(description="Player, such as model:PATH@64.")]
    out: Annotated[Path, msgspec.Meta(description="Folder of the games and the result.")]
    gates: Annotated[
        tuple[GateParams, ...],
        msgspec.Meta(
            description="Matches as JSON objects, until one is not passed; in place of opponents, games, "
            "test, elo0, elo1, alpha, beta and elo_scale."
        ),
    ] = ()
    opponents: Annotated[
        tuple[str, ...],
        msgspec.Meta(
            description="Champion or baselines, such as mcts:64; all baselines of the game if none."
        ),
    ] = ()
    games: Annotated[int, msgspec.Meta(ge=1, le=1_000_000, description="Games per opponent, at most.")] = 400
    test: Annotated[Literal["sprt", "none"], msgspec.Meta(description="What may end it earlier.")] = "sprt"
    elo0: Annotated[float, msgspec.Meta(description="Strength at which the candidate fails.")] = 0.0
    elo1: Annotated[float, msgspec.Meta(description="Strength at which it passes.")] = 35.0
    alpha: Annotated[float, msgspec.Meta(gt=0, lt=0.5, description="Risk to pass at elo0.")] = 0.05
    beta: Annotated[float, msgspec.Meta(gt=0, lt=0.5, description="Risk to fail at elo1.")] = 0.05
    elo_scale: Annotated[
        Literal["logistic", "normalised"], msgspec.Meta(description="What an Elo difference means.")
    ] = "logistic"
    seconds: Annotated[
        float,
        msgspec.Meta(ge=0, description="Begin no more openings after so long; 0: until all is decided."),
    ] = 0.0
    seed: Annotated[int, msgspec.Meta(ge=0, description="Seed of openings and decisions.")] = 0
    opening_plies: Annotated[int, msgspec.Meta(ge=0, description="Random moves of an opening.")] = 4
    batch: Annotated[int, msgspec.Meta(ge=1, le=65536, description="Games at a time.")] = 64
    device: Annotated[Literal["auto", "cpu", "cuda"], msgspec.Meta(description="Where nets compute.")] = (
        "auto"
    )
    games_per_shard: Annotated[
        int, msgspec.Meta(ge=1, le=100_000, description="A shard is sealed at so many.")
    ] = 1000

    def matches(self, game: Game) -> tuple[GateParams, ...]:
        """The gates, or the same test against each of the opponents."""
        if self.gates:
            if self.opponents and list(self.opponents) != [gate.opponent for gate in self.gates]:
                raise ConfigError("evaluate: gates name their opponents; give either gates or opponents")
            return self.gates
        return tuple(
            GateParams(
                opponent=opponent,
                test=self.test,
                games=max(game.players, self.games // game.players * game.players),
                elo0=self.elo0,
                elo1=self.elo1,
                alpha=self.alpha,
                beta=self.beta,
                elo_scale=self.elo_scale,
            )
            for opponent in self.opponents or baselines(game)
        )


def run_evaluate(job: Job, params: EvaluateParams) -> Outcome:
    game = load_game(params.config)
    began_s = job.runtime.monotonic_s()
    asked = params.matches(game)
    gates = [_Gate.of(gate, game.players) for gate in asked]
    texts = (params.candidate, *(gate.opponent for gate in asked))
    entrants = [make_entrant(text, game, device=params.device) for text in texts]
    run_id = match_identity(params, entrants)

    def out_of_time() -> bool:
        return 0 < params.seconds <= job.runtime.monotonic_s() - began_s

    judgment = _Judgment(job, game, params, entrants, run_id)
    job.stage("playing", total=sum(gate.games_left(game.players) for gate in gates))
    end = MatchEnd.DECIDED
    with game_book(job, game, params.out, run_id=run_id, games_per_shard=params.games_per_shard) as writer:
        for number, gate in enumerate(gates):
            # A match without a test only adds to ratings; one with a test may decide a promotion, and is
            # begun.
            if number and not gate.has_test and out_of_time():
                break
            end, verdict = judgment.play(number, gate, writer, out_of_time)
            # Gates are in the order of their cost: who fails one need not play the next.
            if end is not MatchEnd.DECIDED or (params.gates and verdict is not MatchVerdict.PASSED):
                break
    fields = {
        "config": game.key,
        "candidate": params.candidate,
        "model_sha256": entrants[0].model_sha256,
        "run_id": run_id,
        "matches": judgment.results,
    }
    if end is MatchEnd.STOPPED:
        return Outcome(ExitCode.STOPPED, fields)
    path = params.out / f"evaluation-{run_id}.json"
    seal_json(path, {**fields, **judgment.evidence(), "params": params_as_json(params)})
    job.sealed(describe(path, "evaluation", games=sum(each["games"] for each in judgment.results)))
    return Outcome(ExitCode.DONE, fields)


class _Judgment:
    """The matches of a job, one after another."""

    def __init__(
        self, job: Job, game: Game, params: EvaluateParams, entrants: Sequence[Entrant], run_id: str
    ) -> None:
        self._job, self._game, self._params, self._entrants = job, game, params, entrants
        self._run_id = run_id
        self.results: list[dict[str, Any]] = []
        self._records: list[list[dict[str, Any]]] = []

    def play(
        self, number: int, gate: _Gate, writer: ShardWriter, out_of_time: Callable[[], bool]
    ) -> tuple[MatchEnd, MatchVerdict]:
        params, players = self._params, self._game.players
        sides = (self._entrants[0], self._entrants[number + 1])
        openings = gate.games_left(players) // players
        batch = params.batch
        if isinstance(gate.test, FloorTest):
            # Most pass with the fewest games: others that go on beside them would be played in vain.
            batch = min(batch, max(players, gate.test.games_decisive))
        plan = MatchPlan(number, sides, openings, params.seed, params.opening_plies, batch)
        match = RecordedMatch(self._job, self._game, plan, writer, run_id=self._run_id)
        played = sum(each["games"] for each in self.results)
        end = match.play(gate.is_decided, partial(self._tell, gate, played), out_of_time=out_of_time)
        self.results.append({"opponent": gate.params.opponent, **gate.result(match.tally, players)})
        self._records.append(match.records)
        return end, gate.verdict(match.tally)

    def evidence(self) -> dict[str, Any]:
        """Who played, and every game that counts; seat 0 is the candidate, 1 the match's opponent."""
        return {
            "entrants": [entrant.as_json() for entrant in self._entrants],
            "records": [
                {"match": number, **record} for number, match in enumerate(self._records) for record in match
            ],
        }

    def _tell(self, gate: _Gate, played: int, tally: Tally) -> None:
        self._job.progress(played + tally.games, **gate.progress(tally))


@dataclass(frozen=True, slots=True)
class _Gate:
    """One match, and what its games say together with those of earlier jobs."""

    params: GateParams
    test: MatchTest
    prior: Evidence

    @classmethod
    def of(cls, params: GateParams, players: int) -> _Gate:
        return cls(params, params.match_test(players), params.prior.evidence(players))

    @property
    def has_test(self) -> bool:
        return not isinstance(self.test, AllGames)

    def games_left(self, players: int) -> int:
        # rounded up to whole rounds
        return max(0, -(-(self.test.games_max - self.prior.games) // players) * players)

    def is_decided(self, tally: Tally) -> bool:
        return self.verdict(tally) is not MatchVerdict.OPEN

    def verdict(self, tally: Tally) -> MatchVerdict:
        return self.test.result(self._found(tally)).verdict

    def progress(self, tally: Tally) -> dict[str, Any]:
        fields = {"score": round(tally.score, 4)}
        if isinstance(self.test, SequentialTest):
            fields["llr"] = round(self._found(tally).state(self.test.config).llr, 3)
        return fields

    def result(self, tally: Tally, players: int) -> dict[str, Any]:
        """The games of this job; the verdict is about those of earlier jobs too."""
        low, high = tally.interval
        elo = elo_difference(tally.score)
        fields = {
            "games": tally.games,
            "wins": tally.wins,
            "draws": tally.draws,
            "losses": tally.losses,
            "first_places": tally.first_places,
            "players": players,
            "places": tally.places or [0] * players,
            "pairs": tally.pairs,
            "score": round(tally.score, 4),
            "interval": [round(low, 4), round(high, 4)],
            # infinite if all were won or lost, which JSON cannot say
            "elo": round(elo, 1) if isfinite(elo) else None,
        }
        return {**fields, **self._verdict(tally)} if self.has_test else fields

    def _verdict(self, tally: Tally) -> dict[str, Any]:
        found = self._found(tally)
        result = self.test.result(found)
        by = "cap" if result.at_cap else "bound"
        fields: dict[str, Any] = {
            "decided_by": "time" if result.verdict is MatchVerdict.OPEN else by,
            "games_before": self.prior.games,
        }
        if isinstance(self.test, SequentialTest):
            state = found.state(self.test.config)
            # the names that older results and their readers have
            words = {MatchVerdict.PASSED: Verdict.STRONGER, MatchVerdict.FAILED: Verdict.NOT_STRONGER}
            bounds = {
                "llr": round(state.llr, 4),
                "lower": round(state.lower, 4),
                "upper": round(state.upper, 4),
            }
            return {"verdict": str(words.get(result.verdict, Verdict.CONTINUE)), **fields, **bounds}
        return {"verdict": str(result.verdict), **fields, "share": round(found.win_share, 4)}

    def _found(self, tally: Tally) -> Evidence:
        # A sum of its own: the counts of earlier jobs must stay as they are for the next look.
        found = Evidence(self.prior.players)
        found.add(self.prior)
        found.add(
            Evidence(
                self.prior.players,
                tally.games,
                tally.wins,
                tally.draws,
                tally.losses,
                tally.pairs,
                tally.places if self.prior.players > 2 else [],
            )
        )
        return found


EVALUATE = JobSpec("evaluate", "Play a candidate against opponents.", EvaluateParams, run_evaluate)


def main(argv: Sequence[str]) -> int:
    return run_job(EVALUATE, argv)
