"""May a stage start now? Pauses, stopped daemons, slots, blocks, and the breaker of every stage of a config.

Every no has a reason, and every no has an end, but for a person's pause, a stopped daemon and a training slot
that somebody holds. What a breaker blocks becomes a fact with both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ringrift.learning.facts import Blocked
from ringrift.learning.rules import LearningRules
from ringrift.learning.slot_holds import TRAININGS, slot_of
from ringrift.learning.stages import PLANNED_BY, stop_of
from ringrift.learning.state import CLOCK_TOLERANCE_S, ConfigState, StageFailures

BREAKER_DOUBLINGS_MAX = 3


@dataclass(frozen=True, slots=True)
class Gate:
    """Open, or closed for a reason until a time; None: until somebody opens it."""

    open: bool
    reason: str = ""
    until_s: float | None = None
    news: Blocked | None = None  # what is to be written down of it
    stopped: bool = False  # its daemon does not run, which is no failure of the stage
    paused: bool = False  # closed on purpose, by a person


OPEN = Gate(True)


def stage_gate(
    state: ConfigState, stage: str, rules: LearningRules, *, now_s: float, paused: str | None
) -> Gate:
    """Whether work of *stage* may be ordered."""
    if paused is not None:
        return Gate(False, f"paused: {paused}", paused=True)
    if (stopped := stopped_gate(state, *PLANNED_BY.get(stage, ()))) is not None:
        return stopped
    if stage in TRAININGS and (hold := slot_of(state)) is not None:
        return Gate(False, hold.reason)
    block = state.blocks.get(stage)
    if block is not None and block.holds(now_s):
        return Gate(False, block.reason, block.until_s)
    gate = breaker_gate(stage, state.failures.get(stage), rules, now_s=now_s)
    if gate.open or gate.until_s is None or (block is not None and block.until_s == gate.until_s):
        return gate
    news = Blocked(at_s=now_s, stage=stage, reason=gate.reason, until_s=gate.until_s)
    return replace(gate, news=news)


def stopped_gate(state: ConfigState, *daemons: str) -> Gate | None:
    """Closed while one of *daemons* does not plan; None if all of them do."""
    stopped = stop_of(state, *daemons)
    return None if stopped is None else Gate(False, stopped.reason, paused=stopped.by_person, stopped=True)


def breaker_gate(stage: str, failures: StageFailures | None, rules: LearningRules, *, now_s: float) -> Gate:
    """After failures a stage waits, longer each time; then one attempt shows whether it works again."""
    if failures is None or not failures.in_a_row:
        return OPEN
    until_s = failures.last_s + breaker_delay_s(failures.in_a_row, rules)
    if now_s >= until_s or now_s < failures.last_s - CLOCK_TOLERANCE_S:
        return OPEN
    times = "once" if failures.in_a_row == 1 else f"{failures.in_a_row} times in a row"
    return Gate(False, f"{stage} failed {times}: {failures.error}", until_s)


def breaker_delay_s(in_a_row: int, rules: LearningRules) -> float:
    """How long a stage rests after so many failures in a row."""
    beyond = in_a_row - rules.breaker_failures
    if beyond < 0:
        return min(rules.retry_s * 2.0 ** (in_a_row - 1), rules.breaker_s)
    return float(rules.breaker_s * 2 ** min(beyond, BREAKER_DOUBLINGS_MAX))
