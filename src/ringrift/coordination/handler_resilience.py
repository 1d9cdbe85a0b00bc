"""An exception boundary around single handlers: time limit, metrics, failure events.

For handlers of a program's own that something else than the router calls: a queue, a web hook, a timer. The
product's handlers are subscriptions of the router, which isolates and times them itself and keeps what fails
as a dead letter to try again; wrapped in this, a failure would be swallowed before the router sees it, so
none of them is.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from ringrift.coordination.event_router import get_router
from ringrift.errors import ConfigError, RingRiftError, described
from ringrift.events.delivery import await_ending
from ringrift.process import process_scope
from ringrift.runtime import system_runtime

__all__ = [
    "Handler",
    "HandlerMetrics",
    "ResilientHandler",
    "ResilientHandlerConfig",
    "get_handler_metrics",
    "make_handlers_resilient",
    "reset_handler_metrics",
    "resilient_handler",
]

log = structlog.get_logger()

# Where a wrapper keeps what it wraps; `__wrapped__` is set by every decorator, and not only by this one.
_INNER = "_resilient_inner"

Handler = Callable[[Any], Any]
ResilientHandler = Callable[[Any], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class ResilientHandlerConfig:
    """Limits of one handler; after too many failures in a row it is reported as broken."""

    timeout_seconds: float = 30.0
    emit_failure_events: bool = True
    emit_timeout_events: bool = True
    log_exceptions: bool = True
    log_timeouts: bool = True
    retry_on_timeout: bool = False
    max_consecutive_failures: int = 5

    def __post_init__(self) -> None:
        if self.timeout_seconds <= 0:
            raise ConfigError(f"timeout_seconds is {self.timeout_seconds}; it must be above 0")
        if self.max_consecutive_failures < 1:
            raise ConfigError(f"max_consecutive_failures is {self.max_consecutive_failures}; at least 1")


@dataclass(slots=True)
class HandlerMetrics:
    """What one wrapped handler did."""

    handler_name: str
    coordinator: str = ""
    invocation_count: int = 0
    success_count: int = 0
    failure_count: int = 0
    timeout_count: int = 0
    consecutive_failures: int = 0
    total_seconds: float = 0.0
    last_error: str = ""

    @property
    def success_rate(self) -> float:
        return self.success_count / self.invocation_count if self.invocation_count else 1.0


@dataclass(slots=True)
class _MetricsTable:
    by_name: dict[str, HandlerMetrics] = field(default_factory=dict)


def _metrics() -> dict[str, HandlerMetrics]:
    return process_scope().get(_MetricsTable, _MetricsTable).by_name


def get_handler_metrics(name: str | None = None) -> Any:
    """Return the metrics of one handler (None if unknown), or of all by name."""
    return dict(_metrics()) if name is None else _metrics().get(name)


def reset_handler_metrics() -> None:
    _metrics().clear()


def resilient_handler(
    handler: Handler, coordinator: str = "", config: ResilientHandlerConfig | None = None
) -> ResilientHandler:
    """Wrap a handler, plain or async. The wrapper never raises; it returns whether the call went well."""
    # A wrapper around a wrapper would count every failure of the inner one as a success.
    handler = getattr(handler, _INNER, handler)
    limits = config or ResilientHandlerConfig()
    own_name = getattr(handler, "__name__", type(handler).__name__)
    key = f"{coordinator}.{own_name}" if coordinator else own_name
    # One that is wrapped again, as after a restart of its owner, goes on counting.
    metrics = _metrics().setdefault(key, HandlerMetrics(key, coordinator))

    @functools.wraps(handler)
    async def call(event: Any) -> bool:
        attempts = 2 if limits.retry_on_timeout else 1
        for attempt in range(1, attempts + 1):
            begun_s = system_runtime().monotonic_s()
            metrics.invocation_count += 1
            try:
                await _call_within(handler, event, limits.timeout_seconds)
            except _TimedOut:
                metrics.timeout_count += 1
                await _failed(metrics, event, limits, error=None)
                if attempt < attempts:
                    continue
                return False
            except Exception as error:  # noqa: BLE001 - the boundary this module exists for
                await _failed(metrics, event, limits, error=error)
                return False
            finally:
                metrics.total_seconds += system_runtime().monotonic_s() - begun_s
            metrics.success_count += 1
            metrics.consecutive_failures = 0
            return True
        return False

    setattr(call, _INNER, handler)
    return call


def make_handlers_resilient(
    obj: Any, name: str, prefix: str = "_on_", config: ResilientHandlerConfig | None = None
) -> list[str]:
    """Wrap every method of *obj* that starts with *prefix*; return their names."""
    wrapped = []
    for attribute, method in inspect.getmembers(obj, callable):
        if attribute.startswith(prefix):
            setattr(obj, attribute, resilient_handler(method, name, config))
            wrapped.append(attribute)
    return wrapped


class _TimedOut(Exception):
    """Our own limit, as opposed to a TimeoutError of the handler."""


async def _call_within(handler: Handler, event: Any, limit_s: float) -> None:
    result = handler(event)
    # A plain handler has ended by now: nothing can interrupt it, so the limit is for async ones.
    if not inspect.isawaitable(result):
        return
    scope = asyncio.timeout(limit_s)
    try:
        async with scope:
            # A handler that ignores its cancellation is left behind after a grace, and not waited for.
            await await_ending(result)
    except TimeoutError:
        if scope.expired():
            raise _TimedOut from None
        raise


async def _failed(
    metrics: HandlerMetrics, event: Any, limits: ResilientHandlerConfig, *, error: Exception | None
) -> None:
    """Count, log and announce one failure; *error* is None for a time-out."""
    text = f"timed out after {limits.timeout_seconds:g} s" if error is None else described(error)
    metrics.failure_count += 1
    metrics.consecutive_failures += 1
    metrics.last_error = text
    if limits.log_timeouts if error is None else limits.log_exceptions:
        broken = metrics.consecutive_failures >= limits.max_consecutive_failures
        log.error("handler.failed", handler=metrics.handler_name, error=text, broken=broken, exc_info=error)
    if not (limits.emit_timeout_events if error is None else limits.emit_failure_events):
        return
    payload = {
        "handler_name": metrics.handler_name,
        "event_type": event_type_of(event),
        "coordinator": metrics.coordinator,
    }
    more: Mapping[str, Any] = (
        {"timeout_seconds": limits.timeout_seconds} if error is None else {"error": text}
    )
    try:
        name = "HANDLER_TIMEOUT" if error is None else "HANDLER_FAILED"
        await get_router().publish(name, {**payload, **more}, "handler_resilience")
    # The wrapper never raises, also when its announcement cannot be stored.
    except RingRiftError as problem:
        log.error("handler.announcement_lost", handler=metrics.handler_name, error=str(problem))


def event_type_of(event: Any) -> str:
    """Return the type of a RouterEvent, a DataEvent or a dictionary as text."""
    found = event.get("event_type", "") if isinstance(event, Mapping) else getattr(event, "event_type", "")
    return str(getattr(found, "value", found))
