"""Which event caused which."""

from __future__ import annotations

from ringrift.errors import CausalChainTooLong
from ringrift.events.failure_reports import REPORTS_OF_FAILURE
from ringrift.events.routed_event import RouterEvent

CAUSAL_DEPTH_MAX = 32


def descend(event: RouterEvent, parent: RouterEvent) -> None:
    """Make *event* a child of the event whose handler publishes it."""
    event.parent_event_id = event.parent_event_id or parent.event_id
    event.correlation_id = event.correlation_id or parent.correlation_id or parent.event_id
    if not parent._open:
        return  # the handler has ended; a task it left behind starts a chain of its own
    event._root = parent._root or parent
    event._depth = parent._depth + 1
    if event._depth > CAUSAL_DEPTH_MAX and event.event_type not in REPORTS_OF_FAILURE:
        raise CausalChainTooLong(event.event_type, depth=event._depth)
