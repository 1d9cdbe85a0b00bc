"""The port for sealed files. See `ringrift.engine.ports`."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, Protocol


class Upload(Protocol):
    """A blob on its way in; invisible until committed, and resumable after a crash."""

    @property
    def offset(self) -> int:
        """How many bytes are there already."""
        ...

    async def write(self, chunk: bytes) -> None: ...

    async def commit(self) -> str:
        """Sync, verify the digest and make the blob visible; `Corrupt` if the bytes differ."""
        ...

    async def abort(self) -> None:
        """Throw away what was written."""
        ...


class Blobs(Protocol):
    """Immutable content named by its SHA-256 in hex."""

    async def put(self, path: Path) -> str:
        """Copy a file in and return its digest. Putting the same content again is free."""
        ...

    async def put_bytes(self, content: bytes) -> str: ...

    async def upload(self, digest: str) -> Upload:
        """Begin, or continue, to receive the blob *digest*."""
        ...

    async def open(self, digest: str) -> BinaryIO:
        """Open for reading; `KeyError` if absent."""
        ...

    async def path(self, digest: str) -> Path | None:
        """Return the local file, or None if absent or not a file in this adapter."""
        ...

    async def has(self, digest: str) -> bool: ...

    async def size(self, digest: str) -> int | None: ...

    async def verify(self, digest: str) -> None:
        """Read it all; `Corrupt` if the content does not match its name."""
        ...

    async def delete(self, digest: str) -> bool: ...

    async def digests(self) -> list[str]: ...
