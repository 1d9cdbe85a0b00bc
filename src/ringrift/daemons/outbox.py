"""Events on their way out, sent one after the other by a task that holds nothing else up."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import structlog

from ringrift.daemons import foreign

log = structlog.get_logger()

WAITING_MAX = 2000
PUBLISH_S_MAX = 10.0
SOURCE = "daemon_manager"


class EventBus(Protocol):
    """What the daemon room needs of the router."""

    async def publish(
        self, event_type: Any, payload: dict[str, Any] | None = None, source: str = ""
    ) -> Any: ...

    def subscribe(self, event_type: Any, callback: Callable[[Any], Any]) -> Any: ...

    def unsubscribe(self, event_type: Any, callback: Callable[[Any], Any]) -> Any: ...


class Outbox:
    """Keeps order. Over its bound the oldest events are dropped and counted: state lives elsewhere."""

    def __init__(self, bus: EventBus | None) -> None:
        self._bus = bus
        self._waiting: deque[tuple[str, dict[str, Any]]] = deque()
        self._sender: asyncio.Task[None] | None = None
        self._closed = False
        self.dropped = 0
        self.failed = 0

    def put(self, event_type: str, payload: Mapping[str, Any]) -> None:
        """Send soon. Must be called on the loop."""
        if self._bus is None or self._closed:
            return
        if len(self._waiting) >= WAITING_MAX:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append((event_type, dict(payload)))
        if self._sender is None or self._sender.done():
            self._sender = asyncio.get_running_loop().create_task(self._send_all(), name="daemon-events")

    def open(self) -> None:
        """Take events again, on the running loop."""
        self._sender, self._closed = None, False

    def close(self) -> None:
        """Take no more events: the bus is about to end."""
        self._closed = True

    async def flush(self, *, timeout_s: float) -> None:
        """Wait until all is sent, at most *timeout_s*; then stop sending."""
        if self._sender is None:
            return
        _, late = await asyncio.wait({self._sender}, timeout=timeout_s)
        for task in late:
            task.cancel()
            self.dropped += len(self._waiting)
            await asyncio.wait({task}, timeout=1.0)
        self._waiting.clear()
        self._sender = None

    async def _send_all(self) -> None:
        assert self._bus is not None
        while self._waiting:
            event_type, payload = self._waiting.popleft()
            send = partial(self._bus.publish, event_type, payload, source=SOURCE)
            called = await foreign.call_async(send, timeout_s=PUBLISH_S_MAX)
            if called.error is not None:
                self.failed += 1
                log.warning("daemons.event_not_sent", type=event_type, error=called.problem)
