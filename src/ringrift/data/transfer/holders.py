"""Asking other nodes which files they hold, and to keep them: over HTTP or ssh, or by a look at an archive.

Whoever cannot be asked has no copy, as far as a deletion is concerned: there is no answer from memory here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from ringrift.data.archive_format import ArchiveCard, card_key, decode
from ringrift.data.archive_objects import ArchiveObjects
from ringrift.data.archive_reading import read_back
from ringrift.data.nodes import DataNode
from ringrift.data.promise_store import FileLook, PromiseStore
from ringrift.data.promises import KeepAnswer, KeepRequest, KeptFile, Released, ReleaseRequest
from ringrift.data.receive_main import ReceiveRequest
from ringrift.data.transfer.archives import is_archive, open_archive
from ringrift.data.transfer.calls import READ_BYTES_PER_S
from ringrift.data.transfer.contract import TransferFailed
from ringrift.data.transfer.http import HttpTransport
from ringrift.data.transfer.messages import File
from ringrift.data.transfer.ssh_store import SshStores, has_ssh
from ringrift.errors import Corrupt, RingRiftError, Unavailable
from ringrift.runtime import Runtime

ASK_S = 15.0  # for an answer, and the time to read the files on top of it
ASK_S_MAX = 300.0  # by all ways together: what others promised meanwhile must not run out
ARCHIVE_READ_AGE_S_MAX = 30 * 86_400.0  # an archive whose file was read longer ago is read back


class HolderWay(Protocol):
    """One way to ask."""

    def reaches(self, node: DataNode) -> bool: ...

    async def keep(self, node: DataNode, request: KeepRequest, *, timeout_s: float) -> KeepAnswer: ...

    async def release(self, node: DataNode, request: ReleaseRequest, *, timeout_s: float) -> Released: ...


class HttpHolders:
    """Asks the data server of the other node."""

    def __init__(self, http: HttpTransport) -> None:
        self._http = http

    def reaches(self, node: DataNode) -> bool:
        return self._http.reaches(node)

    async def keep(self, node: DataNode, request: KeepRequest, *, timeout_s: float) -> KeepAnswer:
        return await self._http.ask(node, "keep", request, KeepAnswer, timeout_s=timeout_s)

    async def release(self, node: DataNode, request: ReleaseRequest, *, timeout_s: float) -> Released:
        return await self._http.ask(node, "release", request, Released, timeout_s=timeout_s)


class SshHolders:
    """Runs the receiver's command on the other node."""

    def __init__(self, stores: SshStores) -> None:
        self._stores = stores

    def reaches(self, node: DataNode) -> bool:
        return has_ssh(node)

    async def keep(self, node: DataNode, request: KeepRequest, *, timeout_s: float) -> KeepAnswer:
        line = await self._stores.ssh.line(node)
        asked = ReceiveRequest(keep=request)
        reply = await self._stores.ask(line, "keep", asked, by="ssh", quiet_s=timeout_s)
        if reply.kept is None:
            raise TransferFailed(f"{node.name} does not know how to keep files; is its ringrift older?")
        return reply.kept

    async def release(self, node: DataNode, request: ReleaseRequest, *, timeout_s: float) -> Released:
        line = await self._stores.ssh.line(node)
        asked = ReceiveRequest(release=request)
        await self._stores.ask(line, "release", asked, by="ssh", quiet_s=timeout_s)
        return Released(files=0)


class ArchiveHolders:
    """Looks at an archive itself. It cannot promise, and need not: nothing deletes there, it only grows."""

    def __init__(self, promises: PromiseStore, runtime: Runtime) -> None:
        self._promises, self._runtime = promises, runtime
        self._opened: dict[DataNode, ArchiveObjects] = {}

    def reaches(self, node: DataNode) -> bool:
        return is_archive(node)

    async def keep(self, node: DataNode, request: KeepRequest, *, timeout_s: float) -> KeepAnswer:
        objects = self._opened.get(node)
        if objects is None:
            objects = self._opened[node] = open_archive(node, self._runtime)
        async with asyncio.timeout(timeout_s):
            await objects.ready(to_write=False)
            files = [await self._look(objects, node, file, read=request.keep_s > 0) for file in request.files]
        return KeepAnswer(node=node.name, store=objects.place, keep_s=request.keep_s, files=tuple(files))

    async def release(self, node: DataNode, request: ReleaseRequest, *, timeout_s: float) -> Released:  # noqa: ARG002
        return Released(files=0)

    async def _look(self, objects: ArchiveObjects, node: DataNode, file: File, *, read: bool) -> KeptFile:
        content = await objects.read(card_key(file.digest))
        if content is None:
            return KeptFile(digest=file.digest, refusal="it does not have it", missing=True)
        try:
            card = decode(card_key(file.digest), content, ArchiveCard)
            sound = card.artifact.digest == file.digest and sum(part.size for part in card.parts) == file.size
            if not sound:
                return KeptFile(digest=file.digest, refusal="its card there is of another file", damaged=True)
            for part in card.parts:
                if await objects.size(part.key) != part.size:
                    return KeptFile(digest=file.digest, refusal=f"it lost {part.key}", damaged=True)
            age_s = await self._read_age_s(objects, node, card, read=read)
        except Corrupt as error:
            return KeptFile(digest=file.digest, refusal=f"its file is damaged: {error.found}", damaged=True)
        return KeptFile(digest=file.digest, size=file.size, read_age_s=age_s)

    async def _read_age_s(
        self, objects: ArchiveObjects, node: DataNode, card: ArchiveCard, *, read: bool
    ) -> float | None:
        """Since when its bytes were last read by this node; now, if that was long ago and *read* is given."""
        key, now_s = f"{node.name}/{card.artifact.digest}", self._runtime.now_s()
        known = (await asyncio.to_thread(self._promises.last_reads, [key])).get(key)
        if known is not None and known.sound and 0 <= now_s - known.read_s <= ARCHIVE_READ_AGE_S_MAX:
            return now_s - known.read_s
        if not read:
            return None
        found = await read_back(objects, card.artifact.digest, card.parts, None)
        look = FileLook(card.artifact.size, 0)
        await asyncio.to_thread(self._promises.note_read, key, look, sound=found.sound)
        if not found.sound:
            raise Corrupt(key, found=found.why, advice="Back the file up anew")
        return 0.0


class NodeHolders:
    """Asks each node by the first way that gets through."""

    def __init__(self, ways: Sequence[HolderWay], *, ssh_stores: SshStores | None = None) -> None:
        self._ways, self._ssh_stores = tuple(ways), ssh_stores

    async def keep(self, node: DataNode, request: KeepRequest) -> KeepAnswer:
        """Raises `Unavailable` if nobody answers, or somebody else than was asked."""
        reading_s = sum(file.size for file in request.files) / READ_BYTES_PER_S if request.keep_s > 0 else 0.0
        ways, whys, loop = [way for way in self._ways if way.reaches(node)], [], asyncio.get_running_loop()
        end_s = loop.time() + ASK_S_MAX
        for number, way in enumerate(ways, start=1):
            left_s = end_s - loop.time() - ASK_S * (len(ways) - number)  # the other ways get some, too
            timeout_s = min(ASK_S + reading_s, left_s)
            try:
                async with asyncio.timeout(timeout_s):
                    answer = await way.keep(node, request, timeout_s=timeout_s)
            except TimeoutError:
                whys.append(f"no answer in {timeout_s:.0f} s")
            except RingRiftError as error:
                whys.append(str(error))
            else:
                return _checked(answer, node, request)
        raise Unavailable("; ".join(whys) or "its entry names no way to ask it", retry_after_s=5.0)

    async def release(self, node: DataNode, request: ReleaseRequest) -> Released:
        """Raises `Unavailable` or `TimeoutError` if nobody answers."""
        whys = []
        async with asyncio.timeout(ASK_S):
            for way in self._ways:
                if way.reaches(node):
                    try:
                        return await way.release(node, request, timeout_s=ASK_S)
                    except RingRiftError as error:
                        whys.append(str(error))
        raise Unavailable("; ".join(whys) or "its entry names no way to ask it", retry_after_s=5.0)

    async def close(self) -> None:
        if self._ssh_stores is not None:
            await self._ssh_stores.ssh.close()


def _checked(answer: KeepAnswer, node: DataNode, request: KeepRequest) -> KeepAnswer:
    """The answer, if it is to what was asked, by who was asked."""
    if answer.node != node.name:
        raise Unavailable(f"{answer.node!r} answers under the address of {node.name}")
    if {file.digest for file in answer.files} != {file.digest for file in request.files}:
        raise Unavailable(f"{node.name} answers about other files")
    return answer
