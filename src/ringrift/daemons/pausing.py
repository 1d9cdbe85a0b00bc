"""Calling a daemon's own `pause()` and `resume()`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from typing import Any

import structlog

from ringrift.daemons import foreign
from ringrift.daemons.unit import Unit

log = structlog.get_logger()

CALL_S_MAX = 10.0


class Pauser:
    """Owns the calls in flight, each bounded."""

    def __init__(self) -> None:
        self._calls: set[asyncio.Task[None]] = set()
        self.failures = 0

    def apply(self, unit: Unit, *, pause: bool, reason: str) -> bool:
        """Pause or resume; False when the daemon has no such method."""
        method = getattr(unit.info.instance, "pause" if pause else "resume", None)
        if not callable(method):
            return False
        log.info(
            "daemons.paused" if pause else "daemons.resumed", daemon=unit.daemon_type.value, reason=reason
        )
        unit.info.paused = pause
        called = foreign.call(method)
        if called.error is not None:
            self._failed(unit, called)
        elif inspect.isawaitable(called.value):
            finishing = self._finish(unit, called.value)
            task = asyncio.get_running_loop().create_task(finishing, name="daemon-pause")
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)
        return True

    def close(self) -> None:
        for task in self._calls:
            task.cancel()

    async def _finish(self, unit: Unit, result: Awaitable[Any]) -> None:
        called = await foreign.call_async(lambda: result, timeout_s=CALL_S_MAX)
        if called.error is not None:
            self._failed(unit, called)

    def _failed(self, unit: Unit, called: foreign.Called) -> None:
        self.failures += 1
        unit.info.last_error = f"pause or resume failed: {called.problem}"
        log.warning("daemons.pause_failed", daemon=unit.daemon_type.value, error=called.problem)
