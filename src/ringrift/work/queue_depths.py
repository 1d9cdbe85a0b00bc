"""The named queues, what each may hold, and how deep each is now.

Depths are read, never kept: jobs that wait come from the engine's work queue, rows and games that wait for
training or for their check from the status that the control process stores.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from ringrift.decoding import decode_as
from ringrift.engine.encoding import UNREADABLE
from ringrift.engine.ports import Engine, WorkState
from ringrift.errors import Corrupt
from ringrift.work.backpressure_levels import QueueLimits

RUN_STATUS_KEY = "learning/status"  # written by the control process, at most once a second

WorkCounts = Mapping[str, Mapping[WorkState, int]]


class QueueType(StrEnum):
    """What can pile up."""

    TRAINING_DATA = "training_data"  # accepted rows that no training has been offered and the next needs not
    PENDING_GAMES = "pending_games"  # games whose check by the rules is due
    EVALUATION = "evaluation_queue"
    PROMOTION = "promotion_queue"  # models that wait for a verdict
    SYNC = "sync_queue"
    EXPORT = "export_queue"

    @classmethod
    def _missing_(cls, value: object) -> QueueType | None:
        """Read the short names too: `evaluation` is `evaluation_queue`."""
        return cls.__members__.get(value.upper().removesuffix("_QUEUE")) if isinstance(value, str) else None


QUEUE_LIMITS: Mapping[QueueType, QueueLimits] = {
    QueueType.TRAINING_DATA: QueueLimits(soft=100_000, hard=500_000, target=50_000, drain_per_hour=10_000),
    QueueType.PENDING_GAMES: QueueLimits(soft=1_000, hard=5_000, target=500, drain_per_hour=500),
    QueueType.EVALUATION: QueueLimits(soft=50, hard=200, target=20, drain_per_hour=20),
    QueueType.PROMOTION: QueueLimits(soft=10, hard=50, target=5, drain_per_hour=5),
    QueueType.SYNC: QueueLimits(soft=100, hard=500, target=50, drain_per_hour=100),
    QueueType.EXPORT: QueueLimits(soft=20, hard=100, target=10, drain_per_hour=10),
}

_KINDS = {
    QueueType.EVALUATION: ("evaluate", "evaluation", "gauntlet", "tournament"),
    QueueType.PROMOTION: ("promote", "promotion"),
    QueueType.SYNC: ("sync", "data_sync"),
    QueueType.EXPORT: ("export",),
}
_WAITING = (WorkState.READY, WorkState.BLOCKED)


class _Backlog(msgspec.Struct, frozen=True):
    """The part of a config's status that says what waits."""

    rows: int = 0
    trained_rows: int = 0
    games_unchecked: int = 0
    rows_collected: int = 0  # what the plan gathers on purpose is no backlog
    games_collected: int = 0


class _RunBacklog(msgspec.Struct, frozen=True):
    configs: dict[str, _Backlog] = {}


def waiting(counts: WorkCounts, kinds: tuple[str, ...]) -> int:
    """How many items of *kinds* are not claimed yet."""
    return sum(counts.get(kind, {}).get(state, 0) for kind in kinds for state in _WAITING)


def waiting_in_all(counts: WorkCounts) -> int:
    return waiting(counts, tuple(counts))


def in_hand(counts: WorkCounts, kinds: tuple[str, ...]) -> int:
    """How many items of *kinds* are claimed now."""
    return sum(counts.get(kind, {}).get(WorkState.CLAIMED, 0) for kind in kinds)


def depths_of(counts: WorkCounts, run_status: bytes | None) -> dict[QueueType, int]:
    """How deep every queue is. Without a run there is nothing that waits for training or a check."""
    backlog = _read_backlog(run_status)
    configs = backlog.configs.values()
    untrained = sum(max(0, each.rows - each.trained_rows - each.rows_collected) for each in configs)
    unchecked = sum(max(0, each.games_unchecked - each.games_collected) for each in configs)
    return {
        QueueType.TRAINING_DATA: untrained,
        QueueType.PENDING_GAMES: unchecked,
        **{queue: waiting(counts, kinds) for queue, kinds in _KINDS.items()},
    }


async def read_depths(engine: Engine) -> dict[QueueType, int]:
    """Read how deep every queue is now."""
    status = await engine.kv.get(RUN_STATUS_KEY)
    return depths_of(await engine.queue.counts(), None if status is None else status.value)


def _read_backlog(run_status: bytes | None) -> _RunBacklog:
    if run_status is None:
        return _RunBacklog()
    try:
        return decode_as(run_status, _RunBacklog)
    except UNREADABLE as error:
        advice = "The control process writes it anew with its next step."
        raise Corrupt(RUN_STATUS_KEY, found=f"the status is not readable: {error}", advice=advice) from None
