"""The base of everything that handles events and works in cycles.

`run` is the whole life: subscribe, start hook, cycles until cancelled, then unsubscribe and stop hook. A
supervisor drives it directly; `start` and `stop` do the same for a handler on its own.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar, cast

import structlog

from ringrift.engine.run_reports import reported, reported_health
from ringrift.errors import ConfigError, described
from ringrift.events.catalog.audit import ComponentWiring
from ringrift.events.catalog.names import normalize_event_type
from ringrift.events.event import RouterEvent, digest_of, get_event_payload
from ringrift.events.subscriptions import Callback, SubscriptionHandle, callback_name
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.runtime import Runtime, system_runtime
from ringrift.status import CoordinatorStatus, HealthCheckResult
from ringrift.task_owner import TaskOwner

# What a handler counts about itself, and how it judges its health.


ERROR_SHARE_MAX = 0.5
DEGRADED_SHARE_MAX = 0.2


@dataclass(frozen=True, slots=True)
class HandlerError:
    """One error of a cycle or of an event."""

    message: str
    timestamp: float
    context: str


@dataclass(slots=True)
class HandlerStats:
    """Counts since the handler was made."""

    events_processed: int = 0
    events_deduplicated: int = 0
    success_count: int = 0
    errors_count: int = 0
    last_error: str = ""
    last_error_time: float = 0.0
    cycles_completed: int = 0
    started_at: float = 0.0
    last_activity: float = 0.0
    last_event_time: float = 0.0
    subscribed: bool = False
    custom_stats: dict[str, Any] = field(default_factory=dict)

    @property
    def error_count(self) -> int:
        return self.errors_count

    @property
    def success_rate(self) -> float:
        """Share of events handled well; 1.0 before the first."""
        return self.success_count / self.events_processed if self.events_processed else 1.0

    def to_dict(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**values, "success_rate": self.success_rate, "custom_stats": dict(self.custom_stats)}


def judge(stats: HandlerStats, *, running: bool, details: dict[str, Any]) -> HealthCheckResult:
    """Judge by the share of errors: over half is an error, over a fifth needs a look."""
    if not running:
        return HealthCheckResult(False, CoordinatorStatus.STOPPED, "not running", details)
    attempts = stats.cycles_completed + stats.events_processed
    # A failed cycle is not among those completed, so errors can exceed the attempts.
    share = stats.errors_count / max(attempts, stats.errors_count, 1)
    if share > ERROR_SHARE_MAX:
        return HealthCheckResult.unhealthy(f"{share:.0%} errors; last: {stats.last_error}", **details)
    if share > DEGRADED_SHARE_MAX:
        return HealthCheckResult.degraded(f"{share:.0%} errors; last: {stats.last_error}", **details)
    return HealthCheckResult.ok("running", **details)


class EventDeduplicator:
    """Remembers payloads for a while; opt-in, because equal events may be meant."""

    def __init__(self, *, ttl_s: float = 300.0, events_max: int = 1000) -> None:
        self._ttl_s, self._events_max = ttl_s, events_max
        self._seen_s: dict[str, float] = {}

    def is_duplicate(
        self, payload: Mapping[str, Any], now_s: float, key_fields: Sequence[str] | None = None
    ) -> bool:
        """Whether an equal payload (in *key_fields*, if given) came within the time; remembers it."""
        content = dict(payload) if key_fields is None else {name: payload.get(name) for name in key_fields}
        key = digest_of(content)
        known_s = self._seen_s.pop(key, None)
        duplicate = known_s is not None and now_s - known_s < self._ttl_s
        # A repetition keeps the first time: one that never stops is let through once per period.
        self._seen_s[key] = known_s if duplicate and known_s is not None else now_s
        while len(self._seen_s) > self._events_max:
            del self._seen_s[next(iter(self._seen_s))]
        return duplicate


log = structlog.get_logger()

ConfigT = TypeVar("ConfigT")


_ERRORS_MAX = 50
_STOP_S = 5.0


class CycleHandler(ABC):
    """Handles events and runs a cycle at an interval. A failing cycle is recorded; the next one runs."""

    capability: ClassVar[str] = "event_handlers"
    emits: ClassVar[tuple[str, ...]] = ()  # what it publishes, for the wiring audit

    def __init__(
        self,
        name: str,
        config: Any = None,
        *,
        cycle_interval: float = 60.0,
        dedup_enabled: bool = True,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        _check(name, cycle_interval, router)
        self._name, self.config = name, config
        self._cycle_interval, self._dedup_enabled = cycle_interval, dedup_enabled
        self._own_router, self._runtime = router, runtime or system_runtime()
        self._stats = HandlerStats()
        self._errors: deque[HandlerError] = deque(maxlen=_ERRORS_MAX)
        self._seen = EventDeduplicator()
        self._handles: list[SubscriptionHandle] = []
        self._running = False
        self._tasks: TaskOwner | None = None
        self._task: asyncio.Task[None] | None = None

    # --- for subclasses -------------------------------------------------------------------------------

    @abstractmethod
    async def _run_cycle(self) -> None:
        """Do one round of work."""

    async def _on_start(self) -> None:  # noqa: B027 - most have nothing to prepare
        """Prepare; an error here keeps the handler from starting, and `_on_stop` is not called."""

    async def _on_stop(self) -> None:  # noqa: B027 - or to clean up
        """Clean up."""

    def _get_event_subscriptions(self) -> Mapping[Any, Callback]:
        """Return the callback for each event type."""
        return {}

    def _hears_through(self) -> UnifiedEventRouter:
        """Return the router that it subscribes at."""
        if self._own_router is None:
            raise ConfigError(f"{self._name} was made without a router, so there is nothing to subscribe at")
        return self._own_router

    def _is_duplicate_event(self, event: Any, key_fields: Sequence[str] | None = None) -> bool:
        """Whether an equal event came in the last five minutes; for handlers that want to skip those."""
        if not self._dedup_enabled:
            return False
        payload, now_s = get_event_payload(event), self._runtime.monotonic_s()
        duplicate = self._seen.is_duplicate(payload, now_s, key_fields)
        self._stats.events_deduplicated += duplicate
        return duplicate

    def _record_error(self, error: BaseException | str, context: str = "") -> None:
        text = error if isinstance(error, str) else described(error)
        now_s = self._runtime.now_s()
        self._stats.errors_count += 1
        self._stats.last_error, self._stats.last_error_time = text, now_s
        self._errors.append(HandlerError(text, now_s, context))

    # --- life -----------------------------------------------------------------------------------------

    async def run(self, *, on_ready: Callable[[], None] | None = None) -> None:
        """Live until cancelled."""
        try:
            # Before the start hook: what is published while it prepares must be heard.
            self._subscribe()
            await self._on_start()
        except BaseException:
            self._unsubscribe()
            raise
        self._running = True
        self._stats.started_at = self._runtime.now_s()
        try:
            if on_ready is not None:
                on_ready()
            while True:
                await self._cycle()
                await self._rest()
        finally:
            self._running = False
            # Before the stop hook: no event may come in while that takes things down.
            self._unsubscribe()
            await self._on_stop()

    async def start(self) -> None:
        """Start on its own; returns when it is ready, raises what `_on_start` raised."""
        if self._task is not None and not self._task.done():
            return
        ready = asyncio.get_running_loop().create_future()

        def announce() -> None:
            if not ready.done():
                ready.set_result(None)

        self._tasks = TaskOwner(f"handler {self._name}")
        self._task = task = self._tasks.create_task(self.run(on_ready=announce), name=self._name)
        # Either one: a start hook that raises ends the task and announces nothing. Not `result_before`, which
        # ends what is not over: the task goes on.
        await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
        if task.done() and not ready.done():
            ready.cancel()
            await task

    async def stop(self) -> None:
        """Stop; safe to call twice."""
        task, tasks, self._task, self._tasks = self._task, self._tasks, None, None
        if task is None or tasks is None:
            return
        task.cancel()  # also one that stops itself
        for error in await tasks.stop(_STOP_S):
            self._record_error(error, "stop")
        if not task.done():
            self._running = False
            self._unsubscribe()  # a handler that was told to stop hears nothing more, stuck or not

    async def shutdown(self) -> None:
        await self.stop()

    async def wait_until_stopped(self) -> None:
        """Return when a started handler has ended, by whatever reason."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def _rest(self) -> None:
        """Wait for the next cycle."""
        await self._runtime.sleep(self._cycle_interval)

    async def _cycle(self) -> None:
        try:
            await self._run_cycle()
        except Exception as error:  # noqa: BLE001 - a failed cycle must not end the handler
            self._cycle_failed(error)
        else:
            self._stats.cycles_completed += 1
        self._stats.last_activity = self._runtime.now_s()

    def _cycle_failed(self, error: Exception) -> None:
        self._record_error(error, "cycle")
        log.error("handler.cycle_failed", handler=self._name, exc_info=error)

    def _subscribe(self) -> None:
        for event_type, callback in self._get_event_subscriptions().items():
            # The same name after a restart, so that the subscription finds its stored position.
            name = f"{self._name}/{normalize_event_type(event_type)}/{callback_name(callback)}"
            handle = self._hears_through().subscribe(event_type, self._counted(callback), name)
            self._handles.append(handle)
        self._stats.subscribed = bool(self._handles)

    def _unsubscribe(self) -> None:
        while self._handles:
            self._handles.pop()()
        self._stats.subscribed = False

    def _counted(self, callback: Callback) -> Callback:
        """Count what the callback does; its error goes on to the router, which keeps the event."""

        async def handle(event: RouterEvent) -> None:
            stats = self._stats
            stats.events_processed += 1
            stats.last_event_time = stats.last_activity = self._runtime.now_s()
            try:
                result = callback(event)
                if result is not None and hasattr(result, "__await__"):
                    await result
            except Exception as error:
                self._record_error(error, event.event_type)
                raise
            stats.success_count += 1

        return handle

    # --- what it says about itself --------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self._name

    @property
    def handler_name(self) -> str:
        return self._name

    @property
    def is_running(self) -> bool:
        return self._running

    @property
    def works_here(self) -> bool:
        """Whether it was ever started in this process, so that its fields tell something."""
        return self._running or bool(self._handles or self._stats.started_at or self._errors)

    @property
    def is_subscribed(self) -> bool:
        return bool(self._handles)

    @property
    def uptime_seconds(self) -> float:
        return max(0.0, self._runtime.now_s() - self._stats.started_at) if self._running else 0.0

    @property
    def stats(self) -> HandlerStats:
        return self._stats

    @property
    def emit_metrics(self) -> dict[str, Any]:
        return self._stats.to_dict()

    def get_recent_errors(self, limit: int = 10) -> list[HandlerError]:
        """Return the last errors, newest last."""
        return list(self._errors)[-limit:] if limit > 0 else []

    def wiring(self) -> ComponentWiring:
        """Return what it sends and hears, for the audit."""
        heard = tuple(normalize_event_type(event) for event in self._get_event_subscriptions())
        return ComponentWiring(self._name, self.capability, self.emits, heard)

    @reported_health
    def health_check(self) -> HealthCheckResult:
        stats = self._stats
        details = {
            "name": self._name,
            "running": self._running,
            "uptime_seconds": self.uptime_seconds,
            "cycles_completed": stats.cycles_completed,
            "events_processed": stats.events_processed,
            "events_deduplicated": stats.events_deduplicated,
            "errors_count": stats.errors_count,
            "last_error": stats.last_error,
            "subscription_count": len(self._handles),
        }
        return judge(stats, running=self._running, details=details)

    @reported
    def get_status(self) -> dict[str, Any]:
        health = self.health_check()
        return {
            "name": self._name,
            "running": self._running,
            "status": health.status.value,
            "health": health.to_dict(),
            "stats": self._stats.to_dict(),
        }


def _check(name: object, cycle_interval: object, router: object) -> None:
    """Refuse here what would fail only in the task of a started handler."""
    if not isinstance(name, str) or not name:
        raise ConfigError(f"the name of a handler is {name!r}; it must be text")
    is_number = isinstance(cycle_interval, int | float) and not isinstance(cycle_interval, bool)
    if not is_number or not cast(float, cycle_interval) >= 0:
        raise ConfigError(f"cycle_interval of {name} is {cycle_interval!r}; it must be a number of seconds")
    if router is not None and not hasattr(router, "subscribe"):
        raise ConfigError(f"router of {name} is {router!r}; it must be an event router")
