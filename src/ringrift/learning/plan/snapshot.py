"""What a plan depends on, and what it says: state of a config, rules in force, rating and feedback."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any
from urllib.parse import quote

import msgspec

from ringrift.decoding import convert_to, decode_as
from ringrift.engine.encoding import UNREADABLE
from ringrift.engine.ports import KeyValue
from ringrift.errors import Corrupt
from ringrift.learning.facts.facts import RULES_TOPIC, AnyFact, Noted
from ringrift.learning.facts.state import ConfigState, stage_of
from ringrift.learning.judging.feedback import NEUTRAL, Feedback, RatingCurves
from ringrift.learning.plan.rules import LearningRules
from ringrift.learning.plan.stages import Gate
from ringrift.learning.run_status import EXPLAIN_PREFIX
from ringrift.learning.tuning import tuned_rules
from ringrift.work.job.orders import JobOrder

STAGES = ("selfplay", "validate", "export", "train", "evaluate")
# What a config can do without; it is ordered when nothing of the same share is wanted more.
TUNING = "tuning"  # only in what is said: what searches found, and whether it is in force
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


# The rules of a run are noted among the facts, so that its decisions can be made again by them.


CHANGES_SHOWN = 5
# What follows from the same facts and rules. Decisions of another version of the plan are not made again.
PLAN_VERSION = 11


def rules_of(fact: AnyFact) -> LearningRules | None:
    """The rules that *fact* puts in force; None if it is about something else."""
    if not isinstance(fact, Noted) or fact.topic != RULES_TOPIC:
        return None
    try:
        return convert_to(fact.details["rules"], LearningRules)
    except (KeyError, msgspec.ValidationError) as error:
        raise Corrupt(
            f"the rules noted at {fact.at_s:.0f}", found=str(error), advice="Use the version that wrote them"
        ) from None


def plan_version_of(fact: AnyFact) -> int | None:
    """Which version of the plan decides from *fact* on; None if it is about something else."""
    if not isinstance(fact, Noted) or fact.topic != RULES_TOPIC:
        return None
    version = fact.details.get("plan", 1)
    return version if isinstance(version, int) else 1


def decided_by_other_plans(facts: Sequence[AnyFact]) -> int:
    """How many of the first facts another version of the plan decided; those without rules are of any."""
    versions = ((number, plan_version_of(fact)) for number, fact in enumerate(facts))
    noted = [(number, version) for number, version in versions if version is not None]
    if not noted or noted[-1][1] == PLAN_VERSION:
        ours = [number for number, version in noted if version == PLAN_VERSION]
        others = [number for number, version in noted if version != PLAN_VERSION]
        return 0 if not others else min(number for number in ours if number > others[-1])
    return len(facts)


def rules_note(state: ConfigState, rules: LearningRules, *, at_s: float) -> Noted | None:
    """What to note of *rules*; None if they are the ones noted last."""
    noted = state.newest_note(RULES_TOPIC)
    now = decode_as(msgspec.json.encode(rules), dict[str, Any])
    before = None if noted is None else noted.details.get("rules")
    if before == now and noted is not None and plan_version_of(noted) == PLAN_VERSION:
        return None
    text = "as the run began" if before is None else _changes(before, now) or "another version of the plan"
    details = {"rules": now, "plan": PLAN_VERSION, "version": metadata.version("ringrift")}
    return Noted(at_s=at_s, topic=RULES_TOPIC, text=text, details=details)


def _changes(before: dict[str, Any], now: dict[str, Any]) -> str:
    changed = [
        f"{name} is {now.get(name)}, was {before.get(name)}"
        for name in now
        if now.get(name) != before.get(name)
    ]
    more = len(changed) - CHANGES_SHOWN
    return "; ".join(changed[:CHANGES_SHOWN]) + (f"; and {more} more" if more > 0 else "")


# How a config is looked at before it is planned for: the rules in force, the rating, and the feedback.
#
# The loop and the replay look in the same way, or a decision could not be made again.


def outlook(
    state: ConfigState,
    rules: LearningRules,
    curves: RatingCurves,
    *,
    now_s: float,
    paused: str | None = None,
) -> Snapshot:
    """All that the plan of *state* depends on now."""
    curve = curves.of(state)
    rating = next((point.rating for point in reversed(curve) if point.model == state.champion), None)
    return Snapshot(state, rules_in_force(state, rules), now_s, paused, curves.feedback(state), rating)


def rules_in_force(state: ConfigState, rules: LearningRules) -> LearningRules:
    """The rules with what searches found, and with the price that a row has now."""
    tuned = tuned_rules(state, rules)
    if state.price == 1.0:
        return tuned
    priced = msgspec.structs.replace(tuned.bucket, steps_per_row=tuned.bucket.steps_per_row * state.price)
    return msgspec.structs.replace(tuned, bucket=priced)
