"""Blobs in memory."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from ringrift.engine.arguments import check_bytes, check_path
from ringrift.engine.digests import check_digest, mismatch
from ringrift.engine.limits import BLOB_CALL_BYTES_MAX
from ringrift.engine.memory.handle import Handle


@dataclass(slots=True)
class BlobState:
    """Committed content, and uploads that may be continued."""

    content: dict[str, bytes] = field(default_factory=dict)
    partial: dict[str, bytearray] = field(default_factory=dict)


class MemoryUpload:
    """See `Upload`."""

    def __init__(self, handle: Handle, state: BlobState, digest: str) -> None:
        self._handle, self._state, self._digest = handle, state, digest
        self._received = state.partial.setdefault(digest, bytearray())

    @property
    def offset(self) -> int:
        return len(self._received)

    async def write(self, chunk: bytes) -> None:
        check_bytes("chunk", chunk, size_max=BLOB_CALL_BYTES_MAX)
        await self._handle.enter()
        self._received += chunk

    async def commit(self) -> str:
        await self._handle.enter()
        self._state.partial.pop(self._digest, None)
        content = bytes(self._received)
        found = hashlib.sha256(content).hexdigest()
        if found != self._digest:
            raise mismatch(self._digest, self._digest, found)
        self._state.content[self._digest] = content
        return self._digest

    async def abort(self) -> None:
        await self._handle.enter()
        self._state.partial.pop(self._digest, None)


class MemoryBlobs:
    """See `Blobs`."""

    def __init__(self, handle: Handle, state: BlobState) -> None:
        self._handle, self._state = handle, state

    async def put(self, path: Path) -> str:
        content = _content_of(path)
        await self._handle.enter()
        return self._keep(content)

    async def put_bytes(self, content: bytes) -> str:
        check_bytes("content", content, size_max=BLOB_CALL_BYTES_MAX)
        await self._handle.enter()
        return self._keep(content)

    def _keep(self, content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        self._state.content[digest] = content
        return digest

    async def upload(self, digest: str) -> MemoryUpload:
        check_digest(digest)
        await self._handle.enter()
        return MemoryUpload(self._handle, self._state, digest)

    async def open(self, digest: str) -> BinaryIO:
        return io.BytesIO(self._state.content[await self._checked(digest)])

    async def path(self, digest: str) -> Path | None:
        await self._checked(digest)
        return None

    async def has(self, digest: str) -> bool:
        return await self._checked(digest) in self._state.content

    async def size(self, digest: str) -> int | None:
        content = self._state.content.get(await self._checked(digest))
        return None if content is None else len(content)

    async def verify(self, digest: str) -> None:
        found = hashlib.sha256(self._state.content[await self._checked(digest)]).hexdigest()
        if found != digest:
            raise mismatch(digest, digest, found)

    async def delete(self, digest: str) -> bool:
        return self._state.content.pop(await self._checked(digest), None) is not None

    async def digests(self) -> list[str]:
        await self._handle.enter()
        return sorted(self._state.content)

    async def _checked(self, digest: str) -> str:
        check_digest(digest)
        await self._handle.enter()
        return digest


def _content_of(path: Path) -> bytes:
    check_path(path)
    return path.read_bytes()
