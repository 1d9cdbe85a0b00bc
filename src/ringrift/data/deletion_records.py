"""What is written down about deletions: who gave up which copy and why, and what lives on in another file.

The tombstone of an artifact is one key, changed by compare-and-swap. A node enters itself before it deletes
its copy; from then on nobody counts that copy. Two nodes cannot both give up a copy because of the other's:
the second finds the key changed and has to look again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from typing import TypeVar

import msgspec

from ringrift.data.artifacts import Receipt
from ringrift.data.kv_mirror import KvMirror, RecordsPicture
from ringrift.decoding import decode_as
from ringrift.engine.digests import check_digest
from ringrift.engine.ports import KeyValue
from ringrift.errors import AlreadyExists, ConfigError, Conflict, Corrupt, RevisionMismatch
from ringrift.runtime import Runtime

T = TypeVar("T")

TOMBSTONES, HEIRS = "data/tombstones/", "data/heirs/"
_TRIES = 50


class GivingUp(StrEnum):
    """How far a deletion is."""

    DELETING = "deleting"  # decided; the file may still be there
    DELETED = "deleted"


class GivenUp(msgspec.Struct, frozen=True, kw_only=True):
    """One node's copy, and why it went."""

    state: GivingUp
    at_s: float  # by the clock of that node; not before its last receipt
    reason: str
    by: str  # the part of the program, or the person, that asked for it
    copies_left: int
    bytes: int = 0


class Tombstone(msgspec.Struct, frozen=True, kw_only=True):
    """All copies of one artifact that were given up. Kept for good: it is the record of the deletion."""

    digest: str
    name: str = ""
    kind: str = ""
    config: str = ""
    nodes: dict[str, GivenUp] = {}

    def covers(self, receipt: Receipt, *, given_up_by: str | None = None) -> bool:
        """Whether the receipt is of a copy that was given up, and not of a later one.

        *given_up_by* is a node that has the same file, if not the receipt's own.
        """
        gone = self.nodes.get(given_up_by or receipt.node)
        if gone is None:
            return False
        return gone.state is GivingUp.DELETING or receipt.verified_s <= gone.at_s


class Heir(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is in an artifact is in another one, too."""

    digest: str
    heir: str
    reason: str
    at_s: float


class DeletionRecords:
    """Tombstones and heirs in the key-value port."""

    def __init__(self, kv: KeyValue) -> None:
        self._kv = kv

    async def tombstone(self, digest: str) -> Tombstone | None:
        return (await self.tombstone_at(digest))[0]

    async def tombstone_at(self, digest: str) -> tuple[Tombstone | None, int | None]:
        """The tombstone and its revision, for a change by compare-and-swap."""
        check_digest(digest)
        entry = await self._kv.get(TOMBSTONES + digest)
        if entry is None:
            return None, None
        return _read(entry.key, entry.value, Tombstone), entry.revision

    async def write(self, tombstone: Tombstone, *, revision: int | None) -> None:
        """Store if nobody changed it since *revision*; `Conflict` otherwise."""
        key, value = TOMBSTONES + tombstone.digest, msgspec.json.encode(tombstone)
        if revision is None:
            await self._kv.create(key, value)
        else:
            await self._kv.update(key, value, revision=revision)

    async def change(self, digest: str, edit: Callable[[Tombstone], Tombstone]) -> None:
        """Change a tombstone that is there, whatever others change meanwhile."""
        for _ in range(_TRIES):
            tombstone, revision = await self.tombstone_at(digest)
            if tombstone is None:
                return
            try:
                await self.write(edit(tombstone), revision=revision)
            except (RevisionMismatch, AlreadyExists):
                continue
            return
        raise Conflict(f"the tombstone of {digest[:12]} changed {_TRIES} times in a row")

    async def name_heir(self, heir: Heir) -> None:
        """Note that *heir.heir* holds everything of *heir.digest*. The first one named stays."""
        check_digest(heir.heir)
        try:
            await self._kv.create(HEIRS + heir.digest, msgspec.json.encode(heir))
        except AlreadyExists:
            return

    async def heir(self, digest: str) -> Heir | None:
        entry = await self._kv.get(HEIRS + digest)
        return None if entry is None else _read(entry.key, entry.value, Heir)


def mirror_tombstones(kv: KeyValue, runtime: Runtime) -> KvMirror[Mapping[str, Tombstone]]:
    """All tombstones by digest. They are kept for good, so nobody should read all of them twice."""
    read = partial(_read, kind=Tombstone)
    return KvMirror(kv, runtime, (TOMBSTONES,), lambda: RecordsPicture(TOMBSTONES, read))


def mirror_heirs(kv: KeyValue, runtime: Runtime) -> KvMirror[Mapping[str, Heir]]:
    """All heirs, by the digest of what they inherited."""
    return KvMirror(kv, runtime, (HEIRS,), lambda: RecordsPicture(HEIRS, partial(_read, kind=Heir)))


def with_node(tombstone: Tombstone, node: str, entry: GivenUp | None) -> Tombstone:
    """The tombstone with this node's entry replaced, or taken out."""
    others = {name: each for name, each in tombstone.nodes.items() if name != node}
    if entry is not None:
        others[node] = entry
    return msgspec.structs.replace(tombstone, nodes=others)


def _read(key: str, value: bytes, kind: type[T]) -> T:
    try:
        return decode_as(value, kind)
    except (msgspec.MsgspecError, ValueError, ConfigError, RecursionError) as error:
        raise Corrupt(
            key,
            found=f"this record of a deletion cannot be read ({error})",
            advice="Nothing of this artifact is deleted until the key is restored or removed by hand",
        ) from None
