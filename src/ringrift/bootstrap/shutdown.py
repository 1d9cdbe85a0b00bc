"""Ends what was brought up, in exactly the reverse order, under one shared deadline.

Only coordinators that bootstrap wired are ended; what it merely got or imported ends with its owner. One that
fails or overruns is reported, and the rest is ended all the same.
"""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass
from typing import Any

import structlog

from ringrift.bootstrap.initialiser import Initialiser, discard, loop_is_running
from ringrift.bootstrap.registry import InitPattern
from ringrift.health.isolation import attempt, attempt_async
from ringrift.runtime import Runtime

log = structlog.get_logger()

_CANCEL_GRACE_S = 0.1


@dataclass(frozen=True, slots=True)
class Ending:
    """How one coordinator ended; an empty error is good."""

    name: str
    error: str = ""


def shut_down(initialiser: Initialiser, *, timeout_s: float, runtime: Runtime) -> list[Ending]:
    """End everything from code that is not async."""
    if not loop_is_running():
        return asyncio.run(shut_down_async(initialiser, timeout_s=timeout_s, runtime=runtime))
    endings = [_end_at_once(initialiser, name) for name in initialiser.shutdown_order()]
    return _finish(initialiser, endings, emit_events=True)


async def shut_down_async(
    initialiser: Initialiser, *, timeout_s: float, runtime: Runtime, emit_events: bool = True
) -> list[Ending]:
    """End everything; the whole takes *timeout_s* at most, whatever the coordinators do."""
    deadline_s = runtime.monotonic_s() + timeout_s
    endings = []
    for name in initialiser.shutdown_order():
        left_s = max(0.0, deadline_s - runtime.monotonic_s())
        endings.append(Ending(name, await _end(initialiser, name, left_s)))
    _finish(initialiser, endings, emit_events=emit_events)
    await initialiser.told(timeout_s=max(_CANCEL_GRACE_S, deadline_s - runtime.monotonic_s()))
    return endings


def _finish(initialiser: Initialiser, endings: list[Ending], *, emit_events: bool) -> list[Ending]:
    initialiser.forget()
    initialiser.shutdown_requested = True
    for ending in endings:
        if ending.error:
            log.error("bootstrap.shutdown_failed", coordinator=ending.name, error=ending.error)
        if emit_events:
            reason = ending.error or "shutdown requested"
            initialiser.tell("COORDINATOR_SHUTDOWN", {"coordinator_name": ending.name, "reason": reason})
    return endings


def _closer(initialiser: Initialiser, name: str, *names: str) -> Any:
    if initialiser.registry[name].pattern is not InitPattern.WIRE:
        return None
    instance = initialiser.instances.get(name)
    return next((getattr(instance, n) for n in names if hasattr(instance, n)), None)


async def _end(initialiser: Initialiser, name: str, timeout_s: float) -> str:
    closer = _closer(initialiser, name, "shutdown", "stop", "unwire")
    if closer is None:
        return ""
    task = asyncio.ensure_future(attempt_async(f"shutdown of {name}", closer))
    try:
        await asyncio.wait({task}, timeout=timeout_s)
        if task.done():
            return "cancelled itself" if task.cancelled() else task.result().problem
        task.cancel()
        # A task may ignore its cancellation; then nobody waits for it any longer.
        await asyncio.wait({task}, timeout=_CANCEL_GRACE_S)
        return "did not end before the deadline"
    finally:
        task.cancel()


def _end_at_once(initialiser: Initialiser, name: str) -> Ending:
    """Without waiting: inside a running loop a call that is not async cannot."""
    closer = _closer(initialiser, name, "unwire", "shutdown", "stop")
    if closer is None:
        return Ending(name)
    ended = attempt(f"shutdown of {name}", closer)
    if ended.error is not None:
        return Ending(name, ended.problem)
    if inspect.isawaitable(ended.value):
        discard(ended.value)
        return Ending(name, "ends asynchronously; use `await shutdown_all_coordinators()` inside a loop")
    return Ending(name)
