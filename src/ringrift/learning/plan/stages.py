"""Who plans each stage of the loop's work now, who holds its training slot, and whether a stage may start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from ringrift.daemons.planning import BACKPRESSURE, OPERATOR, STOPPED_BY_PERSON
from ringrift.daemons.requests import DaemonRequest, what_it_means
from ringrift.daemons.status import DaemonReader
from ringrift.daemons.types import DaemonType
from ringrift.decoding import convert_to
from ringrift.errors import Corrupt
from ringrift.events.event import RouterEvent
from ringrift.learning.facts.facts import (
    HEALTH_TOPIC,
    QUALITY_MONITOR,
    STAGES_TOPIC,
    TRAINING_SLOT_TOPIC,
    Blocked,
    Noted,
)
from ringrift.learning.facts.state import CLOCK_TOLERANCE_S, STUDENTS, ConfigState, StageFailures
from ringrift.learning.plan.rules import LearningRules
from ringrift.runtime import Runtime, back_off_s, system_runtime

# How any part of this process wakes its loop: it says only that it may be worth to look again.


Listener = Callable[[], None]
LOOP_SOURCE = "training_controller"  # of the events by which the loop tells its facts


class LoopWaker:
    """Woken by whoever heard something; the loop listens, if it runs in this process."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self.reasons: Counter[str] = Counter()

    def wake(self, reason: str) -> None:
        self.reasons[reason] += 1
        for listener in tuple(self._listeners):
            listener()

    def wake_for(self, event: RouterEvent) -> None:
        """As a reaction to an event that may change the plan; the loop knows what it reported itself."""
        if event.source != LOOP_SOURCE:
            self.wake(event.event_type)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call *listener* at each wake, in the thread that wakes; return the way to end it."""
        self._listeners.append(listener)

        def end() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return end


# Which daemons plan for the loop of this process now, and why the others do not.
#
# A stage of the loop is planned only while its daemon runs: the daemon joins when it has started and leaves
# when it stops, is paused or loses leadership. The loop notes every change among its facts, so that a
# decision is made again with the stages it had. Two moments are no change: the start of a process, in which
# its daemons come up one after the other, and its end, in which they go.


START_S_MAX = 30.0  # who has not joined by then is not coming


class StopReason(NamedTuple):
    """Why a daemon does not plan."""

    text: str
    by_person: bool = False  # somebody wanted it so


class HealthHold(msgspec.Struct, frozen=True, kw_only=True):
    """Why new work waits for the health of the system, and until when at the latest."""

    reason: str
    until_s: float
    whole: bool  # the whole run, or one config only


NOT_HERE = StopReason("it does not run here")
Reasons = Callable[[str], StopReason]
Holds = Callable[[], Mapping[str, HealthHold]]  # by config; `ALL_WORK` for the whole run


class StageMembers:
    """The daemons that plan now, by the name of their type. Every change wakes the loop through *waker*."""

    def __init__(self, runtime: Runtime | None = None, *, waker: LoopWaker | None = None) -> None:
        self._runtime, self._waker = runtime or system_runtime(), waker or LoopWaker()
        self._began_s = self._runtime.monotonic_s()
        self._running: Counter[str] = Counter()  # some types are two names of one thing
        self._is_complete = self._is_closed = False
        self.reasons: Reasons = lambda _: NOT_HERE  # why a daemon does not run; who supervises them knows
        self.holds: Holds = dict  # what new work waits for; who measures the health of the system knows

    def join(self, name: str) -> None:
        self._running[name] += 1
        self._waker.wake(f"{name} plans")

    def leave(self, name: str) -> None:
        self._running[name] -= 1
        self._waker.wake(f"{name} plans no more")

    def is_running(self, name: str) -> bool:
        return self._running[name] > 0

    def complete(self) -> None:
        """All daemons that were to start have started or failed: who is missing now does not plan."""
        self._is_complete = True
        self._waker.wake("all daemons are up")

    def close(self) -> None:
        """The process ends: who leaves from now on was not stopped by anybody."""
        self._is_closed = True

    def stopped(self, names: Collection[str]) -> Mapping[str, StopReason] | None:
        """Those of *names* that do not plan, each with the reason; None while that would say nothing."""
        late = self._runtime.monotonic_s() - self._began_s >= START_S_MAX
        if self._is_closed or not (self._is_complete or late):
            return None
        return {name: self.reasons(name) for name in names if not self.is_running(name)}


def why_not_planning(manager: DaemonReader, name: str) -> StopReason:
    """Why the daemon of that type does not run, as *manager* knows."""
    daemon = DaemonType(name)
    if reason := manager.why_resting(daemon, STOPPED_BY_PERSON, OPERATOR):
        return StopReason(reason, by_person=True)
    return StopReason(manager.why_resting(daemon, BACKPRESSURE) or manager.why(daemon) or "it is starting")


# Each stage of the plan and each of its inputs has its daemon.
#
# While a daemon is stopped, what it plans is left out, and the plan says so with its name, the reason and
# since when. Which daemons are stopped is noted among the facts of a config (`STAGES_TOPIC`); without a note
# all of them plan, as in the facts of versions that knew no stages.


SELFPLAY_COORDINATOR = "selfplay_coordinator"
QUEUE_POPULATOR = "queue_populator"
AUTO_EXPORT = "auto_export"
NPZ_COMBINATION = "npz_combination"
TRAINING_TRIGGER = "training_trigger"
CASCADE_TRAINING = "cascade_training"
DISTILLATION = "distillation"
NNUE_TRAINING = "nnue_training"
EVALUATION = "evaluation"
TOURNAMENT_DAEMON = "tournament_daemon"
AUTO_PROMOTION = "auto_promotion"
MODEL_PERFORMANCE_WATCHDOG = "model_performance_watchdog"
FEEDBACK_LOOP = "feedback_loop"
CURRICULUM_INTEGRATION = "curriculum_integration"
GAUNTLET_FEEDBACK = "gauntlet_feedback"
ARCHITECTURE_FEEDBACK = "architecture_feedback"
PER_ORCHESTRATOR = "per_orchestrator"
STALE_FALLBACK = "stale_fallback"

# Stage: the daemons without any one of which it is not planned. Judging is no such stage: whatever was played
# is decided on, also while no more is ordered.
PLANNED_BY: Mapping[str, tuple[str, ...]] = {
    "selfplay": (SELFPLAY_COORDINATOR, QUEUE_POPULATOR),
    "export": (AUTO_EXPORT,),
    "train": (TRAINING_TRIGGER,),
    "tournament": (TOURNAMENT_DAEMON,),
    "distillation": (DISTILLATION,),
    "small_net": (NNUE_TRAINING,),
}
# Without any one of these learning stands still, or what it brings is not published.
NEEDED = (
    SELFPLAY_COORDINATOR,
    QUEUE_POPULATOR,
    AUTO_EXPORT,
    TRAINING_TRIGGER,
    EVALUATION,
    AUTO_PROMOTION,
)
# All of them; what each does stands in its row of the daemon table.
LEVERS = frozenset(
    {
        SELFPLAY_COORDINATOR,
        QUEUE_POPULATOR,
        QUALITY_MONITOR,
        AUTO_EXPORT,
        NPZ_COMBINATION,
        TRAINING_TRIGGER,
        CASCADE_TRAINING,
        DISTILLATION,
        NNUE_TRAINING,
        EVALUATION,
        TOURNAMENT_DAEMON,
        AUTO_PROMOTION,
        MODEL_PERFORMANCE_WATCHDOG,
        FEEDBACK_LOOP,
        CURRICULUM_INTEGRATION,
        GAUNTLET_FEEDBACK,
        ARCHITECTURE_FEEDBACK,
        PER_ORCHESTRATOR,
        STALE_FALLBACK,
    }
)


class StageStop(msgspec.Struct, frozen=True, kw_only=True):
    """Why a daemon does not plan, and since when."""

    daemon: str
    why: str
    since_s: float
    by_person: bool = False  # somebody stopped it on purpose, so it is no fault

    @property
    def reason(self) -> str:
        since = datetime.fromtimestamp(self.since_s, UTC)
        return f"{self.daemon.upper()} is stopped: {self.why} (since {since:%Y-%m-%d %H:%M:%S} UTC)"


def not_done(stopped: Mapping[str, DaemonRequest]) -> dict[str, str]:
    """Of each daemon that somebody stopped who it was, why and since when, and what nobody does meanwhile."""
    stops = [
        StageStop(daemon=name, why=asked.cause or "a person wanted it so", since_s=asked.at_s)
        for name, asked in stopped.items()
    ]
    return {
        each.daemon: f"{each.reason}; without it: {what_it_means(each.daemon, stopped)}" for each in stops
    }


Stops = Mapping[str, StageStop]
NO_STOPS: Stops = {}


def stops_of(state: ConfigState) -> Stops:
    """The daemons that do not plan for this config now."""
    note = state.newest_note(STAGES_TOPIC)
    if note is None:
        return NO_STOPS
    try:
        return convert_to(note.details["stopped"], dict[str, StageStop])
    except (KeyError, msgspec.ValidationError) as error:
        raise Corrupt(
            f"the stages noted at {note.at_s:.0f}", found=str(error), advice="Use the version that wrote them"
        ) from None


def is_stopped(state: ConfigState, daemon: str) -> bool:
    return daemon in stops_of(state)


def stop_of(state: ConfigState, *daemons: str) -> StageStop | None:
    """The first of *daemons* that does not plan; None if all of them do."""
    stops = stops_of(state)
    return next((stops[daemon] for daemon in daemons if daemon in stops), None)


def stages_note(state: ConfigState, stopped: Mapping[str, StopReason], *, at_s: float) -> Noted | None:
    """What to note when those of *stopped* do not plan; None if that is what was noted last.

    Since when a daemon is stopped counts from the first reason on.
    """
    before = stops_of(state)
    now = {
        name: StageStop(
            daemon=name,
            why=why.text,
            by_person=why.by_person,
            since_s=before[name].since_s if name in before else at_s,
        )
        for name, why in sorted(stopped.items())
    }
    if now == before:
        return None
    begun = [name.upper() for name in before if name not in now]
    ended = [
        f"{name.upper()} is stopped: {stop.why}" for name, stop in now.items() if stop != before.get(name)
    ]
    text = "; ".join([*ended, *(f"{name} plans again" for name in begun)])
    details: dict[str, Any] = {"stopped": msgspec.to_builtins(now)}
    return Noted(at_s=at_s, topic=STAGES_TOPIC, text=text, details=details)


# A training slot that somebody holds, as the plan sees it: the loop orders no training of the config.
#
# Who holds it is noted among the facts of the config (`TRAINING_SLOT_TOPIC`) before anything is planned, so
# that a decision is made again with the slot as it was. Without a note nobody holds it.


TRAININGS = ("train", *STUDENTS)  # the stages whose jobs the slot stands for


class SlotHold(msgspec.Struct, frozen=True, kw_only=True):
    """Who trains the config with a program of his own, and since when."""

    holder: str
    since_s: float | None = None  # None: it was not told
    job_id: str = ""  # empty while he waits for the end of a training that a worker has

    @property
    def reason(self) -> str:
        what = f"{self.holder} holds the training slot{f' for {self.job_id}' if self.job_id else ''}"
        if self.since_s is None:
            return what
        return f"{what} (since {datetime.fromtimestamp(self.since_s, UTC):%Y-%m-%d %H:%M:%S} UTC)"


def slot_of(state: ConfigState) -> SlotHold | None:
    """Who holds the training slot of this config now; None if nobody does."""
    note = state.newest_note(TRAINING_SLOT_TOPIC)
    if note is None:
        return None
    try:
        return convert_to(note.details["held"], SlotHold | None)
    except (KeyError, msgspec.ValidationError) as error:
        raise Corrupt(
            f"the training slot noted at {note.at_s:.0f}",
            found=str(error),
            advice="Use the version that wrote it",
        ) from None


def slot_note(state: ConfigState, hold: SlotHold | None, *, at_s: float) -> Noted | None:
    """What to note when *hold* is as it is; None if that is what was noted last.

    A holder who has not told since when has held it since it was first noted.
    """
    before = slot_of(state)
    if hold is not None and hold.since_s is None:
        since_s = before.since_s if before is not None and before.holder == hold.holder else at_s
        hold = msgspec.structs.replace(hold, since_s=since_s)
    if hold == before:
        return None
    text = "the training slot is free again" if hold is None else hold.reason
    details = {"held": msgspec.to_builtins(hold)}
    return Noted(at_s=at_s, topic=TRAINING_SLOT_TOPIC, text=text, details=details)


# What holds the pipeline (`should_pause_pipeline`), as the plan sees it: nothing new is ordered meanwhile.
#
# What the control process measures of its parts and of the config is noted among the facts (`HEALTH_TOPIC`)
# before anything is planned. It is measured with every pass, and a note that nobody renews runs out, so that
# nothing waits for good on an old reading. What is not known holds nothing.


HELD_NOTED_S = 1200.0  # a note holds so long; it is renewed after half of that
# What a config needs to get out of a regression: its champion is judged, and what it learned from checked.
RECOVERY = frozenset({"evaluate", "validate", "recompute"})
RETRAINING = frozenset({"export", "train"})  # once training was set back


def hold_of(state: ConfigState, *, now_s: float) -> HealthHold | None:
    """What holds this config now."""
    hold = _noted_hold(state)
    return hold if hold is not None and now_s < hold.until_s else None


def _noted_hold(state: ConfigState) -> HealthHold | None:
    note = state.newest_note(HEALTH_TOPIC)
    if note is None:
        return None
    try:
        return convert_to(note.details["held"], HealthHold | None)
    except (KeyError, msgspec.ValidationError) as error:
        raise Corrupt(
            f"the health noted at {note.at_s:.0f}", found=str(error), advice="Use the version that wrote it"
        ) from None


def health_note(state: ConfigState, hold: HealthHold | None, *, at_s: float) -> Noted | None:
    """What to note when *hold* is as it is; None while the note before says it. Numbers in it may change."""
    before = _noted_hold(state)
    if hold is not None:
        hold = msgspec.structs.replace(hold, until_s=min(hold.until_s, at_s + HELD_NOTED_S))
        if before is not None and before.whole == hold.whole and _is_lasting(before, hold, at_s):
            return None
    elif before is None:
        return None
    text = "new work goes on" if hold is None else hold.reason
    return Noted(at_s=at_s, topic=HEALTH_TOPIC, text=text, details={"held": msgspec.to_builtins(hold)})


def _is_lasting(before: HealthHold, hold: HealthHold, at_s: float) -> bool:
    """Whether what was noted still holds for as long as it needs to."""
    return before.until_s == hold.until_s or before.until_s - at_s > HELD_NOTED_S / 2


def health_gate(state: ConfigState, stage: str, *, now_s: float) -> Gate | None:
    """Closed while the health of the system or of this config holds *stage*; None if it does not."""
    hold = hold_of(state, now_s=now_s)
    if hold is None:
        return None
    recovers = stage in RECOVERY or (state.restarts and stage in RETRAINING)
    return None if recovers and not hold.whole else Gate(False, f"held: {hold.reason}", hold.until_s)


# May a stage start now? Pauses, stopped daemons, slots, health, blocks, and the breaker of every stage.
#
# Every no has a reason, and every no has an end, but for a person's pause, a stopped daemon and a training
# slot that somebody holds. What a breaker blocks becomes a fact with both.


BREAKER_GROWTH_MAX = 8


@dataclass(frozen=True, slots=True)
class Gate:
    """Open, or closed for a reason until a time; None: until somebody opens it."""

    open: bool
    reason: str = ""
    until_s: float | None = None
    decision: Blocked | None = None  # what is to be written down of it
    stopped: bool = False  # its daemon does not run, which is no failure of the stage
    paused: bool = False  # closed on purpose, by a person


OPEN_GATE = Gate(True)


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
    # Judging decides about what was played, whatever holds the orders; the plan leaves those out itself.
    if stage != "evaluate" and (held := health_gate(state, stage, now_s=now_s)) is not None:
        return held
    block = state.blocks.get(stage)
    if block is not None and block.holds(now_s):
        return Gate(False, block.reason, block.until_s)
    gate = breaker_gate(stage, state.failures.get(stage), rules, now_s=now_s)
    if gate.open or gate.until_s is None or (block is not None and block.until_s == gate.until_s):
        return gate
    decision = Blocked(at_s=now_s, stage=stage, reason=gate.reason, until_s=gate.until_s)
    return replace(gate, decision=decision)


def stopped_gate(state: ConfigState, *daemons: str) -> Gate | None:
    """Closed while one of *daemons* does not plan; None if all of them do."""
    stopped = stop_of(state, *daemons)
    return None if stopped is None else Gate(False, stopped.reason, paused=stopped.by_person, stopped=True)


def breaker_gate(stage: str, failures: StageFailures | None, rules: LearningRules, *, now_s: float) -> Gate:
    """After failures a stage waits, longer each time; then one attempt shows whether it works again."""
    if failures is None or not failures.in_a_row:
        return OPEN_GATE
    until_s = failures.last_s + breaker_delay_s(failures.in_a_row, rules)
    if now_s >= until_s or now_s < failures.last_s - CLOCK_TOLERANCE_S:
        return OPEN_GATE
    times = "once" if failures.in_a_row == 1 else f"{failures.in_a_row} times in a row"
    return Gate(False, f"{stage} failed {times}: {failures.error}", until_s)


def breaker_delay_s(in_a_row: int, rules: LearningRules) -> float:
    """How long a stage rests after so many failures in a row."""
    beyond = in_a_row - rules.breaker_failures
    if beyond < 0:
        return back_off_s(in_a_row, first_s=rules.retry_s, longest_s=rules.breaker_s)
    return back_off_s(beyond + 1, first_s=rules.breaker_s, longest_s=rules.breaker_s * BREAKER_GROWTH_MAX)
