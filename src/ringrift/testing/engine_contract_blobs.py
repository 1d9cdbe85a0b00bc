"""Promises of the blob store."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ringrift.errors import ConfigError, Corrupt

if TYPE_CHECKING:
    from ringrift.testing.engine_contract import EngineBench


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class BlobsContract:
    """One test per promise."""

    async def test_every_handle_reads_what_was_put(self, bench: EngineBench, tmp_path: Path) -> None:
        first, second = (await bench.open()).blobs, (await bench.open()).blobs
        source = tmp_path / "model.pt"
        source.write_bytes(b"weights" * 1000)
        digest = await first.put(source)
        assert digest == _digest(b"weights" * 1000)
        with await second.open(digest) as file:
            assert file.read() == b"weights" * 1000
        assert await second.size(digest) == 7000
        await second.verify(digest)
        assert source.exists()

    async def test_content_is_stored_once(self, bench: EngineBench) -> None:
        blobs = (await bench.open()).blobs
        assert await blobs.put_bytes(b"same") == await blobs.put_bytes(b"same")
        assert await blobs.digests() == [_digest(b"same")]

    async def test_many_may_put_the_same_content_at_once(self, bench: EngineBench) -> None:
        handles = [(await bench.open()).blobs for _ in range(4)]
        content = b"shard" * 10_000
        digests = await asyncio.gather(*(blobs.put_bytes(content) for blobs in handles))
        assert set(digests) == {_digest(content)}
        await handles[0].verify(digests[0])

    async def test_the_empty_blob_is_a_blob(self, bench: EngineBench) -> None:
        blobs = (await bench.open()).blobs
        digest = await blobs.put_bytes(b"")
        assert await blobs.has(digest)
        assert await blobs.size(digest) == 0

    async def test_absence_is_told(self, bench: EngineBench) -> None:
        blobs, absent = (await bench.open()).blobs, _digest(b"absent")
        assert not await blobs.has(absent)
        assert await blobs.size(absent) is None
        assert await blobs.path(absent) is None
        assert not await blobs.delete(absent)
        with pytest.raises(KeyError):
            await blobs.open(absent)
        with pytest.raises(KeyError):
            await blobs.verify(absent)

    async def test_a_deleted_blob_is_gone_for_all(self, bench: EngineBench) -> None:
        first, second = (await bench.open()).blobs, (await bench.open()).blobs
        digest = await first.put_bytes(b"x")
        assert await second.delete(digest)
        assert not await first.has(digest)
        assert await first.digests() == []

    async def test_an_upload_is_invisible_until_committed(self, bench: EngineBench) -> None:
        blobs, digest = (await bench.open()).blobs, _digest(b"one two")
        upload = await blobs.upload(digest)
        assert upload.offset == 0
        await upload.write(b"one ")
        assert upload.offset == 4
        assert not await blobs.has(digest)
        assert await blobs.digests() == []
        await upload.write(b"two")
        assert await upload.commit() == digest
        await blobs.verify(digest)

    async def test_an_upload_continues_where_a_lost_handle_stopped(self, bench: EngineBench) -> None:
        digest = _digest(b"one two")
        lost = await bench.open()
        await (await lost.blobs.upload(digest)).write(b"one ")
        await lost.close()
        blobs = (await bench.open()).blobs
        upload = await blobs.upload(digest)
        assert upload.offset == 4
        await upload.write(b"two")
        await upload.commit()
        with await blobs.open(digest) as file:
            assert file.read() == b"one two"

    async def test_an_upload_of_other_bytes_is_refused_and_forgotten(self, bench: EngineBench) -> None:
        blobs, digest = (await bench.open()).blobs, _digest(b"right")
        upload = await blobs.upload(digest)
        await upload.write(b"wrong")
        with pytest.raises(Corrupt):
            await upload.commit()
        assert not await blobs.has(digest)
        again = await blobs.upload(digest)
        assert again.offset == 0
        await again.write(b"right")
        await again.commit()

    async def test_an_aborted_upload_leaves_nothing(self, bench: EngineBench) -> None:
        blobs, digest = (await bench.open()).blobs, _digest(b"x")
        upload = await blobs.upload(digest)
        await upload.write(b"x")
        await upload.abort()
        again = await blobs.upload(digest)
        assert again.offset == 0
        await again.abort()

    @pytest.mark.parametrize("name", ["", "abc", "../../etc/passwd", "A" * 64, "0" * 63 + "/"])
    async def test_a_name_that_is_no_digest_is_refused(self, bench: EngineBench, name: str) -> None:
        blobs = (await bench.open()).blobs
        for call in (blobs.has(name), blobs.open(name), blobs.upload(name), blobs.delete(name)):
            with pytest.raises(ConfigError):
                await call
