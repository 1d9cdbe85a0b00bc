"""Traces on OpenTelemetry's API, carried through events, jobs and HTTP.

Without an SDK the API hands out invalid spans. Ours then carries a random context of its own, so that
`get_trace_id` and the propagation work all the same; nothing is recorded. The trace of an event is that
of its publisher, or a new one named by the event's id; inside a handler it is the trace of the event.
"""

from __future__ import annotations

import functools
import inspect
import string
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, cast

import structlog
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, TraceFlags

from ringrift.events.event import RouterEvent, current_delivery
from ringrift.process import process_scope
from ringrift.runtime import system_runtime
from ringrift.settings import Settings, read_settings

__all__ = [
    "TraceContext",
    "continued",
    "current_trace_id",
    "extract",
    "get_trace_context",
    "get_trace_id",
    "inject",
    "span",
    "trace_id_of_event_id",
    "traced",
]

log = structlog.get_logger()

P = ParamSpec("P")
R = TypeVar("R")

_HEADER = "traceparent"
_HEX = frozenset(string.hexdigits)


@dataclass(frozen=True, slots=True)
class TraceContext:
    """Where in which trace we are, in W3C terms: 32 and 16 hex digits."""

    trace_id: str
    span_id: str

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-01"

    @classmethod
    def parse(cls, traceparent: str) -> TraceContext | None:
        """Read a `traceparent` header; None if it is not one."""
        parts = traceparent.strip().split("-")
        if len(parts) != 4 or len(parts[1]) != 32 or len(parts[2]) != 16:
            return None
        # Not by `int`, which also takes 0x, underscores and signs.
        are_hex = _HEX.issuperset(parts[1] + parts[2])
        return cls(parts[1], parts[2]) if are_hex and parts[1].strip("0") and parts[2].strip("0") else None


def trace_id_of_event_id(event_id: str) -> str:
    """Return the trace that an event without a context starts."""
    return event_id.replace("-", "")


def current_trace_id() -> str:
    """Return the trace id of this context, or "" if there is none; cheap enough for every publish."""
    # Outside of every trace the context is empty, and a publish is spared the look for a span.
    if otel_context.get_current():
        found = trace.get_current_span().get_span_context()
        if found.trace_id:
            return f"{found.trace_id:032x}"
    delivery = current_delivery.get()
    return "" if delivery is None else delivery.event.trace_id


def get_trace_context() -> TraceContext | None:
    """Return where we are, or None outside every trace."""
    found = trace.get_current_span().get_span_context()
    if found.is_valid:
        return TraceContext(f"{found.trace_id:032x}", f"{found.span_id:016x}")
    delivery = current_delivery.get()
    # Another program may have sent an id of its own form, which no header can carry.
    if delivery is None or len(delivery.event.trace_id) != 32:
        return None
    return TraceContext(delivery.event.trace_id, _span_id_of(delivery.event))


def get_trace_id() -> str | None:
    """Return the id of the current trace, or None outside every trace."""
    return current_trace_id() or None


@contextmanager
def span(name: str, **attributes: Any) -> Iterator[Span]:
    """Run the block as a span of the current trace, or of a new one."""
    runtime = system_runtime()
    parent = get_trace_context()
    begun_s = runtime.monotonic_s()
    # The parent may be an event alone; attached, an SDK makes its own span a child of it.
    with _attached(parent):
        # An SDK makes a real span here; without one we get an invalid span and use our own.
        started = trace.get_tracer("ringrift").start_span(name, attributes=attributes)
        if not _is_new(started, parent):
            started = _own_span(parent)
        with trace.use_span(started, end_on_exit=True):
            try:
                yield started
            finally:
                if process_scope().get(Settings, read_settings).trace_debug:
                    elapsed_ms = (runtime.monotonic_s() - begun_s) * 1000.0
                    log.info(
                        "trace.span", span=name, trace_id=get_trace_id(), elapsed_ms=elapsed_ms, **attributes
                    )


def traced(name: str | Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Decorate a function, plain or async, to run as a span: `@traced("export")` or `@traced`."""
    if callable(name):
        return _traced(name, name.__qualname__)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        return _traced(function, name or function.__qualname__)

    return decorate


def _traced(function: Callable[P, R], name: str) -> Callable[P, R]:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def run_async(*args: P.args, **kwargs: P.kwargs) -> Any:
            with span(name):
                return await function(*args, **kwargs)

        return cast("Callable[P, R]", run_async)

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with span(name):
            return function(*args, **kwargs)

    return run


def inject(carrier: dict[str, str] | None = None) -> dict[str, str]:
    """Write the current context into headers (HTTP, `NewWork.trace`); unchanged outside every trace."""
    headers = {} if carrier is None else carrier
    if (found := get_trace_context()) is not None:
        headers[_HEADER] = found.traceparent
    return headers


def extract(carrier: Mapping[str, str]) -> TraceContext | None:
    """Read a context from headers, in any case; None if there is none."""
    for key, value in carrier.items():
        if key.lower() == _HEADER:
            return TraceContext.parse(value)
    return None


@contextmanager
def continued(found: TraceContext | None) -> Iterator[None]:
    """Run the block inside a trace that came from elsewhere."""
    with _attached(found):
        yield


@contextmanager
def _attached(found: TraceContext | None) -> Iterator[None]:
    if found is None:
        yield
        return
    # Sampled: whether anything is recorded is for the SDK of each process to decide.
    remote = SpanContext(
        int(found.trace_id, 16), int(found.span_id, 16), is_remote=True, trace_flags=TraceFlags(1)
    )
    token = otel_context.attach(trace.set_span_in_context(NonRecordingSpan(remote)))
    try:
        yield
    finally:
        otel_context.detach(token)


def _is_new(started: Span, parent: TraceContext | None) -> bool:
    """Without an SDK the tracer returns the parent itself, or an invalid span."""
    found = started.get_span_context()
    return found.is_valid and (parent is None or f"{found.span_id:016x}" != parent.span_id)


def _own_span(parent: TraceContext | None) -> Span:
    rng = system_runtime().rng
    # Never 0, which is no valid id.
    trace_id = int(parent.trace_id, 16) if parent else rng.getrandbits(128) | 1
    own = SpanContext(trace_id, rng.getrandbits(64) | 1, is_remote=False, trace_flags=TraceFlags(1))
    return NonRecordingSpan(own)


def _span_id_of(event: RouterEvent) -> str:
    return event.event_id.replace("-", "")[-16:]
