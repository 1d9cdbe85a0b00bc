"""The `tournament` job: every pair of players meets; all games and all results are kept.

With more than two seats, one player of a pair meets copies of the other, from every seat. Ratings are made
from the results elsewhere: they change with every new match, the results do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from ringrift.errors import ConfigError
from ringrift.games.registry import load_game
from ringrift.jobs.evaluation.matches import (
    MatchEnd,
    MatchPlan,
    RecordedMatch,
    game_book,
    make_entrant,
    match_identity,
    pairings,
)
from ringrift.jobs.files import describe, seal_json
from ringrift.jobs.frame import Job, JobSpec, Outcome, Params, params_as_json, run_job
from ringrift.jobs.kinds import ExitCode
from ringrift.players.matches import Tally


class TournamentParams(Params, frozen=True, kw_only=True):
    """Parameters of `tournament`."""

    config: Annotated[str, msgspec.Meta(description="Game and players, such as square8_2p.")]
    players: Annotated[
        tuple[str, ...], msgspec.Meta(min_length=2, description="Players, such as model:PATH@64 or mcts:64.")
    ]
    out: Annotated[Path, msgspec.Meta(description="Folder of the games and the results.")]
    games: Annotated[int, msgspec.Meta(ge=1, le=1_000_000, description="Games of each pair.")] = 20
    seed: Annotated[int, msgspec.Meta(ge=0, description="Seed of openings and decisions.")] = 0
    opening_plies: Annotated[int, msgspec.Meta(ge=0, description="Random moves of an opening.")] = 4
    batch: Annotated[int, msgspec.Meta(ge=1, le=65536, description="Games at a time.")] = 64
    device: Annotated[Literal["auto", "cpu", "cuda"], msgspec.Meta(description="Where nets compute.")] = (
        "auto"
    )
    games_per_shard: Annotated[
        int, msgspec.Meta(ge=1, le=100_000, description="A shard is sealed at so many.")
    ] = 1000


def run_tournament(job: Job, params: TournamentParams) -> Outcome:
    # A player against itself would count for and against the same rating.
    if len(set(params.players)) != len(params.players):
        raise ConfigError("tournament: every player may be named once")
    game = load_game(params.config)
    entrants = [make_entrant(text, game, device=params.device) for text in params.players]
    run_id = match_identity(params, entrants)
    openings = max(1, params.games // game.players)  # each is played once from every seat
    pairs = list(pairings(len(entrants)))
    results: list[dict[str, Any]] = []
    records: list[dict[str, Any]] = []
    job.stage("playing", total=len(pairs) * openings * game.players)
    with game_book(job, game, params.out, run_id=run_id, games_per_shard=params.games_per_shard) as writer:
        for number, (first, second) in enumerate(pairs):
            sides = (entrants[first], entrants[second])
            # All pairs meet on the same openings, so that no player has the easier ones.
            plan = MatchPlan(number, sides, openings, params.seed, params.opening_plies, params.batch)
            match = RecordedMatch(job, game, plan, writer, run_id=run_id)
            played = number * openings * game.players
            end = match.play(_never, partial(_tell, job, played))
            results.append(_result(params.players[first], params.players[second], match.tally))
            records += [{"pair": number, **record} for record in match.records]
            if end is MatchEnd.STOPPED:
                return Outcome(ExitCode.STOPPED, {"run_id": run_id, "pairs": results})
    fields = {"config": game.key, "run_id": run_id, "pairs": results}
    path = params.out / f"tournament-{run_id}.json"
    evidence = {"entrants": [entrant.as_json() for entrant in entrants], "records": records}
    seal_json(path, {**fields, **evidence, "params": params_as_json(params)})
    job.sealed(describe(path, "tournament", games=sum(each["games"] for each in results)))
    return Outcome(ExitCode.DONE, fields)


def _never(_: Tally) -> bool:
    return False


def _tell(job: Job, played: int, tally: Tally) -> None:
    job.progress(played + tally.games)


def _result(first: str, second: str, tally: Tally) -> dict[str, Any]:
    low, high = tally.interval
    return {
        "players": [first, second],
        "games": tally.games,
        "wins": tally.wins,
        "draws": tally.draws,
        "losses": tally.losses,
        "first_places": tally.first_places,
        "places": tally.places,
        "pairs": tally.pairs,
        "score": round(tally.score, 4),
        "interval": [round(low, 4), round(high, 4)],
    }


TOURNAMENT = JobSpec("tournament", "Play every pair of players.", TournamentParams, run_tournament)


def main(argv: Sequence[str]) -> int:
    return run_job(TOURNAMENT, argv)
