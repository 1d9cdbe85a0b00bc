"""The champion of each config as a pointer in the key-value port, swapped by compare-and-swap.

The facts say who is champion; the pointer is what others follow. It carries the number of the change, so an
older change can never overwrite a newer one.
"""

from __future__ import annotations

from urllib.parse import quote

import msgspec

from ringrift.engine.encoding import decode_entry
from ringrift.engine.ports import KeyValue
from ringrift.errors import Conflict
from ringrift.learning.models_archive import last_champions
from ringrift.learning.state import ConfigState

PREFIX = "learning/champion/"


class Champion(msgspec.Struct, frozen=True, kw_only=True):
    """Who is champion since the change of that number."""

    config: str
    model: str | None
    card: str | None
    checkpoint: str | None = None  # to begin again from
    former_checkpoints: tuple[str, ...] = ()  # of the champions that a rollback may lead to
    change: int  # promotions and roll-backs so far


class ChampionPointers:
    """Keeps the pointers in step with the facts."""

    def __init__(self, kv: KeyValue) -> None:
        self._kv = kv

    async def follow(self, state: ConfigState) -> None:
        """Swap the pointer if the champion changed. Raises `Conflict` if another process is ahead."""
        change = len(state.promotions) + state.rollbacks
        if not change:
            return
        key = key_of(state.config)
        model = None if state.champion is None else state.models[state.champion]
        wanted = Champion(
            config=state.config,
            model=state.champion,
            card=None if model is None else model.card,
            checkpoint=None if model is None else model.checkpoint or None,
            former_checkpoints=tuple(
                kept
                for digest in last_champions(state)
                if digest != state.champion and (kept := state.models[digest].checkpoint)
            ),
            change=change,
        )
        entry = await self._kv.get(key)
        if entry is None:
            await self._kv.create(key, msgspec.json.encode(wanted))
            return
        present = decode_entry(entry, Champion)
        if present == wanted:
            return
        # An earlier version wrote less of the same change.
        if present.change > change or (present.change == change and present.model != wanted.model):
            raise Conflict(f"the champion of {state.config} was changed by another process")
        await self._kv.update(key, msgspec.json.encode(wanted), revision=entry.revision)


async def read_champion(kv: KeyValue, config: str) -> Champion | None:
    entry = await kv.get(key_of(config))
    return None if entry is None else decode_entry(entry, Champion)


def key_of(config: str) -> str:
    return PREFIX + quote(config, safe="")
