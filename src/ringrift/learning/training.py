"""Training under the names of the documents: slots, the coordinator, triggers, and the way back.

Slots are for trainers of one's own; the loop orders its trainings itself, and neither trains a config that
the other is at. The plain functions may be called from any thread but not on an event loop; those named
`async_` are for one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from ringrift.engine.blocking import run_blocking
from ringrift.errors import ConfigError
from ringrift.learning.fallback import Fallback, fallback_tier, good_model, good_samples
from ringrift.learning.fallback_watch import StaleFallbackDaemon, create_stale_fallback
from ringrift.learning.training_coordinator import (
    TrainingCoordinator,
    TrainingRecord,
    get_training_coordinator,
    reset_training_coordinator,
    wire_training_events,
)
from ringrift.learning.training_slots import (
    SLOTS_MAX,
    Refusal,
    Refused,
    TrainingJob,
    TrainingSlots,
)
from ringrift.learning.training_triggers import (
    TrainingDecision,
    TrainingTriggerDaemon,
    create_training_trigger,
)
from ringrift.work.scheduling_budget import board_and_players

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

ANSWER_S = 15.0


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
    coordinator = get_training_coordinator()
    if (why := coordinator.why_unhealthy()) is not None:
        return False, f"{Refusal.CLUSTER_UNHEALTHY.value}: {why}"
    refused = await coordinator.slots.can_train(_key(board_type, num_players))
    return (True, "") if refused is None else (False, f"{refused.reason.value}: {refused.message}")


async def async_request_training(
    board_type: str, num_players: int | None = None, model_version: str = "", *, wait_seconds: float = 0.0
) -> str | None:
    """`request_training_slot` for code on an event loop."""
    return await asyncio.to_thread(
        request_training_slot, board_type, num_players, model_version, wait_seconds=wait_seconds
    )


async def async_release_training(job_id: str, *, model_path: str = "", error: str = "") -> bool:
    return await asyncio.to_thread(release_training_slot, job_id, model_path=model_path, error=error)


@asynccontextmanager
async def async_training_slot(
    board_type: str, num_players: int | None = None, model_version: str = "", *, wait_seconds: float = 0.0
) -> AsyncIterator[str | None]:
    """`training_slot` for a block of asynchronous code."""
    slot = training_slot(board_type, num_players, model_version, wait_seconds=wait_seconds)
    job_id = await asyncio.to_thread(slot.__enter__)
    try:
        yield job_id
    except BaseException as error:
        await asyncio.to_thread(slot.__exit__, type(error), error, error.__traceback__)
        raise
    await asyncio.to_thread(slot.__exit__, None, None, None)


def _key(board_type: str, num_players: int | None) -> str:
    """The config of a board and a number of players, or the one that *board_type* names alone."""
    if num_players is None:
        if board_and_players(board_type)[0] == board_type:
            raise ConfigError(f"how many play {board_type}? Name the number, or a config such as hex8_2p")
        return board_type
    if num_players < 1:
        raise ConfigError(f"{num_players} players cannot play {board_type}")
    return f"{board_type}_{num_players}p"
