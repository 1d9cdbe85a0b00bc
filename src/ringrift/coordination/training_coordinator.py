"""Training under the names of the documents: slots for whoever trains, and what is known of the trainings of
the run.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ringrift.coordination.handler_base import SubscribedCoordinator
from ringrift.coordination.run_coordinator import get_loop_waker
from ringrift.coordination.stale_fallback import StaleFallbackDaemon, create_stale_fallback
from ringrift.coordination.training_trigger_daemon import (
    TrainingDecision,
    TrainingTriggerDaemon,
    create_training_trigger,
)
from ringrift.engine.arguments import check_integer, check_part, check_text
from ringrift.engine.blocking import run_blocking, take_in_thread
from ringrift.engine.run_reports import reported
from ringrift.errors import ConfigError
from ringrift.events.event import RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.learning.intake import is_claim
from ringrift.learning.plan.training_data import Fallback, fallback_tier, good_model, good_samples
from ringrift.learning.requests import SLOTS_MAX, Refusal, Refused, TrainingJob, TrainingSlots
from ringrift.runtime import Runtime
from ringrift.work.coordinator import AWAY, ConfigSignals, NodeNotes
from ringrift.work.shares import PLAYERS_MAX, PLAYERS_MIN, board_and_players, check_config

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
HISTORY_MAX = 500
RUNNING_MAX = 200
UNHEALTHY_S_MAX = 900.0  # a cluster that nobody called unhealthy again for so long may be tried

_NOTED = (
    "ADAPTIVE_PARAMS_CHANGED CLUSTER_CAPACITY_CHANGED CMAES_TRIGGERED EVALUATION_COMPLETED "
    "HYPERPARAMETER_UPDATED LOW_QUALITY_DATA_WARNING NAS_TRIGGERED PER_BUFFER_REBUILT PER_PRIORITIES_UPDATED "
    "QUALITY_SCORE_UPDATED REGRESSION_CRITICAL REGRESSION_DETECTED TRAINING_BLOCKED_BY_QUALITY"
)
_WAKE = (
    "DATA_SYNC_COMPLETED MODEL_PROMOTED NEW_GAMES_AVAILABLE PROMOTION_ROLLED_BACK REGRESSION_CLEARED "
    "SELFPLAY_COMPLETE TASK_ABANDONED TRAINING_ROLLBACK_NEEDED TRAINING_TRIGGERED"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRecord:
    """One training, as it was told; *ended_s* is None while it runs."""

    job_id: str
    config_key: str
    node_id: str = ""
    started_s: float = 0.0
    epoch: int = 0
    loss: float | None = None
    ended_s: float | None = None
    success: bool = False
    error: str = ""
    model_path: str = ""


class TrainingCoordinator(SubscribedCoordinator):
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
    ) -> None:
        super().__init__(NAME, router=router, runtime=runtime)
        self.slots = TrainingSlots(runtime=self.runtime) if slots is None else slots
        check_part("slots", self.slots, TrainingSlots)
        self.nodes = NodeNotes()
        self.signals = ConfigSignals()
        self._running: dict[str, TrainingRecord] = {}
        self._history: deque[TrainingRecord] = deque(maxlen=HISTORY_MAX)
        self._ended: deque[str] = deque(maxlen=HISTORY_MAX)
        self._unhealthy: tuple[float, str] | None = None
        self.refusals: dict[str, int] = {}

    def reactions(self) -> Mapping[str, Callback]:
        table: dict[str, Callback] = dict.fromkeys(_NOTED.split(), self.signals.note)
        table |= dict.fromkeys(_WAKE.split(), self._wake)
        return table | {
            "TRAINING_STARTED": self._on_started,
            "TRAINING_PROGRESS": self._on_progress,
            "TRAINING_COMPLETED": self._on_ended,
            "TRAINING_FAILED": self._on_ended,
            "P2P_CLUSTER_UNHEALTHY": self._on_unhealthy,
            "P2P_CLUSTER_HEALTHY": self._on_healthy,
            "NODE_UNHEALTHY": lambda event: self.nodes.note(event, AWAY),
            "P2P_NODE_DEAD": lambda event: self.nodes.note(event, AWAY),
            "NODE_RECOVERED": self._on_node_recovered,
        }

    # --- slots ----------------------------------------------------------------------------------------

    async def request(
        self, config_key: str, *, model_version: str = "", wait_s: float = 0.0
    ) -> TrainingJob | Refused:
        """Take a slot, and tell that a training started; or say why not."""
        if (why := self.why_unhealthy()) is not None:
            return self._count(Refused(Refusal.CLUSTER_UNHEALTHY, why))
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

        Of a slot that is not held here, only a model is told: its failure is its holder's to tell.
        """
        record = self._running.get(job_id)
        held = await self.slots.release(job_id)
        # The id is config, time, process and token; the config itself contains an underscore.
        config = record.config_key if record else job_id.rsplit("_", 3)[0]
        if model_path and not error:
            done = {"config_key": config, "job_id": job_id, "success": True, "model_path": model_path}
            await self.tell("TRAINING_COMPLETED", {**done, "val_loss": val_loss})
        elif held:
            failed = {"config_key": config, "job_id": job_id, "error": error or "it ended without a model"}
            await self.tell("TRAINING_FAILED", failed)
        return held

    async def leave(self, job_id: str) -> bool:
        """Give the slot back after a training whose model somebody else tells of."""
        if (record := self._running.get(job_id)) is not None:
            self._end(replace(record, ended_s=self.runtime.now_s(), success=True))
        return await self.slots.release(job_id)

    def why_unhealthy(self) -> str | None:
        """Why the cluster takes no training; runs out by itself."""
        if self._unhealthy is None:
            return None
        since_s, reason = self._unhealthy
        return reason if self.runtime.now_s() - since_s < UNHEALTHY_S_MAX else None

    def _count(self, refused: Refused) -> Refused:
        self.refusals[refused.reason.value] = self.refusals.get(refused.reason.value, 0) + 1
        return refused

    # --- what it hears --------------------------------------------------------------------------------

    def _wake(self, event: RouterEvent) -> None:
        self.signals.note(event)
        get_loop_waker().ring_for(event)

    def _on_started(self, event: RouterEvent) -> None:
        told = event.payload
        job_id = str(told["job_id"])
        # Events of other processes may come out of order: the end before the start.
        if job_id in self._ended:
            return
        # A training whose end was never told must not keep its place for ever.
        if len(self._running) >= RUNNING_MAX:
            oldest = next(iter(self._running.values()))
            self._end(replace(oldest, ended_s=self.runtime.now_s(), error="no end was told"))
        self._running[job_id] = TrainingRecord(
            job_id=job_id,
            config_key=str(told["config_key"]),
            node_id=str(told.get("node_id") or ""),
            started_s=event.timestamp,
        )

    def _on_progress(self, event: RouterEvent) -> None:
        told = event.payload
        record = self._running.get(str(told["job_id"]))
        if record is not None:
            changed = replace(record, epoch=int(told["epoch"]), loss=float(told["train_loss"]))
            self._running[record.job_id] = changed

    def _on_ended(self, event: RouterEvent) -> None:
        told = event.payload
        job_id = str(told.get("job_id") or event.event_id)
        if job_id in self._ended:
            return
        if is_claim(event) and job_id not in self._running:
            # Somebody's word. If it comes with a model, the loop tells of that once it has taken it in.
            return
        record = self._running.get(job_id) or TrainingRecord(
            job_id=job_id, config_key=str(told["config_key"]), started_s=event.timestamp
        )
        self._end(
            replace(
                record,
                ended_s=event.timestamp,
                success=event.event_type == "TRAINING_COMPLETED" and told.get("success") is not False,
                loss=told.get("val_loss") or record.loss,
                error=str(told.get("error") or ""),
                model_path=str(told.get("model_path") or ""),
            )
        )
        get_loop_waker().ring_for(event)

    def _end(self, record: TrainingRecord) -> None:
        self._running.pop(record.job_id, None)
        self._history.append(record)
        self._ended.append(record.job_id)

    def _on_unhealthy(self, event: RouterEvent) -> None:
        reason = event.payload.get("reason") or "the cluster is unhealthy"
        self._unhealthy = (self.runtime.now_s(), str(reason))

    def _on_healthy(self, event: RouterEvent) -> None:
        self._unhealthy = None
        get_loop_waker().ring_for(event)

    def _on_node_recovered(self, event: RouterEvent) -> None:
        self.nodes.clear(event)
        get_loop_waker().ring_for(event)

    # --- what it shows --------------------------------------------------------------------------------

    def get_running(self) -> list[TrainingRecord]:
        return list(self._running.values())

    def get_history(self, limit: int = 50) -> list[TrainingRecord]:
        """Return ended trainings, newest first."""
        return list(self._history)[::-1][:limit]

    @reported
    def get_stats(self) -> dict[str, Any]:
        return {
            "running": len(self._running),
            "completed": sum(record.success for record in self._history),
            "failed": sum(not record.success for record in self._history),
            "refusals": dict(self.refusals),
            "cluster_unhealthy": self.why_unhealthy(),
        }


def get_training_coordinator() -> TrainingCoordinator:
    """Return the coordinator of this process."""
    return TrainingCoordinator.get_instance()


reset_training_coordinator = TrainingCoordinator.reset_instance


def wire_training_events(router: UnifiedEventRouter | None = None) -> TrainingCoordinator:
    """Return the coordinator of this process, subscribed; for another *router*, one of its own."""
    found = get_training_coordinator() if router is None else TrainingCoordinator(router=router)
    found.wire()
    return found


# The plain functions may be called from any thread but not on an event loop; those named `async_` are for
# one.


ANSWER_S = 15.0
_CANCELLED = "whoever asked for the slot was cancelled"


def request_training_slot(
    board_type: str, num_players: int | None = None, model_version: str = "", *, wait_seconds: float = 0.0
) -> str | None:
    """Take a slot and return the id of the training; None if there is none (`can_train` says why)."""
    asking = get_training_coordinator().request(
        _key(board_type, num_players), model_version=model_version, wait_s=wait_seconds
    )
    answer = run_blocking(asking, timeout_s=wait_seconds + ANSWER_S)
    return answer.job_id if isinstance(answer, TrainingJob) else None


def release_training_slot(
    job_id: str, *, model_path: str = "", error: str = "", val_loss: float | None = None
) -> bool:
    """Give a slot back and tell how the training ended; False if this process did not hold it."""
    ending = get_training_coordinator().finish(job_id, model_path=model_path, error=error, val_loss=val_loss)
    return run_blocking(ending, timeout_s=ANSWER_S)


def update_training_progress(job_id: str, epochs: int, best_val_loss: float | None = None) -> None:
    """Say how far a training is; `LeaseLost` when it lost its slot and must stop."""
    slots = get_training_coordinator().slots
    run_blocking(slots.update(job_id, epochs=epochs, best_val_loss=best_val_loss), timeout_s=ANSWER_S)


def can_train(board_type: str, num_players: int | None = None) -> tuple[bool, str]:
    """Return whether a slot would be given now, and why not."""
    return run_blocking(async_can_train(board_type, num_players), timeout_s=ANSWER_S)


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
    elif ":" not in board_type and board_and_players(board_type)[0] == board_type:
        raise ConfigError(f"how many play {board_type}? Name the number, or a config such as hex8_2p")
    config = board_type if num_players is None else f"{board_type}_{num_players}p"
    check_config(config)
    return config
