"""`DaemonService`: the public calls of the daemon room.

Every call that starts, stops, pauses or holds a daemon changes what is wanted; the supervisor does the rest.
Calls are made on the event loop; status and probe calls may come from any thread.

Where a run in another process has the daemons, starting and stopping one is a request to that run, and what
cannot be asked of it is refused.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from typing import Any, ClassVar

import msgspec
import structlog

from ringrift.daemons import registry as graph
from ringrift.daemons.child_process import ProcessDaemon
from ringrift.daemons.planning import OPERATOR, Ended, Phase, Unit
from ringrift.daemons.reactions import EventBus, LoopWatchdog, Outbox, Reactions
from ringrift.daemons.registry import (
    DaemonSpec,
    Isolation,
    Registry,
    product_registry,
    row_faults,
    validate_registry,
)
from ringrift.daemons.requests import DaemonRequest, DaemonRequests, DaemonVerb, RequestCarrier
from ringrift.daemons.restarts import LedgerStore, MemoryLedger, RestartLedger, RestartPolicy
from ringrift.daemons.running import EntryPoint, Factory
from ringrift.daemons.start_stop import Starter, StartResult, is_gone, stop_in_order, system_memory_percent
from ringrift.daemons.status import DaemonReader, HealthRounds, Offload, in_thread
from ringrift.daemons.supervisor import Supervisor
from ringrift.daemons.types import (
    SECONDS_MAX,
    DaemonCategory,
    DaemonInfo,
    DaemonManagerConfig,
    DaemonState,
    DaemonType,
    daemon_type_of,
    daemon_types_of,
)
from ringrift.engine.arguments import check_seconds, refuse
from ringrift.engine.blocking import loop_is_running, run_blocking
from ringrift.engine.leases import control_seen
from ringrift.engine.opening import existing_engine
from ringrift.engine.ports import KeyValue
from ringrift.engine.run_reports import ControlHere, answers_here
from ringrift.errors import ConfigError, Conflict
from ringrift.process import process_scope
from ringrift.process_identity import user_name
from ringrift.runtime import Runtime, system_runtime
from ringrift.task_owner import TaskOwner

__all__ = ["DaemonService"]


# From a registry row, or a user's factory, to a daemon that the supervisor can run.


CRITICAL_RETRY_S = 1800.0
_POLICY_FIELDS = frozenset(item.name for item in fields(RestartPolicy))
_INFO_FIELDS = frozenset({"startup_grace_period", "ready_timeout"})


class Registrar:
    """Fills the supervisor with units."""

    def __init__(
        self,
        registry: Registry,
        supervisor: Supervisor,
        *,
        manager: object,
        bus: EventBus | None,
        parts: Mapping[str, Any],
    ) -> None:
        self._registry, self._supervisor = registry, supervisor
        self._offered: dict[str, Any] = {**parts, "manager": manager, "runtime": supervisor.runtime}
        if bus is not None:
            self._offered["router"] = bus

    def install_rows(self) -> None:
        """Make a unit of every row."""
        for spec in self._registry:
            unit = self._unit(spec, self._row_factory(spec))
            unit.info.unavailable_reason = spec.unavailable_reason
            self._supervisor.install(unit)

    def register(
        self,
        daemon_type: DaemonType,
        factory: Factory,
        *,
        depends_on: tuple[DaemonType, ...],
        health_check_interval: float | None,
        auto_restart: bool,
        max_restarts: int | None,
        **row: Any,
    ) -> None:
        """Take a user's factory; `ConfigError` while the daemon runs or for a wrong argument."""
        _check_factory(daemon_type, factory)
        old = self._supervisor.units.get(daemon_type)
        if old is not None and old.phase is not Phase.ABSENT:
            raise ConfigError(f"{daemon_type} is running; stop it before registering another factory")
        base = self._registry.get(daemon_type) or DaemonSpec(daemon_type=daemon_type)
        given: dict[str, Any] = {
            "health_check_interval": health_check_interval,
            "auto_restart": auto_restart,
            "max_restarts": max_restarts if max_restarts is not None else base.max_restarts,
            "depends_on": depends_on,
        }
        policy = {name: row.pop(name) for name in list(row) if name in _POLICY_FIELDS}
        info = {name: row.pop(name) for name in list(row) if name in _INFO_FIELDS}
        for name, seconds in info.items():
            check_seconds(name, seconds, high=SECONDS_MAX)
        try:
            spec = replace(base, **given, **_row_values(row))
        except TypeError as error:
            raise ConfigError(f"{daemon_type} cannot be registered: {error}") from None
        if wrong := row_faults(spec):
            raise ConfigError(f"{daemon_type} cannot be registered: {wrong[0]}")
        # Two that wait for each other would never start, and only a start that ran out of time would tell.
        if cycle := graph.find_cycle_through(self._registry, spec):
            raise graph.DependencyValidationError(
                f"{daemon_type} cannot be registered: daemons depend on each other: {' -> '.join(cycle)}"
            )
        unit = self._unit(spec, factory, **policy)
        unit.is_own = True
        self._registry.add(spec)
        for name, value in info.items():
            setattr(unit.info, name, value)
        if old is not None:
            unit.wanted, unit.holds, unit.pauses = old.wanted, old.holds, old.pauses
        self._supervisor.install(unit)

    def _row_factory(self, spec: DaemonSpec) -> Factory | None:
        if spec.unavailable_reason or not spec.entry_point:
            return None
        if spec.isolation is Isolation.PROCESS:
            runtime = self._supervisor.runtime
            return partial(ProcessDaemon.for_entry_point, spec.entry_point, spec.settings, runtime=runtime)
        return EntryPoint(spec.entry_point, {**self._offered, "settings": dict(spec.settings)})

    def _unit(self, spec: DaemonSpec, factory: Factory | None, **policy: Any) -> Unit:
        config = self._supervisor.config
        max_restarts = config.max_restart_attempts if spec.max_restarts is None else spec.max_restarts
        defaults = {
            "max_restarts": max_restarts,
            "cooldown_s": config.recovery_cooldown,
            "stable_s": config.stable_time,
            "degraded_retry_s": CRITICAL_RETRY_S if spec.critical else None,
        }
        interval_s = spec.health_check_interval
        if interval_s is None:
            critical_s = config.critical_daemon_health_interval
            interval_s = critical_s if spec.critical else config.health_check_interval
        check_seconds(f"health_check_interval of {spec.daemon_type}", interval_s, low=1e-3, high=SECONDS_MAX)
        merged = RestartPolicy(**{**defaults, **policy})
        record = self._supervisor.ledger.record(spec.daemon_type)
        info = DaemonInfo(
            daemon_type=spec.daemon_type,
            health_check_interval=interval_s,
            auto_restart=spec.auto_restart,
            max_restarts=max_restarts,
            restart_delay=merged.delay_s,
            restart_count=record.restarts_in_a_row,
            last_error=record.last_error or None,
            startup_grace_period=config.default_startup_grace_period,
            depends_on=list(spec.depends_on),
            soft_depends_on=list(spec.soft_depends_on),
            startup_mode=spec.startup_mode,
        )
        return Unit(spec=spec, info=info, policy=merged, factory=factory)


def _check_factory(daemon_type: DaemonType, factory: Any) -> None:
    """Refuse what cannot be called with nothing, as the supervisor calls it."""
    if not callable(factory):
        raise ConfigError(f"the factory of {daemon_type} is {factory!r}; it must be callable")
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        raise ConfigError(f"the factory of {daemon_type} is called without arguments: {error}") from None
    except ValueError:  # one of those in C that do not say what they take
        return


def _row_values(row: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a row as a caller writes them: names for members, lists for sets."""
    values = dict(row)
    if "soft_depends_on" in row:
        values["soft_depends_on"] = daemon_types_of("soft_depends_on", row["soft_depends_on"])
    if row.get("deprecated_for") is not None:
        values["deprecated_for"] = daemon_type_of(row["deprecated_for"])
    for name, kind in (("category", DaemonCategory), ("isolation", Isolation)):
        if name in row and row[name] not in list(kind):
            refuse(name, row[name], f"one of: {', '.join(kind)}")
        if name in row:
            values[name] = kind(row[name])
    if isinstance(row.get("profiles"), list | tuple | set):
        values["profiles"] = frozenset(row["profiles"])
    return values


log = structlog.get_logger()

FLUSH_S_MAX = 2.0
EMITTED = (
    "DAEMON_STARTED",
    "DAEMON_STOPPED",
    "DAEMON_STATUS_CHANGED",
    "DAEMON_CRASH_LOOP_DETECTED",
    "DAEMON_PERMANENTLY_FAILED",
    "HEALTH_ALERT",
    "RESOURCE_CONSTRAINT",
)


class DaemonService(DaemonReader):
    """Starts, watches, restarts and stops daemons."""

    emits: ClassVar[tuple[str, ...]] = EMITTED

    def __init__(
        self,
        config: DaemonManagerConfig | None = None,
        *,
        runtime: Runtime | None = None,
        registry: Registry | None = None,
        bus: EventBus | None = None,
        ledger: LedgerStore | None = None,
        node_id: str | None = None,
        memory_percent: Callable[[], float] = system_memory_percent,
        offload: Offload = in_thread,
    ) -> None:
        check_parts(config=config, registry=registry, bus=bus, ledger=ledger)
        self.config = config or DaemonManagerConfig()
        runtime = runtime or system_runtime()
        self.node_id = node_id or runtime.hostname
        self._registry = product_registry() if registry is None else registry
        outbox = Outbox(bus if self.config.enable_coordination_wiring else None)
        restarts = RestartLedger(ledger or MemoryLedger(), runtime)
        supervisor = Supervisor(
            runtime=runtime, config=self.config, ledger=restarts, emit=outbox.put, node_id=self.node_id
        )
        self.reactions = Reactions(supervisor, bus, emit=outbox.put, node_id=self.node_id)
        super().__init__(
            supervisor=supervisor,
            ledger=restarts,
            runtime=runtime,
            watchdog=LoopWatchdog(runtime, on_incident=self.reactions.loop_was_blocked),
            outbox=outbox,
        )
        self._starter = Starter(supervisor, self._registry, outbox.put, memory_percent=memory_percent)
        self._registrar = Registrar(self._registry, supervisor, manager=self, bus=bus, parts=self._parts())
        self._rounds = HealthRounds(supervisor, offload=offload)
        self._opened_on: asyncio.AbstractEventLoop | None = None
        self._tasks = TaskOwner("daemon manager")
        self._serving: asyncio.Task[None] | None = None
        self._check_registry()
        self._registrar.install_rows()
        if self.config.auto_start and loop_is_running():
            self._open()

    def _parts(self) -> Mapping[str, Any]:
        """What is handed to daemons of the product that name it among their arguments."""
        return {}

    # --- registering ----------------------------------------------------------------------------------

    def register_factory(
        self,
        daemon_type: DaemonType,
        factory: Factory,
        depends_on: Iterable[DaemonType] | None = None,
        health_check_interval: float | None = None,
        *,
        auto_restart: bool = True,
        max_restarts: int | None = None,
        **row: Any,
    ) -> None:
        """Say how a daemon is made: an async function that runs it, or anything that returns one.

        It needs what *depends_on* names and nothing else, also when a daemon of the product has its name.
        Further keywords set fields of its registry row (`DaemonSpec`) and of its restart policy
        (`RestartPolicy`). Registering again replaces what was there, from the next start on. A wrong argument
        is a `ConfigError`, and nothing is changed.
        """
        self._registrar.register(
            daemon_type_of(daemon_type),
            factory,
            depends_on=daemon_types_of("depends_on", () if depends_on is None else depends_on),
            health_check_interval=health_check_interval,
            auto_restart=auto_restart,
            max_restarts=max_restarts,
            **row,
        )

    # --- starting and stopping ------------------------------------------------------------------------

    async def start(self, daemon_type: DaemonType, wait_for_deps: bool = False, *, reason: str = "") -> bool:  # noqa: FBT001, FBT002 - documented signature
        """Start one daemon; False when it is not up afterwards, and `why` says why.

        One that needs others which do not run yet comes up with them. *wait_for_deps* starts those, too, and
        waits for them, at most `dependency_wait_timeout`. A run in another process is asked to, for *reason*;
        it starts the daemon from then on, until somebody stops it.
        """
        if (store := await self._store_of_run(daemon_type)) is not None:
            request = DaemonRequest(daemon=str(daemon_type), want=DaemonVerb.START, with_needs=wait_for_deps)
            return await self._ask_run(store, request, reason)
        self._open()
        problem = self._starter.refusal(daemon_type)
        if not problem:
            problem = await self._starter.start(daemon_type, wait_for_deps=wait_for_deps)
        if problem:
            log.warning("daemons.not_started", daemon=str(daemon_type), reason=problem)
            self._starter.note_refusal(daemon_type, problem)
        return not problem

    async def stop(self, daemon_type: DaemonType, *, reason: str = "") -> bool:
        """Stop one daemon for as long as nobody starts it; False if unknown or if it cannot be ended.

        A run in another process is asked to, for *reason*; it holds the daemon down over its restarts, too.
        """
        unit = self._supervisor.units.get(daemon_type)
        if unit is None:
            return False
        if (store := await self._store_of_run(daemon_type)) is not None:
            request = DaemonRequest(daemon=str(daemon_type), want=DaemonVerb.STOP)
            return await self._ask_run(store, request, reason)
        unit.wanted = False
        run = unit.run
        if run is not None:
            self._supervisor.look([daemon_type])
            limit_s = self.config.shutdown_timeout + self.config.force_kill_timeout + 1.0
            with suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await run.over.wait()
        elif unit.ended is not Ended.LEAKED:
            unit.ended, unit.restart_at_s = Ended.ON_PURPOSE, None
            if unit.info.state in (DaemonState.RESTARTING, DaemonState.DEGRADED):
                self._supervisor.set_state(unit, DaemonState.STOPPED, "stopped")
        return is_gone(unit)

    async def start_all(
        self, types: Collection[DaemonType] | None = None, *, profile: str | None = None
    ) -> StartResult:
        """Start the given daemons, those of a profile, or all; dependencies first, levels in parallel.

        Daemons that cannot run are left out with their reason. Raises `DependencyValidationError` when
        *types* lists a daemon without what it needs, `ValueError` for an unknown profile.
        """
        if profile is not None:
            chosen = graph.profile_types(self._registry, profile)
        elif isinstance(types, str):
            raise ConfigError(f"{types!r} is not several daemon types; a profile is profile={types!r}")
        elif types is not None:
            chosen = list(daemon_types_of("types", types))
            running = [t for t, unit in self._supervisor.units.items() if unit.phase is Phase.UP]
            graph.validate_dependency_graph(self._registry, chosen, running)
        else:
            chosen = list(self._supervisor.units)
        if (elsewhere := await self._elsewhere(chosen)) is not None:
            raise elsewhere
        self._open()
        return await self._starter.start_many(chosen)

    async def start_profile(self, profile: str) -> StartResult:
        """Start the daemons of a profile."""
        return await self.start_all(profile=profile)

    async def stop_all(self) -> dict[DaemonType, bool]:
        """Stop every daemon, dependents first; return which are really gone."""
        config = self.config
        everything = list(self._supervisor.units)
        if not self._was_opened and (elsewhere := await self._elsewhere(everything)) is not None:
            raise elsewhere
        return await self._stop(everything, config.shutdown_timeout, config.force_kill_timeout, ordered=True)

    async def shutdown(self, timeout: float | None = None, force: bool = False) -> None:  # noqa: FBT001, FBT002 - documented signature
        """Stop everything within *timeout*; with *force* all at once and without a second wait."""
        if timeout is not None:
            check_seconds("timeout", timeout, high=SECONDS_MAX)
        if self._opened_on is None:
            return
        self._open()  # a closed loop leaves something to clear up; a live one is not for us to stop
        limit_s = self.config.shutdown_timeout if timeout is None else timeout
        # First what would start daemons, then what would judge them, then the daemons.
        self._running = False
        await self._tasks.stop(FLUSH_S_MAX)
        await self._rounds.stop()
        self.reactions.unsubscribe()
        await self._stop_for_good(limit_s, force=force)
        self.watchdog.stop()
        await self._supervisor.close()
        await self._ledger.flush(timeout_s=FLUSH_S_MAX)
        self._opened_on = None

    async def restart_failed_daemon(self, daemon_type: DaemonType, force: bool = False) -> bool:  # noqa: FBT001, FBT002 - documented signature
        """Start a daemon that is down; *force* also forgets its crashes and its failed import."""
        unit = self._supervisor.units.get(daemon_type)
        if unit is None or unit.phase is not Phase.ABSENT:
            return False
        if await self.runs_elsewhere(daemon_type):
            return not self.is_running(daemon_type) and await self.start(daemon_type)
        if unit.info.state is DaemonState.IMPORT_FAILED and not force:
            return False
        if force:
            self.clear_permanently_failed(daemon_type)
            unit.info.import_error = unit.info.last_error = None
            unit.info.last_failure_time = 0.0
        return await self.start(daemon_type)

    # --- pausing --------------------------------------------------------------------------------------

    def pause(self, daemon_type: DaemonType) -> bool:
        """Let a daemon rest until `resume`. One without a `pause()` of its own is stopped meanwhile."""
        return self._set_pause(daemon_type, paused=True)

    def resume(self, daemon_type: DaemonType) -> bool:
        """Take back a `pause`. Other reasons for resting (backpressure, a full disk) stay."""
        return self._set_pause(daemon_type, paused=False)

    def _set_pause(self, daemon_type: DaemonType, *, paused: bool) -> bool:
        unit = self._supervisor.units.get(daemon_type)
        if unit is None:
            return False
        if not self._is_here and (elsewhere := run_blocking(self._elsewhere([daemon_type]))) is not None:
            raise elsewhere
        if paused:
            unit.pauses[OPERATOR] = None
        else:
            unit.pauses.pop(OPERATOR, None)
        if self._opened_on is not None:
            self._supervisor.look([daemon_type])
        return True

    # --- restarts -------------------------------------------------------------------------------------

    def is_permanently_failed(self, daemon_type: DaemonType) -> bool:
        """Return whether the restart budget is spent and nobody cleared it."""
        return self._ledger.failed_for_good(daemon_type)

    def clear_permanently_failed(self, daemon_type: DaemonType) -> None:
        """Forget a daemon's crashes, so that it may be started again."""
        self._ledger.clear(daemon_type)
        if unit := self._supervisor.units.get(daemon_type):
            unit.info.restart_count = 0
            if unit.ended is Ended.GIVEN_UP:
                unit.ended, unit.wanted = Ended.ON_PURPOSE, False

    def get_degraded_daemons(self) -> list[DaemonType]:
        """Return the critical daemons that are only tried at long intervals."""
        return [t for t, info in self.get_status().items() if info.state is DaemonState.DEGRADED]

    def get_recent_restarts(self, within_seconds: float = 300.0) -> dict[DaemonType, int]:
        """Return the number of restarts by daemon, without zeros."""
        check_seconds("within_seconds", within_seconds, high=SECONDS_MAX)
        if not answers_here(self):
            self._ledger.look_again()
        return self._ledger.recent(self._supervisor.units, within_s=within_seconds)

    def can_restart(self, daemon_type: DaemonType) -> tuple[bool, str]:
        """Return whether a crash of this daemon would be answered by a restart now, else why not."""
        if reason := self._starter.refusal(daemon_type):
            return False, reason
        return self._supervisor.may_restart(daemon_type)

    def mark_ready(self, daemon_type: DaemonType) -> bool:
        """A daemon says that it finished starting."""
        unit = self._supervisor.units.get(daemon_type)
        if unit is None or unit.run is None:
            return False
        self._supervisor.ready(unit, unit.run)
        return unit.phase is Phase.UP

    @property
    def health_rounds_alive(self) -> bool:
        return self._rounds.alive

    def repair(self) -> None:
        """Look at every daemon again, and bring back what watches them; not while it shuts down."""
        if self._opened_on is not None and self._running:
            if not self._rounds.alive:
                self._rounds.revive()
            self._supervisor.poke()

    def alert(self, kind: str, message: str) -> None:
        """Tell people about a fault of the manager itself."""
        log.error("daemons.alert", kind=kind, message=message)
        payload = {"alert_type": kind, "severity": "error", "message": message, "node_id": self.node_id}
        self._outbox.put("HEALTH_ALERT", payload)

    # --- a run in another process ---------------------------------------------------------------------

    async def runs_elsewhere(self, daemon_type: DaemonType) -> bool:
        """Whether a run in another process has this daemon, so that the verbs are requests to that run."""
        return await self._store_of_run(daemon_type) is not None

    async def _store_of_run(self, daemon_type: DaemonType) -> KeyValue | None:
        """Where the run that has this daemon is asked; None where this manager has it itself."""
        unit = self._supervisor.units.get(daemon_type)
        if self._is_here or (unit is not None and (unit.is_own or unit.wanted or unit.run is not None)):
            return None
        engine = await existing_engine()
        seen = None if engine is None else await control_seen(engine.kv, self._runtime)
        if engine is None or seen is None:
            return None
        # A program that runs the loop alone has its own daemons, and so has this one beside it.
        return None if seen.holder is not None and not seen.holder.has_daemons else engine.kv

    @property
    def _is_here(self) -> bool:
        """Known without the store: this process is the run, or the manager is somebody's own."""
        scope = process_scope()
        return scope.peek(type(self)) is not self or scope.peek(ControlHere) is not None

    async def _ask_run(self, store: KeyValue, request: DaemonRequest, reason: str) -> bool:
        """Have the run carry a request out; False if it cannot, or does not answer."""
        asked = msgspec.structs.replace(request, reason=reason, by=user_name(), at_s=self._runtime.now_s())
        done = await DaemonRequests(store).answer(asked, self._runtime)
        if done.done_s is not None and not done.problem:
            return True
        problem = done.problem or "the run has not answered; the request stands"
        log.warning("daemons.request_failed", daemon=request.daemon, want=str(request.want), reason=problem)
        self._starter.note_refusal(DaemonType(request.daemon), problem)
        return False

    async def serve_requests(self, kv: KeyValue, leads: Callable[[], Awaitable[bool]]) -> asyncio.Task[None]:
        """Carry out what other processes ask of the daemons for as long as *leads*, or until the task ends.

        For a program that leads beside its own work. The task is the manager's: a daemon that is asked to
        stop could not say that it has stopped.
        """
        if self._serving is not None:
            self._serving.cancel()  # what it has not answered yet is taken up again here
        carrier = RequestCarrier(kv, self, self._runtime, leads=leads)
        await carrier.before_start()
        self._supervisor.poke()
        self._serving = self._tasks.create_task(carrier.run(), name="daemon-requests")
        return self._serving

    async def _elsewhere(self, types: Collection[DaemonType]) -> Conflict | None:
        """The refusal of what cannot be asked of a run, if it has one of *types*."""
        for daemon_type in () if self._is_here else types:
            if await self.runs_elsewhere(daemon_type):
                return Conflict(
                    f"{daemon_type} and the other daemons of this data folder run in another process; start "
                    "and stop ask that run for one of them, and `ringrift stop` ends the run"
                )
        return None

    # --- inside ---------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Be on the running loop, with everything that watches it."""
        loop = asyncio.get_running_loop()
        if self._opened_on is loop:
            return
        self._supervisor.open()
        self._outbox.open()
        self._ledger.open()
        self._opened_on, self._running, self._was_opened = loop, True, True
        self._started_s = self._runtime.monotonic_s()
        self._rounds.start()
        if self.config.enable_coordination_wiring:
            self.reactions.subscribe()
        if self.config.loop_watchdog:
            self.watchdog.start()
        self._tasks = TaskOwner("daemon manager")
        if self.config.enable_coordination_wiring:
            self._tasks.create_task(self.reactions.watch_pressure(), name="daemon-pressure")
        if self.config.auto_start:
            self._tasks.create_task(self.start_all(profile="standard"), name="daemon-auto-start")

    async def _stop_for_good(self, limit_s: float, *, force: bool) -> None:
        """Stop the router's daemon last, after it delivered what there is to say about the others."""
        spare_s = limit_s * 0.3 if force else self.config.force_kill_timeout
        graceful_s = limit_s - spare_s if force else limit_s
        others = [t for t in self._supervisor.units if t is not DaemonType.EVENT_ROUTER]
        await self._stop(others, graceful_s, spare_s * 0.5, ordered=not force)
        await self._outbox.close(timeout_s=min(FLUSH_S_MAX, spare_s * 0.1))
        if DaemonType.EVENT_ROUTER in self._supervisor.units:
            await self._stop([DaemonType.EVENT_ROUTER], spare_s * 0.3, spare_s * 0.1, ordered=False)

    async def _stop(
        self, types: Collection[DaemonType], timeout_s: float, forced_s: float, *, ordered: bool
    ) -> dict[DaemonType, bool]:
        return await stop_in_order(
            self._supervisor,
            self._registry,
            types,
            timeout_s=timeout_s,
            forced_s=forced_s,
            ordered=ordered,
        )

    def _check_registry(self) -> None:
        wrong = validate_registry(self._registry)
        if wrong and self.config.strict_registry_validation:
            raise ValueError("the daemon registry is wrong: " + "; ".join(wrong))
        for text in wrong:
            log.warning("daemons.registry", wrong=text)


def check_parts(
    *, config: object = None, registry: object = None, bus: object = None, ledger: object = None
) -> None:
    """Refuse a part of another kind before anything is built on it."""
    if config is not None and not isinstance(config, DaemonManagerConfig):
        raise ConfigError(f"config is {config!r}; it must be a DaemonManagerConfig")
    if registry is not None and not isinstance(registry, Registry):
        raise ConfigError(f"registry is {registry!r}; it must be a Registry of DaemonSpec rows")
    if bus is not None and not (hasattr(bus, "publish") and hasattr(bus, "subscribe")):
        raise ConfigError(f"bus is {bus!r}; it must be an event router")
    if ledger is not None and not (hasattr(ledger, "load") and hasattr(ledger, "save")):
        raise ConfigError(f"ledger is {ledger!r}; it must be able to load and save restart records")
