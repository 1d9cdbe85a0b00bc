"""The facts of one config in the key-value port: read once, then written one after the other.

The number of a fact is part of its key and must be free, so two writers cannot both count: the second finds
its number taken and stops. Reading a long history takes a second, so it is done beside the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from urllib.parse import quote, unquote

import msgspec

from ringrift.engine.limits import VALUE_BYTES_MAX
from ringrift.engine.ports import Entry, KeyValue
from ringrift.errors import AlreadyExists, Conflict, Corrupt
from ringrift.learning.facts import AnyFact
from ringrift.learning.state import ConfigState, fold
from ringrift.learning.window import BucketRules

PREFIX = "learning/fact/"
CONFIGS = "learning/config/"
_NUMBER = "{:010d}"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AnyFact).decode


class Ledger:
    """Where the facts of one config are kept, and what they add up to."""

    def __init__(self, kv: KeyValue, state: ConfigState) -> None:
        self._kv, self.state = kv, state
        self._prefix = prefix_of(state.config)
        self._turn = asyncio.Lock()
        self._in_doubt: AnyFact | None = None  # nobody heard whether it was stored

    @classmethod
    async def open(cls, kv: KeyValue, config: str, *, bucket_rules: BucketRules) -> Ledger:
        """Read all facts. Raises `Corrupt` if one is missing or cannot be read."""
        facts = await read_facts(kv, config)
        return cls(kv, await asyncio.to_thread(fold, config, facts, bucket_rules=bucket_rules))

    async def append(self, fact: AnyFact) -> None:
        """Store the next fact, then take it in. Raises `Conflict` if another process writes here."""
        async with self._turn:  # the loop and those who note findings write from different tasks
            await self._settle_doubt()
            self._in_doubt = fact
            try:
                await self._kv.create(self._next_key(), _encode(fact))
            except AlreadyExists:
                raise Conflict(f"another process writes the facts of {self.state.config}") from None
            self._in_doubt = None
            self.state.apply(fact)

    async def _settle_doubt(self) -> None:
        """Take in what was stored although its writer was cancelled or heard an error."""
        if self._in_doubt is None:
            return
        entry = await self._kv.get(self._next_key())
        if entry is not None and entry.value == _encode(self._in_doubt):
            self.state.apply(self._in_doubt)
        self._in_doubt = None

    def _next_key(self) -> str:
        return self._prefix + _NUMBER.format(self.state.facts + 1)


def fits(fact: AnyFact) -> bool:
    """Whether *fact* can be stored."""
    return len(_encode(fact)) <= VALUE_BYTES_MAX


async def read_facts(kv: KeyValue, config: str) -> list[AnyFact]:
    """All facts of *config* in order. Raises `Corrupt` if one is missing or cannot be read."""
    prefix = prefix_of(config)
    return await asyncio.to_thread(_decode_all, prefix, await kv.entries(prefix))


def _decode_all(prefix: str, entries: Sequence[Entry]) -> list[AnyFact]:
    facts = []
    for number, entry in enumerate(entries, start=1):
        if entry.key != prefix + _NUMBER.format(number):
            raise Corrupt(
                entry.key, found=f"fact {number} is missing", advice="Restore the engine's database"
            )
        try:
            facts.append(_decode(entry.value))
        except msgspec.MsgspecError as error:
            raise Corrupt(
                entry.key, found=f"no fact ({error})", advice="Use the version that wrote it"
            ) from None
    return facts


async def known_configs(kv: KeyValue) -> list[str]:
    """The configs that have facts."""
    return sorted(unquote(entry.key.removeprefix(CONFIGS)) for entry in await kv.entries(CONFIGS))


async def remember_config(kv: KeyValue, config: str) -> None:
    """List *config* among those that have facts."""
    try:
        await kv.create(CONFIGS + quoted(config), b"")
    except AlreadyExists:
        return


def prefix_of(config: str) -> str:
    return f"{PREFIX}{quoted(config)}/"


def quoted(config: str) -> str:
    """The name of a config as one part of a key."""
    return quote(config, safe="")
