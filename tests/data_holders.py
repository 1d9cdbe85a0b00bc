"""Holders without a network: nodes of one process that answer for each other's files, and look at them."""

import asyncio
import hashlib

from ringrift.data.protection.promise_store import FileLook, PromiseStore
from ringrift.data.protection.promises import Holder, KeepAnswer, KeptFile, Released
from ringrift.errors import Unavailable


class MemoryFiles:
    """See `StoredFiles`: the blobs of a store in memory. A blob that is written anew looks different."""

    def __init__(self, state):
        self._state = state

    def look(self, digest):
        content = self._state.content.get(digest)
        return None if content is None else FileLook(len(content), id(content))

    def hash(self, digest):
        try:
            return hashlib.sha256(self._state.content[digest]).hexdigest()
        except KeyError:
            raise FileNotFoundError(digest) from None


def memory_holder(store, node, runtime, *, pinned=lambda _digest: ""):
    """The holder of a node whose blobs are in *store*, a `MemoryStore`."""
    promises = PromiseStore(None, runtime)
    return Holder(MemoryFiles(store.blobs), promises, node=node, runtime=runtime, pinned=pinned)


class DirectHolders:
    """Asks the planes of a world, except those of nodes that are down."""

    def __init__(self, world):
        self._world = world

    async def keep(self, node, request):
        return await asyncio.to_thread(self._holder(node).keep, request)

    async def release(self, node, request):
        return await asyncio.to_thread(self._holder(node).release, request)

    async def close(self):
        pass

    def _holder(self, node):
        if node.name in self._world.down:
            raise Unavailable(f"{node.name} does not answer")
        return self._world.planes[node.name].holder


class WillingHolders:
    """Nodes without disks: each says that it has, and keeps, what the manifest says it has."""

    def __init__(self, plane):
        self._plane = plane

    async def keep(self, node, request):
        files = [await self._file(node.name, file) for file in request.files]
        return KeepAnswer(node=node.name, store=node.name, keep_s=request.keep_s, files=tuple(files))

    async def _file(self, node, file):
        copies = await self._plane.manifest.copies(file.digest)
        if all(copy.node != node for copy in copies):
            return KeptFile(digest=file.digest, refusal="it does not have it", missing=True)
        return KeptFile(digest=file.digest, size=file.size)

    async def release(self, node, request):
        return Released(files=1)

    async def close(self):
        pass
