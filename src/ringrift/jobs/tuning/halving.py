"""Successive halving over training parameters: many start, the worse ones end early.

All trials are compared after the same number of rows. The first is what is used now, so that the search
cannot come out behind it without saying so.
"""

from __future__ import annotations

from math import log2

from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.pruners import SuccessiveHalvingPruner
from optuna.samplers import TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from ringrift.games.contract import Game
from ringrift.jobs.frame import Job
from ringrift.jobs.tuning.matches import net_player, verify
from ringrift.jobs.tuning.params import TuneParams, TuningFinding, Verified
from ringrift.jobs.tuning.studies import open_study, tried
from ringrift.jobs.tuning.trainee import DECAYS, RATES, WINDOW_MIN, Data, Knobs, Trainee, open_data

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
    job.progress(tried(study), generation=rung(tried(study)), best_score=round(score_of(_best(study)), 5))


def rung(trials: int) -> int:
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
        generations=({"generation": rung(tried(study)), "best_score": score},),
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
