"""What exists and where verified copies are, in the key-value port: one key per artifact, one per copy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from ringrift.data.artifacts import Artifact, Receipt
from ringrift.data.kv_records import each
from ringrift.decoding import decode_as
from ringrift.engine.digests import check_digest
from ringrift.engine.ports import KeyValue
from ringrift.errors import AlreadyExists, ConfigError, Corrupt, RevisionMismatch

T = TypeVar("T")

ARTIFACTS, LOCATIONS = "artifacts/", "locations/"


class ManifestStore:
    """The manifest as it is kept. It knows only what receivers said: a copy is a receipt."""

    def __init__(self, kv: KeyValue) -> None:
        self._kv = kv

    async def register(self, artifacts: Iterable[Artifact]) -> int:
        """Note artifacts; return how many were new. The bytes go first, this comes last."""
        return len(await self.register_new(artifacts))

    async def register_new(self, artifacts: Iterable[Artifact]) -> set[str]:
        """The same; return the digests of those that were new."""
        new: set[str] = set()

        async def create(artifact: Artifact) -> None:
            with suppress(AlreadyExists):
                await self._kv.create(_card(artifact.digest), msgspec.json.encode(artifact))
                new.add(artifact.digest)

        await each(artifacts, create)
        return new

    async def artifact(self, digest: str) -> Artifact | None:
        entry = await self._kv.get(_card(digest))
        return None if entry is None else read_entry(entry.key, entry.value, Artifact)

    async def artifacts(self) -> list[Artifact]:
        return [read_entry(entry.key, entry.value, Artifact) for entry in await self._kv.entries(ARTIFACTS)]

    async def forget(self, digest: str) -> bool:
        """Drop the card of an artifact that has no copy any more."""
        return await self._kv.delete(_card(digest))

    async def add_receipts(self, receipts: Sequence[Receipt]) -> None:
        async def put(receipt: Receipt) -> None:
            await self._kv.put(_location(receipt.digest, receipt.node), msgspec.json.encode(receipt))

        await each(receipts, put)

    async def drop_copy(self, digest: str, node: str) -> bool:
        """A node no longer has the file, or it was found bad there."""
        return await self._kv.delete(_location(digest, node))

    async def drop_copy_read_before(self, time_s: float, digest: str, node: str) -> bool:
        """The same, as of *time_s*: a receipt from later is of a copy that came since."""
        entry = await self._kv.get(_location(digest, node))
        if entry is None or read_entry(entry.key, entry.value, Receipt).verified_s >= time_s:
            return False
        try:
            return await self._kv.delete(entry.key, revision=entry.revision)
        except RevisionMismatch:
            return False  # it was just renewed

    async def copies(self, digest: str) -> list[Receipt]:
        entries = await self._kv.entries(_location(digest, ""))
        return [read_entry(entry.key, entry.value, Receipt) for entry in entries]

    async def receipts(self) -> list[Receipt]:
        return [read_entry(entry.key, entry.value, Receipt) for entry in await self._kv.entries(LOCATIONS)]


def _card(digest: str) -> str:
    check_digest(digest)
    return ARTIFACTS + digest


def _location(digest: str, node: str) -> str:
    check_digest(digest)
    return f"{LOCATIONS}{digest}/{node}"


def read_entry(key: str, value: bytes, kind: type[T]) -> T:
    """Decode one entry of the manifest; `Corrupt` names the key of one that cannot be read."""
    try:
        return decode_as(value, kind)
    except (msgspec.MsgspecError, ValueError, ConfigError, RecursionError) as error:
        raise Corrupt(
            key,
            found=f"this entry of the manifest cannot be read ({error})",
            advice="Delete the key; `ringrift data verify` registers the file again",
        ) from None
