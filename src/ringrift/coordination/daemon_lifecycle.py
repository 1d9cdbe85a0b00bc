"""The life of a daemon: what is wanted of it, what is there, and what the supervisor does about it.

The rules are the supervisor's own (`ringrift.daemons.planning`): `start`, `stop`, `pause` and holds change
only what is wanted, and `plan` says what follows. This shows both for this process's manager, and has the
verbs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ringrift.coordination.daemon_manager import get_daemon_manager
from ringrift.daemons.planning import Action, DaemonView, Do, Ended, Phase, Plan, plan
from ringrift.daemons.types import DaemonState, DaemonType
from ringrift.errors import ConfigError

__all__ = [
    "Action",
    "DaemonLifecycle",
    "DaemonState",
    "DaemonView",
    "Do",
    "Ended",
    "Phase",
    "Plan",
    "get_all_lifecycles",
    "get_lifecycle",
    "next_actions",
    "pause_daemon",
    "plan",
    "restart_daemon",
    "resume_daemon",
    "start_daemon",
    "stop_daemon",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonLifecycle:
    """Where one daemon is in its life."""

    daemon_type: DaemonType
    state: DaemonState
    phase: Phase
    ended: Ended  # how its last run ended
    wanted: bool
    holds: tuple[str, ...]  # why it must not run although it is wanted
    pauses: tuple[str, ...]
    why: str  # it is not up; empty when it is
    next_action: str  # what the supervisor is about to do; empty for nothing


def get_lifecycle(daemon_type: DaemonType) -> DaemonLifecycle:
    """Return where a daemon is; `ConfigError` for one that the manager does not know."""
    return _lifecycle(daemon_type, next_actions())


def _lifecycle(daemon_type: DaemonType, actions: Iterable[Action]) -> DaemonLifecycle:
    manager = get_daemon_manager()
    unit = manager.supervisor.units.get(daemon_type)
    if unit is None:
        raise ConfigError(f"{daemon_type} is not registered")
    view = manager.supervisor.views([daemon_type])[daemon_type]
    coming = next((action.do.value for action in actions if action.daemon_type is daemon_type), "")
    return DaemonLifecycle(
        daemon_type=daemon_type,
        state=unit.info.state,
        phase=view.phase,
        ended=view.ended,
        wanted=view.wanted,
        holds=tuple(sorted(view.holds)),
        pauses=tuple(sorted(view.pauses)),
        why=manager.why(daemon_type),
        next_action=coming,
    )


def get_all_lifecycles() -> dict[DaemonType, DaemonLifecycle]:
    actions = next_actions()  # once for all: each plan is of all daemons
    return {each: _lifecycle(each, actions) for each in tuple(get_daemon_manager().supervisor.units)}


def next_actions() -> tuple[Action, ...]:
    """What the supervisor would do if it looked now, each with its reason."""
    supervisor = get_daemon_manager().supervisor
    # Of all daemons and not of one: what is done with one depends on those that it needs.
    return plan(supervisor.views(), now_s=supervisor.runtime.monotonic_s()).actions


async def start_daemon(daemon_type: DaemonType) -> bool:
    """Start a daemon; False when it is not up afterwards."""
    return await get_daemon_manager().start(daemon_type)


async def stop_daemon(daemon_type: DaemonType) -> bool:
    """Stop a daemon for as long as nobody starts it."""
    return await get_daemon_manager().stop(daemon_type)


async def restart_daemon(daemon_type: DaemonType) -> bool:
    return await stop_daemon(daemon_type) and await start_daemon(daemon_type)


def pause_daemon(daemon_type: DaemonType) -> bool:
    return get_daemon_manager().pause(daemon_type)


def resume_daemon(daemon_type: DaemonType) -> bool:
    return get_daemon_manager().resume(daemon_type)
