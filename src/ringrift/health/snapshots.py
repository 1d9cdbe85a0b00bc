"""Saved state of components: checksummed, versioned, the last few kept, in the engine's keys and values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ringrift.engine.arguments import check_integer
from ringrift.engine.ports import Entry, KeyValue
from ringrift.errors import AlreadyExists, ConfigError, Corrupt, SchemaTooNew
from ringrift.runtime import Runtime, system_runtime

PREFIX = "snapshots/"
KEPT = 5
CREATE_TRIES_MAX = 10


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
        _key(coordinator)
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
            for old in entries[: len(entries) + 1 - self._kept]:
                await self._kv.delete(old.key)
            return snapshot
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

    async def _entries(self, name: str) -> list[Entry]:
        return await self._kv.entries(_key(name))


def _key(name: str, version: int | None = None) -> str:
    if not name or "/" in name:
        raise ConfigError(f"{name!r} cannot name a snapshot; it must be text without '/'")
    return f"{PREFIX}{name}/" + ("" if version is None else f"{version:012d}")


def _version_of(key: str) -> int:
    return int(key.rsplit("/", 1)[1])


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
