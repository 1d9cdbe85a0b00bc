"""Traces through a transport of one's own: a socket, a message queue, a file beside the data.

    headers = inject()                      # at the sender: {"traceparent": "00-…"}, or {} outside a trace
    with with_trace(headers), span("work"):  # at the receiver: the same trace goes on
        ...

Between our own processes events, jobs and HTTP carry the trace by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import context as otel_context

from ringrift.errors import ConfigError
from ringrift.events.event import current_delivery
from ringrift.events.tracing import TraceContext, continued, extract, get_trace_context, inject, span

__all__ = ["extract_trace_context", "inject_trace_context", "new_trace", "with_trace"]

Carried = TraceContext | Mapping[str, str] | str | None

inject_trace_context = inject
extract_trace_context = extract


@contextmanager
def new_trace(name: str) -> Iterator[TraceContext]:
    """Run the block as the first span of a trace of its own, whatever trace is current."""
    # Inside a handler the trace of its event would become the parent.
    delivery = current_delivery.set(None)
    token = otel_context.attach(otel_context.Context())
    try:
        with span(name):
            found = get_trace_context()
            assert found is not None  # a span has a context, with an SDK and without
            yield found
    finally:
        otel_context.detach(token)
        current_delivery.reset(delivery)


@contextmanager
def with_trace(carried: Carried) -> Iterator[TraceContext | None]:
    """Run the block in the trace that came with a message: headers, a `traceparent`, or a context.

    Headers without a trace leave the current one; a `traceparent` that is none is a `ConfigError`.
    """
    found = _context_of(carried)
    with continued(found):
        yield found


def _context_of(carried: Carried) -> TraceContext | None:
    """Return the context that *carried* stands for; None if it has none."""
    if carried is None or isinstance(carried, TraceContext):
        return carried
    if isinstance(carried, Mapping):
        return extract(carried)
    found = TraceContext.parse(carried)
    if found is None:
        raise ConfigError(f"{carried[:80]!r} is no traceparent; it looks like 00-<32 hex>-<16 hex>-01")
    return found
