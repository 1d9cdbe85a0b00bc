"""The work queue in the words of the documents: what is pending, runs, was completed or failed."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ringrift.engine.blocking import run_blocking
from ringrift.engine.opening import existing_engine
from ringrift.engine.ports import Engine, WorkItem, WorkQueue, WorkState
from ringrift.engine.work_rules import LEASE_RAN_OUT

PENDING_SHOWN = 10
RUNNING_SHOWN = 1000
DEAD_LOOKED_AT = 1000
ENDS_AT_ONCE, PAGES_MAX = 500, 40
ANSWER_S = 10.0

STATUS_OF = {
    WorkState.BLOCKED: "pending",
    WorkState.READY: "pending",
    WorkState.CLAIMED: "running",
    WorkState.DONE: "completed",
    WorkState.DEAD: "failed",
    WorkState.CANCELLED: "cancelled",
}


_PARTS = ("total_items", "by_status", "by_type", "pending", "running", "stats")


async def work_queue_status(engine: Engine) -> dict[str, Any]:
    """The reply of the documents. Totals count what the queue still keeps of ended items."""
    counts = await engine.queue.counts()
    by_status: Counter[str] = Counter()
    for states in counts.values():
        by_status.update({STATUS_OF[state]: number for state, number in states.items()})
    dead = await engine.queue.dead(limit=DEAD_LOOKED_AT)
    total = by_status.total()
    return {
        "total_items": total,
        "by_status": dict(by_status),
        "by_type": {kind: sum(states.values()) for kind, states in counts.items()},
        "pending": [as_documented(item) for item in await engine.queue.ready(limit=PENDING_SHOWN)],
        "running": [as_documented(item) for item in await engine.queue.claimed(limit=RUNNING_SHOWN)],
        "stats": {
            "total_added": total,
            "total_completed": by_status["completed"],
            "total_failed": by_status["failed"],
            "total_timeout": sum(item.error == LEASE_RAN_OUT for item in dead),
        },
    }


async def newest_ended(queue: WorkQueue, *, limit: int, kind: str | None = None) -> list[WorkItem]:
    """Up to *limit* items that ended last, of one kind or of all, newest first.

    The queue tells ends from the oldest on; the number of the newest is found by halving. A kind that is rare
    among thousands of ends may be found in part only.
    """
    low, high = 0, 1
    while await queue.ended(after=high, limit=1):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if await queue.ended(after=middle, limit=1) else (low, middle)
    found: list[WorkItem] = []
    until = high
    for _ in range(PAGES_MAX):
        if until <= 0 or len(found) >= limit:
            break
        page = await queue.ended(after=max(0, until - ENDS_AT_ONCE), limit=ENDS_AT_ONCE)
        ended = [each for each in page if each.number <= until and kind in (None, each.item.kind)]
        found += [each.item for each in reversed(ended)]
        until -= ENDS_AT_ONCE
    return found[:limit]


def as_documented(item: WorkItem) -> dict[str, Any]:
    """One item with the field names of the documents."""
    return {
        "work_id": item.id,
        "work_type": item.kind,
        "priority": item.priority,
        "config": dict(item.payload),
        "status": STATUS_OF[item.state],
        "claimed_by": item.holder or "",
        "attempts": item.attempts,
        "max_attempts": item.attempts_max,
        "created_at": item.added_s,
        "claimed_at": item.changed_s if item.state is WorkState.CLAIMED else 0.0,
        "result": item.result,
        "error": item.error,
    }


def get_work_queue_status() -> dict[str, Any]:
    """`work_queue_status` of this process's engine, for code without a loop; None is what nobody knows."""
    return run_blocking(_shared_status(), timeout_s=ANSWER_S)


async def _shared_status() -> dict[str, Any]:
    engine = await existing_engine()
    return dict.fromkeys(_PARTS) if engine is None else await work_queue_status(engine)
