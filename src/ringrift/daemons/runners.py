"""Running one daemon from code that has its own task for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ringrift.daemons.manager import get_daemon_manager
from ringrift.daemons.registry import product_registry
from ringrift.daemons.types import DaemonType, daemon_type_of
from ringrift.errors import ConfigError, Unavailable

__all__ = ["Runner", "get_runner"]

Runner = Callable[[], Awaitable[None]]


def get_runner(daemon_type: DaemonType) -> Runner:
    """Return an async function that runs the daemon, under this process's manager, until cancelled.

    Raises `ConfigError` with the reason if this version does not have the daemon.
    """
    daemon_type = daemon_type_of(daemon_type)
    if reason := product_registry()[daemon_type].unavailable_reason:
        raise ConfigError(f"{daemon_type.value} cannot run: {reason}")

    async def run() -> None:
        manager = get_daemon_manager()
        try:
            if not await manager.start(daemon_type, wait_for_deps=True):
                raise Unavailable(f"{daemon_type.value} did not start: {manager.why(daemon_type)}")
            await asyncio.get_running_loop().create_future()  # ends with the caller's task
        finally:
            await manager.stop(daemon_type)

    return run
