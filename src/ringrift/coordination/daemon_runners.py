"""An async function for each daemon type: `create_auto_sync()` runs AUTO_SYNC until it is cancelled.

The functions are made from the daemon types. Each runs its daemon under this process's manager, with what it
depends on, its restarts and its health checks; one of a part that is not built refuses with the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache

from ringrift.coordination.daemon_manager import get_daemon_manager
from ringrift.daemons.registry import product_registry
from ringrift.daemons.types import DaemonType, daemon_type_of
from ringrift.errors import ConfigError, Conflict, Unavailable

# Running one daemon from code that has its own task for it.


Runner = Callable[[], Awaitable[None]]


def get_runner(daemon_type: DaemonType) -> Runner:
    """Return an async function that runs the daemon, under this process's manager, until cancelled.

    Raises `ConfigError` with the reason if this version does not have the daemon; the function raises
    `Conflict` where a run in another process has it.
    """
    daemon_type = daemon_type_of(daemon_type)
    if reason := product_registry()[daemon_type].unavailable_reason:
        raise ConfigError(f"{daemon_type.value} cannot run: {reason}")

    async def run() -> None:
        manager = get_daemon_manager()
        # There the end of this task would stop it for good.
        if await manager.runs_elsewhere(daemon_type):
            raise Conflict(f"{daemon_type.value} runs in another process, the run of this data folder")
        try:
            if not await manager.start(daemon_type, wait_for_deps=True):
                raise Unavailable(f"{daemon_type.value} did not start: {manager.why(daemon_type)}")
            await asyncio.get_running_loop().create_future()  # ends with the caller's task
        finally:
            # Also after a failed start: the daemon is wanted since then, and would come up later by itself.
            await manager.stop(daemon_type)

    return run


PREFIX = "create_"

__all__ = ["Runner", "get_all_runners", "get_runner", *(f"{PREFIX}{each.value}" for each in DaemonType)]


# One function per name, so that two imports of it are the same object.
@cache
def _make(name: str) -> Runner:
    daemon_type = DaemonType(name.removeprefix(PREFIX))

    async def run() -> None:
        await get_runner(daemon_type)()

    run.__name__ = run.__qualname__ = name
    run.__doc__ = f"Run {daemon_type.name} until cancelled; `ConfigError` if this version does not have it."
    return run


def __getattr__(name: str) -> Runner:
    if name.startswith(PREFIX) and name in __all__:
        return _make(name)
    raise AttributeError(f"module {__name__!r} has no runner {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


def get_all_runners() -> dict[DaemonType, Runner]:
    """Return the runner of every daemon that this version can run."""
    found: dict[DaemonType, Runner] = {}
    for daemon_type in DaemonType:
        try:
            found[daemon_type] = get_runner(daemon_type)
        except ConfigError:
            continue  # `get_runner` says why to whoever asks for this one
    return found
