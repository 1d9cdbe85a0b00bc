"""Making daemons without running them: the object of a daemon type, as its row of the registry says."""

from __future__ import annotations

import inspect
from typing import Any

from ringrift.coordination.daemon_manager import get_daemon_manager
from ringrift.daemons.running import Factory
from ringrift.daemons.types import DaemonType
from ringrift.errors import ConfigError
from ringrift.process import SingletonMixin, getter_of

__all__ = ["DaemonFactory", "create_daemon", "get_daemon_factory", "reset_daemon_factory"]


class DaemonFactory(SingletonMixin):
    """Makes daemons by the manager of this process: its rows, and what users registered."""

    def can_create(self, daemon_type: DaemonType) -> tuple[bool, str]:
        """Whether there is such a daemon, and why not."""
        unit = get_daemon_manager().supervisor.units.get(daemon_type)
        if unit is None:
            return False, f"{daemon_type} is not registered"
        if unit.info.unavailable_reason:
            return False, unit.info.unavailable_reason
        return (True, "") if unit.factory is not None else (False, f"{daemon_type} has no factory")

    def registered_types(self) -> list[DaemonType]:
        """Return the daemons that can be made, in the order of the registry."""
        return [each for each in get_daemon_manager().supervisor.units if self.can_create(each)[0]]

    async def create(self, daemon_type: DaemonType) -> Any:
        """Return a new object of the daemon, not started; `ConfigError` with the reason if there is none.

        The one that the manager runs is another object: `start` it only if the manager does not.
        """
        ok, why = self.can_create(daemon_type)
        if not ok:
            raise ConfigError(f"{daemon_type} cannot be made: {why}")
        factory = get_daemon_manager().supervisor.units[daemon_type].factory
        assert factory is not None  # `can_create` looked
        made = factory()
        return await made if inspect.isawaitable(made) else made

    def register(self, daemon_type: DaemonType, factory: Factory, **row: Any) -> None:
        """Say how a daemon of one's own is made; the manager runs it from the next start on."""
        get_daemon_manager().register_factory(daemon_type, factory, **row)


get_daemon_factory = getter_of("get_daemon_factory", DaemonFactory)
reset_daemon_factory = DaemonFactory.reset_instance


async def create_daemon(daemon_type: DaemonType) -> Any:
    """Return a new object of the daemon, not started."""
    return await get_daemon_factory().create(daemon_type)
