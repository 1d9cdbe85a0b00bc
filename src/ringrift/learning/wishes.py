"""What people want of a run: to pause it, whole or in part, and to go on."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote

import msgspec

from ringrift.engine.encoding import decode_entry
from ringrift.engine.ports import Entry, KeyValue

PREFIX = "learning/wish/"
ALL = "*"


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """One wish; the newest counts."""

    paused: bool
    reason: str = ""
    by: str = ""
    at_s: float = 0.0


class Wishes:
    """The wishes for all configs (`*`) and for single ones."""

    def __init__(self, kv: KeyValue) -> None:
        self._kv = kv

    async def set(self, config: str, wish: Wish) -> None:
        await self._kv.put(key_of(config), msgspec.json.encode(wish))

    async def get(self, config: str) -> Wish | None:
        entry = await self._kv.get(key_of(config))
        return None if entry is None else decode_entry(entry, Wish)

    async def resume(self, configs: Iterable[str], wish: Wish) -> None:
        """Have *wish* in the place of every pause of *configs*."""
        for config in configs:
            found = await self.get(config)
            if found is not None and found.paused:
                await self.set(config, wish)

    async def read(self) -> ReadWishes:
        """All wishes as they are now."""
        return ReadWishes(await self._kv.entries(PREFIX))


class ReadWishes:
    """The wishes as they were at one moment."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._entries = {entry.key: entry for entry in entries}

    def get(self, config: str) -> Wish | None:
        entry = self._entries.get(key_of(config))
        return None if entry is None else decode_entry(entry, Wish)

    def why_paused(self, config: str) -> str | None:
        """The reason, or None if the config may work."""
        for place in (ALL, config):
            wish = self.get(place)
            if wish is not None and wish.paused:
                return wish.reason or f"by {wish.by or 'a user'}"
        return None


def key_of(config: str) -> str:
    return PREFIX + (ALL if config == ALL else quote(config, safe=""))
