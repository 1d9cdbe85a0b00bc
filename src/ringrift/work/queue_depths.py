"""The named queues, what each may hold, and how deep each is now.

Depths are read, never kept: jobs that wait come from the engine's work queue; rows, games and models that
wait for training, their check or a verdict from the status that the control process stores; files that have
yet to reach a node from the records of deliveries.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from ringrift.decoding import decode_as
from ringrift.engine.encoding import UNREADABLE
from ringrift.engine.ports import Engine, KeyValue, WorkState
from ringrift.errors import Corrupt
from ringrift.work.backpressure_levels import QueueLimits

RUN_STATUS_KEY = "learning/status"  # written by the control process, at most once a second
DELIVERIES = "data/deliveries/"  # one record for each file and target

WorkCounts = Mapping[str, Mapping[WorkState, int]]


class QueueType(StrEnum):
    """What can pile up."""

    TRAINING_DATA = "training_data"  # accepted rows that no training has been offered and the next needs not
    PENDING_GAMES = "pending_games"  # games whose check by the rules is due
    EVALUATION = "evaluation_queue"
    PROMOTION = "promotion_queue"  # models that wait for a verdict
    SYNC = "sync_queue"  # files on their way to a node, or due to be sent again
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
    candidates: int = 0


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


class _Delivery(msgspec.Struct, frozen=True):
    """The part of a record that says whether its file has yet to arrive."""

    status: str = "pending"
    next_retry_at: float | None = None

    @property
    def is_open(self) -> bool:
        return self.status != "verified" and (self.status != "failed" or self.next_retry_at is not None)


class OpenDeliveries:
    """How many files have yet to reach their nodes. Keeps which do, and reads only what changed."""

    def __init__(self) -> None:
        self._open: set[str] = set()
        self._revision = 0

    async def count(self, kv: KeyValue) -> int:
        while True:
            page = await kv.changes(DELIVERIES, after=self._revision)
            for change in page.changes:
                if change.value is not None and decode_as(change.value, _Delivery).is_open:
                    self._open.add(change.key)
                else:
                    self._open.discard(change.key)
            self._revision = page.revision
            if page.complete:
                return len(self._open)


def depths_of(counts: WorkCounts, run_status: bytes | None, *, deliveries: int) -> dict[QueueType, int]:
    """How deep every queue is. Without a run there is nothing that waits for training or a check."""
    backlog = _read_backlog(run_status)
    configs = backlog.configs.values()
    untrained = sum(max(0, each.rows - each.trained_rows - each.rows_collected) for each in configs)
    unchecked = sum(max(0, each.games_unchecked - each.games_collected) for each in configs)
    return {
        QueueType.TRAINING_DATA: untrained,
        QueueType.PENDING_GAMES: unchecked,
        QueueType.PROMOTION: sum(config.candidates for config in backlog.configs.values()),
        QueueType.SYNC: deliveries,
        **{queue: waiting(counts, kinds) for queue, kinds in _KINDS.items()},
    }


async def read_depths(engine: Engine, deliveries: OpenDeliveries | None = None) -> dict[QueueType, int]:
    """Read how deep every queue is now; with the *deliveries* of the last time, only what changed of them."""
    status = await engine.kv.get(RUN_STATUS_KEY)
    under_way = await (deliveries or OpenDeliveries()).count(engine.kv)
    value = None if status is None else status.value
    return depths_of(await engine.queue.counts(), value, deliveries=under_way)


def _read_backlog(run_status: bytes | None) -> _RunBacklog:
    if run_status is None:
        return _RunBacklog()
    try:
        return decode_as(run_status, _RunBacklog)
    except UNREADABLE as error:
        advice = "The control process writes it anew with its next step."
        raise Corrupt(RUN_STATUS_KEY, found=f"the status is not readable: {error}", advice=advice) from None
