"""What a plan depends on, and what it says."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from ringrift.learning.facts import AnyFact
from ringrift.learning.feedback_rules import NEUTRAL, Feedback
from ringrift.learning.rules import LearningRules
from ringrift.learning.state import ConfigState
from ringrift.work.job_orders import JobOrder

STAGES = ("selfplay", "validate", "export", "train", "evaluate")
PRIORITIES = {"train": 100, "validate": 95, "export": 90, "evaluate": 85, "selfplay": 75}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a plan may depend on."""

    state: ConfigState
    rules: LearningRules
    now_s: float
    paused: str | None = None  # the reason
    feedback: Feedback = NEUTRAL


@dataclass(frozen=True, slots=True)
class Wanted:
    """Work to order as soon as somebody can do it."""

    kind: str
    order: JobOrder
    reason: str

    @property
    def priority(self) -> int:
        return PRIORITIES[self.kind]


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a stage does or does not do something now."""

    stage: str
    will: bool
    reason: str
    until_s: float | None = None


@dataclass(slots=True)
class ConfigPlan:
    """What follows from a snapshot."""

    decided: list[AnyFact] = field(default_factory=list)
    wanted: list[Wanted] = field(default_factory=list)
    explanations: list[Explanation] = field(default_factory=list)

    def say(self, stage: str, reason: str, *, will: bool = False, until_s: float | None = None) -> None:
        self.explanations.append(Explanation(stage=stage, will=will, reason=reason, until_s=until_s))

    def want(self, kind: str, order: JobOrder, reason: str) -> None:
        self.wanted.append(Wanted(kind, order, reason))
        self.say(kind, reason, will=True)


def is_running(snapshot: Snapshot, made: ConfigPlan, stage: str) -> bool:
    """Whether a job of *stage* is open; the plan then says which."""
    jobs = snapshot.state.open_of(stage)
    if jobs:
        made.say(stage, f"{jobs[0].job_id} is under way: {jobs[0].reason}")
    return bool(jobs)
