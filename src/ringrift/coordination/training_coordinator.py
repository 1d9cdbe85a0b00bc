"""Training under the names of the documents: slots for whoever trains, and what is known of the trainings of
the run.

What is known is in the store: claims of the work queue and slots for what runs, the facts of the run and the
ends of slots for what ended. So every process answers the same, and what somebody merely says counts for
nothing; what is heard wakes the loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from ringrift.coordination.handler_base import StoreCoordinator
from ringrift.coordination.run_coordinator import answers_of, get_loop_waker
from ringrift.coordination.stale_fallback import StaleFallbackDaemon, create_stale_fallback
from ringrift.coordination.training_trigger_daemon import (
    TrainingDecision,
    TrainingTriggerDaemon,
    create_training_trigger,
)
from ringrift.engine.arguments import check_integer, check_part, check_text
from ringrift.engine.blocking import blocking, run_blocking, take_in_thread
from ringrift.engine.ports import WorkItem
from ringrift.errors import ConfigError
from ringrift.events.event import RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.foreign_files.paths import PLAYERS_MAX, PLAYERS_MIN
from ringrift.learning.facts.records import Model
from ringrift.learning.facts.state import ConfigState, EndedTraining
from ringrift.learning.intake import is_claim
from ringrift.learning.job_announcements import blob_path, loss_of
from ringrift.learning.plan.training_data import Fallback, fallback_tier, good_model, good_samples
from ringrift.learning.requests import (
    SAID_CHARS_MAX,
    SLOTS_MAX,
    Refusal,
    Refused,
    TrainingJob,
    TrainingSlots,
    failed_training,
)
from ringrift.learning.situation import Situations
from ringrift.process import getter_of
from ringrift.runtime import Runtime
from ringrift.work.coordinator import ConfigSignals
from ringrift.work.shares import check_config, known_boards
from ringrift.work.worker.records import RunningRecord, epochs_so_far, loss_so_far

__all__ = [
    "SLOTS_MAX",
    "Fallback",
    "Refusal",
    "Refused",
    "StaleFallbackDaemon",
    "TrainingCoordinator",
    "TrainingDecision",
    "TrainingJob",
    "TrainingRecord",
    "TrainingSlots",
    "TrainingTriggerDaemon",
    "async_can_train",
    "async_release_training",
    "async_request_training",
    "async_training_slot",
    "can_train",
    "create_stale_fallback",
    "create_training_trigger",
    "fallback_tier",
    "get_training_coordinator",
    "get_training_status",
    "good_model",
    "good_samples",
    "release_training_slot",
    "request_training_slot",
    "reset_training_coordinator",
    "training_slot",
    "update_training_progress",
    "wire_training_events",
]


# The loop orders its own trainings as work, one per config. A trainer outside of it asks for a slot here, so
# that the two never train the same config at once without knowing, and tells its end here.


NAME = "training_coordinator"
ANSWER_S = 15.0

_NOTED = (
    "ADAPTIVE_PARAMS_CHANGED CLUSTER_CAPACITY_CHANGED CMAES_TRIGGERED EVALUATION_COMPLETED "
    "HYPERPARAMETER_UPDATED LOW_QUALITY_DATA_WARNING NAS_TRIGGERED NODE_UNHEALTHY P2P_CLUSTER_UNHEALTHY "
    "P2P_NODE_DEAD PER_BUFFER_REBUILT PER_PRIORITIES_UPDATED QUALITY_SCORE_UPDATED REGRESSION_CRITICAL "
    "REGRESSION_DETECTED TRAINING_BLOCKED_BY_QUALITY TRAINING_PROGRESS TRAINING_STARTED"
)
_WAKE = (
    "DATA_SYNC_COMPLETED MODEL_PROMOTED NEW_GAMES_AVAILABLE NODE_RECOVERED P2P_CLUSTER_HEALTHY "
    "PROMOTION_ROLLED_BACK REGRESSION_CLEARED SELFPLAY_COMPLETE TASK_ABANDONED TRAINING_COMPLETED "
    "TRAINING_FAILED TRAINING_ROLLBACK_NEEDED TRAINING_TRIGGERED"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRecord:
    """One training; *ended_s* is None while it runs."""

    job_id: str
    config_key: str
    node_id: str = ""
    started_s: float = 0.0
    epoch: int | None = None
    loss: float | None = None
    ended_s: float | None = None
    success: bool = False
    error: str = ""
    model_path: str = ""


class TrainingCoordinator(StoreCoordinator):
    """Slots, and the trainings of the run."""

    capability: ClassVar[str] = "training_trigger"
    emits: ClassVar[tuple[str, ...]] = (
        "TRAINING_STARTED",
        "TRAINING_COMPLETED",
        "TRAINING_FAILED",
        "LOCK_TIMEOUT",
    )

    def __init__(
        self,
        slots: TrainingSlots | None = None,
        *,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
        situations: Situations | None = None,
    ) -> None:
        super().__init__(NAME, router=router, runtime=runtime)
        self.slots = TrainingSlots(runtime=self.runtime) if slots is None else slots
        check_part("slots", self.slots, TrainingSlots)
        self.slots.on_gone = self._tell_gone
        self._answers = answers_of(situations)
        self.signals = ConfigSignals()
        self.refusals: dict[str, int] = {}  # of slots that this process asked for

    def reactions(self) -> Mapping[str, Callback]:
        return dict.fromkeys(_NOTED.split(), self.signals.note) | dict.fromkeys(_WAKE.split(), self._wake)

    # --- slots ----------------------------------------------------------------------------------------

    async def request(
        self, config_key: str, *, model_version: str = "", wait_s: float = 0.0
    ) -> TrainingJob | Refused:
        """Take a slot, and tell that a training started; or say why not."""
        answer = await self.slots.request(config_key, model_version=model_version, wait_s=wait_s)
        if isinstance(answer, Refused):
            # Whoever did not wait was refused at once, which is no timeout.
            if wait_s > 0:
                waited = {"wait_seconds": wait_s, "timeout_seconds": wait_s, "operation": "training"}
                await self.tell("LOCK_TIMEOUT", {"lock_name": f"training of {config_key}", **waited})
            return self._count(answer)
        started = {"config_key": config_key, "job_id": answer.job_id, "node_id": answer.node}
        await self.tell("TRAINING_STARTED", {**started, "model_version": model_version})
        return answer

    async def finish(
        self, job_id: str, *, model_path: str = "", error: str = "", val_loss: float | None = None
    ) -> bool:
        """Give the slot back and tell how the training ended; a model path means well.

        Of a slot that is not held here, only a model is told: its failure is its holder's to tell, and that
        its holder was gone has been told.
        """
        error = str(error or "")[:SAID_CHARS_MAX] or ("" if model_path else "it ended without a model")
        held = await self.slots.release(job_id, error=error, model_path=model_path, val_loss=val_loss)
        # The id is config, time, process and token; the config itself contains an underscore.
        config = job_id.rsplit("_", 3)[0]
        if model_path and not error:
            done = {"config_key": config, "job_id": job_id, "success": True, "model_path": model_path}
            await self.tell("TRAINING_COMPLETED", {**done, "val_loss": val_loss})
        elif held:
            failed = {"config_key": config, "job_id": job_id, "error": error}
            await self.tell("TRAINING_FAILED", failed)
        return held

    async def leave(self, job_id: str) -> bool:
        """Give the slot back after a training whose model somebody else tells of."""
        return await self.slots.release(job_id)

    async def _tell_gone(self, job: TrainingJob) -> None:
        await self.tell("TRAINING_FAILED", failed_training(job))

    def _count(self, refused: Refused) -> Refused:
        self.refusals[refused.reason.value] = self.refusals.get(refused.reason.value, 0) + 1
        return refused

    # --- what it hears --------------------------------------------------------------------------------

    def _wake(self, event: RouterEvent) -> None:
        self.signals.note(event)
        # A claim counts with its file, and the intake wakes the loop.
        if not is_claim(event):
            get_loop_waker().wake_for(event)

    # --- what it shows --------------------------------------------------------------------------------

    def get_running(self) -> list[TrainingRecord]:
        """Return who trains now: under a slot, or as a worker of the run."""
        return self._running_and_slots()[0]

    def get_history(self, limit: int = 50) -> list[TrainingRecord]:
        """Return ended trainings, newest first, as far back as the run remembers them one by one."""
        states = self._answers.states()
        found = [_of_slot(job) for job in _not_taken_in(self._running_and_slots()[1], states)]
        for state in states:
            models = {each.job_id: each for each in (*state.models.values(), *state.students.values())}
            # A copy: the loop of this process may note one more meanwhile.
            found += [_of_run(state.config, each, models.get(each.job_id)) for each in tuple(state.trainings)]
        return sorted(found, key=lambda record: -(record.ended_s or 0.0))[:limit]

    def get_stats(self) -> dict[str, Any]:
        """The numbers of the run, the same in every process; None is what nobody knows."""
        states, (running, slots) = self._answers.states(), self._running_and_slots()
        ended = Counter("failed" if job.error else "completed" for job in _not_taken_in(slots, states))
        for state in states:
            ended.update(state.trained)
        # A store that others use is no run yet: its nothing is no zero.
        known = bool(states or running or slots)
        return {
            "running": len(running) if known else None,
            "completed": ended["completed"] if known else None,
            "failed": ended["failed"] if known else None,
            "refusals": self.get_metrics()["refusals"],
            "cluster_unhealthy": None,  # nothing knows of a cluster yet
        }

    @blocking(timeout_s=ANSWER_S)
    async def _running_and_slots(self) -> tuple[list[TrainingRecord], list[TrainingJob]]:
        """The trainings that run, and those that gave their slots back; nothing without a store."""
        if not self.slots.can_be_read():
            return [], []
        running = [_of_slot(job) for job in await self.slots.running()]
        said, by_workers = await self.slots.reported_by_workers(), await self.slots.of_workers()
        running += [_of_worker(config, item, said.get(item.id)) for config, item in by_workers.items()]
        return running, await self.slots.ended()

    def _about_itself(self) -> dict[str, Any]:
        return {"refusals": dict(self.refusals)}


def _not_taken_in(slots: Sequence[TrainingJob], states: Sequence[ConfigState]) -> list[TrainingJob]:
    """Those of *slots* whose model the run does not have: what it has taken in is a training of its own."""
    taken = {slot for state in states for slot in tuple(state.slots_taken_in)}
    return [job for job in slots if job.job_id not in taken]


def _of_slot(job: TrainingJob) -> TrainingRecord:
    return TrainingRecord(
        job_id=job.job_id,
        config_key=job.config_key,
        node_id=job.node,
        started_s=job.started_s,
        epoch=job.epochs,
        loss=job.best_val_loss,
        ended_s=job.ended_s,
        success=job.ended_s is not None and not job.error,
        error=job.error,
        model_path=job.model_path,
    )


def _of_worker(config: str, item: WorkItem, said: RunningRecord | None) -> TrainingRecord:
    if said is None:  # it has just begun
        return TrainingRecord(job_id=item.id, config_key=config, started_s=item.changed_s)
    return TrainingRecord(
        job_id=item.id,
        config_key=config,
        node_id=said.node,
        started_s=said.started_s,
        epoch=epochs_so_far(said.extra, said.done),
        loss=loss_so_far(said.extra, "train"),
    )


def _of_run(config: str, ended: EndedTraining, model: Model | None) -> TrainingRecord:
    return TrainingRecord(
        job_id=ended.job_id,
        config_key=config,
        node_id=ended.node,
        started_s=ended.started_s,
        loss=None if model is None else loss_of(model.losses),
        ended_s=ended.at_s,
        success=not ended.error,
        error=ended.error,
        model_path="" if model is None else blob_path(model.digest),
    )


get_training_coordinator = getter_of("get_training_coordinator", TrainingCoordinator)
reset_training_coordinator = TrainingCoordinator.reset_instance
wire_training_events = TrainingCoordinator.wired


# The plain functions may be called from any thread but not on an event loop; those named `async_` are for
# one.


_CANCELLED = "whoever asked for the slot was cancelled"


@blocking(timeout_s=ANSWER_S, plus="wait_seconds")
async def request_training_slot(
    board_type: str, num_players: int | None = None, model_version: str = "", *, wait_seconds: float = 0.0
) -> str | None:
    """Take a slot and return the id of the training; None if there is none (`can_train` says why)."""
    config = _key(board_type, num_players)
    answer = await get_training_coordinator().request(
        config, model_version=model_version, wait_s=wait_seconds
    )
    return answer.job_id if isinstance(answer, TrainingJob) else None


@blocking(timeout_s=ANSWER_S)
async def release_training_slot(
    job_id: str, *, model_path: str = "", error: str = "", val_loss: float | None = None
) -> bool:
    """Give a slot back and tell how the training ended; False if this process did not hold it."""
    coordinator = get_training_coordinator()
    return await coordinator.finish(job_id, model_path=model_path, error=error, val_loss=val_loss)


@blocking(timeout_s=ANSWER_S)
async def update_training_progress(job_id: str, epochs: int, best_val_loss: float | None = None) -> None:
    """Say how far a training is; `LeaseLost` when it lost its slot and must stop."""
    slots = get_training_coordinator().slots
    await slots.update(job_id, epochs=epochs, best_val_loss=best_val_loss)


@blocking(timeout_s=ANSWER_S)
async def can_train(board_type: str, num_players: int | None = None) -> tuple[bool, str]:
    """Return whether a slot would be given now, and why not."""
    return await async_can_train(board_type, num_players)


@contextmanager
def training_slot(
    board_type: str, num_players: int | None = None, model_version: str = "", *, wait_seconds: float = 0.0
) -> Iterator[str | None]:
    """Hold a slot for a block and give the id of the training, or None if there is no slot.

    A block that raises ends the training as failed. `release_training_slot` in the block tells of a model.
    """
    job_id = request_training_slot(board_type, num_players, model_version, wait_seconds=wait_seconds)
    try:
        yield job_id
    except BaseException as error:
        if job_id is not None:
            release_training_slot(job_id, error=str(error) or type(error).__name__)
        raise
    if job_id is not None:
        # Not `finish`: the block has told of its model, or the loop does when it takes that in.
        run_blocking(get_training_coordinator().leave(job_id), timeout_s=ANSWER_S)


def get_training_status() -> dict[str, Any]:
    """Return the coordinator's status and who trains: who has a slot, and workers, in whichever process.

    Slots and workers are None where there is no store to look in.
    """
    coordinator = get_training_coordinator()
    slots: list[dict[str, str]] | None = None
    by_workers: list[dict[str, str | None]] | None = None
    if coordinator.slots.can_be_read():
        running = run_blocking(coordinator.slots.running(), timeout_s=ANSWER_S)
        trained = run_blocking(coordinator.slots.of_workers(), timeout_s=ANSWER_S)
        slots = [{"job_id": job.job_id, "config_key": job.config_key, "node": job.node} for job in running]
        by_workers = [
            {"job_id": item.id, "config_key": config, "worker": item.holder}
            for config, item in trained.items()
        ]
    return {
        **coordinator.get_status(),
        "slots": slots,
        "by_workers": by_workers,
        "slots_max": SLOTS_MAX,
    }


# --- for code on an event loop ------------------------------------------------------------------------


async def async_can_train(board_type: str, num_players: int | None = None) -> tuple[bool, str]:
    config, slots = _key(board_type, num_players), get_training_coordinator().slots
    refused = await slots.can_train(config) if slots.can_be_read() else None
    return (True, "") if refused is None else (False, f"{refused.reason.value}: {refused.message}")


async def async_request_training(
    board_type: str, num_players: int | None = None, model_version: str = "", *, wait_seconds: float = 0.0
) -> str | None:
    """`request_training_slot` for code on an event loop."""

    def take() -> str | None:
        return request_training_slot(board_type, num_players, model_version, wait_seconds=wait_seconds)

    def give_back(job_id: str | None) -> None:
        if job_id is not None:
            release_training_slot(job_id, error=_CANCELLED)

    return await take_in_thread(take, give_back)


async def async_release_training(job_id: str, *, model_path: str = "", error: str = "") -> bool:
    return await asyncio.to_thread(release_training_slot, job_id, model_path=model_path, error=error)


@asynccontextmanager
async def async_training_slot(
    board_type: str, num_players: int | None = None, model_version: str = "", *, wait_seconds: float = 0.0
) -> AsyncIterator[str | None]:
    """`training_slot` for a block of asynchronous code."""
    # The same generator, driven from threads: taking a slot and telling its end both block.
    slot = training_slot(board_type, num_players, model_version, wait_seconds=wait_seconds)
    cancelled = asyncio.CancelledError(_CANCELLED)
    job_id = await take_in_thread(
        slot.__enter__, lambda _: slot.__exit__(type(cancelled), cancelled, cancelled.__traceback__)
    )
    try:
        yield job_id
    except BaseException as error:
        await asyncio.to_thread(slot.__exit__, type(error), error, error.__traceback__)
        raise
    await asyncio.to_thread(slot.__exit__, None, None, None)


def _key(board_type: str, num_players: int | None) -> str:
    """The config of a board and a number of players, or the one that *board_type* names alone."""
    check_text("board_type", board_type)
    if num_players is not None:
        check_integer("num_players", num_players, low=PLAYERS_MIN, high=PLAYERS_MAX)
    elif board_type in known_boards():
        raise ConfigError(f"how many play {board_type}? Name the number, or a config such as hex8_2p")
    config = board_type if num_players is None else f"{board_type}_{num_players}p"
    check_config(config)
    return config
