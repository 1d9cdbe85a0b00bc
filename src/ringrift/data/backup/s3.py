"""An archive's objects in an S3-compatible bucket, through obstore.

This module is loaded only where a node has an `s3_url`. Every request carries the hash of its body, which
the server checks; what it stored is read back anyway before it counts.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import S3Store

from ringrift.data.backup.archive import (
    MARKER,
    ArchiveMarker,
    check_marker,
    check_removable,
    check_size,
    encode,
)
from ringrift.data.config import DataNode
from ringrift.data.transfer.contract import TransferFailed
from ringrift.errors import ConfigError

if TYPE_CHECKING:
    from obstore import GetOptions

_CONNECT_S, _REQUEST_S, _RETRY_S = 10, 300, 60  # whoever moves files gives up sooner if nothing moves
_RETRIES = 4
_ERROR_CHARS_MAX = 300
_DEBUGGING = "Debug source"  # what follows is for obstore's authors
_ABSENT = (NotFoundError, FileNotFoundError)  # which of them it is depends on obstore's version


class S3Objects:
    """See `ArchiveObjects`. Credentials come from the environment or the machine, never from the file."""

    def __init__(self, node: DataNode, *, retries: int = _RETRIES, retry_s: float = _RETRY_S) -> None:
        self._node = node
        self._bucket, self._prefix = _parse(node)
        self._store = S3Store(
            self._bucket,
            prefix=self._prefix or None,
            endpoint=node.s3_endpoint or None,
            region=node.s3_region,
            checksum_algorithm="SHA256",
            client_options={
                "allow_http": node.s3_endpoint.startswith("http://"),
                "connect_timeout": timedelta(seconds=_CONNECT_S),
                "timeout": timedelta(seconds=_REQUEST_S),
            },
            retry_config={"max_retries": retries, "retry_timeout": timedelta(seconds=retry_s)},
        )

    @property
    def place(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    async def ready(self, *, to_write: bool) -> None:
        marker = await self.read(MARKER)
        if marker is not None:
            check_marker(self.place, marker)
        elif to_write:
            await self.create(MARKER, encode(ArchiveMarker()))
        else:
            raise TransferFailed(f"there is no archive at {self.place}", retry_after_s=60.0)

    async def size(self, key: str) -> int | None:
        async with self._translated_errors("look at", key):
            try:
                return (await obstore.head_async(self._store, key))["size"]
            except _ABSENT:
                return None

    async def read(self, key: str, *, offset: int = 0) -> bytes | None:
        async with self._translated_errors("read", key):
            try:
                options: GetOptions | None = {"range": {"offset": offset}} if offset else None
                answer = await obstore.get_async(self._store, key, options=options)
                check_size(self.place, key, answer.meta["size"])
                return bytes(await answer.bytes_async())
            except _ABSENT:
                return None

    async def create(self, key: str, content: bytes) -> bool:
        async with self._translated_errors("create", key):
            try:
                await obstore.put_async(self._store, key, content, mode="create")
            except AlreadyExistsError:
                return False
            return True

    async def replace(self, key: str, content: bytes) -> None:
        async with self._translated_errors("write", key):
            await obstore.put_async(self._store, key, content, use_multipart=False)

    async def keys(self, prefix: str) -> list[str]:
        async with self._translated_errors("list", prefix):
            found: list[str] = []
            async for batch in obstore.list(self._store, prefix.rstrip("/")):
                found += [meta["path"] for meta in batch]
            return sorted(found)

    async def remove(self, key: str) -> None:
        check_removable(key)
        async with self._translated_errors("remove", key):
            await obstore.delete_async(self._store, key)

    @asynccontextmanager
    async def _translated_errors(self, doing: str, key: str) -> AsyncIterator[None]:
        try:
            yield
        except _ABSENT:
            raise TransferFailed(f"the bucket {self._bucket!r} does not exist", retry_after_s=60.0) from None
        except (BaseError, OSError) as error:
            why = " ".join(str(error).partition(_DEBUGGING)[0].split())[:_ERROR_CHARS_MAX]
            raise TransferFailed(
                f"cannot {doing} {key} in {self.place}: {why}", retry_after_s=30.0
            ) from error


def open_s3(node: DataNode) -> S3Objects:
    return S3Objects(node)


def _parse(node: DataNode) -> tuple[str, str]:
    parts = urlsplit(node.s3_url)
    if parts.scheme != "s3" or not parts.netloc:
        raise ConfigError(f"s3_url of node {node.name!r} is {node.s3_url!r}; it must be s3://BUCKET/PREFIX")
    return parts.netloc, parts.path.strip("/")
