"""Calls into somebody else's code that bootstrap and health outlive, each failure logged.

The error is handed to the caller as a value, who must report it: as a status, an event or a health result.
Cancellation and exits of the process pass through.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog

from ringrift.daemons.running import Called, call, call_async
from ringrift.task_owner import TaskOwner

log = structlog.get_logger()


def attempt(what: str, function: Callable[[], Any]) -> Called:
    """Call; an error is logged under *what* and returned."""
    return _logged(what, call(function))


async def attempt_async(what: str, function: Callable[[], Awaitable[Any] | Any]) -> Called:
    """The same for a call that may return an awaitable."""
    return _logged(what, await call_async(function))


def _logged(what: str, called: Called) -> Called:
    if called.error is not None:
        frames = traceback.extract_tb(called.error.__traceback__)
        where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        log.warning("isolated.call_failed", what=what, error=repr(called.error), where=where)
    return called


OVERRAN = "did not end before the deadline"


async def end_within(ending: Coroutine[Any, Any, Any], timeout_s: float, *, grace_s: float) -> str:
    """Wait for the end of *ending*, and then *grace_s* for its cancellation; return what went wrong.

    It may ignore its cancellation: its owner's log names it then, and nobody waits for it any longer.
    """
    owner = TaskOwner("what is shut down")
    task = owner.create_task(ending)
    try:
        await asyncio.wait({task}, timeout=timeout_s)
        if not task.done():
            return OVERRAN
        error = None if task.cancelled() else task.exception()
        return "cancelled itself" if task.cancelled() else repr(error) if error else ""
    finally:
        await owner.stop(grace_s)
