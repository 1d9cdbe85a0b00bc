"""An async function for each daemon type: `create_auto_sync()` runs AUTO_SYNC until it is cancelled.

The functions are made from the daemon types. Each runs its daemon under this process's manager, with what it
depends on, its restarts and its health checks; one of a part that is not built refuses with the reason.
"""

from __future__ import annotations

from functools import cache

from ringrift.daemons.runners import Runner, get_runner
from ringrift.daemons.types import DaemonType
from ringrift.errors import ConfigError

PREFIX = "create_"

__all__ = ["Runner", "get_all_runners", "get_runner", *(f"{PREFIX}{each.value}" for each in DaemonType)]


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
