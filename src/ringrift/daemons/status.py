"""How the daemons are: each is asked at its interval, and whoever wants to know reads it off."""

from __future__ import annotations

import asyncio
import copy
import heapq
import inspect
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast, overload

import structlog

from ringrift.daemons import running
from ringrift.daemons.planning import STOPPED_BY_PERSON, Ended, Phase, Run, Unit
from ringrift.daemons.reactions import LoopWatchdog, Outbox
from ringrift.daemons.restarts import RestartLedger
from ringrift.daemons.supervisor import Supervisor
from ringrift.daemons.types import DaemonInfo, DaemonState, DaemonType
from ringrift.engine.opening import has_store
from ringrift.engine.run_reports import answers_here, reported, reported_health
from ringrift.errors import ConfigError
from ringrift.runtime import Runtime
from ringrift.status import CoordinatorStatus, HealthCheckResult, as_result
from ringrift.task_owner import TaskOwner

# Asks every running daemon how it is, each at its own interval, from one timer.
#
# A verdict must repeat before anything follows, none is passed while a daemon is young, and a daemon without
# `health_check()` costs nothing: the end of its task is noticed anyway.


log = structlog.get_logger()

CHECK_S_MAX = 5.0
AT_ONCE_MAX = 20
UNHEALTHY_IN_A_ROW = 3
SAYS_NOTHING = "health_check says nothing"
BATCH_S = 0.25  # checks that are due this close together share one wake-up

Offload = Callable[[Callable[[], Any]], Any]  # runs a function that may block; returns an awaitable


async def in_thread(function: Callable[[], Any]) -> Any:
    """Run a function that may block, in a thread that never keeps the process alive."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()

    def report(called: running.Called) -> None:
        if answer.done():
            return
        if called.error is None:
            answer.set_result(called.value)
        else:
            answer.set_exception(called.error)

    def work() -> None:
        called = running.call(function)
        try:
            loop.call_soon_threadsafe(report, called)
        except RuntimeError:  # the loop was closed meanwhile; nobody waits for the answer
            return

    threading.Thread(target=work, name="daemon-health", daemon=True).start()
    return await answer


class HealthRounds:
    """One task for all daemons; it sleeps until the next check is due."""

    def __init__(self, supervisor: Supervisor, *, offload: Offload = in_thread) -> None:
        self._supervisor, self._offload = supervisor, offload
        self._runtime = supervisor.runtime
        self._due: list[tuple[float, int, DaemonType]] = []
        self._scheduled: dict[DaemonType, Run] = {}
        self._count = 0
        self._tasks = TaskOwner("daemon health")
        self._round: asyncio.Task[None] | None = None
        self._checks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self.checks_done = 0

    def start(self) -> None:
        self._wake = asyncio.Event()
        self._supervisor.on_change = self._wake.set
        self._tasks = TaskOwner("daemon health")
        self.revive()

    def revive(self) -> None:
        """Go on after an error; the checks under way stay with their owner."""
        self._round = self._tasks.create_task(self._rounds(), name="daemon-health")

    @property
    def alive(self) -> bool:
        return self._round is not None and not self._round.done()

    async def stop(self) -> None:
        await self._tasks.stop(CHECK_S_MAX)
        self._round = None
        self._due.clear()
        self._scheduled.clear()

    async def _rounds(self) -> None:
        while True:
            self._take_in_new_runs()
            now_s = self._runtime.monotonic_s()
            while self._due and self._due[0][0] <= now_s + BATCH_S and len(self._checks) < AT_ONCE_MAX:
                _, _, daemon_type = heapq.heappop(self._due)
                self._begin_check(daemon_type)
            if len(self._checks) >= AT_ONCE_MAX:
                await asyncio.wait(self._checks, timeout=CHECK_S_MAX, return_when=asyncio.FIRST_COMPLETED)
                continue
            self._wake.clear()
            wait_s = self._due[0][0] - now_s if self._due else 3600.0
            await self._sleep(max(wait_s, 0.0))

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return

    def _take_in_new_runs(self) -> None:
        now_s = self._runtime.monotonic_s()
        for daemon_type, unit in self._supervisor.units.items():
            run = unit.run
            if run is None or unit.phase is not Phase.UP or self._scheduled.get(daemon_type) is run:
                continue
            if unit.info.instance is None:
                continue  # not made yet, or a function, which cannot be asked
            self._scheduled[daemon_type] = run
            if callable(getattr(unit.info.instance, "health_check", None)):
                # Spread, so that daemons that started together are not checked together.
                spread_s = self._runtime.rng.uniform(0.0, unit.info.health_check_interval)
                grace_left_s = run.began_s + unit.info.startup_grace_period - now_s
                self._push(daemon_type, now_s + max(grace_left_s, 0.0) + spread_s)

    def _push(self, daemon_type: DaemonType, at_s: float) -> None:
        self._count += 1
        heapq.heappush(self._due, (at_s, self._count, daemon_type))
        if self._due[0][2] is daemon_type:
            self._wake.set()

    def _begin_check(self, daemon_type: DaemonType) -> None:
        unit = self._supervisor.units[daemon_type]
        run = unit.run
        if run is None or self._scheduled.get(daemon_type) is not run or unit.phase is not Phase.UP:
            return
        task = self._tasks.create_task(self._check(unit, run), name=f"health:{daemon_type.value}")
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    async def _check(self, unit: Unit, run: Run) -> None:
        answer = HealthCheckResult.ok("paused") if unit.info.paused else await self._ask(unit)
        self.checks_done += 1
        # The answer of a run that has ended meanwhile is not held against the next one.
        if unit.run is not run or unit.phase is not Phase.UP:
            return
        self._judge(unit, answer)
        if unit.run is run and unit.phase is Phase.UP:
            self._push(unit.daemon_type, self._runtime.monotonic_s() + unit.info.health_check_interval)

    async def _ask(self, unit: Unit) -> HealthCheckResult:
        # Only what is written for the loop is called on it; what may block gets a thread.
        check = unit.info.instance.health_check
        direct = inspect.iscoroutinefunction(check)
        called = await running.call_async(partial(self._answer, check, direct=direct), timeout_s=CHECK_S_MAX)
        if isinstance(called.error, TimeoutError):
            return HealthCheckResult.unhealthy(f"health_check took over {CHECK_S_MAX:g} s")
        if called.error is not None:
            return HealthCheckResult.unhealthy(f"health_check raised {called.problem}")
        if called.value is None:
            return HealthCheckResult.unhealthy(SAYS_NOTHING)
        return as_result(called.value)

    async def _answer(self, check: Callable[[], Any], *, direct: bool) -> Any:
        result = check() if direct else await self._offload(check)
        return await result if inspect.isawaitable(result) else result

    def _judge(self, unit: Unit, answer: HealthCheckResult) -> None:
        unit.health = (answer.healthy, answer.message)
        if answer.healthy or answer.message == SAYS_NOTHING:
            # Unknown is not healthy, and is no reason to restart what may well run.
            unit.unhealthy_in_a_row = 0
            return
        unit.unhealthy_in_a_row += 1
        log.warning(
            "daemons.unhealthy",
            daemon=unit.daemon_type.value,
            message=answer.message,
            in_a_row=unit.unhealthy_in_a_row,
        )
        if unit.unhealthy_in_a_row >= UNHEALTHY_IN_A_ROW and unit.info.auto_restart:
            cause = f"unhealthy {unit.unhealthy_in_a_row} times in a row: {answer.message}"
            self._supervisor.end(unit, cause, crash_cause=cause)


# The shapes in which the manager tells how its daemons are.


DOWN_FOR_GOOD = (DaemonState.FAILED, DaemonState.IMPORT_FAILED)


class DaemonStatus(dict[DaemonType, DaemonInfo]):
    """One answer in both documented shapes.

    It is a dict from each `DaemonType` to its `DaemonInfo`; beyond that the keys "running", "daemons",
    "summary", "circuit_breaker" and "loop" give the plain document, without being counted or iterated.
    """

    def __init__(self, infos: Mapping[DaemonType, DaemonInfo], document: Mapping[str, Any]) -> None:
        super().__init__(infos)
        self._document = dict(document)

    @overload
    def __getitem__(self, key: DaemonType) -> DaemonInfo: ...

    @overload
    def __getitem__(self, key: str) -> Any: ...

    def __getitem__(self, key: str) -> Any:
        return self._document[key] if key in self._document else super().__getitem__(cast("DaemonType", key))

    def __contains__(self, key: object) -> bool:
        return key in self._document or super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        if key in self._document:
            return self._document[key]
        return super().get(cast("DaemonType", key), default)

    def to_dict(self) -> dict[str, Any]:
        """Return the plain document."""
        return dict(self._document)


class ProbeReport(dict[str, Any]):
    """A probe's answer: indexable, and true only when the probe passes."""

    def __init__(self, passed_key: str, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self._passed_key = passed_key

    def __bool__(self) -> bool:
        return bool(self[self._passed_key])


def expected(unit: Unit) -> bool:
    """Return whether the daemon ought to be up now."""
    return unit.wanted and not unit.kept_down and unit.ended is not Ended.COMPLETED


def is_down(unit: Unit) -> bool:
    """Return whether a daemon that ought to be up is not, nor on its first way there."""
    if unit.phase is Phase.UP:
        return False
    return not (unit.phase is Phase.STARTING and unit.ended is Ended.NEVER_RAN)


def is_stopped(unit: Unit) -> bool:
    """Return whether the run had this daemon, or was to have it, and somebody stopped it."""
    by_call = unit.ended is Ended.ON_PURPOSE and not unit.wanted and not unit.info.unavailable_reason
    return unit.phase is not Phase.UP and (by_call or STOPPED_BY_PERSON in unit.holds)


def status_document(
    units: Mapping[DaemonType, Unit], *, running: bool, uptimes: Mapping[DaemonType, float]
) -> dict[str, Any]:
    """Return the plain status of all daemons."""
    states = [unit.info.state for unit in units.values()]
    up, failed = states.count(DaemonState.RUNNING), sum(states.count(state) for state in DOWN_FOR_GOOD)
    return {
        "running": running,
        "daemons": {
            daemon_type.value: daemon_row(unit, uptime_s=uptimes[daemon_type])
            for daemon_type, unit in units.items()
        },
        "summary": {
            "total": len(states),
            "running": up,
            "failed": failed,
            "stopped": len(states) - up - failed,
            "unavailable": sum(1 for unit in units.values() if unit.info.unavailable_reason),
        },
    }


def daemon_row(unit: Unit, *, uptime_s: float) -> dict[str, Any]:
    """Return what the status shows of one daemon."""
    info = unit.info
    return {
        "state": info.state.value,
        "uptime_seconds": uptime_s,
        "restart_count": info.restart_count,
        "last_error": info.last_error,
        "auto_restart": info.auto_restart,
        "category": unit.spec.category.value,
        "wanted": unit.wanted,
        "held": sorted(unit.kept_down),
        "paused": info.paused,
        "leaked": info.leaked,
        "unavailable_reason": info.unavailable_reason,
    }


def daemon_health(unit: Unit, *, why_down: str) -> dict[str, Any]:
    """Return the health of one daemon: what does not run is not healthy, whoever wanted it so.

    One that a pause keeps down, because it has no pause of its own, rests as one that is paused does.
    """
    info = unit.info
    well, message = unit.health
    runs = unit.phase is Phase.UP
    rests = unit.wanted and unit.stops_to_pause and bool(unit.pauses) and not unit.holds
    return {
        "healthy": (well if runs else rests) and not info.leaked and info.state not in DOWN_FOR_GOOD,
        "state": info.state.value,
        "message": message if runs else info.unavailable_reason or why_down,
        "expected": expected(unit),  # False: that it does not run is no fault
        "available": not info.unavailable_reason,
        "reason": info.unavailable_reason,
        "restart_count": info.restart_count,
        "critical": unit.spec.critical,
        "paused": info.paused,
    }


def copies(units: Mapping[DaemonType, Unit]) -> dict[DaemonType, DaemonInfo]:
    """Return the infos as they are now; later changes do not reach them."""
    return {daemon_type: copy.copy(unit.info) for daemon_type, unit in units.items()}


def as_reported(
    infos: Mapping[DaemonType, DaemonInfo], rows: Mapping[str, Mapping[str, Any]], now_s: float
) -> dict[DaemonType, DaemonInfo]:
    """Return *infos* with what the *rows* of another process say, and none that they know nothing of."""
    known = {t: row for t in infos if (row := rows.get(t.value)) and row["state"] in set(DaemonState)}
    return {
        t: replace(
            infos[t],
            state=DaemonState(row["state"]),
            start_time=now_s - row["uptime_seconds"] if row["uptime_seconds"] else 0.0,
            restart_count=row["restart_count"],
            last_error=row["last_error"],
            paused=row["paused"],
            leaked=row["leaked"],
        )
        for t, row in known.items()
    }


def lifecycle_summary(
    units: Mapping[DaemonType, Unit], uptimes: Mapping[DaemonType, float], *, uptime_s: float, restarts: int
) -> dict[str, Any]:
    """Return the uptimes and restarts of all daemons in a few numbers."""
    live = [seconds for seconds in uptimes.values() if seconds > 0]
    worst = max(units.values(), key=lambda unit: unit.info.restart_count, default=None)
    most = 0 if worst is None else worst.info.restart_count
    return {
        "manager_uptime_seconds": uptime_s,
        "total_restarts": restarts,
        "average_uptime_seconds": sum(live) / len(live) if live else 0.0,
        "max_uptime_seconds": max(live, default=0.0),
        "min_uptime_seconds": min(live, default=0.0),
        "most_restarts_daemon": worst.daemon_type.value if worst is not None and most else None,
        "most_restarts_count": most,
    }


# Reading off how the daemons are. Safe from any thread: it only looks.
#
# The manager of a process that runs no daemons answers for the run in its data folder: what the manager of
# the control process last said of itself. Where no run ever was, every daemon is known to be stopped.


class DaemonReader:
    """The questions that a daemon manager answers."""

    def __init__(
        self,
        *,
        supervisor: Supervisor,
        ledger: RestartLedger,
        runtime: Runtime,
        watchdog: LoopWatchdog,
        outbox: Outbox,
    ) -> None:
        self._supervisor, self._ledger, self._runtime = supervisor, ledger, runtime
        self._outbox, self.watchdog = outbox, watchdog
        self._running, self._started_s = False, 0.0
        self._was_opened = False

    @property
    def supervisor(self) -> Supervisor:
        return self._supervisor

    def why(self, daemon_type: DaemonType) -> str:
        """Say why a daemon is not up; empty when it is."""
        if (unit := self._supervisor.units.get(daemon_type)) is None:
            return f"{daemon_type} is not registered"
        if not answers_here(self):
            document = self._health_document().get(str(daemon_type)) or {}
            why = document.get("message") or unit.info.last_error or "no run tells of it"
            return "" if self.is_running(daemon_type) else why
        return self._supervisor.why(daemon_type)

    def why_resting(self, daemon_type: DaemonType, *reasons: str) -> str:
        """Which of *reasons* keep a daemon from working now, with their causes; empty if none does."""
        unit = self._supervisor.units.get(daemon_type)
        return "" if unit is None else unit.why_resting(*reasons)

    @property
    def works_here(self) -> bool:
        """Whether this manager runs daemons, or nobody ever did in this data folder."""
        return self._was_opened or not has_store()

    def is_running(self, daemon_type: DaemonType) -> bool:
        if not answers_here(self):
            row = self.status_document()["daemons"].get(str(daemon_type), {})
            return bool(row.get("state") == DaemonState.RUNNING)
        unit = self._supervisor.units.get(daemon_type)
        return unit is not None and unit.info.state is DaemonState.RUNNING

    def get_status(self) -> DaemonStatus:
        """Return all daemons, by type and as a plain document; of those nobody tells of, only the latter."""
        infos, document = copies(self._units()), self.status_document()
        if not answers_here(self):
            infos = as_reported(infos, document["daemons"], self._runtime.now_s())
        return DaemonStatus(infos, document)

    @reported
    def status_document(self) -> dict[str, Any]:
        """Return all daemons as a plain document."""
        units = self._units()
        document = status_document(units, running=self._running, uptimes=self._uptimes())
        document["circuit_breaker"] = self._supervisor.breaker_status()
        document["loop"] = self.watchdog.status()
        return document

    def get_all_daemon_health(self) -> dict[DaemonType, dict[str, Any]]:
        """Return the health of every daemon."""
        found = self._health_document()
        return {t: found[t.value] for t in self._units() if t.value in found}

    @reported
    def _health_document(self) -> dict[str, Any]:
        units = self._units().items()
        return {t.value: daemon_health(unit, why_down=self._why_down(unit)) for t, unit in units}

    def _why_down(self, unit: Unit) -> str:
        """Which includes who stopped it and why, and the error of what is to be up and is not."""
        kept = unit.why_resting(*sorted(unit.kept_down)) if unit.wanted else ""
        error = unit.info.last_error if expected(unit) and is_down(unit) else ""
        return kept or error or self._supervisor.why(unit.daemon_type)

    def get_failed_daemons(self) -> list[tuple[DaemonType, str]]:
        """Return the daemons that stay down, with their errors."""
        if not answers_here(self):
            infos = self.get_status().items()
            return [(t, info.last_error or "") for t, info in infos if info.state in DOWN_FOR_GOOD]
        units = self._units().items()
        return [(t, unit.info.last_error or "") for t, unit in units if unit.info.state in DOWN_FOR_GOOD]

    def liveness_probe(self) -> ProbeReport:
        """True while this is a run and all its critical daemons run, also none that somebody stopped.

        Indexable either way. `down` has those that ought to run and do not; `stopped` those that were stopped
        on purpose, which is no fault: the probes over HTTP go by `down` alone.
        """
        return ProbeReport("alive", self._liveness())

    @reported
    def _liveness(self) -> dict[str, Any]:
        down = [unit.daemon_type.value for unit in self._expected() if unit.spec.critical and is_down(unit)]
        units = self._units().values()
        stopped = [unit.daemon_type.value for unit in units if unit.spec.critical and is_stopped(unit)]
        alive = self._running and not down and not stopped
        values = {"alive": alive, "timestamp": self._runtime.now_s(), "uptime_seconds": self._uptime_s()}
        return {**values, "down": down, "stopped": stopped}

    def readiness_probe(self, required: Iterable[DaemonType] | None = None) -> ProbeReport:
        """True once everything that ought to run (or *required*) does."""
        if isinstance(required, str):
            raise ConfigError(f"required is {required!r}; it must be several daemon types, in a list")
        return ProbeReport("ready", self._readiness() if required is None else self._ready(required))

    @reported
    def _readiness(self) -> dict[str, Any]:
        return self._ready([unit.daemon_type for unit in self._expected()])

    def _ready(self, required: Iterable[DaemonType]) -> dict[str, Any]:
        asked, here = list(required), answers_here(self)
        missing = [str(daemon_type) for daemon_type in asked if not self.is_running(daemon_type)]
        reason = ""
        if here and not self._running:
            reason = "the daemon manager is not started"
        elif not asked:
            reason = "there are no daemons to run"
        elif missing:
            reason = f"not running: {', '.join(missing)}"
        running = [t.value for t in self._units() if self.is_running(t)]
        failed = [daemon_type.value for daemon_type, _ in self.get_failed_daemons()]
        values = {"ready": not reason, "timestamp": self._runtime.now_s(), "reason": reason}
        counts = {"running_count": len(running), "failed_count": len(failed)}
        return {**values, **counts, "running": running, "failed": failed}

    def health_summary(self) -> dict[str, Any]:
        """Return the share of daemons that are up, with both probes."""
        return {
            **self._shares(),
            "daemons": {t.value: health for t, health in self.get_all_daemon_health().items()},
            "liveness": self.liveness_probe(),
            "readiness": self.readiness_probe(),
        }

    @reported
    def _shares(self) -> dict[str, Any]:
        wanted = self._expected()
        up = sum(1 for unit in wanted if unit.phase is Phase.UP)
        score = up / len(wanted) if wanted else 0.0
        return {
            "status": "healthy" if score >= 0.9 else "degraded" if score >= 0.5 else "unhealthy",
            "score": score,
            "running": up,
            "failed": len(self.get_failed_daemons()),
            "total": len(wanted),
            "timestamp": self._runtime.now_s(),
        }

    @reported
    def get_lifecycle_summary(self) -> dict[str, Any]:
        """Return uptimes and restarts in a few numbers."""
        restarts = sum(self._ledger.record(t).total for t in self._units())
        uptimes, uptime_s = self._uptimes(), self._uptime_s()
        return lifecycle_summary(self._units(), uptimes, uptime_s=uptime_s, restarts=restarts)

    @reported_health
    def health_check(self) -> HealthCheckResult:
        """Healthy while running and fewer than a fifth of the wanted daemons are down for good."""
        wanted, failed = self._expected(), self.get_failed_daemons()
        details = {
            "running": self._running,
            "daemons_total": len(wanted),
            "daemons_running": sum(1 for unit in wanted if unit.phase is Phase.UP),
            "daemons_failed": len(failed),
            "uptime_seconds": self._uptime_s(),
            "leaked": [t.value for t, unit in self._units().items() if unit.info.leaked],
            "loop": self.watchdog.status(),
            "events_dropped": self._outbox.dropped,
        }
        if not self._running:
            return HealthCheckResult(False, CoordinatorStatus.STOPPED, "not running", details)
        if failed and len(failed) >= max(1, 0.2 * len(wanted)):
            return HealthCheckResult(
                True, CoordinatorStatus.DEGRADED, f"{len(failed)} daemons failed", details
            )
        return HealthCheckResult(True, CoordinatorStatus.RUNNING, "", details)

    def _units(self) -> dict[DaemonType, Unit]:
        """The daemons of this moment; the loop may register more while another thread reads."""
        return self._supervisor.units.copy()

    def _expected(self) -> list[Unit]:
        return [unit for unit in self._units().values() if expected(unit)]

    def _uptimes(self) -> dict[DaemonType, float]:
        now_s = self._runtime.now_s()
        return {daemon_type: unit.info.uptime_at(now_s) for daemon_type, unit in self._units().items()}

    def _uptime_s(self) -> float:
        return self._runtime.monotonic_s() - self._started_s if self._running else 0.0
