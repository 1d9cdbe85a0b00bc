"""The `tune` job: search for better parameters, and say by how much they are better.

Every kind keeps its search in the folder given by `--out`: stopped or killed, the same command goes on. The
result compares what was found with what is used now in games that the search never saw; `improved` is true
only if the whole 95 % interval lies on the better side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ringrift.games.contract import Game
from ringrift.games.registry import load_game
from ringrift.jobs.files import alone, describe, seal_json
from ringrift.jobs.frame import Job, JobSpec, Outcome, params_as_json, run_job
from ringrift.jobs.kinds import ExitCode
from ringrift.jobs.tuning.heuristic import tune_heuristic
from ringrift.jobs.tuning.training import search_architectures, tune_by_halving, tune_population
from ringrift.jobs.tuning.trials import TuneParams, TuningFinding

_SEARCHES: Mapping[str, Callable[[Job, TuneParams, Game], TuningFinding]] = {
    "cmaes": tune_heuristic,
    "halving": tune_by_halving,
    "pbt": tune_population,
    "nas": search_architectures,
}


def run_tune(job: Job, params: TuneParams) -> Outcome:
    params.check()
    game = load_game(params.config)
    with alone(params.out / "tune.lock"):
        found = _SEARCHES[params.kind](job, params, game)
        fields: dict[str, Any] = {
            "kind": params.kind,
            **msgspec.to_builtins(found),
            "improved": found.improved,
        }
        path = params.out / "tuning.json"
        seal_json(path, {**fields, "params": params_as_json(params)})
        job.sealed(describe(path, "tuning", evaluations=found.evaluations))
    return Outcome(ExitCode.DONE, fields)


TUNE = JobSpec("tune", "Search for better parameters.", TuneParams, run_tune)


def main(argv: Sequence[str]) -> int:
    return run_job(TUNE, argv)
