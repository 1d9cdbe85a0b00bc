"""The shell around the planner: it looks, asks the planner, and does what it says.

Everything here runs on one loop and takes no lock. A look costs one pass over the daemons and happens when
something changed or a timer is due, never by polling. Waiting for a stop is a timer, so a daemon that
ignores cancellation holds nothing up.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any

import structlog

from ringrift.daemons import running
from ringrift.daemons.planning import (
    STOPPED_BY_PERSON,
    Action,
    DaemonView,
    Do,
    Ended,
    Phase,
    Run,
    Unit,
    plan,
    why_not_up,
)
from ringrift.daemons.restarts import (
    CRASH_LOOP_WINDOW_S,
    CascadeBreaker,
    RestartLedger,
    RestartVerdict,
    Tripped,
)
from ringrift.daemons.running import RunHooks, RunOutcome, is_ready_at_once, run_daemon
from ringrift.daemons.types import DaemonManagerConfig, DaemonState, DaemonType, RestartTier
from ringrift.errors import ConfigError, described
from ringrift.runtime import Runtime
from ringrift.task_owner import TaskOwner

# What follows from a crash: the ledger decides, the breaker may delay, the world is told.


log = structlog.get_logger()

SetState = Callable[[Unit, DaemonState, str], None]
Tell = Callable[[str, Unit | None, Mapping[str, Any]], None]


class CrashHandler:
    """The only code that schedules a restart."""

    def __init__(
        self,
        runtime: Runtime,
        config: DaemonManagerConfig,
        ledger: RestartLedger,
        breaker: CascadeBreaker,
        tell: Tell,
    ) -> None:
        self._runtime, self._config, self._ledger, self._tell = runtime, config, ledger, tell
        self.breaker = breaker

    def handle(self, unit: Unit, run: Run, outcome: RunOutcome, *, set_state: SetState) -> None:
        """Decide about the run that just crashed."""
        now_s, info = self._runtime.monotonic_s(), unit.info
        info.last_error, info.last_failure_time = outcome.error, self._runtime.now_s()
        # A loop that ends cancels everything on it: never answered at once, however long the run was.
        ran_s = 0.0 if outcome.cancelled else now_s - run.began_s
        log.warning(
            "daemons.crashed", daemon=unit.daemon_type.value, error=outcome.error, ran_s=round(ran_s, 3)
        )
        if outcome.import_failed:
            info.import_error = outcome.error
            self._give_up(unit, DaemonState.IMPORT_FAILED, outcome.error, set_state)
        elif not (info.auto_restart and self._config.auto_restart_failed):
            self._give_up(unit, DaemonState.FAILED, "restarts are off", set_state)
        else:
            verdict = self._ledger.crashed(unit.daemon_type, unit.policy, ran_s=ran_s, error=outcome.error)
            self._apply(unit, verdict, now_s=now_s, set_state=set_state)

    def _apply(self, unit: Unit, verdict: RestartVerdict, *, now_s: float, set_state: SetState) -> None:
        record = self._ledger.record(unit.daemon_type)
        unit.info.restart_count, unit.tier = record.restarts_in_a_row, verdict.tier
        if verdict.crash_loop:
            self._tell("DAEMON_CRASH_LOOP_DETECTED", unit, self._crash_loop(unit))
        if verdict.restart_after_s is None:
            self._give_up(unit, DaemonState.FAILED, verdict.reason, set_state)
            log.error("daemons.given_up", daemon=unit.daemon_type.value, reason=verdict.reason)
            payload = {"restart_count": record.total, "requires_intervention": True}
            self._tell("DAEMON_PERMANENTLY_FAILED", unit, {**payload, "reason": verdict.reason})
            return
        unit.ended, unit.restart_at_s = Ended.CRASHED, now_s + verdict.restart_after_s
        for tripped in self.breaker.record(unit.spec.category, now_s=now_s):
            self._tell("HEALTH_ALERT", None, _breaker_alert(tripped, now_s=now_s))
        degraded = verdict.tier is RestartTier.DEGRADED
        set_state(unit, DaemonState.DEGRADED if degraded else DaemonState.RESTARTING, verdict.reason)

    def _give_up(self, unit: Unit, state: DaemonState, reason: str, set_state: SetState) -> None:
        unit.ended, unit.restart_at_s = Ended.GIVEN_UP, None
        set_state(unit, state, reason)

    def _crash_loop(self, unit: Unit) -> dict[str, Any]:
        record = self._ledger.record(unit.daemon_type)
        return {
            "restart_count": record.within(CRASH_LOOP_WINDOW_S, now_s=self._runtime.now_s()),
            "window_minutes": int(CRASH_LOOP_WINDOW_S // 60),
            "max_restarts": unit.policy.max_restarts,
        }


def _breaker_alert(tripped: Tripped, *, now_s: float) -> dict[str, Any]:
    scope = "global" if tripped.category is None else tripped.category.value
    return {
        "alert_type": "global_breaker_tripped" if tripped.category is None else "category_breaker_tripped",
        "severity": "error",
        "message": f"{tripped.restarts} {scope} restarts; new ones wait {tripped.until_s - now_s:.0f} s",
        "details": {"category": scope, "restarts": tripped.restarts},
    }


# Calling a daemon's own `pause()` and `resume()`.


CALL_S_MAX = 10.0
CLOSE_S_MAX = 0.1  # a daemon that ignores cancellation had its time before


class Pauser:
    """Each call is bounded."""

    def __init__(self) -> None:
        self.failures = 0

    def apply(self, unit: Unit, tasks: TaskOwner, *, pause: bool, reason: str) -> bool:
        """Pause or resume; False when the daemon has no such method."""
        method = getattr(unit.info.instance, "pause" if pause else "resume", None)
        if not callable(method):
            return False
        log.info(
            "daemons.paused" if pause else "daemons.resumed", daemon=unit.daemon_type.value, reason=reason
        )
        unit.info.paused = pause
        called = running.call(method)
        if called.error is not None:
            self._failed(unit, called)
        elif inspect.isawaitable(called.value):
            tasks.create_task(self._finish(unit, called.value), name="daemon-pause")
        return True

    async def _finish(self, unit: Unit, result: Awaitable[Any]) -> None:
        called = await running.call_async(lambda: result, timeout_s=CALL_S_MAX)
        if called.error is not None:
            self._failed(unit, called)

    def _failed(self, unit: Unit, called: running.Called) -> None:
        self.failures += 1
        unit.info.last_error = f"pause or resume failed: {called.problem}"
        log.warning("daemons.pause_failed", daemon=unit.daemon_type.value, error=called.problem)


Emit = Callable[[str, Mapping[str, Any]], None]


class Supervisor:
    """Keeps every daemon as it is wanted."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        config: DaemonManagerConfig,
        ledger: RestartLedger,
        emit: Emit,
        node_id: str,
    ) -> None:
        self.runtime, self.config, self.ledger = runtime, config, ledger
        self.units: dict[DaemonType, Unit] = {}
        self.aliases: dict[DaemonType, Unit] = {}  # those of them that do what another one does
        self.looks = 0
        self.on_change: Callable[[], None] | None = None  # called after every change of a phase
        self._emit, self.node_id = emit, node_id
        self._loop: asyncio.AbstractEventLoop | None = None
        self._look_due = False
        self._alarm: asyncio.TimerHandle | None = None
        self._crashes: CrashHandler | None = None
        self._pauser = Pauser()
        self._tasks = TaskOwner("daemons")
        self._changed = asyncio.Event()

    def install(self, unit: Unit) -> None:
        """Have *unit*, in the place of an older one of its type."""
        self.units[unit.daemon_type] = unit
        self.aliases.pop(unit.daemon_type, None)
        if unit.spec.deprecated_for is not None:
            self.aliases[unit.daemon_type] = unit

    # --- being on a loop ------------------------------------------------------------------------------

    def open(self) -> None:
        """Bind to the running loop. A manager left on a closed loop starts afresh on this one."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop or self._tasks.is_stopped:
            self._tasks = TaskOwner("daemons")
        if self._loop is loop:
            return
        if self._loop is not None and not self._loop.is_closed() and self._any_run():
            raise ConfigError("this daemon manager runs on another event loop")
        for unit in self.units.values():
            unit.run, unit.phase, unit.info.task, unit.leaked_runs = None, Phase.ABSENT, None, []
            unit.wanted = False
            if unit.info.state in (DaemonState.RUNNING, DaemonState.STARTING, DaemonState.STOPPING):
                unit.info.state = DaemonState.STOPPED
        self._loop, self._look_due, self._alarm = loop, False, None
        self._changed = asyncio.Event()
        breaker = CascadeBreaker(started_s=self.runtime.monotonic_s())
        self._crashes = CrashHandler(self.runtime, self.config, self.ledger, breaker, self._tell)

    async def close(self) -> None:
        """Forget timers, and end what is left; daemons that can be stopped are stopped by then."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        await self._tasks.stop(CLOSE_S_MAX)

    @property
    def crashes(self) -> CrashHandler:
        if self._crashes is None:
            raise ConfigError("the daemon manager is not on a loop yet")
        return self._crashes

    def breaker_status(self) -> dict[str, float]:
        if self._crashes is None:
            return {}
        return self._crashes.breaker.status(now_s=self.runtime.monotonic_s())

    # --- looking --------------------------------------------------------------------------------------

    def poke(self) -> None:
        """Look soon. Many pokes make one look."""
        if not self._look_due and self._loop is not None:
            self._look_due = True
            self._loop.call_soon(self._look)

    def look(self, only: Iterable[DaemonType] | None = None) -> None:
        """Compare wanted with actual and act, for all daemons or for *only* some."""
        self.looks += 1
        now_s = self.runtime.monotonic_s()
        if only is not None:
            some = list(only)
            for action in plan(self.views(some), now_s=now_s, only=some).actions:
                self._perform(action)
            self.poke()
            return
        expiries = [unit.drop_expired(now_s=now_s) for unit in self.units.values()]
        decided = plan(self.views(), now_s=now_s)
        for action in decided.actions:
            self._perform(action)
        due = [at_s for at_s in (*expiries, decided.wake_at_s) if at_s is not None]
        self._set_alarm(min(due, default=None), now_s=now_s)

    def views(self, some: Iterable[DaemonType] | None = None) -> dict[DaemonType, DaemonView]:
        """Return all daemons, or *some* with what they need, as the planner sees them."""
        now_s = self.runtime.monotonic_s()
        asked: Iterable[DaemonType] = self.units
        if some is not None:
            asked = {need for t in some for need in (t, *self.units[t].needs) if need in self.units}
        done = {unit.spec.deprecated_for for unit in self.aliases.values() if unit.phase is Phase.UP}
        return {t: self._view(self.units[t], now_s=now_s, done_by_alias=t in done) for t in asked}

    def other_name(self, unit: Unit) -> Unit | None:
        """The daemon that does the same under another name, and is to: two would do the work twice.

        For an alias also an original that a person stopped: an alias is no way round that.
        """
        name = unit.spec.deprecated_for or unit.daemon_type
        original = None if name == unit.daemon_type else self.units.get(name)
        if original is not None and (original.wanted or STOPPED_BY_PERSON in original.holds):
            return original
        for alias in self.aliases.values():
            held = STOPPED_BY_PERSON in alias.holds or alias.ended in (Ended.GIVEN_UP, Ended.COMPLETED)
            is_same = alias is not unit and alias.spec.deprecated_for == name
            if is_same and alias.wanted and not held:
                return alias
        return None

    def why(self, daemon_type: DaemonType) -> str:
        """Say why a daemon is not up; empty when it is."""
        unit = self.units[daemon_type]
        if unit.info.unavailable_reason:
            return unit.info.unavailable_reason
        views = self.views([daemon_type])
        return why_not_up(views[daemon_type], views, now_s=self.runtime.monotonic_s())

    def may_restart(self, daemon_type: DaemonType) -> tuple[bool, str]:
        """Return whether the cascade breaker would let this daemon restart now, else why not."""
        if self._crashes is None:
            return True, ""
        spec, now_s = self.units[daemon_type].spec, self.runtime.monotonic_s()
        until_s, reason = self._crashes.breaker.blocked(spec.category, critical=spec.critical, now_s=now_s)
        return until_s == 0.0, reason

    async def wait_for_change(self, *, timeout_s: float) -> None:
        """Return when any daemon's phase changed, or at the time-out."""
        changed = self._changed
        try:
            async with asyncio.timeout(timeout_s):
                await changed.wait()
        except TimeoutError:
            return

    def _look(self) -> None:
        self._look_due = False
        self.look()

    def _set_alarm(self, at_s: float | None, *, now_s: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if at_s is not None and self._loop is not None:
            self._alarm = self._loop.call_later(max(at_s - now_s, 0.0), self.poke)

    def _view(self, unit: Unit, *, now_s: float, done_by_alias: bool) -> DaemonView:
        if unit.restart_at_s is None or self._crashes is None:
            return unit.view(done_by_alias=done_by_alias)
        spec = unit.spec
        until_s, _ = self._crashes.breaker.blocked(spec.category, critical=spec.critical, now_s=now_s)
        return unit.view(blocked_until_s=until_s, done_by_alias=done_by_alias)

    # --- acting ---------------------------------------------------------------------------------------

    def _perform(self, action: Action) -> None:
        unit = self.units[action.daemon_type]
        if action.do is Do.START:
            self._begin(unit, action.reason)
        elif action.do is Do.STOP:
            self.end(unit, action.reason)
        else:
            pause = action.do is Do.PAUSE
            if not self._pauser.apply(unit, self._tasks, pause=pause, reason=action.reason):
                unit.stops_to_pause = True
                self.poke()

    def _begin(self, unit: Unit, reason: str) -> None:
        assert self._loop is not None
        assert unit.factory is not None
        run = Run(self.runtime.monotonic_s())
        unit.run, unit.phase = run, Phase.STARTING
        info = unit.info
        info.start_time, info.completed, info.paused = self.runtime.now_s(), False, False
        info.ready_event = asyncio.Event()
        info.missing_soft_deps = [need for need in unit.spec.soft_depends_on if not self._satisfied(need)]
        info.degraded_mode = bool(info.missing_soft_deps)
        unit.unhealthy_in_a_row, unit.health = 0, (True, "")
        self.set_state(unit, DaemonState.STARTING, reason)
        hooks = RunHooks(made=partial(self._made, unit), ready=partial(self.ready, unit, run))
        body = run_daemon(unit.factory, ready_timeout_s=info.ready_timeout, hooks=hooks)
        run.task = info.task = self._tasks.create_task(body, name=unit.task_name)
        run.task.add_done_callback(partial(self._finished, unit, run))
        if is_ready_at_once(unit.factory):
            self.ready(unit, run)
        else:
            limit_s = info.ready_timeout + self.config.force_kill_timeout
            run.set_timer(self._loop.call_later(limit_s, self._leak, unit, run))

    def _made(self, unit: Unit, instance: Any) -> None:
        unit.info.instance = instance
        if unit.phase is Phase.UP:  # an async factory counts as ready before it returns its daemon
            self._note_change()

    def ready(self, unit: Unit, run: Run) -> bool:
        """A run says that it is ready; False when it should not be there any more."""
        if unit.run is not run or unit.phase is not Phase.STARTING:
            return unit.run is run and unit.phase is Phase.UP
        was_crashed = unit.ended is Ended.CRASHED
        run.set_timer(None)
        run.settled.set()
        unit.phase, unit.restart_at_s = Phase.UP, None
        unit.info.stable_since = self.runtime.now_s()
        if unit.info.ready_event is not None:
            unit.info.ready_event.set()
        self.set_state(unit, DaemonState.RUNNING, "ready")
        self._tell("DAEMON_STARTED", unit, {"pid": self.runtime.pid})
        # Who depends on it may still hold on to what the crashed run gave him.
        if was_crashed:
            self._bounce_dependents(unit)
        self._note_change()
        return True

    def end(
        self, unit: Unit, reason: str, *, crash_cause: str = "", limits_s: tuple[float, float] | None = None
    ) -> None:
        """Cancel a run; timers see to it that nobody waits beyond the limits."""
        run = unit.run
        if run is None or run.task is None or unit.phase not in (Phase.STARTING, Phase.UP):
            return
        assert self._loop is not None
        unit.phase = Phase.STOPPING
        run.stop_reason, run.crash_cause = reason, crash_cause
        self.set_state(unit, DaemonState.STOPPING, reason)
        run.task.cancel(reason)
        graceful_s, forced_s = limits_s or (self.config.shutdown_timeout, self.config.force_kill_timeout)
        run.set_timer(self._loop.call_later(graceful_s, self._insist, unit, run, forced_s))

    def _insist(self, unit: Unit, run: Run, forced_s: float) -> None:
        assert self._loop is not None
        assert run.task is not None
        log.warning("daemons.stop_overdue", daemon=unit.daemon_type.value, reason=run.stop_reason)
        # Once more: the first cancellation may have been taken for the end of some inner wait.
        run.task.cancel("the time to stop is over")
        run.set_timer(self._loop.call_later(forced_s, self._leak, unit, run))

    def _leak(self, unit: Unit, run: Run) -> None:
        """Nothing in this process can end the task; say so and go on without it."""
        if unit.run is not run or run.task is None or run.task.done():
            return
        unit.run, unit.phase, unit.ended = None, Phase.ABSENT, Ended.LEAKED
        unit.leaked_runs.append(run)
        unit.info.leaked, unit.info.task = True, None
        unit.info.last_error = "ignores cancellation; its task may still run"
        unit.health = (False, unit.info.last_error)
        log.error("daemons.leaked", daemon=unit.daemon_type.value)
        self.set_state(unit, DaemonState.STOPPED, "hung_on_shutdown")
        payload = {"restart_count": unit.info.restart_count, "requires_intervention": True}
        self._tell("DAEMON_PERMANENTLY_FAILED", unit, {**payload, "reason": "hung_on_shutdown"})
        run.settled.set()
        run.over.set()
        self._note_change()

    # --- endings --------------------------------------------------------------------------------------

    def _finished(self, unit: Unit, run: Run, task: asyncio.Task[RunOutcome]) -> None:
        run.set_timer(None)
        if run in unit.leaked_runs:
            self._leak_ended(unit, run)
            return
        # Another run has its place since; how an old one ends changes nothing.
        if unit.run is not run:
            return
        unit.run, unit.phase, unit.info.task, unit.info.instance = None, Phase.ABSENT, None, None
        unit.info.paused = False
        unit.ended = (
            Ended.GIVEN_UP
        )  # unless what follows says otherwise; if it raises, nothing storms or waits
        try:
            self._judge_end(unit, run, _outcome_of(task))
        finally:
            run.settled.set()
            run.over.set()
            self._note_change()

    def _judge_end(self, unit: Unit, run: Run, outcome: RunOutcome) -> None:
        if run.stop_reason and not run.crash_cause:
            self._stopped(unit, run, outcome)
        elif run.crash_cause:
            self.crashes.handle(unit, run, RunOutcome(run.crash_cause), set_state=self.set_state)
        elif outcome.error:
            self.crashes.handle(unit, run, outcome, set_state=self.set_state)
        else:
            unit.ended, unit.info.completed, unit.restart_at_s = Ended.COMPLETED, True, None
            self.set_state(unit, DaemonState.STOPPED, "completed")
            self._tell("DAEMON_STOPPED", unit, {"reason": "completed"})

    def _stopped(self, unit: Unit, run: Run, outcome: RunOutcome) -> None:
        if outcome.error and not outcome.cancelled:
            unit.info.last_error = f"while stopping: {outcome.error}"
            log.warning("daemons.error_while_stopping", daemon=unit.daemon_type.value, error=outcome.error)
        unit.ended = Ended.NEVER_RAN if run.bounce else Ended.ON_PURPOSE
        unit.restart_at_s = None
        self.set_state(unit, DaemonState.STOPPED, run.stop_reason)
        self._tell("DAEMON_STOPPED", unit, {"reason": run.stop_reason})

    def _leak_ended(self, unit: Unit, run: Run) -> None:
        unit.leaked_runs.remove(run)
        if not unit.leaked_runs:
            unit.info.leaked = False
            unit.ended, unit.health = Ended.ON_PURPOSE, (True, "")
            self._note_change()

    def _bounce_dependents(self, unit: Unit) -> None:
        for other in self.units.values():
            asks = other.spec.restarts_with_dependency and unit.daemon_type in other.spec.depends_on
            if asks and other.phase is Phase.UP and other.run is not None:
                other.run.bounce = True
                self.end(other, f"{unit.daemon_type} was restarted")

    # --- telling --------------------------------------------------------------------------------------

    def set_state(self, unit: Unit, state: DaemonState, reason: str) -> None:
        """Record a state; tell the world about the ones that matter."""
        old, unit.info.state = unit.info.state, state
        log.debug(
            "daemons.state", daemon=unit.daemon_type.value, old=old.value, new=state.value, reason=reason
        )
        if state in (unit.published_state, DaemonState.STARTING, DaemonState.STOPPING):
            return
        payload = {"old_status": unit.published_state.value, "new_status": state.value, "reason": reason}
        unit.published_state = state
        self._tell("DAEMON_STATUS_CHANGED", unit, {**payload, "error": unit.info.last_error or ""})

    def _tell(self, event_type: str, unit: Unit | None, payload: Mapping[str, Any]) -> None:
        name = {} if unit is None else {"daemon_name": unit.daemon_type.value}
        self._emit(event_type, {**name, "node_id": self.node_id, **payload})

    def _note_change(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        if self.on_change is not None:
            self.on_change()
        self.poke()

    def _satisfied(self, daemon_type: DaemonType) -> bool:
        return daemon_type in self.units and self.views([daemon_type])[daemon_type].satisfies

    def _any_run(self) -> bool:
        return any(unit.run is not None for unit in self.units.values())


def _outcome_of(task: asyncio.Task[RunOutcome]) -> RunOutcome:
    if task.cancelled():
        return RunOutcome("cancelled from outside", cancelled=True)
    error = task.exception()
    return task.result() if error is None else RunOutcome(described(error))
