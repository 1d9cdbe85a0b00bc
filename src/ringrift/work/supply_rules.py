"""How much work is kept ready: as much as can be taken now, and a little more.

Work is made when somebody can do it, never by a timer, so the queue cannot grow ahead of the workers. The
loop orders games by `wanted_items`, and the queue populator shows the same answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ringrift.errors import ConfigError
from ringrift.work.worker_records import WorkerRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class SupplyLimits:
    """Bounds on what waits in the queue."""

    ahead: int = 1  # items beyond what the slots take: nobody is idle while the next is planned
    soft: int = 500  # from here on only what is running is replaced
    hard: int = 1000  # from here on nothing is added
    trickle: int = 1  # what goes on when production is to stop, so that ratings and health stay fresh

    def __post_init__(self) -> None:
        if self.ahead < 0 or not 0 < self.soft <= self.hard or self.trickle < 0:
            raise ConfigError("the supply needs 0 <= ahead, 0 < soft <= hard and 0 <= trickle")


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """How many items to add now, and why."""

    items: int
    reason: str
    slots: int
    ready: int
    claimed: int


def slots_for(workers: Iterable[WorkerRecord], kind: str) -> int:
    """Return the slots of those workers that take jobs of *kind*."""
    return sum(
        worker.slots
        for worker in workers
        if not worker.stopping and not worker.set_aside and (worker.kinds is None or kind in worker.kinds)
    )


def wanted_items(
    slots: int,
    *,
    ready: int,
    claimed: int,
    throttle: float = 1.0,
    limits: SupplyLimits | None = None,
) -> Supply:
    """Return how many items to add.

    *throttle* is the part of full speed that backpressure leaves: at 0 a trickle goes on.
    """
    limits = limits or SupplyLimits()
    if min(slots, ready, claimed) < 0 or not 0.0 <= throttle <= 1.0:
        raise ConfigError("slots and items are never negative, and the throttle is between 0 and 1")

    def supply(items: int, reason: str) -> Supply:
        return Supply(items=items, reason=reason, slots=slots, ready=ready, claimed=claimed)

    if ready >= limits.hard:
        return supply(0, f"{ready} items wait, which is the most that may")
    if slots == 0:
        return supply(0, "no worker takes such work")
    if throttle == 0.0:
        items = max(0, min(limits.trickle, slots) - ready - claimed)
        return supply(items, "production is to stop: only a trickle goes on")
    ahead = 0 if ready >= limits.soft else limits.ahead
    target = math.ceil(slots * throttle) + ahead
    items = max(0, min(target - ready - claimed, limits.hard - ready))
    if throttle < 1.0 and not items:
        return supply(0, f"backpressure leaves games {throttle:.0%} of {slots} slots")
    if items:
        return supply(items, f"{slots} slots can take more than the {ready + claimed} items there are")
    return supply(0, f"{ready} items wait for {slots} slots")
