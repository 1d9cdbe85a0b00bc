"""Saves and restores the state of all coordinators that have some, in this process's engine."""

from __future__ import annotations

import asyncio
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from ringrift.daemons.running import attempt
from ringrift.engine.arguments import check_database, check_integer, refuse
from ringrift.engine.blocking import blocking
from ringrift.engine.opening import engine_at, engine_on_demand
from ringrift.engine.ports import Engine, Entry, KeyValue
from ringrift.errors import AlreadyExists, ConfigError, Corrupt, RingRiftError, SchemaTooNew
from ringrift.process import SingletonMixin
from ringrift.runtime import Runtime, system_runtime
from ringrift.status import HealthCheckResult, reported_by_store

__all__ = [
    "PersistentState",
    "SnapshotCoordinator",
    "StateSnapshot",
    "get_snapshot_coordinator",
    "reset_snapshot_coordinator",
]


# Saved state of components: checksummed, versioned, the last few kept, in the engine's keys and values.


PREFIX = "snapshots/"
KEPT = 5
# A try is lost only when another process saved in between; ten in a row mean that two of them save in a loop.
CREATE_TRIES_MAX = 10
ANSWER_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSnapshot:
    """What one component had to remember at one moment."""

    coordinator: str
    version: int  # 1, 2, 3 ... for each component
    created_s: float
    state: Mapping[str, Any]
    schema: int = 1  # of the state; the component's own number

    @classmethod
    def create(
        cls, coordinator: str, state: Mapping[str, Any], *, version: int = 1, schema: int = 1
    ) -> StateSnapshot:
        """Return *state* as it is now. State must be JSON values; what cannot be kept is refused here."""
        # A snapshot that could not be stored later is refused now, where the caller still knows what it is.
        _key(coordinator)
        _check_state(coordinator, state)
        check_integer("version", version, low=1)
        check_integer("schema", schema, low=1)
        now_s = system_runtime().now_s()
        made = cls(coordinator=coordinator, version=version, created_s=now_s, state=state, schema=schema)
        try:
            made.to_bytes()
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"the state of {coordinator} cannot be kept: {error}") from None
        return made

    @property
    def checksum(self) -> str:
        """SHA-256 over the content in one canonical form."""
        return hashlib.sha256(_canonical(self._content())).hexdigest()

    def to_bytes(self) -> bytes:
        return _canonical({**self._content(), "sha256": self.checksum})

    @classmethod
    def from_bytes(cls, value: bytes, *, key: str) -> StateSnapshot:
        """Read and verify. `Corrupt` if anything but what was written is there."""
        try:
            content = json.loads(value)
            claimed = content.pop("sha256")
            snapshot = cls(**content)
            own = snapshot.checksum
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise Corrupt(key, found="not a snapshot", advice="Restore an earlier version.") from None
        if own != claimed:
            raise Corrupt(key, found="the checksum does not match", advice="Restore an earlier version.")
        return snapshot

    def _content(self) -> dict[str, Any]:
        return {
            "coordinator": self.coordinator,
            "version": self.version,
            "created_s": self.created_s,
            "state": self.state,
            "schema": self.schema,
        }


class SnapshotStore:
    """Snapshots by component. Several processes may save; each version is written once."""

    def __init__(self, kv: KeyValue, *, kept: int = KEPT, runtime: Runtime | None = None) -> None:
        if not (hasattr(kv, "entries") and hasattr(kv, "create")):
            raise ConfigError(f"kv is {kv!r}; it must be the keys and values of an engine")
        if kept < 1:
            raise ConfigError("a snapshot store keeps at least 1 version")
        self._kv, self._kept = kv, kept
        self._runtime = runtime or system_runtime()

    async def save(self, name: str, state: Mapping[str, Any], *, schema: int = 1) -> StateSnapshot:
        """Store *state* as the next version and drop what is too old. State must be JSON values."""
        _check_state(name, state)
        for _ in range(CREATE_TRIES_MAX):
            entries = await self._entries(name)
            snapshot = StateSnapshot(
                coordinator=name,
                version=_version_of(entries[-1].key) + 1 if entries else 1,
                created_s=self._runtime.now_s(),
                state=state,
                schema=schema,
            )
            try:
                await self._kv.create(_key(name, snapshot.version), snapshot.to_bytes())
            except AlreadyExists:
                continue  # another process saved that version; take the next
            # Deleted after the new one is stored: a crash in between leaves one version too many, never none.
            for old in entries[: max(0, len(entries) + 1 - self._kept)]:
                await self._kv.delete(old.key)
            return snapshot
        # Reached only when every try met another writer.
        raise AlreadyExists(_key(name, snapshot.version))

    async def load(self, name: str, *, version: int | None = None, schema: int = 1) -> StateSnapshot | None:
        """Return the newest snapshot, or *version*; None if there is none.

        Raises `Corrupt` if it fails its check, `SchemaTooNew` if a newer program wrote it.
        """
        entries = await self._entries(name)
        wanted = [e for e in entries if version is None or _version_of(e.key) == version]
        if not wanted:
            return None
        snapshot = StateSnapshot.from_bytes(wanted[-1].value, key=wanted[-1].key)
        if snapshot.schema > schema:
            found = f"state of schema {snapshot.schema}, and this program knows {schema}"
            raise SchemaTooNew(wanted[-1].key, found=found, advice="Use the newer program.")
        return snapshot

    async def versions(self, name: str) -> list[int]:
        """Return the stored versions, oldest first."""
        return [_version_of(entry.key) for entry in await self._entries(name)]

    async def check(self) -> HealthCheckResult:
        """Read the newest snapshot of every component, which is the one that would be restored."""
        newest = {each.key.split("/")[1]: each for each in await self._kv.entries(PREFIX)}
        damaged = []
        for name, entry in newest.items():
            try:
                StateSnapshot.from_bytes(entry.value, key=entry.key)
            except Corrupt as error:
                damaged.append(f"{name}: {error.found}")
        if damaged:
            why = f"cannot be restored as it is now: {'; '.join(damaged)}"
            return HealthCheckResult.unhealthy(why, components=len(newest))
        return HealthCheckResult.ok("", components=len(newest))

    async def _entries(self, name: str) -> list[Entry]:
        return await self._kv.entries(_key(name))


def _check_state(name: str, state: object) -> None:
    if not isinstance(state, Mapping):
        refuse(f"the state of {name}", state, "a mapping of names to values")


def _key(name: str, version: int | None = None) -> str:
    if not isinstance(name, str) or not name or "/" in name:
        raise ConfigError(f"{name!r} cannot name a snapshot; it must be text without '/'")
    # Padded, because keys are listed in the order of their text and the last one must be the newest.
    return f"{PREFIX}{name}/" + ("" if version is None else f"{version:012d}")


def _version_of(key: str) -> int:
    return int(key.rsplit("/", 1)[1])


def _canonical(content: Mapping[str, Any]) -> bytes:
    # NaN and infinity are no JSON: another reader would refuse the whole snapshot.
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


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

    @reported_by_store
    @blocking(timeout_s=ANSWER_S)
    async def health_check(self) -> HealthCheckResult:
        """Whether every state that is kept could be restored."""
        return await (await self._store()).check()

    async def _engine(self) -> Engine:
        if self._db_path is None:
            return await engine_on_demand()
        # Opening a database reads and may upgrade it, which blocks.
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
