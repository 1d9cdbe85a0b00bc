"""Pauses: what people stopped on purpose, one config or the whole run, until they let it go on.

A pause is a hold of the work queue, so that no worker of any process claims what it holds, and it is there
until somebody takes it away. The loop reads the same entries and orders nothing meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ringrift.engine.encoding import decode_entry
from ringrift.engine.ports import Entry, KeyValue
from ringrift.engine.work_rules import ALL_WORK, HOLDS, held_groups, hold_key

ALL = ALL_WORK


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """Who paused it, when and why."""

    reason: str = ""
    by: str = ""
    at_s: float = 0.0

    @property
    def why(self) -> str:
        return self.reason or f"by {self.by or 'a user'}"


class Pauses:
    """The pauses of single configs, and of all (`*`)."""

    def __init__(self, kv: KeyValue) -> None:
        self._kv = kv

    async def set(self, config: str, pause: Pause) -> None:
        """From the moment this returns nothing of *config* is claimed."""
        await self._kv.put(hold_key(config), msgspec.json.encode(pause))

    async def get(self, config: str) -> Pause | None:
        entry = await self._kv.get(hold_key(config))
        return None if entry is None else decode_entry(entry, Pause)

    async def end(self, configs: Iterable[str]) -> list[str]:
        """Let *configs* go on; return those that were paused."""
        return [config for config in configs if await self._kv.delete(hold_key(config))]

    async def end_all(self) -> list[str]:
        """Let everything go on, also what is no longer in the run; return what was paused."""
        return await self.end(sorted(held_groups(entry.key for entry in await self._kv.entries(HOLDS))))

    async def read(self) -> ReadPauses:
        """All pauses as they are now."""
        return ReadPauses(await self._kv.entries(HOLDS))


class ReadPauses:
    """The pauses as they were at one moment."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._entries = {entry.key: entry for entry in entries}

    def of(self, config: str) -> Pause | None:
        """The pause that holds *config*: that of the whole run before its own."""
        for place in (ALL, config):
            if (entry := self._entries.get(hold_key(place))) is not None:
                return decode_entry(entry, Pause)
        return None

    def why_paused(self, config: str) -> str | None:
        """The reason, or None if the config may work."""
        pause = self.of(config)
        return None if pause is None else pause.why
