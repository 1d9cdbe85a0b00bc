"""What a plan depends on, and what it says."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import quote

import msgspec

from ringrift.decoding import decode_as
from ringrift.engine.encoding import UNREADABLE
from ringrift.engine.ports import KeyValue
from ringrift.errors import Corrupt
from ringrift.learning.facts import AnyFact
from ringrift.learning.feedback_rules import NEUTRAL, Feedback
from ringrift.learning.gates import Gate
from ringrift.learning.rules import LearningRules
from ringrift.learning.run_status import EXPLAIN_PREFIX
from ringrift.learning.state import ConfigState, stage_of
from ringrift.work.job_orders import JobOrder

STAGES = ("selfplay", "validate", "export", "train", "evaluate")
# What a config can do without; it is ordered when nothing of the same share is wanted more.
EXTRA_STAGES = ("recompute", "tournament", "diagnose", "distillation", "small_net")
PRIORITIES = {"train": 100, "validate": 95, "export": 90, "evaluate": 85, "selfplay": 75}
PRIORITY_EXTRA = 80  # above games, of which one always waits


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a plan may depend on."""

    state: ConfigState
    rules: LearningRules
    now_s: float
    paused: str | None = None  # the reason
    feedback: Feedback = NEUTRAL
    rating: float | None = None  # of the champion


@dataclass(frozen=True, slots=True)
class Wanted:
    """Work to order as soon as somebody can do it."""

    kind: str
    order: JobOrder
    reason: str

    @property
    def stage(self) -> str:
        return stage_of(self.kind, self.order.purpose)

    @property
    def priority(self) -> int:
        return priority_of(self.stage)


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a stage does or does not do something now."""

    stage: str
    will: bool
    reason: str
    until_s: float | None = None
    paused: bool = False  # it waits because somebody paused it


async def read_explanations(kv: KeyValue, config: str) -> list[Explanation]:
    """Return what the plan last said of the stages of *config*; empty if it has said nothing."""
    key = EXPLAIN_PREFIX + quote(config, safe="")
    entry = await kv.get(key)
    if entry is None:
        return []
    try:
        return decode_as(entry.value, list[Explanation])
    except UNREADABLE as error:
        raise Corrupt(
            key, found=f"no explanation of this version: {error}", advice="`ringrift run` writes it anew"
        ) from None


@dataclass(slots=True)
class ConfigPlan:
    """What follows from a snapshot."""

    decided: list[AnyFact] = field(default_factory=list)
    wanted: list[Wanted] = field(default_factory=list)
    explanations: list[Explanation] = field(default_factory=list)
    rows_collected: int = 0  # that no training was offered, and that are no backlog
    games_collected: int = 0  # that are not checked, and are no backlog either

    def say(self, stage: str, reason: str, *, will: bool = False, until_s: float | None = None) -> None:
        self.explanations.append(Explanation(stage=stage, will=will, reason=reason, until_s=until_s))

    def say_closed(self, stage: str, gate: Gate) -> None:
        self.explanations.append(
            Explanation(stage=stage, will=False, reason=gate.reason, until_s=gate.until_s, paused=gate.paused)
        )

    def want(self, kind: str, order: JobOrder, reason: str) -> None:
        wanted = Wanted(kind, order, reason)
        self.wanted.append(wanted)
        self.say(wanted.stage, reason, will=True)


def priority_of(stage: str) -> int:
    return PRIORITIES.get(stage, PRIORITY_EXTRA)


def is_running(snapshot: Snapshot, made: ConfigPlan, stage: str) -> bool:
    """Whether a job of *stage* is open; the plan then says which."""
    jobs = snapshot.state.open_of(stage)
    if jobs:
        made.say(stage, f"{jobs[0].job_id} is under way: {jobs[0].reason}")
    return bool(jobs)
