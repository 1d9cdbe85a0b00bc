"""Architecture search over the presets: which size plays best in the same thinking time.

Every size is trained on the same rows. A larger network judges better and slower, so sizes meet with as many
simulations as fit the time that the first one takes.
"""

from __future__ import annotations

import numpy as np
from optuna.distributions import CategoricalDistribution
from optuna.samplers import RandomSampler
from optuna.study import Study

from ringrift.errors import ConfigError
from ringrift.games.contract import Game
from ringrift.jobs.frame import Job
from ringrift.jobs.tuning.halving import LOOKS
from ringrift.jobs.tuning.matches import match, net_player, verify
from ringrift.jobs.tuning.params import TuneParams, TuningFinding
from ringrift.jobs.tuning.studies import judged, open_study
from ringrift.jobs.tuning.trainee import Data, Trainee, open_data
from ringrift.network.architecture import PRESETS
from ringrift.network.model import ResidualNet

PRESET = "preset"
TIMED_GAMES = 16
TIMED_SIMULATIONS = 8
SIMULATIONS_MIN = 2


def search_architectures(job: Job, params: TuneParams, game: Game) -> TuningFinding:
    unknown = sorted(set(params.presets) - set(PRESETS))
    if unknown:
        raise ConfigError(f"tune: there is no preset {', '.join(unknown)}; there are {', '.join(PRESETS)}")
    presets = list(dict.fromkeys(params.presets))
    sampler = RandomSampler(seed=params.seed)  # all trials are given
    with open_data(job, params, game) as data, open_study(params.out, "nas", sampler=sampler) as study:
        search = _Search(job, data, presets)
        for preset in presets:
            study.enqueue_trial({PRESET: preset}, skip_if_exists=True)
        job.stage("searching", total=len(presets), done=len(judged(study)))
        while len(judged(study)) < len(presets):
            search.try_one(study)
        return search.finding(study)


class _Search:
    def __init__(self, job: Job, data: Data, presets: list[str]) -> None:
        self._job, self._data, self._presets = job, data, presets
        self._reference: tuple[ResidualNet, float] | None = None

    def try_one(self, study: Study) -> None:
        job, params = self._job, self._data.params
        job.stop_point()
        trial = study.ask({PRESET: CategoricalDistribution(self._presets)})
        preset = trial.params[PRESET]
        net, loss = self._trained(preset, seed=params.seed)
        first, first_s = self._first()
        cost_s = self._seconds_per_move(net)
        simulations = simulations_in_time(params.simulations, first_s, cost_s)
        score = 0.5
        if preset != self._presets[0]:
            players = (
                net_player(preset, net, self._data.game, simulations=simulations),
                net_player(self._presets[0], first, self._data.game, simulations=params.simulations),
            )
            score = match(job, self._data.game, players, games=params.games, seed=params.seed + 1).score
        trial.set_user_attr("held_loss", round(loss, 5))
        trial.set_user_attr("simulations", simulations)
        study.tell(trial, score)
        done = judged(study)
        best = max(each.value for each in done if each.value is not None)
        job.progress(len(done), generation=len(done), best_score=round(best, 4), preset=preset)

    def finding(self, study: Study) -> TuningFinding:
        params, data = self._data.params, self._data
        done = judged(study)
        scores = {str(t.params[PRESET]): round(t.value or 0.0, 4) for t in done}
        best = max(scores, key=lambda name: scores[name])
        losses = {f"held_loss {t.params[PRESET]}": t.user_attrs["held_loss"] for t in done}
        simulations = {str(t.params[PRESET]): int(t.user_attrs["simulations"]) for t in done}
        verified = None
        if best != self._presets[0] and params.verify_games:
            first, _ = self._first()
            net, _ = self._trained(best, seed=params.seed)
            players = (
                net_player(best, net, data.game, simulations=simulations[best]),
                net_player(self._presets[0], first, data.game, simulations=params.simulations),
            )
            verified = verify(self._job, data.game, players, games=params.verify_games, seed=params.seed)
        return TuningFinding(
            best_params={PRESET: best, "simulations": simulations[best], **losses},
            best_score=scores[best] if verified is None else verified.score,
            evaluations=len(done),
            generations=tuple(
                {"generation": at + 1, "best_score": max(list(scores.values())[: at + 1])}
                for at in range(len(scores))
            ),
            scores=scores,
            verified=verified,
        )

    def _first(self) -> tuple[ResidualNet, float]:
        """The size that the others are measured by, and its seconds per move."""
        if self._reference is None:
            net, _ = self._trained(self._presets[0], seed=self._data.params.seed)
            self._reference = (net, self._seconds_per_move(net))
        return self._reference

    def _trained(self, preset: str, *, seed: int) -> tuple[ResidualNet, float]:
        trainee = Trainee(self._data, self._data.in_use(), preset=preset, seed=seed, looks=LOOKS)
        try:
            for _ in range(LOOKS):
                trainee.advance(self._job)
            return trainee.network(), trainee.best_loss
        finally:
            trainee.close()

    def _seconds_per_move(self, net: ResidualNet) -> float:
        game, runtime = self._data.game, self._job.runtime
        player = net_player("timed", net, game, simulations=TIMED_SIMULATIONS)
        states, seeds = game.new_states(TIMED_GAMES), np.arange(TIMED_GAMES, dtype=np.int64)
        player.choose(states, seeds)  # compiles and warms up
        began_s = runtime.monotonic_s()
        player.choose(states, seeds)
        return (runtime.monotonic_s() - began_s) / TIMED_GAMES


def simulations_in_time(simulations: int, first_s: float, cost_s: float) -> int:
    """How many simulations fit the time that the first size takes for *simulations*."""
    return max(SIMULATIONS_MIN, round(simulations * first_s / max(cost_s, 1e-9)))
