"""One daemon as the supervisor keeps it: what is wanted, what is there, and the run in progress."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from ringrift.daemons.planning import DaemonView, Ended, Phase
from ringrift.daemons.registry import DaemonSpec
from ringrift.daemons.restarts import RestartPolicy
from ringrift.daemons.running import Factory
from ringrift.daemons.types import DaemonInfo, DaemonState, DaemonType, RestartTier


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
    wanted: bool = False
    holds: dict[str, float | None] = field(default_factory=dict)  # reason -> monotonic end
    pauses: dict[str, float | None] = field(default_factory=dict)
    causes: dict[str, str] = field(default_factory=dict)  # of those reasons: more words about one
    stops_to_pause: bool = False  # it has no pause() of its own
    phase: Phase = Phase.ABSENT
    ended: Ended = Ended.NEVER_RAN
    restart_at_s: float | None = None
    tier: RestartTier = RestartTier.NORMAL
    told_state: DaemonState = DaemonState.STOPPED  # the last state that was published
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

    def view(self, *, blocked_until_s: float = 0.0) -> DaemonView:
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
