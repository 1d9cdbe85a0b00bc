"""What all parts of the data plane share on one node: its store, the manifest, the nodes, the transfers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from ringrift.data.artifacts import Artifact
from ringrift.data.deletion_records import Heir, Tombstone, mirror_heirs, mirror_tombstones
from ringrift.data.export_windows import ExportWindows
from ringrift.data.manifest_index import ManifestIndex, ManifestView
from ringrift.data.manifest_store import ManifestStore
from ringrift.data.nodes import DataNode, DataNodes, read_nodes
from ringrift.data.promise_store import PromiseStore
from ringrift.data.promises import Holder, KeepAnswer, KeepRequest, Released, ReleaseRequest, open_holder
from ringrift.data.quarantine import set_damaged_aside
from ringrift.data.transfer.assembling import assemble_holders, assemble_transfers
from ringrift.data.transfer.contract import Moved, Terms
from ringrift.data.transfer.stalls import SyncStallHandler
from ringrift.data.transfer.sync_mutex import SyncMutex
from ringrift.engine.opening import get_engine, get_engine_blocking
from ringrift.engine.ports import Blobs, Engine, KeyValue, WorkQueue
from ringrift.errors import Unavailable
from ringrift.process import process_scope
from ringrift.runtime import Runtime, system_runtime
from ringrift.settings import Settings, get_settings


class Transfers(Protocol):
    """Moves sealed files by whatever way works, and writes the receipts into the manifest.

    *limit_bytes_per_s* holds this call below what its node and the line would allow; transports in *avoid*
    are tried last. Both calls raise `TransferFailed` if the node cannot be reached in any way; the result
    names single files that failed.
    """

    async def send(
        self,
        node: DataNode,
        artifacts: Sequence[Artifact],
        *,
        priority: str = "normal",
        terms: Terms | None = None,
        limit_bytes_per_s: float | None = None,
        avoid: Collection[str] = (),
    ) -> Moved: ...

    async def fetch(
        self,
        node: DataNode,
        artifacts: Sequence[Artifact],
        *,
        priority: str = "normal",
        terms: Terms | None = None,
        limit_bytes_per_s: float | None = None,
        avoid: Collection[str] = (),
    ) -> Moved: ...

    async def close(self) -> None:
        """End the connections that are kept between calls, within seconds."""
        ...


class Holders(Protocol):
    """Asks other nodes about the files that they hold, now. No answer is `Unavailable`."""

    async def keep(self, node: DataNode, request: KeepRequest) -> KeepAnswer: ...

    async def release(self, node: DataNode, request: ReleaseRequest) -> Released: ...

    async def close(self) -> None: ...


class DataPlane:
    """One node's data plane on an open engine.

    *make_transfers* and *make_holders* get the plane that they are made for; *holder* answers for the files
    of this node.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        runtime: Runtime,
        *,
        nodes: DataNodes | None = None,
        blobs: Blobs | None = None,
        make_transfers: Callable[[DataPlane], Transfers] | None = None,
        make_holders: Callable[[DataPlane], Holders] | None = None,
        holder: Holder | None = None,
    ) -> None:
        self.engine, self.settings, self.runtime = engine, settings, runtime
        self.nodes = nodes or read_nodes(settings.node_name or runtime.hostname, settings.nodes)
        self.kv: KeyValue = engine.kv
        self.queue: WorkQueue = engine.queue
        self.blobs: Blobs = engine.blobs if blobs is None else blobs
        self.manifest = ManifestStore(engine.kv)
        self._index = ManifestIndex(engine.kv, runtime)
        self._tombstones = mirror_tombstones(engine.kv, runtime)
        self._heirs = mirror_heirs(engine.kv, runtime)
        self.windows = ExportWindows(engine.queue)
        self.stalls = SyncStallHandler(kv=engine.kv, runtime=runtime)
        self.mutex = SyncMutex(kv=engine.kv, runtime=runtime, max_global=settings.max_syncs_cluster)
        self.holder = holder or open_holder(settings, runtime, node=self.nodes.this)
        self.promises = self.holder.promises
        self._make_transfers, self._make_holders = make_transfers, make_holders
        self._transfers: Transfers | None = None
        self._holders: Holders | None = None

    @property
    def this(self) -> DataNode:
        """The node that this process runs on."""
        return self.nodes.this

    async def view(self) -> ManifestView:
        """Return the manifest as it is now. All who look share one picture and read only what changed."""
        return await self._index.refresh()

    async def tombstones(self) -> Mapping[str, Tombstone]:
        """Every copy that was given up, by the digest of the file."""
        return await self._tombstones.refresh()

    async def heirs(self) -> Mapping[str, Heir]:
        """Files that live on in others, by their digest."""
        return await self._heirs.refresh()

    @property
    def transfers(self) -> Transfers:
        if self._transfers is None:
            if self._make_transfers is None:
                raise Unavailable("this data plane has no way to move files")
            self._transfers = self._make_transfers(self)
        return self._transfers

    @property
    def holders(self) -> Holders:
        """Whoever asks other nodes what they hold."""
        if self._holders is None:
            if self._make_holders is None:
                raise Unavailable("this data plane has no way to ask other nodes")
            self._holders = self._make_holders(self)
        return self._holders

    async def close(self) -> None:
        """Let go of what transfers keep between calls. The engine is not the plane's to close."""
        if self._transfers is not None:
            await self._transfers.close()
        if self._holders is not None:
            await self._holders.close()
        self.promises.close()


def _transfers_of(plane: DataPlane) -> Transfers:
    return assemble_transfers(
        plane.engine,
        plane.settings,
        plane.runtime,
        nodes=plane.nodes,
        set_aside=partial(set_damaged_aside, plane),
    )


def _holders_of(plane: DataPlane) -> Holders:
    return assemble_holders(plane.settings, plane.runtime, nodes=plane.nodes, promises=plane.promises)


def _open() -> DataPlane:
    return DataPlane(
        get_engine_blocking(),
        get_settings(),
        system_runtime(),
        make_transfers=_transfers_of,
        make_holders=_holders_of,
    )


def get_data_plane() -> DataPlane:
    """Return this process's data plane; the first call opens the engine and may wait for it."""
    scope, engine = process_scope(), get_engine_blocking()
    plane = scope.get(DataPlane, _open)
    if plane.engine is not engine:  # that one was closed
        scope.drop(DataPlane)
        plane = scope.get(DataPlane, _open)
    return plane


class ClusterTransport:
    """What moves files between this process's node and the others, by the healthiest way.

    Each call takes the transfers of the data plane that is open then. *node* is the name of a node.
    """

    async def send(self, node: str, artifacts: Sequence[Artifact], **options: Any) -> Moved:
        """Bring sealed files of this node to another; options as of the transfers of a data plane."""
        plane = await open_data_plane()
        return await plane.transfers.send(plane.nodes[node], artifacts, **options)

    async def fetch(self, node: str, artifacts: Sequence[Artifact], **options: Any) -> Moved:
        """Bring sealed files of another node here."""
        plane = await open_data_plane()
        return await plane.transfers.fetch(plane.nodes[node], artifacts, **options)


def get_cluster_transport() -> Transfers:
    """Return what moves files between this process's node and the others, by the healthiest way."""
    return get_data_plane().transfers


async def close_data_plane() -> None:
    """End this process's data plane, if there is one, before its engine is closed."""
    plane = process_scope().drop(DataPlane)
    if plane is not None:
        await plane.close()


async def open_data_plane() -> DataPlane:
    """Return this process's data plane without holding up the event loop."""
    await get_engine()
    if process_scope().peek(DataPlane) is None:
        # The first record of promises is synced to the disk: that takes longer than the loop may be held up.
        folder = get_settings().blob_dir
        await asyncio.to_thread(lambda: PromiseStore(folder, system_runtime()).close())
    return get_data_plane()
