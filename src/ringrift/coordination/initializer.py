"""Brings coordinators up layer by layer, and down again in exactly the reverse order.

The walk is one generator: it yields the seconds to wait before another try, and the caller decides how to
wait. So it serves code with and without a running loop. It starts no loop and no task of its own: what has
to run on belongs to the daemon manager. One coordinator's failure is its own; what needs it is skipped.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import threading
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from ringrift.coordination.coordinator_dependencies import (
    COORDINATOR_REGISTRY,
    CoordinatorSpec,
    InitOutcome,
    InitPattern,
    InitResult,
    Registry,
    order,
    verdict,
)
from ringrift.daemons.running import attempt, attempt_async, end_within
from ringrift.engine.blocking import loop_is_running
from ringrift.errors import ConfigError, RingRiftError, Unavailable
from ringrift.runtime import Runtime, back_off_s, system_runtime

log = structlog.get_logger()

DELIVERY_S_MAX = 5.0
RETRY_S_MAX = 60.0  # between two tries of a start, unless the first wait is longer
RESTART_S_MAX = 10.0

Publish = Callable[[str, Mapping[str, Any]], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapOptions:
    """How to bring the system up."""

    enable: Mapping[str, bool] = field(default_factory=dict)  # by enable_* name
    arguments: Mapping[str, Any] = field(default_factory=dict)  # for the entry points that take them
    tries_max: int = 3
    retry_delay_s: float = 0.5  # doubled after each try, up to RETRY_S_MAX

    def __post_init__(self) -> None:
        if not isinstance(self.tries_max, int) or self.tries_max < 1:
            raise ConfigError(f"bootstrap needs at least one try, not {self.tries_max!r}")
        if not isinstance(self.retry_delay_s, int | float) or not self.retry_delay_s >= 0:
            raise ConfigError(f"bootstrap needs a delay of 0 or more seconds, not {self.retry_delay_s!r}")
        for name, value in self.enable.items():
            if not isinstance(value, bool):
                raise ConfigError(f"{name} is {value!r}; it must be True or False")


class Initializer:
    """The state of one system: what came up, in which order, and what did not."""

    def __init__(
        self,
        registry: Registry = COORDINATOR_REGISTRY,
        *,
        publish: Publish,
        runtime: Runtime | None = None,
    ) -> None:
        self.registry = registry
        self._order = order(registry)
        self._publish = publish
        self._runtime = runtime or system_runtime()
        # Reentrant, so that an entry point that calls bootstrap gets `Unavailable` and no deadlock.
        self._lock = threading.RLock()
        self.results: dict[str, InitResult] = {}
        self.instances: dict[str, Any] = {}  # in the order in which they came up
        self._given: dict[str, dict[str, Any]] = {}  # the arguments that each was brought up with
        self._unpublished: list[str] = []  # events that could not be published
        self.started_s: float | None = None
        self.completed_s: float | None = None
        self.shutdown_requested = False
        self.listed = True  # whether the coordinators stand in the directory for others
        self._walking = False
        self._telling: list[asyncio.Future[Any]] = []  # deliveries, which the router owns

    @property
    def initialized(self) -> bool:
        return self.completed_s is not None

    @property
    def errors(self) -> list[str]:
        """What is wrong now: by the results, so that what came up in a later call is named no longer."""
        problems = {name: _problem(self.registry[name], result) for name, result in self.results.items()}
        return [*(f"{name}: {why}" for name, why in problems.items() if why), *self._unpublished]

    def initialize(self, options: BootstrapOptions) -> None:
        """Bring everything up; what is up already is changed as *options* ask.

        Inside a running loop it tries again without waiting. Raises `ConfigError` for an option that cannot
        have its effect any more.
        """
        with self._lock:
            # The runtime's sleep is asynchronous, so without a loop each wait gets a loop of its own.
            waits = _skip_wait if loop_is_running() else asyncio.run
            for delay_s in self._steps(options):
                waits(self._runtime.sleep(delay_s))

    async def initialize_async(self, options: BootstrapOptions) -> None:
        """The same for code on a loop: waits between tries, and until everything was told.

        Raises `Unavailable` while another call brings the system up.
        """
        for delay_s in self._steps(options):
            await self._runtime.sleep(delay_s)
        await self.wait_until_delivered(timeout_s=DELIVERY_S_MAX)

    async def wait_until_delivered(self, *, timeout_s: float) -> None:
        """Wait until what was told inside this loop has been delivered, or for *timeout_s*."""
        pending, self._telling = self._telling, []
        if pending:
            await asyncio.wait(pending, timeout=timeout_s)

    async def restart(self, name: str) -> Any:
        """End a coordinator that is up, bring it up again with what it was given, and return it.

        One that does not end in time is brought up all the same. Raises what its entry point raises.
        """
        if self.shutdown_requested or name not in self.instances:
            raise ConfigError(f"{name} is not up, so there is nothing to bring back")
        problem = await _end(self, name, RESTART_S_MAX)
        log.warning("bootstrap.restarted", coordinator=name, ended_with=problem)
        given = BootstrapOptions(arguments=self._given.get(name, {}))
        self.results[name] = self._bring_up(self.registry[name], given)
        return self.instances[name]

    def shutdown_order(self) -> list[str]:
        """Return what is up, last first."""
        # Results keep the one order of the start, also of what came up in a later call.
        return [name for name in reversed(list(self.results)) if self.results[name].initialized]

    def forget(self, *, shutdown_requested: bool = False) -> None:
        """Be as before the start, so that the system can be brought up again."""
        self.shutdown_requested = shutdown_requested
        self.results, self.instances, self._unpublished, self._telling = {}, {}, [], []
        self._given, self.listed = {}, True
        self.started_s = self.completed_s = None

    # --- the walk -------------------------------------------------------------------------------------

    def _steps(self, options: BootstrapOptions) -> Generator[float, None, None]:
        if self._walking:
            raise Unavailable("bootstrap is under way")
        self._refuse_without_effect(options)
        self._walking = True
        try:
            yield from self._adjust(options) if self.initialized else self._walk(options)
        finally:
            self._walking = False

    def _walk(self, options: BootstrapOptions) -> Generator[float, None, None]:
        self.forget()
        self.started_s = self._runtime.now_s()
        for spec in self._order:
            enabled = _asked(spec, options) is not False
            result = verdict(spec, self.results, enabled=enabled)
            if result is None:
                result = yield from self._attempt(spec, options)
            self.results[spec.name] = result
        # Told only now, so that coordinators of the upper layers hear about the lower ones.
        for spec in self._order:
            self._announce(spec, self.results[spec.name])
        self.completed_s = self._runtime.now_s()

    def _refuse_without_effect(self, options: BootstrapOptions) -> None:
        """Before anything is changed: every option has somebody whom it concerns."""
        for name in options.arguments:
            takers = [spec for spec in self._order if name in spec.arguments and not spec.not_built_reason]
            # True as well if nobody takes it: then it can have no effect either.
            if all(_asked(spec, options) is False for spec in takers):
                what = ", ".join(spec.name for spec in takers) or "nothing in this version"
                raise ConfigError(f"{name} is for {what}, which is switched off")
        for spec in self._order:
            # What came up has subscribed and handed itself to others; only a shutdown takes all of that back.
            if self.initialized and _asked(spec, options) is False and self.results[spec.name].initialized:
                raise ConfigError(f"{spec.name} is up; shut the system down before you leave it out")

    def _adjust(self, options: BootstrapOptions) -> Generator[float, None, None]:
        """Change a system that is up: new arguments, and what was left out before."""
        for spec in self._order:
            before = self.results[spec.name]
            if before.initialized:
                self._give_again(spec, options)
            # What failed is tried again only on request; what was skipped may have what it needs now.
            elif _asked(spec, options) or before.outcome is InitOutcome.SKIPPED:
                result = verdict(spec, self.results, enabled=_asked(spec, options) is not False)
                if result is None:
                    result = yield from self._attempt(spec, options)
                self.results[spec.name] = result
                if result != before:
                    self._announce(spec, result)

    def _give_again(self, spec: CoordinatorSpec, options: BootstrapOptions) -> None:
        """Hand new arguments to a coordinator that is up; it raises `ConfigError` if they come too late."""
        given = self._given.get(spec.name, {})
        asked = {name: value for name, value in options.arguments.items() if name in spec.arguments}
        if {**given, **asked} != given:
            self._bring_up(spec, replace(options, arguments={**given, **asked}))

    def _attempt(
        self, spec: CoordinatorSpec, options: BootstrapOptions
    ) -> Generator[float, None, InitResult]:
        first_s = options.retry_delay_s
        for tries in range(1, options.tries_max + 1):
            tried = attempt(f"start of {spec.name}", lambda: self._bring_up(spec, options))
            if isinstance(tried.value, InitResult):
                return tried.value
            # Another try can mend only what says that it may pass.
            if not isinstance(tried.error, Unavailable) or tries == options.tries_max:
                break
            yield back_off_s(tries, first_s=first_s, longest_s=max(first_s, RETRY_S_MAX))
        times = f" (after {tries} tries)" if tries > 1 else ""
        return InitResult(InitOutcome.FAILED, error=f"{tried.problem}{times}")

    def _bring_up(self, spec: CoordinatorSpec, options: BootstrapOptions) -> InitResult:
        target = load_entry_point(spec.entry_point)
        if spec.pattern is InitPattern.IMPORT:
            self.instances[spec.name] = target
            return InitResult(InitOutcome.INITIALIZED)
        wanted = {name: options.arguments[name] for name in spec.arguments if name in options.arguments}
        instance = target(**wanted)
        # After the call: arguments that were refused are not what it has.
        self._given[spec.name] = wanted
        if inspect.isawaitable(instance):
            discard(instance)
            raise ConfigError(f"{spec.entry_point} is async; an entry point of bootstrap must not be")
        self.instances[spec.name] = instance
        wired = spec.pattern is InitPattern.WIRE
        return InitResult(InitOutcome.INITIALIZED, subscribed=bool(getattr(instance, "is_subscribed", wired)))

    def _announce(self, spec: CoordinatorSpec, result: InitResult) -> None:
        about = {"coordinator_name": spec.name}
        if result.initialized:
            fine = {"health_score": 1.0, "uptime_seconds": 0.0, "subscribed": result.subscribed}
            self.tell("COORDINATOR_HEALTHY", {**about, **fine})
        elif result.outcome in {InitOutcome.FAILED, InitOutcome.SKIPPED}:
            error = result.error or ""
            self.tell("COORDINATOR_UNHEALTHY", {**about, "reason": error, "health_score": 0.0})
            self.tell("COORDINATOR_INIT_FAILED", {**about, "error": error})

    def tell(self, event: str, payload: Mapping[str, Any]) -> None:
        """Publish; an engine that is away must not keep the system from coming up or going down."""
        try:
            delivery = self._publish(event, payload)
            if isinstance(delivery, asyncio.Future):
                self._telling.append(delivery)
        except RingRiftError as error:
            self._unpublished.append(f"{event} was not published: {error}")
            log.error("bootstrap.event_lost", event_type=event, error=str(error))


def _problem(spec: CoordinatorSpec, result: InitResult) -> str:
    if result.outcome in {InitOutcome.FAILED, InitOutcome.SKIPPED}:
        return result.error or result.outcome.value
    mute = result.initialized and spec.pattern is InitPattern.WIRE and not result.subscribed
    return "initialized but not subscribed" if mute else ""


def load_entry_point(entry_point: str) -> Any:
    """Return what "module:name" names."""
    module, _, name = entry_point.partition(":")
    return getattr(importlib.import_module(module), name)


def _asked(spec: CoordinatorSpec, options: BootstrapOptions) -> bool | None:
    """Whether the caller wants this one; None if nothing was said of it."""
    return options.enable.get(spec.switch, options.enable.get(f"enable_{spec.name}"))


def _skip_wait(waiting: Any) -> None:
    """Inside a running loop a wait would hold everybody else."""
    discard(waiting)


def discard(awaitable: Any) -> None:
    if inspect.iscoroutine(awaitable):
        awaitable.close()


# Ends what was brought up, in exactly the reverse order, under one shared deadline.
#
# Only coordinators that bootstrap wired are ended; what it merely got or imported ends with its owner. One
# that fails or overruns is reported, and the rest is ended all the same.


# Waited in addition to the deadline, once for every coordinator that overruns.
_CANCEL_GRACE_S = 0.1


@dataclass(frozen=True, slots=True)
class Ending:
    """How one coordinator ended; an empty error is good."""

    name: str
    error: str = ""


def shut_down(initializer: Initializer, *, timeout_s: float, runtime: Runtime) -> list[Ending]:
    """End everything from code that is not async."""
    initializer.shutdown_requested = True
    if not loop_is_running():
        return asyncio.run(shut_down_async(initializer, timeout_s=timeout_s, runtime=runtime))
    endings = [_report(initializer, _end_at_once(initializer, name)) for name in initializer.shutdown_order()]
    initializer.forget(shutdown_requested=True)
    return endings


async def shut_down_async(
    initializer: Initializer, *, timeout_s: float, runtime: Runtime, emit_events: bool = True
) -> list[Ending]:
    """End everything; the whole takes *timeout_s* at most, whatever the coordinators do."""
    initializer.shutdown_requested = True  # from now on nothing is brought back
    deadline_s = runtime.monotonic_s() + timeout_s
    endings = []
    for name in initializer.shutdown_order():
        left_s = max(0.0, deadline_s - runtime.monotonic_s())
        ending = Ending(name, await _end(initializer, name, left_s))
        endings.append(_report(initializer, ending, emit_events=emit_events))
        await initializer.wait_until_delivered(timeout_s=min(_CANCEL_GRACE_S, left_s))
    initializer.forget(shutdown_requested=True)
    return endings


def _report(initializer: Initializer, ending: Ending, *, emit_events: bool = True) -> Ending:
    """Tell at once, and not when all have ended: the health manager, which is to hear it, is among them."""
    if ending.error:
        log.error("bootstrap.shutdown_failed", coordinator=ending.name, error=ending.error)
    if emit_events:
        reason = ending.error or "shutdown requested"
        initializer.tell("COORDINATOR_SHUTDOWN", {"coordinator_name": ending.name, "reason": reason})
    return ending


def _closer(initializer: Initializer, name: str, *names: str) -> Any:
    if initializer.registry[name].pattern is not InitPattern.WIRE:
        return None
    instance = initializer.instances.get(name)
    return next((getattr(instance, n) for n in names if hasattr(instance, n)), None)


async def _end(initializer: Initializer, name: str, timeout_s: float) -> str:
    closer = _closer(initializer, name, "shutdown", "stop", "unwire")
    if closer is None:
        return ""
    problem = ""

    async def end() -> None:
        nonlocal problem
        problem = (await attempt_async(f"shutdown of {name}", closer)).problem

    return await end_within(end(), timeout_s, grace_s=_CANCEL_GRACE_S) or problem


def _end_at_once(initializer: Initializer, name: str) -> Ending:
    """Without waiting: inside a running loop a call that is not async cannot."""
    # Another order than when it can wait: `unwire` is the one that is not asynchronous.
    closer = _closer(initializer, name, "unwire", "shutdown", "stop")
    if closer is None:
        return Ending(name)
    ended = attempt(f"shutdown of {name}", closer)
    if ended.error is not None:
        return Ending(name, ended.problem)
    if inspect.isawaitable(ended.value):
        discard(ended.value)
        return Ending(name, "ends asynchronously; use `await shutdown_all_coordinators()` inside a loop")
    return Ending(name)
