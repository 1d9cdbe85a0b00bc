"""How a recall reaches the facts: a wish that any process may write, taken in by the one that writes facts.

A wish waits under `learning/recall_wish/<config>/<id>` until the control process, or a command that found
none running, has made it a fact. Taking it in twice changes nothing.
"""

from __future__ import annotations

import msgspec

from ringrift.engine.encoding import decode_entry
from ringrift.engine.ports import KeyValue
from ringrift.learning.facts import Recalled
from ringrift.learning.ledger import quoted
from ringrift.learning.state import ConfigState

PREFIX = "learning/recall_wish/"


class RecallWishes:
    """The recalls, and withdrawals of recalls, that are not facts yet."""

    def __init__(self, kv: KeyValue) -> None:
        self._kv = kv

    async def add(self, config: str, recall: Recalled) -> None:
        """Ask for *recall*; the newest wish of an id counts."""
        await self._kv.put(_key(config, recall.recall_id), msgspec.json.encode(recall))

    async def waiting(self, config: str) -> list[Recalled]:
        """The wishes for *config*, oldest first."""
        entries = await self._kv.entries(f"{PREFIX}{quoted(config)}/")
        found = [decode_entry(entry, Recalled) for entry in entries]
        return sorted(found, key=lambda recall: recall.at_s)

    async def configs(self) -> set[str]:
        """The configs for which a wish waits, as they stand in keys."""
        return {entry.key.removeprefix(PREFIX).partition("/")[0] for entry in await self._kv.entries(PREFIX)}

    async def is_waiting(self, config: str, recall_id: str) -> bool:
        return await self._kv.get(_key(config, recall_id)) is not None

    async def remove(self, config: str, recall: Recalled) -> None:
        """The wish is a fact; one that was replaced since stays."""
        key = _key(config, recall.recall_id)
        entry = await self._kv.get(key)
        if entry is not None and entry.value == msgspec.json.encode(recall):
            await self._kv.delete(key, revision=entry.revision)


def is_news(state: ConfigState, recall: Recalled) -> bool:
    """Whether *recall* would change what the facts say."""
    known = state.recalls.get(recall.recall_id)
    if known is None:
        return not recall.withdrawn
    return msgspec.structs.replace(known, at_s=recall.at_s) != recall


def _key(config: str, recall_id: str) -> str:
    return f"{PREFIX}{quoted(config)}/{quoted(recall_id)}"
