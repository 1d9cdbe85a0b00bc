"""Handlers for events of other processes, in programs that have no event loop of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from ringrift.engine.blocking import run_blocking
from ringrift.events.process_queue import CrossProcessEventQueue
from ringrift.events.process_subscribers import CrossProcessEvent
from ringrift.events.routed_event import EventSource, RouterEvent
from ringrift.events.router import get_router
from ringrift.events.subscriptions import SubscriptionHandle, callback_name
from ringrift.events.unified_router import UnifiedEventRouter

PollHandler = Callable[[CrossProcessEvent], Any]

_START_S = 30.0


class CrossProcessEventPoller:
    """Subscribes its handlers at the router and, if no loop runs, keeps one running for them.

    Order, isolation, time limits, dead letters and the position after a restart are the router's: that
    of this process, or with *db_path* one of its own on the log in that file.
    """

    def __init__(
        self,
        process_name: str,
        event_types: Sequence[Any] | None = None,
        poll_interval: float = 1.0,
        db_path: Path | str | None = None,
        stable: bool = True,  # noqa: FBT001, FBT002 - in the published order
        *,
        router: UnifiedEventRouter | None = None,
    ) -> None:
        self.process_name, self.poll_interval, self.stable = process_name, poll_interval, stable
        self._event_types = None if event_types is None else tuple(event_types)
        self._own_log = None if db_path is None else CrossProcessEventQueue(db_path)
        self._own_router = router if self._own_log is None else self._own_log.router()
        self._handlers: list[tuple[Any, PollHandler]] = []
        self._handles: list[SubscriptionHandle] = []
        self._borrowing = False
        self._lock = threading.Lock()

    @property
    def router(self) -> UnifiedEventRouter:
        return self._own_router or get_router()

    @property
    def is_running(self) -> bool:
        return bool(self._handles)

    def register_handler(self, event_type: Any, handler: PollHandler) -> None:
        """Call *handler* with each event of a type (None: of every type this poller is for)."""
        self._handlers.append((event_type, handler))
        if self._handles:
            self._subscribe(event_type, handler)

    def start(self) -> None:
        """Begin to deliver; returns when the log is being read."""
        with self._lock:
            if self._handles:
                return
            for event_type, handler in self._handlers:
                self._subscribe(event_type, handler)
            if self.router.bound_loop is None and not _loop_runs_here():
                run_blocking(self.router.occupy(), timeout_s=_START_S)
                self._borrowing = True

    def stop(self, timeout: float = 5.0) -> None:
        """Stop delivering; what was handled is recorded."""
        with self._lock:
            while self._handles:
                self._handles.pop()()
            if self._borrowing:
                self._borrowing = False
                run_blocking(_within(self.router.vacate(), timeout), timeout_s=timeout + 1.0)
            if self._own_log is not None:
                self.router.let_go()
                self._own_log.close()

    def _subscribe(self, event_type: Any, handler: PollHandler) -> None:
        types = [event_type] if event_type is not None else self._event_types or [None]
        for each in types:
            name = f"poller:{self.process_name}/{each or 'all'}/{callback_name(handler)}"
            self._handles.append(
                self.router.subscribe(each, _adapter(handler), name, bus=EventSource.CROSS_PROCESS)
            )


async def _within(work: Coroutine[Any, Any, None], timeout_s: float) -> None:
    async with asyncio.timeout(timeout_s):
        await work


def _adapter(handler: PollHandler) -> Callable[[RouterEvent], Any]:
    def handle(event: RouterEvent) -> Any:
        seen = CrossProcessEvent(event._seq, event.event_type, event.payload, event.source, event.timestamp)
        return handler(seen)

    return handle


def _loop_runs_here() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
