"""Several nodes in one process: each with a folder of files, and ways between them that fail as told."""

import asyncio
from pathlib import Path

import msgspec

from ringrift.data.artifacts import Artifact, ArtifactKind, Receipt
from ringrift.data.config import DataNode, DataNodes
from ringrift.data.manifest.store import ManifestStore
from ringrift.data.transfer.contract import CHUNK_BYTES, Moved, TransferFailed, TransferProgress
from ringrift.data.transfer.service import TransferService
from ringrift.engine.opening import memory_engine
from ringrift.errors import Corrupt
from ringrift.events.unified_router import Surroundings, UnifiedEventRouter
from ringrift.testing.simulation import SimulatedRuntime, simulate

HEARD = ("SYNC_NODE_UNREACHABLE", "SYNC_STALLED", "SYNC_CHECKSUM_FAILED", "LOCK_TIMEOUT")


class LocalTransport:
    """Copies between the blob stores of nodes in this process, chunk by chunk.

    *faults* are taken one per call: "down" refuses, "hang" stops without an end, "flip" spoils the bytes,
    "silent" says nothing of the files it took, "lie" gives a receipt with the wrong size, "elsewhere" one
    of another node, and an exception is raised.
    """

    def __init__(self, name, world, *, reaches=lambda node: True, chunk_s=0.0):
        self.name, self._world, self._reaches, self.chunk_s = name, world, reaches, chunk_s
        self.faults, self.calls = [], []

    def reaches(self, node):
        return self._reaches(node)

    async def send(self, node, artifacts, terms):
        return await self._copy(self._world.here, node.name, artifacts, terms)

    async def fetch(self, node, artifacts, terms):
        return await self._copy(node.name, self._world.here, artifacts, terms)

    async def _copy(self, source, target, artifacts, terms):
        fault = self.faults.pop(0) if self.faults else None
        self.calls.append([card.digest for card in artifacts])
        if fault == "down":
            raise TransferFailed(f"{target} refused the connection")
        if isinstance(fault, BaseException):
            raise fault
        moved = Moving(self._world, target, terms, total=sum(card.size for card in artifacts))
        for card in artifacts:
            await moved.take(card, await self._world.blobs[source].open(card.digest), self, fault)
        return moved.result(fault)


class Moving:
    def __init__(self, world, target, terms, *, total):
        self._world, self._target, self._terms, self._total = world, target, terms, total
        self._done = self._files = 0
        self._receipts, self._there, self._failed = [], [], []

    async def take(self, card, source, transport, fault):
        blobs = self._world.blobs[self._target]
        receipt = Receipt(
            digest=card.digest,
            node=self._target,
            size=card.size,
            verified_s=self._world.runtime.now_s(),
            verifier=transport.name,
        )
        if await blobs.has(card.digest):
            self._there.append(receipt)
            return
        upload = await blobs.upload(card.digest)
        source.seek(upload.offset)
        while chunk := source.read(CHUNK_BYTES):
            await self._terms.pace.spend(len(chunk))
            if transport.chunk_s:
                await self._world.runtime.sleep(transport.chunk_s)
            if fault == "hang":
                await asyncio.Event().wait()
            await upload.write(bytes(len(chunk)) if fault == "flip" else chunk)
            self._done += len(chunk)
            await self._tell()
        if fault in ("silent", "lie", "elsewhere"):
            self._receipts.append(receipt)
            return
        try:
            await upload.commit()
        except Corrupt as error:
            self._failed.append((card.digest, str(error)))
            return
        self._files += 1
        self._receipts.append(receipt)

    async def _tell(self):
        await self._terms.on_progress(
            TransferProgress(
                bytes_done=self._done, bytes_total=self._total, files_done=self._files, files_total=0
            )
        )

    def result(self, fault):
        if fault == "silent":
            return Moved(bytes_sent=self._done)
        receipts = self._receipts
        if fault == "lie":
            receipts = [
                Receipt(digest=r.digest, node=r.node, size=r.size - 1, verified_s=r.verified_s)
                for r in receipts
            ]
        if fault == "elsewhere":
            receipts = [msgspec.structs.replace(receipt, node="nowhere") for receipt in receipts]
        return Moved(
            receipts=tuple(receipts),
            already_there=tuple(self._there),
            failed=tuple(self._failed),
            corrupted=frozenset(digest for digest, _ in self._failed),
            bytes_sent=self._done,
        )


class TransferWorld:
    """The node "here" with two ways, "http" and "rsync", to "there" and "yonder"."""

    here = "here"

    def __init__(self, *, nodes=None, runtime=None, config=None):
        self.runtime = runtime or SimulatedRuntime()
        self.engine = memory_engine(self.runtime)
        self.kv = self.engine.kv
        self.blobs = {name: memory_engine(self.runtime).blobs for name in ("here", "there", "yonder")}
        self.manifest = ManifestStore(self.kv)
        self.nodes = DataNodes("here", nodes or [DataNode(name="there"), DataNode(name="yonder")])
        self.http, self.rsync = LocalTransport("http", self), LocalTransport("rsync", self)
        self.router = UnifiedEventRouter(
            enable_cross_process_polling=False, surroundings=Surroundings(runtime=self.runtime)
        )
        self.said = []
        for event in HEARD:
            self.router.subscribe(event, lambda event: self.said.append((event.event_type, event.payload)))
        self.transfers = self.service(config=config)

    def service(self, transports=None, config=None):
        return TransferService(
            transports or [self.rsync, self.http],
            self.nodes,
            self.blobs["here"],
            self.kv,
            self.runtime,
            set_aside=lambda digest, found: self.manifest.drop_copy(digest, "here"),
            router=self.router,
            config=config,
        )

    async def make(self, content, *, at="here", kind=ArtifactKind.GAMES, register=True):
        content = content.encode() if isinstance(content, str) else content
        digest = await self.blobs[at].put_bytes(content)
        card = Artifact(digest=digest, size=len(content), kind=kind, name="file", node=at)
        if register:
            await self.manifest.register([card])
        return card

    async def copies(self, card):
        return sorted(receipt.node for receipt in await self.manifest.copies(card.digest))

    def ranked(self, node):
        """The transports that are not held back for a node, best first."""
        now_s = self.runtime.monotonic_s()
        return self.transfers.health.ranked(node, ["rsync", "http"], now_s=now_s)

    def heard(self, event):
        return [payload for name, payload in self.said if name == event]


def in_transfer_world(scenario, **fields):
    async def run():
        await scenario(TransferWorld(**fields))

    simulate(run())


def write_file(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path
