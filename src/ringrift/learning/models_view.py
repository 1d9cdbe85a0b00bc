"""The models of a run as people ask for them: a view of the state, put together when it is asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ringrift.learning.announcement_scene import RATING_START, blob_path
from ringrift.learning.ratings import Rating
from ringrift.learning.records import Model, ModelState
from ringrift.learning.results import WEIGHTS_SUFFIX
from ringrift.learning.state import STUDENTS, ConfigState

# What a model is called in a registry by its state.
REGISTRY_STAGES: Mapping[ModelState, str] = {
    ModelState.TRAINING: "development",
    ModelState.EVALUATING: "development",
    ModelState.STAGING: "staging",
    ModelState.PRODUCTION: "production",
    ModelState.SUPERSEDED: "archived",
    ModelState.ROLLED_BACK: "rejected",
    ModelState.REJECTED: "rejected",
    ModelState.ARCHIVED: "archived",
}
UNRATED_SPREAD = 350.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecord:
    """One model. *model_id* is the hash of its weights; *version* counts the models of its config."""

    model_id: str
    config_key: str
    version: int
    state: ModelState
    stage: str
    model_path: str
    elo: float
    elo_uncertainty: float
    games_played: int
    losses: Mapping[str, Any]
    rows_seen: int
    parent: str | None
    children: tuple[str, ...]
    created_at: float
    state_history: tuple[tuple[float, str, str], ...]

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "state": self.state.value}


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleStats:
    """The models of the run, counted; None is what nobody knows, because there is no run."""

    total_models: int | None = None
    by_state: Mapping[str, int] = field(default_factory=dict)
    promotions: int | None = None
    rollbacks: int | None = None
    rejections: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def record_of(model: Model, state: ConfigState, ratings: Mapping[str, Rating]) -> ModelRecord:
    found = ratings.get(model.digest)
    return ModelRecord(
        model_id=model.digest,
        config_key=state.config,
        version=model.number,
        state=model.state,
        stage=REGISTRY_STAGES[model.state],
        model_path=blob_path(model.digest),
        elo=RATING_START if found is None else found.rating,
        elo_uncertainty=UNRATED_SPREAD if found is None else (found.high - found.low) / 2,
        games_played=0 if found is None else found.games,
        losses=dict(model.losses),
        rows_seen=model.rows_seen,
        parent=model.parent,
        children=tuple(each.digest for each in state.models.values() if each.parent == model.digest),
        created_at=model.made_s,
        state_history=tuple(model.history),
    )


def in_training(state: ConfigState) -> list[ModelRecord]:
    """The models that trainings under way will bring; each is known by its job until it has a hash."""
    found = []
    for number, job in enumerate(state.open_of("train", *STUDENTS), start=1):
        parent = job.order.inputs.get(f"parent{WEIGHTS_SUFFIX}")
        record = ModelRecord(
            model_id=job.job_id,
            config_key=state.config,
            version=len(state.models) + number,
            state=ModelState.TRAINING,
            stage=REGISTRY_STAGES[ModelState.TRAINING],
            model_path="",
            elo=RATING_START,
            elo_uncertainty=UNRATED_SPREAD,
            games_played=0,
            losses={},
            rows_seen=0,
            parent=parent,
            children=(),
            created_at=job.issued_s,
            state_history=((job.issued_s, str(ModelState.TRAINING), job.reason),),
        )
        found.append(record)
    return found


def lifecycle_stats(states: Mapping[str, ConfigState]) -> LifecycleStats:
    by_state = Counter(str(model.state) for state in states.values() for model in state.models.values())
    by_state.update(str(record.state) for state in states.values() for record in in_training(state))
    return LifecycleStats(
        total_models=by_state.total(),
        by_state=dict(by_state),
        promotions=sum(len(state.promotions) for state in states.values()),
        rollbacks=sum(state.rollbacks for state in states.values()),
        rejections=sum(state.rejections for state in states.values()),
    )
