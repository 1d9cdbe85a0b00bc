"""Optuna studies in the folder of a search: trials are stored as they end, so a killed search goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.storages import RDBStorage
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.pool import NullPool

FILE_NAME = "study.db"


@contextmanager
def open_study(
    folder: Path, name: str, *, sampler: BaseSampler, pruner: BasePruner | None = None
) -> Iterator[Study]:
    """The study *name* of *folder*, to be maximised. Trials that a killed process left are tried again."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    folder.mkdir(parents=True, exist_ok=True)
    # No connection outlives its use, so nothing is left open when the job is told to end.
    storage = RDBStorage(f"sqlite:///{folder / FILE_NAME}", engine_kwargs={"poolclass": NullPool})
    try:
        study = optuna.create_study(
            study_name=name,
            storage=storage,
            sampler=sampler,
            pruner=pruner,
            direction=StudyDirection.MAXIMIZE,
            load_if_exists=True,
        )
        for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            study.tell(trial.number, state=TrialState.FAIL)
            study.enqueue_trial(trial.params)
        yield study
    finally:
        storage.remove_session()
        storage.engine.dispose()


def judged(study: Study) -> list[FrozenTrial]:
    """The trials that came to a score, in order."""
    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))


def tried(study: Study) -> int:
    """How many trials ended with a result, early or not."""
    return len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)))


def generations_of(study: Study, size: int) -> tuple[dict[str, Any], ...]:
    """The best score so far after every *size* judged trials."""
    scores = [trial.value for trial in judged(study) if trial.value is not None]
    ends = range(size, len(scores) + 1, size)
    return tuple({"generation": end // size, "best_score": round(max(scores[:end]), 6)} for end in ends)
