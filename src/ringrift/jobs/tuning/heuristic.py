"""CMA-ES for the weights of the heuristic player, judged by matches against the weights in use.

Optuna's sampler, which runs the `cmaes` package, proposes; each generation plays the same openings, so that
luck with openings does not decide between its members. The best of many noisy scores flatters itself: the
answer is the mean of the last generation's better half or the best single set, whichever wins more of fresh
games, and what is reported is a match on fresh games again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from statistics import fmean

import numpy as np
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.samplers import CmaEsSampler
from optuna.study import Study

from ringrift.errors import ConfigError
from ringrift.games.contract import Game
from ringrift.games.ringrift.game import RingRiftGame
from ringrift.jobs.frame import Job
from ringrift.jobs.tuning.trials import (
    TuneParams,
    TuningFinding,
    generations_of,
    judged,
    match,
    open_study,
    verify,
)
from ringrift.players.ringrift_heuristic import HeuristicPlayer, Weights

NAMES = tuple(field.name for field in fields(Weights))
# Units in which the sampler moves, either way. It starts in the middle, with a sixth of the range.
REACH = 3.0
SCALE_MIN = 0.5
_SPACE: dict[str, BaseDistribution] = {name: FloatDistribution(-REACH, REACH) for name in NAMES}


def tune_heuristic(job: Job, params: TuneParams, game: Game) -> TuningFinding:
    if not isinstance(game, RingRiftGame):
        raise ConfigError(
            f"tune: there is no heuristic player for {game.key}, so there are no weights to tune"
        )
    search = _WeightSearch(job, params, game)
    sampler = CmaEsSampler(
        popsize=params.population,
        seed=params.seed,
        n_startup_trials=1,
        warn_independent_sampling=False,
    )
    with open_study(params.out, "cmaes", sampler=sampler) as study:
        if not study.get_trials(deepcopy=False):
            study.enqueue_trial(dict.fromkeys(NAMES, 0.0))
        wanted = params.population * params.generations
        job.stage("searching", total=wanted, done=len(judged(study)))
        while len(judged(study)) < wanted:
            search.try_one(study)
        return search.finding(study)


class _WeightSearch:
    def __init__(self, job: Job, params: TuneParams, game: RingRiftGame) -> None:
        self._job, self._params, self._game = job, params, game
        self._used = HeuristicPlayer(game, quick=params.quick)

    def try_one(self, study: Study) -> None:
        job, params = self._job, self._params
        job.stop_point()
        trial = study.ask(_SPACE)
        generation = len(judged(study)) // params.population
        score = self._score(trial.params, games=params.games, seed=params.seed + 1 + generation)
        study.tell(trial, score)
        done = judged(study)
        best = round(max(each.value for each in done if each.value is not None), 4)
        job.progress(len(done), generation=len(done) // params.population, best_score=best)

    def finding(self, study: Study) -> TuningFinding:
        job, params = self._job, self._params
        done = judged(study)
        last = sorted(done[-params.population :], key=lambda trial: -(trial.value or 0.0))
        better = last[: max(1, len(last) // 2)]
        mean = {name: fmean(trial.params[name] for trial in better) for name in NAMES}
        candidates = [mean, study.best_trial.params]
        fresh = [self._score(each, games=params.games, seed=params.seed + 500_009) for each in candidates]
        best = candidates[int(np.argmax(fresh))]
        found = HeuristicPlayer(self._game, quick=params.quick, weights=self._weights(best))
        verified = verify(job, self._game, (found, self._used), games=params.verify_games, seed=params.seed)
        return TuningFinding(
            best_params={name: round(value, 4) for name, value in asdict(self._weights(best)).items()},
            best_score=round(max(fresh), 4) if verified is None else verified.score,
            evaluations=len(done),
            generations=generations_of(study, params.population),
            verified=verified,
        )

    def _score(self, moves: Mapping[str, float], *, games: int, seed: int) -> float:
        player = HeuristicPlayer(self._game, quick=self._params.quick, weights=self._weights(moves))
        return match(self._job, self._game, (player, self._used), games=games, seed=seed).score

    def _weights(self, moves: Mapping[str, float]) -> Weights:
        used = asdict(Weights())
        return Weights(
            **{
                name: value + self._params.spread * max(SCALE_MIN, abs(value)) * moves[name]
                for name, value in used.items()
            }
        )
