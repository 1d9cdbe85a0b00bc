"""The facts of one config in the key-value port: read once, then written one after the other.

The number of a fact is part of its key and must be free, so two writers cannot both count: the second finds
its number taken and stops. Every fact carries a hash of itself and of the hash before it, so a fact that was
changed, exchanged or taken out of the middle is noticed by every reader. Facts without a hash, which earlier
versions wrote, are covered by the first one that has one. Reading a long history takes a second, so it is
done beside the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple
from urllib.parse import quote, unquote

import msgspec

from ringrift.decoding import decoder_of
from ringrift.engine.encoding import UNREADABLE
from ringrift.engine.limits import VALUE_BYTES_MAX
from ringrift.engine.ports import Entry, KeyValue
from ringrift.errors import AlreadyExists, Conflict, Corrupt
from ringrift.health.run_status import FACT_PREFIX
from ringrift.learning.facts.facts import AnyFact
from ringrift.learning.facts.records import BucketRules
from ringrift.learning.facts.state import ConfigState, fold

CONFIGS = "learning/config/"
FIRST_HASH = ""  # before the first fact
REPAIR_ADVICE = (
    "Restore a backup with `ringrift data restore`, or make the facts again from the sealed files with "
    "`ringrift rebuild`"
)
_NUMBER = "{:010d}"
_SEAL = b',"chain":"'
_HASH_CHARS = 32
_SEAL_BYTES = len(_SEAL) + _HASH_CHARS + 2  # it takes the place of the last brace

_encode = msgspec.json.Encoder().encode
_decode = decoder_of(AnyFact).decode


class Chain(NamedTuple):
    """All facts of a config in order, and the hash that stands for all of them."""

    facts: list[AnyFact]
    hashes: list[str]  # after each fact

    @property
    def last(self) -> str:
        return self.hashes[-1] if self.hashes else FIRST_HASH


class Ledger:
    """Where the facts of one config are kept, and what they add up to."""

    def __init__(self, kv: KeyValue, state: ConfigState, *, last_hash: str) -> None:
        self._kv, self.state = kv, state
        self._prefix = prefix_of(state.config)
        self.last_hash = last_hash  # of the newest fact that is taken in
        self._turn = asyncio.Lock()
        self._in_doubt: tuple[AnyFact, str, bytes] | None = None  # nobody heard whether it was stored

    @classmethod
    async def open(cls, kv: KeyValue, config: str, *, bucket_rules: BucketRules) -> Ledger:
        """Read all facts. Raises `Corrupt` if one is missing, cannot be read or is not what was written."""
        chain = await read_chain(kv, config)
        state = await asyncio.to_thread(fold, config, chain.facts, bucket_rules=bucket_rules)
        return cls(kv, state, last_hash=chain.last)

    async def append(self, fact: AnyFact) -> None:
        """Store the next fact, then take it in. Raises `Conflict` if another process writes here."""
        async with self._turn:  # the loop and those who note findings write from different tasks
            await self._settle_doubt()
            key = self._next_key()
            own_hash, value = sealed(fact, key=key, before=self.last_hash)
            self._in_doubt = (fact, own_hash, value)
            try:
                await self._kv.create(key, value)
            except AlreadyExists:
                raise Conflict(f"another process writes the facts of {self.state.config}") from None
            self._take_in(fact, own_hash)

    async def _settle_doubt(self) -> None:
        """Take in what was stored although its writer was cancelled or heard an error."""
        if self._in_doubt is None:
            return
        fact, own_hash, value = self._in_doubt
        entry = await self._kv.get(self._next_key())
        if entry is not None and entry.value == value:
            self._take_in(fact, own_hash)
        self._in_doubt = None

    def _take_in(self, fact: AnyFact, own_hash: str) -> None:
        self._in_doubt = None
        self.last_hash = own_hash
        self.state.apply(fact)

    def _next_key(self) -> str:
        return self._prefix + _NUMBER.format(self.state.facts + 1)


def fits(fact: AnyFact) -> bool:
    """Whether *fact* can be stored."""
    return len(_encode(fact)) - 1 + _SEAL_BYTES <= VALUE_BYTES_MAX


def sealed(fact: AnyFact, *, key: str, before: str) -> tuple[str, bytes]:
    """The hash of *fact* behind the one with the hash *before*, and how it is stored."""
    body = _encode(fact)
    own_hash = _hash(before, key, body)
    return own_hash, body[:-1] + _SEAL + own_hash.encode() + b'"}'


def _unsealed(value: bytes) -> tuple[bytes, str]:
    """What `sealed` put together; the hash is empty if there is none."""
    if len(value) > _SEAL_BYTES and value[-_SEAL_BYTES:].startswith(_SEAL) and value.endswith(b'"}'):
        return value[:-_SEAL_BYTES] + b"}", value[-_HASH_CHARS - 2 : -2].decode(errors="replace")
    return value, ""


def _hash(before: str, key: str, body: bytes) -> str:
    return blake2b(f"{before} {key} ".encode() + body, digest_size=_HASH_CHARS // 2).hexdigest()


async def read_facts(kv: KeyValue, config: str) -> list[AnyFact]:
    """All facts of *config*. Raises `Corrupt` if one is missing, unreadable or not what was written."""
    return (await read_chain(kv, config)).facts


async def read_chain(kv: KeyValue, config: str) -> Chain:
    """All facts of *config* with their hashes; raises as `read_facts` does."""
    entries = await kv.entries(prefix_of(config))
    return await asyncio.to_thread(check_chain, config, entries)


def sound_facts(config: str, entries: Sequence[Entry]) -> list[AnyFact]:
    """The facts before the first that is not as it was written; all of them if there is none."""
    facts = []
    try:
        for _, body, _ in _links(config, entries):
            facts.append(_decode(body))
    except (Corrupt, *UNREADABLE):
        return facts
    return facts


async def read_hashes(kv: KeyValue, config: str) -> list[str]:
    """The hash after each fact of *config*, without reading the facts themselves; raises as `read_facts`."""
    entries = await kv.entries(prefix_of(config))
    return await asyncio.to_thread(lambda: [own_hash for _, _, own_hash in _links(config, entries)])


def check_chain(config: str, entries: Sequence[Entry]) -> Chain:
    """Read what is stored of *config*; raises `Corrupt` at the first fact that is not as it was written."""
    chain = Chain([], [])
    for entry, body, own_hash in _links(config, entries):
        try:
            chain.facts.append(_decode(body))
        except UNREADABLE as error:
            raise Corrupt(
                entry.key,
                found=f"fact {len(chain.facts) + 1} of {config} cannot be read ({error})",
                advice=f"Use the version that wrote it. If it is damaged: {REPAIR_ADVICE}",
            ) from None
        chain.hashes.append(own_hash)
    return chain


def _links(config: str, entries: Sequence[Entry]) -> Iterator[tuple[Entry, bytes, str]]:
    """Every fact as it was encoded, with its hash; `Corrupt` at the first that is not as it was written."""
    prefix, before, begun = prefix_of(config), FIRST_HASH, False
    for number, entry in enumerate(entries, start=1):
        if entry.key != prefix + _NUMBER.format(number):
            raise Corrupt(entry.key, found=f"fact {number} of {config} is missing", advice=REPAIR_ADVICE)
        body, stored = _unsealed(entry.value)
        own_hash = _hash(before, entry.key, body)
        if stored != own_hash and (stored or begun):
            found = _difference(config, number, stored, begun=begun)
            raise Corrupt(entry.key, found=found, advice=REPAIR_ADVICE)
        begun = begun or bool(stored)
        yield entry, body, own_hash
        before = own_hash


def _difference(config: str, number: int, stored: str, *, begun: bool) -> str:
    if not stored:
        return f"fact {number} of {config} is not what was written: it has lost its hash"
    which = f"fact {number}" if begun or number == 1 else f"one of the facts 1 to {number}"
    return f"{which} of {config} is not what was written: the hash {stored} does not fit"


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
    return f"{FACT_PREFIX}{quoted(config)}/"


def quoted(config: str) -> str:
    """The name of a config as one part of a key."""
    return quote(config, safe="")
