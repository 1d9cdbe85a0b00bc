"""A few nodes in one process: one key-value store, a blob store each, and transfers that copy."""

from __future__ import annotations

import asyncio
import hashlib
import random
from typing import Any

from data_holders import DirectHolders, memory_holder
from ringrift.data.artifacts import Artifact, ArtifactKind, Receipt
from ringrift.data.config import DataNode, DataNodes
from ringrift.data.plane import DataPlane
from ringrift.data.protection.promises import PINS
from ringrift.data.transfer.contract import Moved, TransferFailed
from ringrift.engine.memory import MemoryStore, memory_engine
from ringrift.engine.ports import Engine
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.settings import load_settings
from ringrift.testing.simulation import ManualRuntime, SimulatedRuntime

OLD_S = 100_000.0  # older than any age rule


class JitteryKv:
    """The same store, with other tasks let in before and after every call."""

    def __init__(self, kv: Any, rng: random.Random) -> None:
        self._kv, self._rng = kv, rng
        self.crash_after: int | None = None  # calls until the process "dies"

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._kv, name)
        if name == "watch":
            return call

        async def jittered(*args: Any, **kwargs: Any) -> Any:
            await self._pause()
            found = await call(*args, **kwargs)
            await self._pause()
            return found

        return jittered

    async def _pause(self) -> None:
        if self.crash_after is not None:
            self.crash_after -= 1
            if self.crash_after < 0:
                raise Crashed
        for _ in range(self._rng.randrange(4)):
            await asyncio.sleep(0)


class Crashed(BaseException):
    """The process died here."""


class DirectTransfers:
    """Copies bytes between the blob stores of a world, as a receiver would: verified, with a receipt."""

    def __init__(self, world: World, plane: DataPlane) -> None:
        self._world, self._plane = world, plane

    async def send(self, node: DataNode, artifacts: Any, **_terms: Any) -> Moved:
        return await self._copy(self._plane.this.name, node.name, artifacts)

    async def fetch(self, node: DataNode, artifacts: Any, **_terms: Any) -> Moved:
        return await self._copy(node.name, self._plane.this.name, artifacts)

    async def _copy(self, source: str, target: str, artifacts: Any) -> Moved:
        world, receipts, failed, sent = self._world, [], [], 0
        if {source, target} & world.down:
            raise TransferFailed(f"{source} or {target} does not answer")
        for artifact in artifacts:
            try:
                with await world.planes[source].blobs.open(artifact.digest) as file:
                    content = file.read()
            except KeyError:
                failed.append((artifact.digest, f"{source} does not have it"))
                continue
            if hashlib.sha256(content).hexdigest() != artifact.digest:
                failed.append((artifact.digest, f"{source} sent other bytes"))
                continue
            await world.planes[target].blobs.put_bytes(content)
            receipts.append(world.receipt(artifact, target))
            sent += len(content)
        world.transfers.append((source, target, tuple(each.digest for each in artifacts)))
        await self._plane.manifest.register(artifacts)
        await self._plane.manifest.add_receipts(receipts)
        return Moved(receipts=tuple(receipts), failed=tuple(failed), bytes_sent=sent)


class World:
    """Nodes by name; `a` is the first."""

    def __init__(
        self,
        *nodes: DataNode,
        seed: int = 0,
        runtime: SimulatedRuntime | None = None,
        router: UnifiedEventRouter | None = None,
    ) -> None:
        self.runtime = runtime or ManualRuntime(seed=seed)
        if isinstance(self.runtime, ManualRuntime):
            self.runtime.advance(10 * OLD_S)
        self.rng = random.Random(seed)
        self.store = MemoryStore()
        self.down: set[str] = set()
        self.transfers: list[tuple[str, str, tuple[str, ...]]] = []
        self.router = router or UnifiedEventRouter(enable_cross_process_polling=False)
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.router.subscribe(None, self._hear, "ear")
        self.planes = {node.name: self._plane(node.name, nodes) for node in nodes}

    def _hear(self, event: Any) -> None:
        self.events.append((event.event_type, dict(event.payload)))

    def heard(self, event: str) -> list[dict[str, Any]]:
        return [payload for name, payload in self.events if name == event]

    def _plane(self, name: str, nodes: tuple[DataNode, ...]) -> DataPlane:
        disk = MemoryStore()
        shared, own = memory_engine(self.runtime, self.store), memory_engine(self.runtime, disk)
        kv = JitteryKv(shared.kv, self.rng)
        engine = Engine(
            events=shared.events, queue=shared.queue, kv=kv, blobs=own.blobs, lifecycle=shared.lifecycle
        )
        known = DataNodes(name, nodes)
        return DataPlane(
            engine,
            load_settings({"RINGRIFT_DATA_DIR": "unused"}).settings,
            self.runtime,
            nodes=known,
            make_transfers=lambda plane: DirectTransfers(self, plane),
            make_holders=lambda _plane: DirectHolders(self),
            holder=memory_holder(disk, known.this, self.runtime, pinned=self._pinned),
        )

    def _pinned(self, digest: str) -> str:
        entry = self.store.kv.live.get(PINS + digest)
        return "" if entry is None else entry.value.decode()

    def receipt(self, artifact: Artifact, node: str) -> Receipt:
        return Receipt(
            digest=artifact.digest,
            node=node,
            size=artifact.size,
            verified_s=self.runtime.now_s(),
            verifier="test",
        )

    async def make(self, text: bytes, *holders: str, **card: Any) -> Artifact:
        """An artifact of that text, which *holders* have and were verified to have."""
        return await self.make_bytes(text, *holders, name=text.decode(), **card)

    async def make_bytes(self, content: bytes, *holders: str, **card: Any) -> Artifact:
        first = self.planes[holders[0] if holders else next(iter(self.planes))]
        given = {
            "kind": ArtifactKind.GAMES,
            "created_s": self.runtime.now_s() - OLD_S,
            **card,
        }
        artifact = Artifact(digest=hashlib.sha256(content).hexdigest(), size=len(content), **given)
        await first.manifest.register([artifact])
        for holder in holders:
            await self.planes[holder].blobs.put_bytes(content)
            await first.manifest.add_receipts([self.receipt(artifact, holder)])
        return artifact

    async def lose(self, artifact: Artifact, node: str) -> None:
        """The file is gone there, and that was noticed."""
        await self.planes[node].blobs.delete(artifact.digest)
        await self.planes[node].manifest.drop_copy(artifact.digest, node)

    async def holders(self, artifact: Artifact) -> set[str]:
        """Who really has it, whatever anybody wrote."""
        return {name for name, plane in self.planes.items() if await plane.blobs.has(artifact.digest)}


def nodes(*names: str, **fields: Any) -> tuple[DataNode, ...]:
    return tuple(DataNode(name=name, **fields) for name in names)
