"""The rules that a run goes by, noted among the facts, so that its decisions can be made again by them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from typing import Any

import msgspec

from ringrift.decoding import convert_to, decode_as
from ringrift.errors import Corrupt
from ringrift.learning.facts import RULES_TOPIC, AnyFact, Noted
from ringrift.learning.rules import LearningRules
from ringrift.learning.state import ConfigState

CHANGES_SHOWN = 5
# What follows from the same facts and rules. Decisions of another version of the plan are not made again.
PLAN_VERSION = 9


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
