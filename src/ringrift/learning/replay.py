"""Whether what a config did follows from what was known: every decision made again from the facts before it.

`replay` folds the facts one by one. Before each decision it asks the plan, with the rules that were in force
and at the recorded time, and reports where the recorded decision is not among those that the plan makes.
Pauses are no facts: a decision shows by itself that its config was not paused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ringrift.decoding import decode_as
from ringrift.learning.facts import (
    REBUILT_TOPIC,
    AnyFact,
    Archived,
    Blocked,
    GeneratorMoved,
    JobEnded,
    JobIssued,
    Noted,
    Promoted,
    Recalled,
    Rejected,
    RolledBack,
    Staged,
    TrainingReset,
    WorkerResumed,
    WorkerSetAside,
)
from ringrift.learning.outlook import outlook
from ringrift.learning.plan import plan
from ringrift.learning.recomputation import BY_PLAN, RECALL_ID
from ringrift.learning.results import OUTSIDE
from ringrift.learning.rules import LearningRules
from ringrift.learning.rules_record import decided_by_other_plans, rules_of
from ringrift.learning.snapshot import ConfigPlan, priority_of
from ringrift.learning.state import ConfigState, fold, stage_of, state_before
from ringrift.learning.trends_curves import RatingCurves

# Written beside the plan, by others or by the loop itself, which may then still act on the plan that it made
# before.
_BESIDE = (Noted, Blocked, Archived)
EARLIER_MAX = 8


class DecisionDivergence(msgspec.Struct, frozen=True, kw_only=True):
    """A decision that does not follow from what was known before it."""

    number: int  # of the fact, from 1
    at_s: float
    what: str
    why: str


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """What was known, and what followed from it, before one fact."""

    number: int
    state: ConfigState
    rules: LearningRules
    made: ConfigPlan
    fact: AnyFact | None  # None: after the last
    divergence: DecisionDivergence | None


def replay(config: str, facts: Sequence[AnyFact], rules: LearningRules) -> list[DecisionDivergence]:
    """All that does not follow. *rules* count until the facts name others."""
    return list(_divergences(config, facts, rules))


def rebuilt_facts(facts: Sequence[AnyFact]) -> int:
    """How many of the first facts were made again from sealed files, and so follow from nothing."""
    return max(
        (n for n, fact in enumerate(facts, 1) if isinstance(fact, Noted) and fact.topic == REBUILT_TOPIC),
        default=0,
    )


def moment(config: str, facts: Sequence[AnyFact], rules: LearningRules, *, at: int) -> Moment:
    """What the plan says after the first *at* facts, and whether the next fact follows from it."""
    told, after = facts[:at], facts[at] if at < len(facts) else None
    for fact in told:
        rules = rules_of(fact) or rules
    state = fold(config, told, bucket_rules=rules.bucket)
    at_s = state.last_s if after is None else after.at_s
    made = _plan(state, rules, at_s, RatingCurves())
    found = [each for each in replay(config, facts[: at + 1], rules) if each.number == at + 1]
    divergence = found[0] if found else None
    return Moment(number=at + 1, state=state, rules=rules, made=made, fact=after, divergence=divergence)


def _divergences(config: str, facts: Sequence[AnyFact], rules: LearningRules) -> Iterator[DecisionDivergence]:
    state, curves = state_before(config, facts, bucket_rules=rules.bucket), RatingCurves()
    earlier: list[ConfigPlan] = []  # those that the loop may still have acted on
    rebuilt = max(rebuilt_facts(facts), decided_by_other_plans(facts))
    for number, fact in enumerate(facts, start=1):
        if number <= rebuilt:
            pass  # taken from files, in the order of the files; or another version of the plan decided it
        elif _is_of_the_plan(fact):
            why = _why_not(fact, [_plan(state, rules, fact.at_s, curves), *earlier])
            if why:
                yield DecisionDivergence(number=number, at_s=fact.at_s, what=in_short(fact), why=why)
        elif isinstance(fact, JobEnded) and fact.job_id not in state.open_jobs:
            why = "no such job was open"
            yield DecisionDivergence(number=number, at_s=fact.at_s, what=in_short(fact), why=why)
        if isinstance(fact, _BESIDE):
            earlier = [_plan(state, rules, fact.at_s, curves), *earlier[: EARLIER_MAX - 1]]
        else:
            earlier = []
        state.apply(fact)
        rules = rules_of(fact) or rules


def _is_of_the_plan(fact: AnyFact) -> bool:
    """Whether only the plan can have made it: people recall games and set workers aside too."""
    match fact:
        case WorkerSetAside():
            return fact.by == BY_PLAN
        case JobIssued():
            return fact.order.purpose != OUTSIDE
        case Recalled():
            return fact.recall_id.startswith(RECALL_ID) and not fact.withdrawn
        case _:
            return isinstance(
                fact, Staged | Promoted | Rejected | RolledBack | GeneratorMoved | TrainingReset
            )


def _plan(state: ConfigState, rules: LearningRules, at_s: float, curves: RatingCurves) -> ConfigPlan:
    return plan(outlook(state, rules, curves, now_s=at_s))


def _why_not(fact: AnyFact, plans: Sequence[ConfigPlan]) -> str:
    """Why *fact* follows from none of *plans*; empty if it follows from one."""
    whys = [
        _why_not_ordered(fact, made) if isinstance(fact, JobIssued) else _why_not_decided(fact, made)
        for made in plans
    ]
    return "" if "" in whys else whys[0]


def _why_not_ordered(fact: JobIssued, made: ConfigPlan) -> str:
    if first := [each for each in made.decided if not isinstance(each, _BESIDE)]:
        return f"the plan decides first: {', '.join(in_short(each) for each in first)}"
    stage = stage_of(fact.kind, fact.order.purpose)
    wanted = [each for each in made.wanted if each.stage == stage]
    if not wanted:
        said = [each.reason for each in made.explanations if each.stage == stage]
        return f"the plan wants no {stage}: {'; '.join(said) or 'it says nothing of it'}"
    if fact.priority != priority_of(stage):
        return f"the priority of {stage} is {priority_of(stage)}, not {fact.priority}"
    lacking = [_difference(plain(each.order), plain(fact.order)) for each in wanted]
    return "" if "" in lacking else f"the plan orders it otherwise: {lacking[0]}"


def _why_not_decided(fact: AnyFact, made: ConfigPlan) -> str:
    if not made.decided:
        said = [each.reason for each in made.explanations if each.stage == "evaluate"]
        wanted = [each.reason for each in made.wanted if each.kind == "evaluate"]
        return f"the plan decides nothing here: {'; '.join(said or wanted) or 'it has nothing to judge'}"
    lacking = [_difference(plain(each), plain(fact)) for each in made.decided]
    return "" if "" in lacking else f"the plan decides otherwise: {lacking[0]}"


def _difference(expected: Any, found: Any, name: str = "") -> str:
    """The first place where two plain values differ; empty if nowhere."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in dict.fromkeys((*expected, *found)):
            if key not in expected or key not in found:
                return f"{name}{key} is {'missing' if key not in found else 'too much'}"
            if told := _difference(expected[key], found[key], f"{name}{key}."):
                return told
        return ""
    return "" if expected == found else f"{name.rstrip('.')} is {_brief(found)}, not {_brief(expected)}"


def _brief(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def plain(value: Any) -> Any:
    """As it comes back from the store."""
    return decode_as(msgspec.json.encode(value), Any)


def in_short(fact: AnyFact) -> str:
    """A fact in a few words."""
    match fact:
        case JobIssued():
            return f"ordered {fact.job_id}"
        case JobEnded():
            return f"end of {fact.job_id}"
        case (
            Staged()
            | Promoted()
            | Rejected()
            | RolledBack()
            | Archived()
            | GeneratorMoved()
            | TrainingReset()
        ):
            return f"{type(fact).__name__.lower()} {(fact.model or 'none')[:12]}"
        case Recalled():
            return f"recall {fact.recall_id}"
        case Blocked():
            return f"{fact.stage} blocked"
        case Noted():
            return f"note {fact.topic}"
        case WorkerSetAside():
            return f"{fact.worker} set aside"
        case WorkerResumed():
            return f"{fact.worker} resumed"
