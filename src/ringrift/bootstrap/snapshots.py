"""Saves and restores the state of all coordinators that have some, in this process's engine."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from ringrift.engine.arguments import check_database
from ringrift.engine.opening import engine_at
from ringrift.engine.ports import Engine
from ringrift.errors import ConfigError, RingRiftError
from ringrift.health.isolation import attempt
from ringrift.health.snapshots import SnapshotStore, StateSnapshot
from ringrift.process import SingletonMixin
from ringrift.runtime import Runtime, system_runtime

__all__ = [
    "PersistentState",
    "SnapshotCoordinator",
    "StateSnapshot",
    "get_snapshot_coordinator",
    "reset_snapshot_coordinator",
]

log = structlog.get_logger()


class SnapshotCoordinator(SingletonMixin):
    """Components are those with `get_state` and `restore_state`; the rest is passed over.

    A state that fails its check is not restored and not overwritten in silence: it is reported, and its
    earlier versions stay to be restored by hand with `restore(name, component, version=...)`.
    """

    def __init__(
        self,
        store: SnapshotStore | None = None,
        *,
        db_path: Path | str | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        """Keep the states in *store*, in a database file of one's own, or in this process's engine."""
        if store is not None and not isinstance(store, SnapshotStore):
            raise ConfigError(
                f"store is {store!r}; it must be a SnapshotStore, or nothing for this process's engine; "
                "a file of its own is db_path=..."
            )
        self._given, self._db_path = store, check_database("db_path", db_path)
        self._runtime = runtime or system_runtime()

    async def save(self, name: str, component: Any) -> StateSnapshot | None:
        """Store the component's state; None if it has none and had none before.

        Raises `ConfigError` for a component that cannot say what its state is.
        """
        _check_stateful(name, component)
        return await self._save_state(name, component.get_state(), _schema(component))

    async def restore(self, name: str, component: Any, *, version: int | None = None) -> bool:
        """Hand the newest (or the given) state to the component; False if there is none.

        Raises `ConfigError` for a component that cannot take a state, before anything is read.
        """
        _check_stateful(name, component)
        snapshot = await (await self._store()).load(name, version=version, schema=_schema(component))
        if snapshot is None or not snapshot.state:
            return False
        component.restore_state(snapshot.state)
        return True

    async def save_all(self, components: Mapping[str, Any], *, timeout_s: float = 10.0) -> dict[str, str]:
        """Save every component; return what went wrong by name. Takes *timeout_s* at most."""
        problems: dict[str, str] = {}
        deadline_s = self._runtime.monotonic_s() + timeout_s
        for name, component in _stateful(components).items():
            if self._runtime.monotonic_s() >= deadline_s:
                problems[name] = "no time left"
                continue
            # Read now and isolated: what a component says of itself is its own code.
            state = attempt(f"state of {name}", component.get_state)
            if state.error is not None:
                problems[name] = state.problem
                continue
            try:
                await self._save_state(name, state.value or {}, _schema(component))
            except (RingRiftError, TypeError, ValueError) as error:
                problems[name] = f"{type(error).__name__}: {error}"
                log.error("snapshots.not_saved", coordinator=name, error=str(error))
        return problems

    async def restore_all(self, components: Mapping[str, Any]) -> dict[str, str]:
        """Restore every component; return what went wrong by name."""
        problems: dict[str, str] = {}
        for name, component in _stateful(components).items():
            try:
                await self.restore(name, component)
            except (RingRiftError, TypeError, ValueError, KeyError) as error:
                problems[name] = f"{type(error).__name__}: {error}"
                log.error("snapshots.not_restored", coordinator=name, error=str(error))
        return problems

    async def _save_state(self, name: str, state: Mapping[str, Any], schema: int) -> StateSnapshot | None:
        store = await self._store()
        # Nothing to remember is worth remembering when there was something before.
        if not state and not await store.versions(name):
            return None
        return await store.save(name, state, schema=schema)

    async def _engine(self) -> Engine:
        return await asyncio.to_thread(engine_at, self._db_path)

    async def _store(self) -> SnapshotStore:
        return self._given or SnapshotStore((await self._engine()).kv, runtime=self._runtime)


class PersistentState(ABC):
    """Gives a coordinator `save` and `load`; it says what to keep by `get_state` and `restore_state`."""

    name: str

    @abstractmethod
    def get_state(self) -> Mapping[str, Any]: ...

    @abstractmethod
    def restore_state(self, state: Mapping[str, Any]) -> None: ...

    async def save(self) -> StateSnapshot | None:
        return await get_snapshot_coordinator().save(self.name, self)

    async def load(self) -> bool:
        return await get_snapshot_coordinator().restore(self.name, self)


def get_snapshot_coordinator(db_path: Path | str | None = None) -> SnapshotCoordinator:
    """Return the one of this process; another *db_path* than it was made with is a `ConfigError`."""
    if db_path is None:
        return SnapshotCoordinator.get_instance()
    return SnapshotCoordinator.get_instance(db_path=Path(db_path))


reset_snapshot_coordinator = SnapshotCoordinator.reset_instance


def _check_stateful(name: str, component: Any) -> None:
    if not _stateful({name: component}):
        raise ConfigError(
            f"{component!r} keeps no state for {name}: it needs get_state() and restore_state()"
        )


def _stateful(components: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: component
        for name, component in components.items()
        if hasattr(component, "get_state") and hasattr(component, "restore_state")
    }


def _schema(component: Any) -> int:
    return int(getattr(component, "state_schema", 1))
