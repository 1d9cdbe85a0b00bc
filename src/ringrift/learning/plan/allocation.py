"""Which of the wanted work is ordered now: a few items at a time, when a worker can take them.

Work is pulled. It is the turn of the config that has had the least processor time for its share, whatever it
was spent on; and the config does what it needs most. Games fill the slots and one more order waits, so that
no worker is idle while the next is planned; everything else takes the place of games, which give way at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ringrift.learning.facts.state import OpenJob
from ringrift.learning.plan.snapshot import ConfigPlan, Wanted
from ringrift.work.shares import PREPARING, FairTurns, Supply, next_kind, wanted_items

# Which config was served how much processor time, by jobs of every kind.
#
# Kept in memory only. After a restart everybody begins anew, which is fair enough.


SELFPLAY = "selfplay"
JOB_S_FIRST = {"selfplay": 20.0, "validate": 2.0, "export": 2.0, "train": 20.0, "evaluate": 20.0}
JOB_S_OTHER = 30.0
NEWEST_SHARE = 0.3  # of the newest measurement in what is expected of the next job


@dataclass(slots=True)
class Effort:
    """A job counts with what is expected of it until it ends."""

    turns: FairTurns = FairTurns()
    expected_s: dict[tuple[str, str], float] = field(default_factory=dict)  # config and kind: of one job
    booked_s: dict[str, float] = field(default_factory=dict)  # open job: what was expected of it

    def start(self, config: str, job: OpenJob, *, share: float) -> None:
        first_s = JOB_S_FIRST.get(job.kind, JOB_S_OTHER)
        expected_s = self.expected_s.get((config, job.kind), first_s)
        self.booked_s[job.job_id] = expected_s
        self.turns = self.turns.started(config, share=share, expected_s=expected_s)

    def end(self, config: str, job: OpenJob, cpu_s: float | None, *, share: float) -> None:
        """*cpu_s* is None for a job that failed: it served nobody."""
        booked_s, measured_s = self.booked_s.pop(job.job_id, 0.0), cpu_s or 0.0
        self.turns = self.turns.ended(config, share=share, expected_s=booked_s, measured_s=measured_s)
        if cpu_s is not None:
            before_s = self.expected_s.get((config, job.kind), cpu_s)
            self.expected_s[config, job.kind] = before_s + NEWEST_SHARE * (cpu_s - before_s)


# The choice among what is wanted.


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


def choose(
    plans: Mapping[str, ConfigPlan],
    capacity: Capacity,
    *,
    config_served: Mapping[str, float],
    config_shares: Mapping[str, float],
    held: Collection[str] = (),
) -> Choice | None:
    """The next order, or None while nothing is wanted or nobody could take it; kinds in *held* wait."""
    offers: dict[str, Wanted] = {}
    for config, plan in plans.items():
        possible = [
            each for each in plan.wanted if each.kind not in held and capacity.has_room_for(each.kind)
        ]
        if possible:
            offers[config] = min(possible, key=_rank)
    # Seconds of work that all other work waits for are never held up, but count as every other does.
    preparing = [config for config, wanted in offers.items() if wanted.kind in PREPARING]
    if not offers:
        return None
    config = next_kind(config_served, config_shares, preparing or offers)
    return Choice(config, offers[config])


def _rank(wanted: Wanted) -> int:
    """What a config needs most comes first. Each of the first is wanted only when it is due: a training when
    rows have earned it, a judgement within its share of the time; so games have what is left.
    """
    if wanted.kind in PREPARING:
        return 0
    return _RANKS.get(wanted.stage, 3)


_RANKS = {"train": 1, "evaluate": 2, SELFPLAY: 4}
