"""One daemon as the supervisor keeps it, and what follows when wanted and actual differ."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ringrift.daemons.registry import DaemonSpec
from ringrift.daemons.restarts import RestartPolicy
from ringrift.daemons.running import Factory
from ringrift.daemons.types import DaemonInfo, DaemonState, DaemonType, RestartTier

# The decisions. Pure: no clock, no await.
#
# start, stop, profiles, leadership, backpressure and pauses change what is wanted; crashes and completions
# change what is. The planner alone decides what follows, with a reason for each.


NOT_LEADER = "not the leader"
BACKPRESSURE = "backpressure"
OPERATOR = "asked for"
STOPPED_BY_PERSON = "stopped by a person"
# Who counts on such a daemon starts all the same: it runs elsewhere, or somebody chose to do without it.
DONE_WITHOUT = frozenset({NOT_LEADER, STOPPED_BY_PERSON})


class Phase(StrEnum):
    """What is there of a daemon."""

    ABSENT = "absent"
    STARTING = "starting"
    UP = "up"
    STOPPING = "stopping"


class Ended(StrEnum):
    """How its last run ended."""

    NEVER_RAN = "never ran"
    ON_PURPOSE = "on purpose"
    COMPLETED = "completed"  # returned by itself; done, not broken
    CRASHED = "crashed"  # is tried again at `restart_at_s`
    GIVEN_UP = "given up"  # stays down until a person says otherwise
    LEAKED = "leaked"  # ignores cancellation: a second instance beside it would be worse than none


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonView:
    """One daemon as the planner sees it."""

    daemon_type: DaemonType
    wanted: bool = False
    holds: frozenset[str] = frozenset()  # why it must not run although it is wanted
    pauses: frozenset[str] = frozenset()  # why it should rest
    paused: bool = False
    phase: Phase = Phase.ABSENT
    ended: Ended = Ended.NEVER_RAN
    restart_at_s: float | None = None
    needs: tuple[DaemonType, ...] = ()
    last_error: str = ""
    done_by_alias: bool = False  # somebody started it under its other name

    @property
    def should_run(self) -> bool:
        return self.wanted and not self.holds

    @property
    def satisfies(self) -> bool:
        """Whether daemons that need this one may start: it is up, done, or done without on purpose."""
        if self.phase is Phase.UP or self.done_by_alias:
            return True
        if self.phase is not Phase.ABSENT:
            return False
        return self.ended is Ended.COMPLETED or (self.wanted and bool(DONE_WITHOUT & self.holds))


class Do(StrEnum):
    """What the shell can do."""

    START = "start"
    STOP = "stop"
    PAUSE = "pause"
    RESUME = "resume"


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do, and why."""

    do: Do
    daemon_type: DaemonType
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, and when to look again (None: only when something changes)."""

    actions: tuple[Action, ...]
    wake_at_s: float | None


def plan(
    views: Mapping[DaemonType, DaemonView], *, now_s: float, only: Iterable[DaemonType] | None = None
) -> Plan:
    """Compare wanted with actual, for all daemons or for *only* some."""
    actions: list[Action] = []
    wake_at_s: float | None = None
    for daemon_type in views if only is None else only:
        view = views[daemon_type]
        if action := _decide(view, views, now_s=now_s):
            actions.append(action)
        elif _waits_for_time(view, now_s=now_s) and view.restart_at_s is not None:
            wake_at_s = view.restart_at_s if wake_at_s is None else min(wake_at_s, view.restart_at_s)
    return Plan(tuple(actions), wake_at_s)


def unmet_needs(view: DaemonView, views: Mapping[DaemonType, DaemonView]) -> list[DaemonType]:
    """Return the hard dependencies that keep *view* from starting."""
    return [need for need in view.needs if need not in views or not views[need].satisfies]


def why_not_up(view: DaemonView, views: Mapping[DaemonType, DaemonView], *, now_s: float) -> str:
    """Say in words why a daemon is not up; empty when it is."""
    if view.phase is Phase.UP:
        return ""
    if view.phase is not Phase.ABSENT:
        return view.phase.value
    if view.ended is Ended.LEAKED:
        return "an earlier run ignores cancellation and may still be alive"
    if not view.wanted:
        return "stopped on purpose" if view.ended is Ended.ON_PURPOSE else "not started"
    if view.holds:
        return f"held: {', '.join(sorted(view.holds))}"
    if view.ended is Ended.COMPLETED:
        return "completed"
    if view.ended is Ended.GIVEN_UP:
        return f"given up: {view.last_error}"
    if _waits_for_time(view, now_s=now_s) and view.restart_at_s is not None:
        return f"restarts in {view.restart_at_s - now_s:.1f} s after: {view.last_error}"
    if unmet := unmet_needs(view, views):
        return f"waits for {', '.join(unmet)}"
    return "about to start"


def _decide(view: DaemonView, views: Mapping[DaemonType, DaemonView], *, now_s: float) -> Action | None:
    if view.phase in (Phase.STARTING, Phase.UP) and not view.should_run:
        why = f"held: {', '.join(sorted(view.holds))}" if view.wanted else "not wanted"
        return Action(Do.STOP, view.daemon_type, why)
    if view.phase is Phase.UP and bool(view.pauses) != view.paused:
        if view.pauses:
            return Action(Do.PAUSE, view.daemon_type, ", ".join(sorted(view.pauses)))
        return Action(Do.RESUME, view.daemon_type, "nothing asks for the pause any more")
    if view.phase is not Phase.ABSENT or not view.should_run:
        return None
    if view.ended in (Ended.COMPLETED, Ended.GIVEN_UP, Ended.LEAKED):
        return None
    if _waits_for_time(view, now_s=now_s) or unmet_needs(view, views):
        return None
    why = f"restart after: {view.last_error}" if view.ended is Ended.CRASHED else "wanted"
    return Action(Do.START, view.daemon_type, why)


def _waits_for_time(view: DaemonView, *, now_s: float) -> bool:
    return (
        view.phase is Phase.ABSENT
        and view.should_run
        and view.ended is Ended.CRASHED
        and view.restart_at_s is not None
        and view.restart_at_s > now_s
    )


# One daemon as the supervisor keeps it: what is wanted, what is there, and the run in progress.


@dataclass(slots=True, eq=False)
class Run:
    """One life of a daemon, from its start to the end of its task."""

    began_s: float
    over: asyncio.Event = field(default_factory=asyncio.Event)
    settled: asyncio.Event = field(default_factory=asyncio.Event)  # ready, or over before it was
    task: asyncio.Task[Any] | None = None
    timer: asyncio.TimerHandle | None = None
    stop_reason: str = ""  # set when the supervisor ends it
    crash_cause: str = ""  # set when the supervisor ends it because it is broken
    bounce: bool = False  # ended only to start again

    def set_timer(self, timer: asyncio.TimerHandle | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = timer


@dataclass(slots=True, eq=False)
class Unit:
    """A daemon and everything the supervisor knows of it. Changed only by the supervisor, on its loop."""

    spec: DaemonSpec
    info: DaemonInfo
    policy: RestartPolicy
    factory: Factory | None = None
    is_own: bool = False  # somebody registered it in this process, so no run elsewhere has it
    wanted: bool = False
    holds: dict[str, float | None] = field(default_factory=dict)  # reason -> monotonic end
    pauses: dict[str, float | None] = field(default_factory=dict)
    causes: dict[str, str] = field(default_factory=dict)  # of those reasons: more words about one
    stops_to_pause: bool = False  # it has no pause() of its own
    phase: Phase = Phase.ABSENT
    ended: Ended = Ended.NEVER_RAN
    restart_at_s: float | None = None
    tier: RestartTier = RestartTier.NORMAL
    published_state: DaemonState = DaemonState.STOPPED  # the last state that was published
    run: Run | None = None
    leaked_runs: list[Run] = field(default_factory=list)
    health: tuple[bool, str] = (True, "")
    unhealthy_in_a_row: int = 0

    @property
    def daemon_type(self) -> DaemonType:
        return self.spec.daemon_type

    @property
    def task_name(self) -> str:
        return f"daemon:{self.daemon_type.value}"

    @property
    def needs(self) -> tuple[DaemonType, ...]:
        """What must be up before it starts."""
        spec = self.spec
        return (*spec.depends_on, *spec.soft_depends_on) if spec.startup_mode == "strict" else spec.depends_on

    @property
    def kept_down(self) -> frozenset[str]:
        """Why it should not be up although it is wanted: holds, and pauses if it has no pause of its own."""
        return frozenset(self.holds) | (frozenset(self.pauses) if self.stops_to_pause else frozenset())

    def view(self, *, blocked_until_s: float = 0.0, done_by_alias: bool = False) -> DaemonView:
        """Return this daemon as the planner sees it."""
        restart_at_s = self.restart_at_s
        if restart_at_s is not None:
            restart_at_s = max(restart_at_s, blocked_until_s)
        return DaemonView(
            daemon_type=self.daemon_type,
            wanted=self.wanted,
            holds=self.kept_down,
            pauses=frozenset() if self.stops_to_pause else frozenset(self.pauses),
            paused=self.info.paused,
            phase=self.phase,
            ended=self.ended,
            restart_at_s=restart_at_s,
            needs=self.needs,
            last_error=self.info.last_error or "",
            done_by_alias=done_by_alias,
        )

    def why_resting(self, *reasons: str) -> str:
        """Which of *reasons* keep it from working now, each with its cause; empty if none does."""
        there = [reason for reason in reasons if reason in self.pauses or reason in self.holds]
        return ", ".join(f"{each}: {self.causes[each]}" if self.causes.get(each) else each for each in there)

    def drop_expired(self, *, now_s: float) -> float | None:
        """Forget holds and pauses that ran out; return when the next one will."""
        ends: list[float] = []
        for reasons in (self.holds, self.pauses):
            for reason, until_s in list(reasons.items()):
                if until_s is None:
                    continue
                if until_s <= now_s:
                    del reasons[reason]
                else:
                    ends.append(until_s)
        return min(ends, default=None)
