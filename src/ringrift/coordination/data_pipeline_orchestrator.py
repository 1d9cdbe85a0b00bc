"""The pipeline orchestrator: where each config is between its games and its next champion.

The plan moves configs on. This reads the state of the run, in whichever process that runs, and answers for it
under the documents' names; what it hears is no state and only wakes the loop, because something may
have changed. With auto-trigger off the loop does not run, and nothing follows by itself. The
daemons that run the loop stand at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Any, ClassVar, NamedTuple

import msgspec
import structlog

from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.event_router import get_router
from ringrift.coordination.handler_base import StoreCoordinator
from ringrift.coordination.master_loop_guard import MasterLoopGuard
from ringrift.coordination.orchestrator_registry import get_orchestrator_roles
from ringrift.coordination.run_coordinator import answers_of, get_loop_waker, get_open_run, get_stage_members
from ringrift.coordination.safeguards import get_safeguards
from ringrift.daemons.manager import DaemonService
from ringrift.daemons.planning import STOPPED_BY_PERSON
from ringrift.daemons.types import DaemonType
from ringrift.engine.arguments import check_integer
from ringrift.engine.blocking import blocking
from ringrift.engine.fencing import is_fenced
from ringrift.engine.leases import ControlSeen, control_seen
from ringrift.engine.lock_files import OWN_PROGRAM
from ringrift.engine.opening import existing_engine, get_engine
from ringrift.engine.ports import Engine
from ringrift.engine.run_reports import ControlHere, reported
from ringrift.errors import ConfigError, Conflict, Corrupt, LeaseLost, Unavailable
from ringrift.events.catalog.audit import ComponentWiring
from ringrift.events.event import EventSource, RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.health.run_status import run_state
from ringrift.learning.announcements import ANNOUNCED
from ringrift.learning.control_lease import ControlLease, tell_elected, tell_lost
from ringrift.learning.facts.facts import JobEnded, JobIssued, Promoted, Rejected, Staged
from ringrift.learning.facts.records import Model, ModelState, ShardState
from ringrift.learning.facts.state import ConfigState, stage_of
from ringrift.learning.intake import (
    REFUSALS,
    FileIntake,
    is_claim,
    keep_refusal,
    refused,
    refused_claims,
    waiting_claims,
)
from ringrift.learning.judging.ratings import Rating, rate
from ringrift.learning.loop import TrainingLoop, configs_of_the_run
from ringrift.learning.plan.rules import LearningRules
from ringrift.learning.plan.stages import why_not_planning
from ringrift.learning.situation import RunningLoop, Situations, stored_status
from ringrift.process import process_scope
from ringrift.runtime import Runtime, first_of, system_runtime
from ringrift.status import CoordinatorStatus, HealthCheckResult
from ringrift.work.backpressure import read_announced
from ringrift.work.coordinator import ConfigSignals, heard_by

__all__ = [
    "BoardType",
    "DataPipelineDaemon",
    "DataPipelineOrchestrator",
    "IterationRecord",
    "OperationMode",
    "PipelineConfig",
    "PipelineStage",
    "StageTransition",
    "create_continuous_loop",
    "create_data_pipeline",
    "get_pipeline_orchestrator",
    "get_pipeline_status",
    "reset_pipeline_orchestrator",
    "wire_pipeline_events",
]


# Stages of the pipeline, read off the state of a config: where it is, how it came there, its turns so far.
#
# Nothing is kept here. The state remembers a bounded number of jobs and decisions, so transitions go back
# as far as those; turns of the loop are those of all models that were decided upon.


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
# A training that ended well leads to evaluation; one that failed did so in training.
_FAILED: Mapping[str, PipelineStage] = {**_ENDED, "train": PipelineStage.TRAINING}
# Of several jobs under way, the one furthest along is where the config is.
# Self-play is left out: it is open nearly always and would hide what else goes on.
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
        # The first work after a decision begins the next turn.
        if not step.error and now is PipelineStage.COMPLETE:
            now, turn = PipelineStage.IDLE, turn + 1
        if not step.error and _ORDER.index(step.stage) <= _ORDER.index(now):
            continue
        found.append(
            StageTransition(
                config_key=state.config,
                # A failure does not move the config: it goes from what failed to where the config stays.
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
            # Among the decisions, an ended job is one that failed.
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
            # A rejected model was judged against whoever was champion then.
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
        # From model to model, also past one that is not decided upon: its games led to it, not to the next.
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


# The orchestrator under the documents' names.


NAME = "pipeline_orchestrator"
PRESETS = ("small", "medium", "large")
ANSWER_S = 10.0
# What the log held at the start is delivered before the loop is open; it waits so long in all.
LOOP_STEP_S, LOOP_WAIT_STEPS = 0.5, 40


class OperationMode(StrEnum):
    """How the pipeline works."""

    FULL = "full"
    DEGRADED = "degraded"  # something holds it back
    LOCAL = "local"  # nothing follows by itself


def _mode(*, auto_trigger: bool, degraded: str | None) -> OperationMode:
    if not auto_trigger:
        return OperationMode.LOCAL
    return OperationMode.FULL if degraded is None else OperationMode.DEGRADED


class PipelineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller of bootstrap asked for; None leaves it to the settings."""

    auto_trigger: bool | None = None
    training_epochs: int | None = None
    training_batch_size: int | None = None
    training_model_version: str | None = None
    training_data_path: str | None = None

    def __post_init__(self) -> None:
        if self.auto_trigger is not None and not isinstance(self.auto_trigger, bool):
            raise ConfigError(f"auto_trigger is {self.auto_trigger!r}; it must be True or False")
        for name in ("training_epochs", "training_batch_size"):
            value = getattr(self, name)
            if value is not None:
                check_integer(name, value, low=1)
        if self.training_model_version not in (None, *PRESETS):
            raise ConfigError(
                f"training_model_version is {self.training_model_version!r}; "
                f"the networks that can be trained are {', '.join(PRESETS)}"
            )
        if self.training_data_path is not None:
            raise ConfigError(
                f"training_data_path is {str(self.training_data_path)!r}; leave it out: the loop trains on "
                "samples of games that it has replayed by the rules, and takes none from a path"
            )

    def learning(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings table `[learning]` with what was asked for.

        Epochs are passes over the data, which the train bucket counts as steps per row.
        """
        changed = dict(table)
        if self.training_batch_size is not None:
            changed["batch"] = self.training_batch_size
        if self.training_epochs is not None:
            # Filled in from the rules of a run, whose values are not the defaults of a bucket by itself.
            usual = msgspec.to_builtins(LearningRules().bucket)
            asked = {**dict(table.get("bucket", {})), "steps_per_row": float(self.training_epochs)}
            changed["bucket"] = {**usual, **asked}
        if self.training_model_version is not None:
            changed["preset"] = self.training_model_version
        return changed


class DataPipelineOrchestrator(StoreCoordinator):
    """Stages, transitions and turns of the loop by config."""

    capability: ClassVar[str] = "pipeline"
    emits: ClassVar[tuple[str, ...]] = ("SYNC_REQUEST", "SYNC_TRIGGERED")

    def __init__(
        self,
        config: PipelineConfig | None = None,
        *,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
        situations: Situations | None = None,
    ) -> None:
        super().__init__(NAME, router=router, runtime=runtime)
        self.config = config or PipelineConfig()
        self._answers = answers_of(situations)
        self.signals = ConfigSignals()

    @property
    def auto_trigger(self) -> bool:
        asked = self.config.auto_trigger
        return get_settings().auto_trigger_pipeline if asked is None else asked

    def reactions(self) -> Mapping[str, Callback]:
        """Events are noted; some ask for a transfer; all but mere claims wake the loop."""
        return dict.fromkeys(heard_by(NAME), self._on_event)

    async def _on_event(self, event: RouterEvent) -> None:
        name, payload = event.event_type, event.payload
        if is_claim(event):
            # No signal and no waking yet: a claim counts with its file, and the intake wakes the loop.
            await self._take_in(event)
            return
        self.signals.note(event)
        if name == "DATA_STALE":
            await self._ask_for_fresh_data(payload)
        elif name == "ORPHAN_GAMES_DETECTED":
            wanted = {"requester": NAME, "data_type": "games", "reason": "games that nobody registered"}
            await self.tell("SYNC_REQUEST", wanted)
        get_loop_waker().wake_for(event)

    async def _take_in(self, event: RouterEvent) -> None:
        """Files that somebody names become facts where the loop runs; what cannot is refused with the reason.

        A process without the loop leaves it to the one that has it, which hears the event too.
        """
        loop, engine = await self._loop_for(event), await existing_engine()
        if loop is None and await self._is_run_elsewhere():
            return
        try:
            if loop is None or engine is None:
                raise ConfigError("no run is open that could take it in; start one and tell it again")
            wake = get_loop_waker().wake_for
            engine = get_open_run().engine or engine  # what it orders carries the token of the loop
            await FileIntake(loop, engine, get_settings(), self.runtime, wake=wake).hear(event)
        # Kept and not raised: as a dead letter it would be tried again, and the same file refused again.
        except REFUSALS as error:
            await keep_refusal(refused(event, str(error)))

    async def _loop_for(self, event: RouterEvent) -> RunningLoop | None:
        """The loop of this process. What came out of the log before it was open waits for that."""
        waits = event.origin is EventSource.CROSS_PROCESS and self.auto_trigger
        for _ in range(LOOP_WAIT_STEPS if waits else 0):
            # Only what was said after this start counts: the status of a run that ended is still stored.
            if self._answers.loop is not None or await self._is_run_elsewhere(since_s=self._started_s):
                break
            await self.runtime.sleep(LOOP_STEP_S)
        return self._answers.loop

    async def _is_run_elsewhere(self, *, since_s: float = 0.0) -> bool:
        """Whether the loop of another process has said after *since_s* that it runs."""
        seen = await stored_status()
        state = run_state(seen, self.runtime.now_s())
        return seen is not None and state not in (None, "stopped") and seen.at_s > since_s

    async def _ask_for_fresh_data(self, payload: Mapping[str, Any]) -> None:
        age = {"data_age_hours": float(payload.get("data_age_hours") or 0.0)}
        await self.tell(
            "SYNC_TRIGGERED", {"config_key": payload.get("config_key"), "reason": "the data is old", **age}
        )

    # --- what it shows --------------------------------------------------------------------------------

    @property
    def mode(self) -> OperationMode:
        return _mode(auto_trigger=self.auto_trigger, degraded=self.why_degraded())

    @blocking(timeout_s=ANSWER_S)
    async def why_degraded(self) -> str | None:
        """Why producers are to rest, as QUEUE_MONITOR has measured it; None while nothing holds them back."""
        engine = await existing_engine()
        why = "" if engine is None else (await read_announced(engine.kv)).why_held(self.runtime.now_s())
        return why or None

    def get_current_stage(self, config_key: str) -> PipelineStage:
        """Where a config is by the facts of the run; a config that the run does not have does nothing."""
        found = [state for state in self._answers.states() if state.config == config_key]
        return current_stage(found[0]) if found else PipelineStage.IDLE

    def get_transitions(self, limit: int = 50) -> list[StageTransition]:
        """Return transitions of all configs, newest first."""
        found = [each for state in self._answers.states() for each in transitions(state)]
        return sorted(found, key=lambda each: -each.timestamp)[:limit]

    def get_iterations(self, limit: int = 20) -> list[IterationRecord]:
        """Return turns of the loop that ended, newest first."""
        found = [each for state in self._answers.states() for each in iterations(state)]
        return sorted(found, key=lambda each: -each.end_time)[:limit]

    def get_stats(self) -> dict[str, Any]:
        """The numbers of the run, in whichever process it runs; None is what nobody knows."""
        about, degraded = self._about_itself(), self.why_degraded()
        if run_beside() is not None:
            about["auto_trigger"] = True  # a run goes on by itself, whatever this process was asked for
        # Whether anything follows by itself only the process knows that could do it.
        on = about["auto_trigger"]
        mode = None if on is None else _mode(auto_trigger=on, degraded=degraded).value
        return {"mode": mode, "degraded": degraded, **about, **self._of_the_run(), **self._in_store()}

    @reported
    def _about_itself(self) -> dict[str, Any]:
        return {"auto_trigger": self.auto_trigger, "loop_runs": self._answers.loop is not None}

    @blocking(timeout_s=ANSWER_S)
    async def _in_store(self) -> dict[str, Any]:
        """Who controls, and claims from outside that wait or changed nothing; None is what nobody knows."""
        engine = await existing_engine()
        if engine is None:
            return {"controlled_by": None, "waiting_claims": None, "refused_claims": None}
        seen = await control_seen(engine.kv, self.runtime)
        return {
            "controlled_by": None if seen is None else {"holder": str(seen), "until_s": seen.expires_s},
            "waiting_claims": msgspec.to_builtins(await waiting_claims(engine.kv)),
            "refused_claims": msgspec.to_builtins(await refused_claims(engine.kv)),
        }

    @blocking(timeout_s=ANSWER_S)
    async def _stored_state(self) -> str | None:
        return run_state(await stored_status(), self.runtime.now_s())

    def _of_the_run(self) -> dict[str, Any]:
        run = self._answers.run()
        state = self._stored_state()
        if self._answers.loop is not None and state in (None, "stopped"):
            state = "running"  # it has just begun, and has not said so yet
        # A store that others use is no run yet: its nothing is no zero.
        if run is None or (state is None and not run.configs()):
            unknown = ("iterations_completed", "games_generated", "promotions", "average_iteration_seconds")
            return {"run_state": state, "stages": {}, **dict.fromkeys(unknown), "last_activity": None}
        states = [run.state(config) for config in run.configs()]
        turns = [each for one in states for each in iterations(one)]
        moves = [each for one in states for each in transitions(one)]
        return {
            "run_state": state,
            "stages": {one.config: current_stage(one).value for one in states},
            "iterations_completed": len(turns),
            "stage_failures": {
                f"{one.config} {stage}": {"in_a_row": each.in_a_row, "error": each.error}
                for one in states
                for stage, each in one.failures.items()
                if each.in_a_row
            },
            "games_generated": sum(map(games_of, states)),
            "promotions": sum(len(one.promotions) for one in states),
            "average_iteration_seconds": sum(each.duration for each in turns) / len(turns) if turns else None,
            "stage_seconds": stage_seconds(moves),
            "last_activity": max((one.last_s for one in states if one.facts), default=None),
        }


def get_pipeline_orchestrator(config: PipelineConfig | None = None) -> DataPipelineOrchestrator:
    """Return the orchestrator of this process; another *config* than it has is a `ConfigError`."""
    if config is None:
        return DataPipelineOrchestrator.get_instance()
    return DataPipelineOrchestrator.get_instance(config)


reset_pipeline_orchestrator = DataPipelineOrchestrator.reset_instance


def run_beside() -> ControlSeen | None:
    """The run of another process. A program that runs the loop alone is none: others may follow it."""
    if process_scope().peek(ControlHere) is not None:
        return None
    try:
        seen = _control_seen()
    except (Unavailable, Corrupt, ConfigError):  # the store says why to whoever works with it
        return None
    return seen if seen is not None and (seen.holder is None or seen.holder.has_daemons) else None


@blocking(timeout_s=ANSWER_S)
async def _control_seen() -> ControlSeen | None:
    engine = await existing_engine()
    return None if engine is None else await control_seen(engine.kv, system_runtime())


def refuse_beside_run(changes: Mapping[str, Any]) -> None:
    """`ConfigError` for options that the run of another process does not have: it began with its own."""
    # A run always goes on by itself.
    asked = sorted(name for name, value in changes.items() if (name, value) != ("auto_trigger", True))
    if asked and (seen := run_beside()) is not None:
        raise ConfigError(f"{seen} runs the loop; stop that run before you change {', '.join(asked)}")


def wire_pipeline_events(
    pipeline_auto_trigger: bool | None = None,  # noqa: FBT001 - the name and place bootstrap gives it
    *,
    training_epochs: int | None = None,
    training_batch_size: int | None = None,
    training_model_version: str | None = None,
    training_data_path: str | None = None,
    router: UnifiedEventRouter | None = None,
) -> DataPipelineOrchestrator:
    """Return the orchestrator of this process, subscribed; for another *router*, one of its own.

    What is None stays as it is. Raises `ConfigError` for a change while the loop runs, which took over its
    configuration when it began.
    """
    asked = {
        "auto_trigger": pipeline_auto_trigger,
        "training_epochs": training_epochs,
        "training_batch_size": training_batch_size,
        "training_model_version": training_model_version,
        "training_data_path": training_data_path,
    }
    found = get_pipeline_orchestrator() if router is None else DataPipelineOrchestrator(router=router)
    changes = {name: value for name, value in asked.items() if value is not None}
    config = msgspec.structs.replace(found.config, **changes)
    # The loop reads the orchestrator of the process; one on another router configures nothing.
    if config != found.config and router is None:
        if get_open_run().loop is not None:
            raise ConfigError(f"the loop runs; stop it before you change {', '.join(sorted(changes))}")
        refuse_beside_run(changes)
    found.config = config
    found.wire()
    return found


def get_pipeline_status() -> dict[str, Any]:
    return get_pipeline_orchestrator().get_status()


# DATA_PIPELINE runs the training loop in the control process while auto-trigger is on (`ringrift run` turns
# it on). In a program without `ringrift run` it takes the control lease itself while it has something to
# learn, and else stands by. CONTINUOUS_TRAINING_LOOP is the same under its old name: whichever comes first
# runs; a manager refuses the other, and where two managers run both, that one waits.


log = structlog.get_logger()

LOOK_S = 1.0
LEADER_EVENTS = ("LEADER_ELECTED", "LEADER_LOST", "SPLIT_BRAIN_DETECTED")
STILL_S_MAX = 60.0  # a loop that has not turned for so long hangs


class BoardType(StrEnum):
    """The boards of RingRift."""

    SQUARE8 = "square8"
    SQUARE19 = "square19"
    HEX8 = "hex8"
    HEXAGONAL = "hexagonal"


def _until(seen: ControlSeen) -> str:
    if seen.expires_s is None:
        return ""
    # Its holder renews it long before: this is when it is free if the holder is gone.
    return f" until {datetime.fromtimestamp(seen.expires_s, UTC).astimezone():%H:%M:%S}"


class _OneLoop:
    """One loop a process: facts have one writer."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()


class DataPipelineDaemon:
    """Runs the loop."""

    capability: ClassVar[str] = "pipeline"

    def __init__(
        self,
        name: str = "data_pipeline",
        *,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
        manager: DaemonService | None = None,
    ) -> None:
        self.name = name
        self._router, self._runtime, self._manager = router, runtime or system_runtime(), manager
        self._waits_for = "its start"
        self._running = False
        self._loop: TrainingLoop | None = None
        self._turned: tuple[int, float] = (0, 0.0)  # passes, when they last grew

    async def run(self, *, on_ready: Callable[[], None] | None = None) -> None:
        """Live until cancelled: wait for a reason to run and for the seat, then learn."""
        self._running = True
        try:
            if on_ready is not None:
                # Ready with nothing to learn yet: what depends on this daemon must not wait for a config.
                on_ready()
            await self._live()
        finally:
            self._running = False

    async def _live(self) -> None:
        seat = process_scope().get(_OneLoop, _OneLoop)
        self._waits_for = "the loop of this process, which runs under another name"
        async with seat.lock:
            try:
                while True:
                    configs = await self._wait_for_work()
                    await self._learn_while_in_control(configs)
            finally:
                self._loop, self._waits_for = None, "its start"

    async def _wait_for_work(self) -> tuple[str, ...]:
        engine = await get_engine()
        while True:
            # First, because the reason that is shown should be the one to act on.
            if not is_fenced(engine) and (seen := await control_seen(engine.kv, self._runtime)):
                self._waits_for = f"control of the run, which {seen} holds{_until(seen)}"
            elif not get_pipeline_orchestrator().auto_trigger:
                self._waits_for = "auto-trigger, which is off (COORDINATOR_AUTO_TRIGGER_PIPELINE)"
            elif configs := await configs_of_the_run(engine.kv):
                return configs
            else:
                self._waits_for = "a config to learn; name one with ringrift run --configs"
            # Control and the choice of configs change in other processes, and no event tells this one.
            await self._runtime.sleep(LOOK_S)

    async def _learn_while_in_control(self, configs: tuple[str, ...]) -> None:
        """Learn under the control lease; returns when another has it, or it cannot be proved any more."""
        engine = await get_engine()
        if is_fenced(engine):
            # A run has it already, which ends with it: the store refuses what is written after that.
            await self._learn(engine, configs)
            return
        guard = MasterLoopGuard(profile=OWN_PROGRAM, shared=True)
        lease = ControlLease(engine, self._runtime, guard, get_settings(), has_daemons=False)
        roles = get_orchestrator_roles()
        async with AsyncExitStack() as control:
            try:
                # Before as well, so that a look costs no write; what counts is what is seen afterwards.
                await roles.check_control_is_free()
                mine = await control.enter_async_context(lease.hold())
                await roles.check_control_is_free()
            except Conflict as taken:
                self._waits_for = f"control of the run: {taken}"
                await control.aclose()
                await self._runtime.sleep(LOOK_S)
                return
            # What is said of leaders, by whomever, makes it look at its lease and proves nothing.
            for event_type in LEADER_EVENTS:
                heard = self._events.subscribe(event_type, lambda _: lease.look_now(), "data_pipeline_lease")
                control.callback(heard)
            tell_elected(self._events, lease)
            await self._serve_requests(engine, lease, control)
            try:
                await first_of(self._learn(mine, configs), lease.keep())
            except LeaseLost as lost:
                log.error("pipeline.control_lost", reason=lost.reason, done="the loop has stopped, and waits")
                await tell_lost(self._events, lease, lost.reason)
            finally:
                self._loop, self._waits_for = None, "control of the run, which it has lost"

    async def _serve_requests(self, engine: Engine, lease: ControlLease, control: AsyncExitStack) -> None:
        """Whoever asks the run for a daemon asks this program now."""
        manager = self._manager
        if manager is None:
            return
        serving = await manager.serve_requests(engine.kv, lease.is_ours)

        def end() -> None:
            # One that was asked to stop the loop answers that, and can be asked to start it again.
            if not manager.why_resting(DaemonType(self.name), STOPPED_BY_PERSON):
                serving.cancel()

        control.callback(end)

    @property
    def _events(self) -> UnifiedEventRouter:
        return self._router or get_router()

    async def _learn(self, engine: Engine, configs: tuple[str, ...]) -> None:
        settings = get_settings()
        wanted = get_pipeline_orchestrator().config.learning(settings.learning or {})
        settings = replace(settings, learning=wanted or None)
        if self._manager is not None:
            get_stage_members().reasons = partial(why_not_planning, self._manager)
        self._loop = TrainingLoop(
            engine,
            self._runtime,
            self._events,
            settings,
            safeguards=get_safeguards(),
            stages=get_stage_members(),
            waker=get_loop_waker(),
            run=get_open_run(),
        )
        self._turned = (0, self._runtime.monotonic_s())
        self._waits_for = ""
        await self._loop.run(configs)

    def wiring(self) -> ComponentWiring:
        """Who runs the loop sends what follows from its facts."""
        return ComponentWiring(self.name, self.capability, ANNOUNCED)

    def health_check(self) -> HealthCheckResult:
        """Degraded while there is nothing to run, unhealthy when the loop no longer turns."""
        if not self._running:
            return HealthCheckResult(False, CoordinatorStatus.STOPPED, "not running")
        if self._loop is None:
            return HealthCheckResult.degraded(f"waits for {self._waits_for}")
        # Measured by whoever asks and not by the loop: one that hangs could not say so.
        passes, now_s = self._loop.controller.passes, self._runtime.monotonic_s()
        if passes != self._turned[0]:
            self._turned = (passes, now_s)
        still_s = now_s - self._turned[1]
        details: dict[str, Any] = {"passes": passes, "configs": self._loop.controller.configs()}
        if still_s > STILL_S_MAX:
            return HealthCheckResult.unhealthy(f"the loop has not turned for {still_s:.0f} s", **details)
        if problem := self._loop.status_problem:
            details["status_writes_failed"] = self._loop.status_writes_failed
            return HealthCheckResult.degraded(f"the status of the run is old: {problem}", **details)
        return HealthCheckResult.ok("", **details)


def create_data_pipeline(
    router: UnifiedEventRouter | None = None,
    runtime: Runtime | None = None,
    manager: DaemonService | None = None,
) -> DataPipelineDaemon:
    return DataPipelineDaemon(router=router, runtime=runtime, manager=manager)


def create_continuous_loop(
    router: UnifiedEventRouter | None = None,
    runtime: Runtime | None = None,
    manager: DaemonService | None = None,
) -> DataPipelineDaemon:
    return DataPipelineDaemon("continuous_training_loop", router=router, runtime=runtime, manager=manager)
