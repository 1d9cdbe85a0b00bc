"""Which of the wanted work is ordered now: a few items at a time, when a worker can take them.

Work is pulled. Games fill the slots and one more waits, so that no worker is idle while the next is planned;
everything else is ordered only when its kind has not had more than its share. So a long queue cannot
build up, and no kind of work starves another.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ringrift.learning.effort import SELFPLAY
from ringrift.learning.snapshot import ConfigPlan, Wanted
from ringrift.work.shares import PREPARE, PREPARING, FairClock, kind_of_share, next_kind
from ringrift.work.supply_rules import Supply, wanted_items


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the workers can take."""

    slots: int
    open_selfplay: int
    open_other: int
    throttle: float = 1.0  # the part of full speed that is left to games

    def supply(self) -> Supply:
        """How many more games may be ordered now, and why."""
        open_jobs = self.open_selfplay + self.open_other
        claimed = min(self.slots, open_jobs)
        return wanted_items(self.slots, ready=open_jobs - claimed, claimed=claimed, throttle=self.throttle)

    def has_room_for(self, kind: str) -> bool:
        if kind in PREPARING:
            return True  # at most one of each a config, and short
        if kind == SELFPLAY:
            return self.supply().items > 0
        return self.open_other < self.slots


@dataclass(frozen=True, slots=True)
class Choice:
    """What to order next."""

    config: str
    wanted: Wanted
    group: str  # the kind of work whose share pays


def choose(
    plans: Mapping[str, ConfigPlan],
    capacity: Capacity,
    clock: FairClock,
    *,
    kind_shares: Mapping[str, float],
    config_served: Mapping[str, float],
    config_shares: Mapping[str, float],
    held: Collection[str] = (),
) -> Choice | None:
    """The next order, or None while nothing is wanted or nobody could take it; kinds in *held* wait."""
    offers: dict[str, dict[str, Wanted]] = {}
    for config, plan in plans.items():
        for wanted in plan.wanted:
            if wanted.kind not in held and capacity.has_room_for(wanted.kind):
                # A plan names first what it wants most.
                offers.setdefault(kind_of_share(wanted.kind), {}).setdefault(config, wanted)
    if not offers:
        return None
    if PREPARE in offers:  # seconds of work that all other work waits for: it is counted, but never held up
        config = next_kind(config_served, config_shares, offers[PREPARE])
        return Choice(config, offers[PREPARE][config], PREPARE)
    # Where games have been served less than their share they go first, even if their own queue is full
    # at the moment; but nothing waits for games that nobody wants.
    games = any(each.kind == SELFPLAY for plan in plans.values() for each in plan.wanted)
    waiting = {SELFPLAY} if games and SELFPLAY not in held else set()
    group = next_kind(clock.served, kind_shares, {*offers, *waiting})
    if group not in offers:
        return None
    config = next_kind(config_served, config_shares, offers[group])
    return Choice(config, offers[group][config], group)
