"""Which daemons plan for the loop of this process now, and why the others do not.

A stage of the loop is planned only while its daemon runs: the daemon joins when it has started and leaves
when it stops, is paused or loses leadership. The loop notes every change among its facts, so that a decision
is made again with the stages it had. Two moments are no change: the start of a process, in which its daemons
come up one after the other, and its end, in which they go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import msgspec

from ringrift.daemons.planning import BACKPRESSURE, OPERATOR, STOPPED_BY_PERSON
from ringrift.daemons.status import DaemonReader
from ringrift.daemons.types import DaemonType
from ringrift.events.event import RouterEvent
from ringrift.runtime import Runtime, system_runtime

# How any part of this process wakes its loop: it says only that it may be worth to look again.


Listener = Callable[[], None]
LOOP_SOURCE = "training_controller"  # of the events by which the loop tells its facts


class LoopWaker:
    """Rung by whoever heard something; heard by the loop, if it runs in this process."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self.rung: Counter[str] = Counter()

    def ring(self, reason: str) -> None:
        self.rung[reason] += 1
        for listener in tuple(self._listeners):
            listener()

    def ring_for(self, event: RouterEvent) -> None:
        """As a reaction to an event that may change the plan; what the loop told is no news to it."""
        if event.source != LOOP_SOURCE:
            self.ring(event.event_type)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call *listener* at each ring, in the thread that rings; return the way to end it."""
        self._listeners.append(listener)

        def end() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return end


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
        self._waker.ring(f"{name} plans")

    def leave(self, name: str) -> None:
        self._running[name] -= 1
        self._waker.ring(f"{name} plans no more")

    def is_running(self, name: str) -> bool:
        return self._running[name] > 0

    def complete(self) -> None:
        """All daemons that were to start have started or failed: who is missing now does not plan."""
        self._is_complete = True
        self._waker.ring("all daemons are up")

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
    if told := manager.why_resting(daemon, STOPPED_BY_PERSON, OPERATOR):
        return StopReason(told, by_person=True)
    return StopReason(manager.why_resting(daemon, BACKPRESSURE) or manager.why(daemon) or "it is starting")
