"""The `tune` job: search for better parameters, and say by how much they are better.

Every kind keeps its search in the folder given by `--out`: stopped or killed, the same command goes on. The
result compares what was found with what is used now in games that the search never saw; `improved` is true
only if the whole 95 % interval lies on the better side.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from math import exp, log, log2
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

import msgspec
import numpy as np
import torch
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.pruners import SuccessiveHalvingPruner
from optuna.samplers import CmaEsSampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from ringrift.errors import ConfigError
from ringrift.games.contract import Game
from ringrift.games.registry import load_game
from ringrift.games.ringrift.game import RingRiftGame
from ringrift.jobs.files import alone, describe, read_json, seal_json
from ringrift.jobs.frame import Job, JobSpec, Outcome, params_as_json, run_job
from ringrift.jobs.kinds import ExitCode
from ringrift.jobs.training.learner import (
    Learner,
    LearningRate,
    learner_tensors,
    read_checkpoint,
    restore_learner,
    write_checkpoint,
)
from ringrift.jobs.tuning.trials import (
    DECAYS,
    RATES,
    WINDOW_MIN,
    Data,
    Knobs,
    Trainee,
    TuneParams,
    TuningFinding,
    Verified,
    generations_of,
    judged,
    match,
    net_player,
    new_learner,
    open_data,
    open_study,
    part_of_training,
    run_to_look,
    tried,
    varied,
    verify,
)
from ringrift.network.architecture import PRESETS
from ringrift.network.evaluator import NetEvaluator
from ringrift.network.model import ResidualNet, chosen_device
from ringrift.network.storage import load_model
from ringrift.players.contract import Player
from ringrift.players.ringrift_heuristic import HeuristicPlayer, Weights
from ringrift.players.search_player import SearchPlayer
from ringrift.search.contract import SearchConfig

# --- settings of players --------------------------------------------------------------------------------
#
# CMA-ES for continuous settings of a player, judged by matches against the settings in use: those of the
# search with which a network plays, or the weights of the heuristic player.
#
# Optuna's sampler, which runs the `cmaes` package, proposes; each generation plays the same openings, so that
# luck with openings does not decide between its members. The best of many noisy scores flatters itself: the
# answer is the mean of the last generation's better half or the best single set, whichever wins more of fresh
# games, and what is reported is a match on fresh games again.


# Units in which the sampler moves, either way. It starts in the middle, with a sixth of the range.
REACH = 3.0
SCALE_MIN = 0.5
Moves = Mapping[str, float]


class _Tuned(Protocol):
    """What is tuned, by how far each setting moves away from what is in use."""

    @property
    def study(self) -> str: ...

    @property
    def names(self) -> tuple[str, ...]: ...

    def settings(self, moves: Moves) -> dict[str, float]: ...

    def player(self, moves: Moves) -> Player: ...


class _HeuristicWeights:
    study = "cmaes"
    names = tuple(field.name for field in fields(Weights))

    def __init__(self, params: TuneParams, game: Game) -> None:
        if not isinstance(game, RingRiftGame):
            raise ConfigError(
                f"tune: there is no heuristic player for {game.key}, so there are no weights to tune; "
                "with --model, the search of that network is tuned"
            )
        self._params, self._game = params, game

    def settings(self, moves: Moves) -> dict[str, float]:
        spread = self._params.spread
        return {
            name: value + spread * max(SCALE_MIN, abs(value)) * moves[name]
            for name, value in asdict(Weights()).items()
        }

    def player(self, moves: Moves) -> HeuristicPlayer:
        weights = Weights(**self.settings(moves))
        return HeuristicPlayer(self._game, quick=self._params.quick, weights=weights)


class _SearchSettings:
    """A move by one is a factor of two. All players have the same network and the same simulations."""

    study = "cmaes of a search"
    names = ("c_scale", "c_visit", "considered")
    # From the least to the most that a finding may have.
    SCALES, VISITS, ACTIONS = (1e-3, 10.0), (0.5, 1000.0), (2, 64)

    def __init__(self, params: TuneParams, game: Game) -> None:
        assert params.model is not None
        torch.set_num_threads(params.threads)
        net, _ = load_model(params.model, config=game.key)
        self._params, self._game = params, game
        self._evaluator = NetEvaluator(net, game, device=chosen_device(params.device))

    def settings(self, moves: Moves) -> dict[str, float]:
        used = self._params

        def moved(name: str, value: float, bounds: tuple[float, float]) -> float:
            return float(np.clip(value * 2.0 ** moves[name], *bounds))

        return {
            "c_scale": float(f"{moved('c_scale', used.c_scale, self.SCALES):.4g}"),
            "c_visit": float(f"{moved('c_visit', used.c_visit, self.VISITS):.4g}"),
            "considered": round(moved("considered", used.considered, self.ACTIONS)),
        }

    def player(self, moves: Moves) -> SearchPlayer:
        found = self.settings(moves)
        config = SearchConfig(
            simulations=self._params.simulations,
            rescale=self._params.rescale,
            c_scale=found["c_scale"],
            c_visit=found["c_visit"],
            considered=int(found["considered"]),
        )
        return SearchPlayer("tuned", self._game, self._evaluator, config)


def tune_settings(job: Job, params: TuneParams, game: Game) -> TuningFinding:
    tuned: _Tuned = (_HeuristicWeights if params.model is None else _SearchSettings)(params, game)
    search = _SettingSearch(job, params, game, tuned)
    sampler = CmaEsSampler(
        popsize=params.population,
        seed=params.seed,
        n_startup_trials=1,
        warn_independent_sampling=False,
    )
    with open_study(params.out, tuned.study, sampler=sampler) as study:
        if not study.get_trials(deepcopy=False):
            study.enqueue_trial(dict.fromkeys(tuned.names, 0.0))
        wanted = params.population * params.generations
        job.stage("searching", total=wanted, done=len(judged(study)))
        while len(judged(study)) < wanted:
            search.try_one(study)
        return search.finding(study)


class _SettingSearch:
    def __init__(self, job: Job, params: TuneParams, game: Game, tuned: _Tuned) -> None:
        self._job, self._params, self._game, self._tuned = job, params, game, tuned
        self._used = tuned.player(dict.fromkeys(tuned.names, 0.0))
        self._space: dict[str, BaseDistribution] = {
            name: FloatDistribution(-REACH, REACH) for name in tuned.names
        }

    def try_one(self, study: Study) -> None:
        job, params = self._job, self._params
        job.stop_point()
        trial = study.ask(self._space)
        generation = len(judged(study)) // params.population
        score = self._score(trial.params, seed=params.seed + 1 + generation)
        study.tell(trial, score)
        done = judged(study)
        best = round(max(each.value for each in done if each.value is not None), 4)
        job.progress(len(done), generation=len(done) // params.population, best_score=best)

    def finding(self, study: Study) -> TuningFinding:
        job, params, tuned = self._job, self._params, self._tuned
        done = judged(study)
        last = sorted(done[-params.population :], key=lambda trial: -(trial.value or 0.0))
        better = last[: max(1, len(last) // 2)]
        mean = {name: fmean(trial.params[name] for trial in better) for name in tuned.names}
        candidates = [mean, study.best_trial.params]
        fresh = [self._score(each, seed=params.seed + 500_009) for each in candidates]
        best = candidates[int(np.argmax(fresh))]
        pair = (tuned.player(best), self._used)
        verified = verify(job, self._game, pair, games=params.verify_games, seed=params.seed)
        return TuningFinding(
            best_params={name: round(value, 6) for name, value in tuned.settings(best).items()},
            best_score=round(max(fresh), 4) if verified is None else verified.score,
            evaluations=len(done),
            generations=generations_of(study, params.population),
            verified=verified,
        )

    def _score(self, moves: Moves, *, seed: int) -> float:
        pair = (self._tuned.player(moves), self._used)
        return match(self._job, self._game, pair, games=self._params.games, seed=seed).score


# --- training and networks ----------------------------------------------------------------------------
#
# Searches that train: successive halving over training parameters, network sizes in the same thinking
# time, and a population that trains side by side.


# Successive halving over training parameters: many start, the worse ones end early.
#
# All trials are compared after the same number of rows. The first is what is used now, so that the search
# cannot come out behind it without saying so.


REDUCTION = 2
LOOKS = 8  # of a whole training; trials may end after 1, 2 and 4
ROWS_ATTRIBUTE, SCORE_ATTRIBUTE = "samples_per_row", "best_score"


def tune_by_halving(job: Job, params: TuneParams, game: Game) -> TuningFinding:
    sampler = TPESampler(seed=params.seed, n_startup_trials=max(4, params.trials // 3))
    pruner = SuccessiveHalvingPruner(min_resource=1, reduction_factor=REDUCTION)
    with (
        open_data(job, params, game) as data,
        open_study(params.out, "halving", sampler=sampler, pruner=pruner) as study,
    ):
        if not study.get_trials(deepcopy=False):
            study.enqueue_trial(_as_trial(data.in_use()))
        job.stage("searching", total=params.trials, done=tried(study))
        while tried(study) < params.trials:
            _try_one(job, data, study)
        return _finding(job, data, study)


def _try_one(job: Job, data: Data, study: Study) -> None:
    params = data.params
    trial = study.ask(
        {
            "lr": FloatDistribution(*RATES, log=True),
            "weight_decay": FloatDistribution(*DECAYS, log=True),
            "window": FloatDistribution(WINDOW_MIN, 1.0),
            "batch": CategoricalDistribution(data.batches()),
        }
    )
    trainee = Trainee(data, Knobs(**trial.params), preset=params.preset, seed=params.seed, looks=LOOKS)
    try:
        for look in range(1, LOOKS + 1):
            trial.report(-trainee.advance(job), step=look)
            if look < LOOKS and trial.should_prune():
                break
        # A trial that ended early counts by its best look: with few rows the best often comes early.
        trial.set_user_attr(SCORE_ATTRIBUTE, -trainee.best_loss)
        trial.set_user_attr(ROWS_ATTRIBUTE, round(trainee.samples_per_row, 2))
        if look < LOOKS:
            study.tell(trial, state=TrialState.PRUNED)
        else:
            study.tell(trial, -trainee.best_loss)
    finally:
        trainee.close()
    job.progress(
        tried(study), generation=doublings(tried(study)), best_score=round(score_of(_best(study)), 5)
    )


def doublings(trials: int) -> int:
    """Generations of a halving count the doublings of its trials."""
    return int(log2(trials)) if trials else 0


def score_of(trial: FrozenTrial) -> float:
    """The best look of a trial; higher is better."""
    return float(trial.user_attrs.get(SCORE_ATTRIBUTE, float("-inf")))


def _best(study: Study) -> FrozenTrial:
    return max(study.get_trials(deepcopy=False), key=score_of)


def _finding(job: Job, data: Data, study: Study) -> TuningFinding:
    best = _best(study)
    knobs, score = Knobs(**best.params), round(score_of(best), 5)
    ended = [trial for trial in study.get_trials(deepcopy=False) if SCORE_ATTRIBUTE in trial.user_attrs]
    return TuningFinding(
        best_params={**knobs.as_params(), ROWS_ATTRIBUTE: best.user_attrs[ROWS_ATTRIBUTE]},
        best_score=score,
        evaluations=tried(study),
        generations=({"generation": doublings(tried(study)), "best_score": score},),
        scores={str(trial.number): round(score_of(trial), 5) for trial in ended},
        verified=verify_knobs(job, data, knobs),
    )


def verify_knobs(job: Job, data: Data, knobs: Knobs) -> Verified | None:
    """Train with what was found and with what is used now, from another seed, and let them play."""
    params = data.params
    if not params.verify_games:
        return None
    names = {"found": knobs, "in use": data.in_use()}
    players = []
    for name, each in names.items():
        job.stage(f"training {name}", total=LOOKS)
        trainee = Trainee(data, each, preset=params.preset, seed=params.seed + 1, looks=LOOKS)
        try:
            for look in range(LOOKS):
                trainee.advance(job)
                job.progress(look + 1)
            players.append(net_player(name, trainee.network(), data.game, simulations=params.simulations))
        finally:
            trainee.close()
    pair = (players[0], players[1])
    return verify(job, data.game, pair, games=params.verify_games, seed=params.seed)


def _as_trial(knobs: Knobs) -> dict[str, float | int]:
    return {
        "lr": knobs.lr,
        "weight_decay": knobs.weight_decay,
        "window": knobs.window,
        "batch": knobs.batch,
    }


# Architecture search over the presets: which size plays best in the same thinking time.
#
# Every size is trained on the same rows. A larger network judges better and slower, so sizes meet with as
# many simulations as fit the time that the first one takes.


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
        search = _ArchitectureSearch(job, data, presets)
        for preset in presets:
            study.enqueue_trial({PRESET: preset}, skip_if_exists=True)
        job.stage("searching", total=len(presets), done=len(judged(study)))
        while len(judged(study)) < len(presets):
            search.try_one(study)
        return search.finding(study)


class _ArchitectureSearch:
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


# Population-based training: members train side by side, the worst take over from the best and vary.
#
# Optuna has samplers and pruners but no trainer that passes weights from one trial to another, so this small
# loop is our own. A generation is kept whole before the next begins; a killed search repeats one at most.


STATE_FILE = "population.json"
QUARTER = 4


def tune_population(job: Job, params: TuneParams, game: Game) -> TuningFinding:
    with open_data(job, params, game) as data:
        population = Population(data)
        job.stage("evolving", total=params.generations, done=population.generation)
        while population.generation < params.generations:
            population.advance(job)
            best = round(population.history[-1]["best_score"], 5)
            job.progress(population.generation, generation=population.generation, best_score=best)
        best_at = max(range(len(population.scores)), key=lambda at: population.scores[at])
        knobs = population.knobs[best_at]
        return TuningFinding(
            best_params=knobs.as_params(),
            best_score=round(population.scores[best_at], 5),
            evaluations=population.generation * params.population,
            generations=tuple(population.history),
            scores={str(at): round(score, 5) for at, score in enumerate(population.scores)},
            verified=verify_knobs(job, data, knobs),
        )


class Population:
    """The members of a search: their learners, parameters and last scores."""

    def __init__(self, data: Data) -> None:
        params = data.params
        self._data, self._folder = data, params.out
        self._steps_rows = max(1, data.budget_rows // params.generations)
        self.generation = 0
        self.history: list[dict[str, Any]] = []
        rng = random.Random(params.seed)
        self.knobs = [data.in_use(), *(_drawn(data, rng) for _ in range(params.population - 1))]
        self.scores = [float("-inf")] * params.population
        steps = data.budget_rows // self.knobs[0].batch
        self._learners: list[Learner] = [
            new_learner(data, params.preset, each, seed=params.seed, steps=steps) for each in self.knobs
        ]
        if (self._folder / STATE_FILE).exists():
            self._resume()

    def advance(self, job: Job) -> None:
        """Train everybody for one generation, then let the worst learn from the best."""
        number = self.generation + 1
        for member, (learner, knobs) in enumerate(zip(self._learners, self.knobs, strict=True)):
            self.scores[member] = self._train(job, learner, knobs, seed=number * 1000 + member)
        rng = random.Random(self._data.params.seed * 1_000_003 + number)
        self._exploit(rng)
        self.generation = number
        self.history.append({"generation": number, "best_score": round(max(self.scores), 6)})
        self._save()

    def _train(self, job: Job, learner: Learner, knobs: Knobs, *, seed: int) -> float:
        for group in learner.optimizer.param_groups:
            group["weight_decay"] = knobs.weight_decay
        steps = max(1, self._steps_rows // knobs.batch)
        rate = LearningRate(knobs.lr, knobs.lr, 0, steps)
        epochs = part_of_training(self._data, learner, knobs, rate, steps=steps, look_every=steps, seed=seed)
        try:
            return -run_to_look(job, epochs)
        finally:
            epochs.close()

    def _exploit(self, rng: random.Random) -> None:
        order = sorted(range(len(self.scores)), key=lambda member: self.scores[member])
        count = max(1, len(order) // QUARTER)
        for loser in order[:count]:
            winner = rng.choice(order[-count:])
            # Copies: two members that shared a tensor of the optimizer would count each other's steps.
            tensors = {name: value.clone() for name, value in learner_tensors(self._learners[winner]).items()}
            restore_learner(self._learners[loser], tensors, steps=self._learners[winner].steps)
            self.knobs[loser] = varied(self.knobs[winner], self._data.batches(), rng)
            self.scores[loser] = self.scores[winner]

    def _save(self) -> None:
        folder = self._folder / f"generation-{self.generation:04d}"
        for member, learner in enumerate(self._learners):
            write_checkpoint(
                folder / f"{member}.safetensors", learner_tensors(learner), {"steps": learner.steps}
            )
        state = {
            "generation": self.generation,
            "history": self.history,
            "scores": self.scores,
            "knobs": [asdict(each) for each in self.knobs],
        }
        seal_json(self._folder / STATE_FILE, state)
        for old in self._folder.glob("generation-*"):
            if old != folder:
                shutil.rmtree(old)

    def _resume(self) -> None:
        state = read_json(self._folder / STATE_FILE)
        self.generation, self.history = state["generation"], state["history"]
        self.scores = state["scores"]
        self.knobs = [Knobs(**each) for each in state["knobs"]]
        folder: Path = self._folder / f"generation-{self.generation:04d}"
        for member, learner in enumerate(self._learners):
            tensors, facts = read_checkpoint(folder / f"{member}.safetensors")
            restore_learner(learner, tensors, steps=int(facts["steps"]))


def _drawn(data: Data, rng: random.Random) -> Knobs:
    def between(low: float, high: float) -> float:
        return exp(rng.uniform(log(low), log(high)))

    return Knobs(between(*RATES), rng.choice(data.batches()), between(*DECAYS), rng.uniform(WINDOW_MIN, 1.0))


# --- the job ------------------------------------------------------------------------------------------


_SEARCHES: Mapping[str, Callable[[Job, TuneParams, Game], TuningFinding]] = {
    "cmaes": tune_settings,
    "halving": tune_by_halving,
    "pbt": tune_population,
    "nas": search_architectures,
}


def run_tune(job: Job, params: TuneParams) -> Outcome:
    params.check()
    game = load_game(params.config)
    with alone(params.out / "tune.lock"):
        found = _SEARCHES[params.kind](job, params, game)
        fields: dict[str, Any] = {**msgspec.to_builtins(found), "improved": found.improved}
        path = params.out / "tuning.json"
        seal_json(path, {"kind": params.kind, **fields, "params": params_as_json(params)})
        job.sealed(describe(path, "tuning", evaluations=found.evaluations))
    # Not as `kind`: in a line of a job that is the job's own, and a worker refuses the answer to another.
    return Outcome(ExitCode.DONE, {"search": params.kind, **fields})


TUNE = JobSpec("tune", "Search for better parameters.", TuneParams, run_tune)


def main(argv: Sequence[str]) -> int:
    return run_job(TUNE, argv)
