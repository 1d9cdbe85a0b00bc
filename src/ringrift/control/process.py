"""The control process from its first to its last moment: claim, engine, coordinators, daemons; and back.

Everything is undone in the reverse order, each step under a deadline, whatever step failed on the way up.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec
import structlog

from ringrift.control.run_options import RunOptions, settle_run_options
from ringrift.coordination.contracts import coordinator_directory
from ringrift.coordination.coordination_bootstrap import (
    SYSTEM_HEALTH,
    get_system_health,
    shutdown_all_coordinators,
    start_coordination,
)
from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.daemon_manager import DaemonManager, get_daemon_manager
from ringrift.coordination.event_router import get_router
from ringrift.coordination.master_loop_guard import MasterLoopGuard
from ringrift.coordination.orchestrator_registry import get_orchestrator_roles
from ringrift.coordination.run_coordinator import get_situations, get_stage_members
from ringrift.coordination.sync_base import close_data_plane
from ringrift.coordination.unified_health_manager import Evidence, get_health_manager
from ringrift.daemons.planning import STOPPED_BY_PERSON, Ended, Phase
from ringrift.daemons.requests import RequestCarrier
from ringrift.daemons.running import attempt
from ringrift.daemons.types import DaemonType
from ringrift.engine.fencing import fenced
from ringrift.engine.limits import VALUE_BYTES_MAX
from ringrift.engine.opening import close_engine, get_engine, shared_engine
from ringrift.engine.ports import Engine, KeyValue
from ringrift.engine.run_reports import REPORT_KEY, ControlHere, RunReport, reported_getters
from ringrift.engine.work_rules import ALL_WORK
from ringrift.errors import RingRiftError
from ringrift.health.run_status import Curve
from ringrift.learning.control_lease import (
    CONTROL_NAME,
    ControlLease,
    check_folder_is_free,
    tell_elected,
    tell_lost,
)
from ringrift.learning.facts.high_water import check_not_lost
from ringrift.learning.facts.state import ConfigState
from ringrift.learning.facts.store_check import require_sound_database, require_whole_store, set_run_aside
from ringrift.learning.judging.ratings import ESCALATE_AFTER, RegressionSeverity, regression
from ringrift.learning.plan.stages import HealthHold
from ringrift.learning.situation import RunningLoop, Situations
from ringrift.process import process_scope
from ringrift.runtime import Runtime, first_of, result_before, system_runtime
from ringrift.settings import Settings
from ringrift.status import HealthCheckResult, as_result
from ringrift.task_owner import TaskOwner
from ringrift.work.worker.local import LocalWorker, local_workers

# Writes what the objects of the control process say of themselves, every few seconds and as it ends.


log = structlog.get_logger()

EVERY_S = 5.0
TURN_S = 0.005  # of questions at a time
END_S_MAX = 5.0


class ReportWriter:
    """Asks every object of this process what other processes may want to know of it."""

    def __init__(self, kv: KeyValue, runtime: Runtime) -> None:
        self._kv, self._runtime = kv, runtime
        self._things: dict[type[Any], Any] = {}
        self._turn = asyncio.Lock()  # an older report must not come after a newer one
        process_scope().put(ControlHere, ControlHere())

    async def run(self) -> None:
        """Until cancelled. A store that is away is asked again; the lease sees to one that is not ours."""
        while True:
            await self.write_now()
            await self._runtime.sleep(EVERY_S)

    async def write_now(self) -> None:
        """For whoever changed what others are to see at once."""
        try:
            await self.write()
        except RingRiftError as error:
            log.warning("control.report_unwritten", error=str(error))

    async def write(self, *, ended: bool = False) -> None:
        async with self._turn:
            answers = await self._answers()
            report = RunReport(at_s=self._runtime.now_s(), ended=ended, answers=answers)
            await self._kv.put(REPORT_KEY, _encoded(report))

    async def end(self) -> None:
        """The last words, when everything has stopped."""
        try:
            async with asyncio.timeout(END_S_MAX):
                await self.write(ended=True)
        except (RingRiftError, TimeoutError) as error:
            log.warning("control.report_unwritten", error=str(error))
        finally:
            process_scope().drop(ControlHere)

    async def _answers(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        # Daemons leave the scope as they end, and their last numbers are to be told as well.
        self._things |= {type(thing): thing for thing in process_scope().instances()}
        since_s = self._runtime.monotonic_s()
        for thing in self._things.values():
            for question in reported_getters(thing):
                if question.waits:
                    await asyncio.to_thread(self._ask, found, question.name, question.ask)
                else:
                    self._ask(found, question.name, question.ask)
            if self._runtime.monotonic_s() - since_s >= TURN_S:
                await self._runtime.sleep(0)  # the loop belongs to others as well
                since_s = self._runtime.monotonic_s()
        # It asks coordinators that ask the store.
        await asyncio.to_thread(self._ask, found, SYSTEM_HEALTH, get_system_health)
        return found

    def _ask(self, found: dict[str, Any], name: str, getter: Callable[[], Any]) -> None:
        """What fails is left out; the log says why."""
        answer = attempt(f"report of {name}", getter)
        if answer.error is None:
            found[name] = _plain(answer.value)


def _plain(value: Any) -> Any:
    return value.to_dict() if isinstance(value, HealthCheckResult) else value


def _encoded(report: RunReport) -> bytes:
    """As much of it as a record holds; the longest answers are left out first, and are unknown then."""
    answers = {name: msgspec.Raw(_json(value)) for name, value in report.answers.items()}
    while True:
        content = _json(msgspec.structs.replace(report, answers=answers))
        if len(content) <= VALUE_BYTES_MAX:
            return content
        # One that is too long must not make all the others unknown.
        longest = max(answers, key=lambda name: len(answers[name]))
        log.warning("control.report_shortened", left_out=longest, size_bytes=len(answers.pop(longest)))


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=str)


# How the parts of the control process are, asked of themselves: what the pipeline may be held for.


_DOWN = frozenset({Ended.CRASHED, Ended.GIVEN_UP, Ended.LEAKED})


def evidence_of_parts(manager: DaemonManager, situations: Situations | None = None) -> dict[str, Evidence]:
    """What this process can measure, by the kind of issue that it confirms.

    The rest is hearsay to it: who left a cluster, what failed elsewhere, and games that break the rules, of
    which each is refused by itself.
    """
    seen = situations or get_situations()
    return {
        "daemon": lambda: _daemons_down(manager),
        "coordinator": _coordinators_unwell,
        "training": lambda: _configs(seen.loop, lambda state, _: _fails(state, "train")),
        "regression": lambda: _configs(seen.loop, lambda _, curve: regression(curve) is not None),
        "critical_regression": lambda: _configs(seen.loop, lambda _, curve: _is_critical(curve)),
    }


def _configs(loop: RunningLoop | None, is_so: Callable[[ConfigState, Sequence[Curve]], bool]) -> set[str]:
    """The configs of the loop that runs here of which it is so."""
    states = [] if loop is None else [loop.state(config) for config in loop.configs()]
    return {state.config for state in states if loop is not None and is_so(state, loop.curves.of(state))}


def _daemons_down(manager: DaemonManager) -> set[str]:
    """Those that should run and do not, because they failed."""
    units = manager.supervisor.units.values()
    return {unit.daemon_type.value for unit in units if unit.phase is Phase.ABSENT and unit.ended in _DOWN}


def _coordinators_unwell() -> set[str]:
    found = set()
    for name, coordinator in coordinator_directory().all().items():
        answer = attempt(
            f"health check of {name}", getattr(coordinator, "health_check", HealthCheckResult.ok)
        )
        if inspect.iscoroutine(answer.value):
            answer.value.close()  # its answer comes too late for the loop
        elif answer.error is not None or not as_result(answer.value).healthy:
            found.add(name)
    return found


def _fails(state: ConfigState, stage: str) -> bool:
    failures = state.failures.get(stage)
    return failures is not None and failures.in_a_row > 0


def _is_critical(curve: Sequence[Curve]) -> bool:
    """By the ratings there are now; that it is not the first in a row is what the event has told."""
    found = regression(curve, in_a_row_before=ESCALATE_AFTER - 1)
    return found is not None and found.severity is RegressionSeverity.CRITICAL


def held_by_health() -> dict[str, HealthHold]:
    """What the loop of this process rests for; nothing where nothing is known."""
    return {
        hold.config or ALL_WORK: HealthHold(reason=hold.reason, until_s=hold.until_s, whole=not hold.config)
        for hold in get_health_manager().pipeline_holds()
    }


# Its life.


NOTHING_ASKED = RunOptions()
_M_ARENA_MAX, MEMORY_POOLS = -8, 2
SHUTDOWN_S_MAX = 30.0
CANCEL_S_MAX = 10.0
WORKERS_S_MAX = 60.0  # beyond the time that jobs get to seal what they have; a worker bounds both itself

T = TypeVar("T")


async def _hold_down(requests: RequestCarrier, manager: DaemonManager) -> None:
    """What people asked for while no run was there holds from the first start on."""
    await requests.before_start()
    if manager.why_resting(DaemonType.EVENT_ROUTER, STOPPED_BY_PERSON):
        await get_router().rest()  # unless CROSS_PROCESS_POLLER starts it again


@dataclass(frozen=True, slots=True)
class Started:
    """What came up, and what did not with its reason."""

    manager: DaemonManager
    running: tuple[DaemonType, ...]
    left_out: dict[DaemonType, str]
    bootstrap: dict[str, Any]


async def run_control_process(
    *,
    profile: str,
    stop: asyncio.Event,
    on_started: Callable[[Started], None],
    options: RunOptions = NOTHING_ASKED,
) -> None:
    """Run the daemons of *profile* until *stop* is set.

    Raises `Conflict` when a control process runs on this engine or data folder, `ControlLost` when another
    one took over or the folder was exchanged, `ValueError` for an unknown profile.
    """
    async with AsyncExitStack() as stack:
        _share_memory_pools()
        # What is pushed later is undone earlier: control is given back when nothing of the run is left.
        _be_known_as_control()
        engine, lease, keeping = await _take_control(stack, profile, begin_anew=options.begin_anew)
        stack.push_async_callback(close_data_plane)
        reports = ReportWriter(engine.kv, system_runtime())
        stack.push_async_callback(reports.end)
        choice = await settle_run_options(engine.kv, options)
        router = get_router()
        await router.start()
        stack.push_async_callback(router.stop)
        status = await start_coordination(pipeline_auto_trigger=True)
        stack.push_async_callback(shutdown_all_coordinators, timeout_seconds=SHUTDOWN_S_MAX)
        manager, members = get_daemon_manager(), get_stage_members()
        stack.push_async_callback(manager.shutdown)
        get_health_manager().go_by(evidence_of_parts(manager))
        members.holds = held_by_health
        stack.callback(members.close)
        requests = RequestCarrier(engine.kv, manager, system_runtime(), report=reports.write_now)
        await _hold_down(requests, manager)
        results = await _unless_stopped(manager.start_profile(profile), stop, keeping)
        if results is None:
            return
        # Until now nobody was missing: a daemon that has not started yet was not stopped by anybody.
        members.complete()
        tell_elected(router, lease)
        serving = TaskOwner("requests and reports")
        stack.push_async_callback(_end, serving, CANCEL_S_MAX)
        workers = TaskOwner("local workers")
        stack.push_async_callback(_end, workers, get_settings().job_grace_period + WORKERS_S_MAX)
        kept = [keeping, serving.create_task(requests.run()), serving.create_task(reports.run())]
        kept += [workers.create_task(worker.run()) for worker in _workers(choice.workers, lease)]
        on_started(
            Started(
                manager,
                tuple(daemon for daemon, up in results.items() if up),
                {daemon: manager.why(daemon) for daemon, up in results.items() if not up},
                status,
            )
        )
        # There is no time limit to a run. An error of what is kept running is raised as that ends.
        await first_of(stop.wait(), asyncio.wait(kept, return_when=asyncio.FIRST_COMPLETED))
        if keeping.done() and not keeping.cancelled():
            await tell_lost(router, lease, str(keeping.exception()))


def _share_memory_pools() -> None:
    """Have the threads share what the C library keeps of freed memory: else each keeps a megabyte for itself.

    Where it is not GNU's, nothing is to be set.
    """
    if (setting := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        setting(_M_ARENA_MAX, MEMORY_POOLS)


async def _take_control(
    stack: AsyncExitStack, profile: str, *, begin_anew: bool
) -> tuple[Engine, ControlLease, asyncio.Task[None]]:
    """Open the engine as the one that controls it; also returns the task that ends when control is lost."""
    settings, runtime = get_settings(), system_runtime()
    guard = MasterLoopGuard(profile=profile)
    stack.callback(guard.release)
    # Before the engine is opened: opening makes a database, also where there is somebody else's run.
    check_folder_is_free(guard, settings, to_begin_anew=begin_anew)
    if begin_anew:
        await asyncio.to_thread(set_run_aside, settings, runtime.now_s())
    await asyncio.to_thread(check_not_lost, settings)
    engine = await get_engine()
    stack.push_async_callback(close_engine)
    lease = ControlLease(engine, runtime, guard, settings)
    await lease.take()
    stack.push_async_callback(lease.release)
    await get_orchestrator_roles().check_control_is_free()
    renewing = TaskOwner("control lease")
    stack.push_async_callback(_end, renewing, CANCEL_S_MAX)
    keeping = renewing.create_task(lease.keep())
    # Whatever this process writes from here on carries the token.
    engine = fenced(engine, lease.guard, on_lost=lease.note_refusal, exchanged=lease.exchanged)
    shared_engine().put(engine)
    reactions = get_daemon_manager().reactions
    reactions.leads, lease.on_proved = lease.is_ours, reactions.leadership_proved
    await require_sound_database(settings)
    await require_whole_store(
        engine.kv, runtime, database=settings.coordinator_db, data_dir=settings.data_dir
    )
    return engine, lease, keeping


def _workers(slots: int, lease: ControlLease) -> list[LocalWorker]:
    """None for a run whose work is done elsewhere, or by programs that tell of their files with events."""
    if not slots:
        return []
    settings = get_settings()
    return local_workers(
        system_runtime(),
        slots=slots,
        log_dir=settings.data_dir / "logs",
        grace_s=settings.job_grace_period,
        may_write=lambda: not lease.exchanged(),
        folder=lease.folder_identity,
    )


async def _end(tasks: TaskOwner, timeout_s: float) -> None:
    """Whoever made the run reads of what ended it."""
    for error in await tasks.stop(timeout_s):
        raise error


async def _unless_stopped(
    starting: Coroutine[Any, Any, T], stop: asyncio.Event, keeping: asyncio.Task[None]
) -> T | None:
    """Wait for a start, but not beyond a request to stop or the loss of control; None if that came first."""
    return await result_before(starting, stop.wait(), asyncio.wait({keeping}))


def _be_known_as_control() -> None:
    """Hear on from where the last run stopped, also when this one was started with other arguments."""
    settings = get_settings()
    if settings.process_name is None:
        process_scope().put(Settings, replace(settings, process_name=CONTROL_NAME))
