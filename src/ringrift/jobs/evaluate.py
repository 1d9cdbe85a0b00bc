"""The `evaluate` job: is the candidate stronger than its opponent?

Every opening is played once from each seat. A sequential test ends the match as soon as it is decided; at
the cap the sign of the log-likelihood ratio decides. Every game is written into a shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from ringrift.games.registry import load_game
from ringrift.jobs.exit_codes import ExitCode
from ringrift.jobs.frame import Job, JobSpec, Outcome, run_job
from ringrift.jobs.matching import Entrant, MatchPlan, RecordedMatch, game_book, make_entrant, match_identity
from ringrift.jobs.params import Params, params_as_json
from ringrift.jobs.sealing import describe, seal_json
from ringrift.players.tally import Tally
from ringrift.players.texts import baselines
from ringrift.statistics.shares import elo_difference
from ringrift.statistics.sprt import EloScale, SprtConfig, SprtState, Verdict, sprt_state


class EvaluateParams(Params, frozen=True, kw_only=True):
    """Parameters of `evaluate`."""

    config: Annotated[str, msgspec.Meta(description="Game and players, such as square8_2p.")]
    candidate: Annotated[str, msgspec.Meta(description="Player, such as model:PATH@64.")]
    out: Annotated[Path, msgspec.Meta(description="Folder of the games and the result.")]
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
    seed: Annotated[int, msgspec.Meta(ge=0, description="Seed of openings and decisions.")] = 0
    opening_plies: Annotated[int, msgspec.Meta(ge=0, description="Random moves of an opening.")] = 4
    batch: Annotated[int, msgspec.Meta(ge=1, le=65536, description="Games at a time.")] = 64
    device: Annotated[Literal["auto", "cpu", "cuda"], msgspec.Meta(description="Where nets compute.")] = (
        "auto"
    )
    games_per_shard: Annotated[
        int, msgspec.Meta(ge=1, le=100_000, description="A shard is sealed at so many.")
    ] = 1000


def run_evaluate(job: Job, params: EvaluateParams) -> Outcome:
    game = load_game(params.config)
    test = _Test(params)
    opponents = params.opponents or baselines(game)
    entrants = [make_entrant(text, game, device=params.device) for text in (params.candidate, *opponents)]
    run_id = match_identity(params, entrants)
    openings = max(1, params.games // game.players)
    results: list[dict[str, Any]] = []
    records: list[list[dict[str, Any]]] = []
    ended = True
    job.stage("playing", total=openings * game.players * len(opponents))
    with game_book(job, game, params.out, run_id=run_id, games_per_shard=params.games_per_shard) as writer:
        for number, opponent in enumerate(entrants[1:]):
            sides = (entrants[0], opponent)
            plan = MatchPlan(number, sides, openings, params.seed, params.opening_plies, params.batch)
            match = RecordedMatch(job, game, plan, writer, run_id=run_id)
            played = number * openings * game.players
            ended = match.play(test.is_decided, partial(_tell, job, test, played))
            results.append({"opponent": opponents[number], **test.result(match.tally)})
            records.append(match.records)
            if not ended:
                break
    fields = {
        "config": game.key,
        "candidate": params.candidate,
        "model_sha256": entrants[0].model_sha256,
        "run_id": run_id,
        "matches": results,
    }
    if not ended:
        return Outcome(ExitCode.STOPPED, fields)
    path = params.out / f"evaluation-{run_id}.json"
    seal_json(path, {**fields, **_evidence(entrants, records), "params": params_as_json(params)})
    job.sealed(describe(path, "evaluation", games=sum(each["games"] for each in results)))
    return Outcome(ExitCode.DONE, fields)


def _evidence(entrants: Sequence[Entrant], records: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """Who played, and every game that counts; seat numbers 0 are the candidate, 1 the match's opponent."""
    return {
        "entrants": [entrant.as_json() for entrant in entrants],
        "records": [{"match": number, **record} for number, match in enumerate(records) for record in match],
    }


def _tell(job: Job, test: _Test, played: int, tally: Tally) -> None:
    job.progress(played + tally.games, **test.progress(tally))


class _Test:
    """The sequential test, if there is one."""

    def __init__(self, params: EvaluateParams) -> None:
        scale = EloScale(params.elo_scale)
        self._config = SprtConfig(params.elo0, params.elo1, params.alpha, params.beta, scale)
        self._on = params.test == "sprt"

    def is_decided(self, tally: Tally) -> bool:
        return self._on and self._state(tally).verdict is not Verdict.CONTINUE

    def progress(self, tally: Tally) -> dict[str, Any]:
        fields = {"score": round(tally.score, 4)}
        return {**fields, "llr": round(self._state(tally).llr, 3)} if self._on else fields

    def result(self, tally: Tally) -> dict[str, Any]:
        low, high = tally.interval
        elo = elo_difference(tally.score)
        fields = {
            "games": tally.games,
            "wins": tally.wins,
            "draws": tally.draws,
            "losses": tally.losses,
            "first_places": tally.first_places,
            "players": len(tally.places),
            "places": tally.places,
            "pairs": tally.pairs,
            "score": round(tally.score, 4),
            "interval": [round(low, 4), round(high, 4)],
            "elo": round(elo, 1) if isfinite(elo) else None,
        }
        if not self._on:
            return fields
        state = self._state(tally)
        verdict = state.verdict
        if verdict is Verdict.CONTINUE:  # at the cap the likelier of the two is taken
            verdict = Verdict.STRONGER if state.llr > 0 else Verdict.NOT_STRONGER
        crossed = state.verdict is not Verdict.CONTINUE
        bounds = {"llr": round(state.llr, 4), "lower": round(state.lower, 4), "upper": round(state.upper, 4)}
        return {**fields, "verdict": str(verdict), "decided_by": "bound" if crossed else "cap", **bounds}

    def _state(self, tally: Tally) -> SprtState:
        return sprt_state(self._config, tally.sprt_counts)


EVALUATE = JobSpec("evaluate", "Play a candidate against opponents.", EvaluateParams, run_evaluate)


def main(argv: Sequence[str]) -> int:
    return run_job(EVALUATE, argv)
