"""Stages of the pipeline, read off the state of a config: where it is, how it came there, its turns so far.

Nothing is kept here. The state remembers a bounded number of jobs and decisions, so transitions go back
as far as those; turns of the loop are those of all models that were decided upon.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from ringrift.learning.facts import JobEnded, JobIssued, Promoted, Rejected, Staged
from ringrift.learning.ratings import Rating, rate
from ringrift.learning.records import Model, ModelState, ShardState
from ringrift.learning.state import ConfigState, stage_of


class PipelineStage(StrEnum):
    """Where a config is. Self-play goes on beside all of them."""

    IDLE = "idle"
    SELFPLAY = "selfplay"
    DATA_SYNC = "data_sync"  # games have landed and agree with the rules
    NPZ_EXPORT = "npz_export"
    NPZ_COMBINATION = "npz_combination"
    TRAINING = "training"
    EVALUATION = "evaluation"
    PROMOTION = "promotion"
    COMPLETE = "complete"


_ORDER = tuple(PipelineStage)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTransition:
    """A config went from one stage to another, or failed in one."""

    config_key: str
    from_stage: PipelineStage
    to_stage: PipelineStage
    iteration: int
    timestamp: float
    success: bool
    duration_seconds: float  # in the stage it left
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationRecord:
    """One turn of the loop of a config: all until a model was decided upon. None is what nobody knows."""

    config_key: str
    iteration: int  # the number of its model
    start_time: float
    end_time: float
    success: bool = True
    stages_completed: tuple[str, ...] = ()
    games_generated: int = 0
    model_id: str = ""
    elo_delta: float | None = None  # against the champion before; None: one of them has no rating
    promoted: bool = False

    @property
    def duration(self) -> float:
        return self.end_time - self.start_time

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "duration": self.duration}


# Where a config is once work of a kind was ordered, and once it ended well.
_ORDERED: Mapping[str, PipelineStage] = {
    "export": PipelineStage.NPZ_EXPORT,
    "train": PipelineStage.TRAINING,
    "evaluate": PipelineStage.EVALUATION,
}
_ENDED: Mapping[str, PipelineStage] = {
    "selfplay": PipelineStage.SELFPLAY,
    "validate": PipelineStage.DATA_SYNC,
    "export": PipelineStage.NPZ_EXPORT,
    "train": PipelineStage.EVALUATION,
    "evaluate": PipelineStage.EVALUATION,
}
_DECIDED: Mapping[type, PipelineStage] = {
    Staged: PipelineStage.PROMOTION,
    Promoted: PipelineStage.COMPLETE,
    Rejected: PipelineStage.COMPLETE,
}
_FAILED: Mapping[str, PipelineStage] = {**_ENDED, "train": PipelineStage.TRAINING}
# Of several jobs under way, the one furthest along is where the config is.
_UNDER_WAY = (
    ("evaluate", PipelineStage.EVALUATION),
    ("train", PipelineStage.TRAINING),
    ("export", PipelineStage.NPZ_EXPORT),
    ("validate", PipelineStage.DATA_SYNC),
)
_VERDICTS = frozenset({ModelState.PRODUCTION, ModelState.REJECTED})


class _Step(NamedTuple):
    at_s: float
    stage: PipelineStage
    error: str = ""
    model: str = ""


def current_stage(state: ConfigState) -> PipelineStage:
    """Where a config is: by its open work, else by what it did last."""
    for kind, stage in _UNDER_WAY:
        if state.open_of(kind):
            return stage
    last = transitions(state)
    return last[-1].to_stage if last else PipelineStage.IDLE


def transitions(state: ConfigState) -> list[StageTransition]:
    """From stage to stage, oldest first. Games beside a training do not move a config back."""
    found: list[StageTransition] = []
    now, since_s, turn = PipelineStage.IDLE, state.first_s, 1
    for step in sorted(_steps(state), key=lambda each: each.at_s):
        if not step.error and now is PipelineStage.COMPLETE:
            now, turn = PipelineStage.IDLE, turn + 1
        if not step.error and _ORDER.index(step.stage) <= _ORDER.index(now):
            continue
        found.append(
            StageTransition(
                config_key=state.config,
                from_stage=step.stage if step.error else now,
                to_stage=now if step.error else step.stage,
                iteration=turn,
                timestamp=step.at_s,
                success=not step.error,
                duration_seconds=max(0.0, step.at_s - since_s),
                metadata=_about(step),
            )
        )
        if not step.error:
            now, since_s = step.stage, step.at_s
    return found


def _about(step: _Step) -> dict[str, Any]:
    about = {"error": step.error, "model_id": step.model}
    return {name: value for name, value in about.items() if value}


def _steps(state: ConfigState) -> Iterator[_Step]:
    for job in state.recent_jobs:
        if job.kind in _ENDED:
            yield _Step(job.at_s, _ENDED[job.kind])
    kinds: dict[str, str] = {}  # of the jobs among the decisions
    for fact in state.decisions:
        match fact:
            case JobIssued():
                kinds[fact.job_id] = stage_of(fact.kind, fact.order.purpose)
                if kinds[fact.job_id] in _ORDERED:
                    yield _Step(fact.at_s, _ORDERED[kinds[fact.job_id]])
            case JobEnded() if kinds.get(fact.job_id) in _FAILED:
                yield _Step(fact.at_s, _FAILED[kinds[fact.job_id]], error=fact.error or "it left no message")
            case Staged() | Promoted() | Rejected():
                yield _Step(fact.at_s, _DECIDED[type(fact)], model=fact.model)


def iterations(state: ConfigState) -> list[IterationRecord]:
    """The turns that ended with a decision about their model, oldest first."""
    ratings = rate(state.trusted_matches()) if state.promotions or state.rejections else {}
    before = {change.model: change.previous for change in state.promotions}
    found, started_s = [], state.first_s
    for model in state.models.values():
        decided_s = _decided_s(model)
        if decided_s is not None:
            rival = before[model.digest] if model.digest in before else _champion_at(state, decided_s)
            found.append(
                IterationRecord(
                    config_key=state.config,
                    iteration=model.number,
                    start_time=started_s,
                    end_time=max(started_s, decided_s),
                    stages_completed=_stages_of(state, started_s, decided_s),
                    games_generated=_games_between(state, started_s, model.made_s),
                    model_id=model.digest,
                    elo_delta=_gain(ratings, model.digest, rival),
                    promoted=model.digest in before,
                )
            )
        started_s = model.made_s
    return found


def _decided_s(model: Model) -> float | None:
    return next((at_s for at_s, state, _ in model.history if state in _VERDICTS), None)


def _champion_at(state: ConfigState, at_s: float) -> str | None:
    earlier = [change.model for change in state.promotions if change.at_s < at_s]
    return earlier[-1] if earlier else None


def _gain(ratings: Mapping[str, Rating], model: str, rival: str | None) -> float | None:
    if rival is None or model not in ratings or rival not in ratings:
        return None
    return ratings[model].rating - ratings[rival].rating


def _stages_of(state: ConfigState, from_s: float, until_s: float) -> tuple[str, ...]:
    """The stages with work that ended between, in the pipeline's order; as far as jobs are remembered."""
    done = {
        _FAILED[job.kind]
        for job in state.recent_jobs
        if job.kind in _FAILED and from_s <= job.at_s <= until_s
    }
    return tuple(stage.value for stage in _ORDER if stage in done)


def _games_between(state: ConfigState, from_s: float, until_s: float) -> int:
    return sum(shard.games for shard in state.shards.values() if from_s <= shard.made_s < until_s)


def games_of(state: ConfigState) -> int:
    """Games that the run has: accepted, and those whose check is due."""
    return state.games + state.totals[f"games {ShardState.UNCHECKED}"]


def stage_seconds(found: list[StageTransition]) -> dict[str, float]:
    """How long configs stay in a stage, on average."""
    spent: dict[str, list[float]] = {}
    for each in found:
        if each.success and each.from_stage is not PipelineStage.IDLE:
            spent.setdefault(each.from_stage.value, []).append(each.duration_seconds)
    return {stage: sum(times) / len(times) for stage, times in spent.items()}
