"""A cluster that syncs by itself in simulated time: a daemon per node, broken lines, nodes that vanish."""

import asyncio
import hashlib
import shutil
import weakref
from functools import partial
from tempfile import mkdtemp

from ringrift.coordination.sync_coordinator import AutoSyncDaemon
from ringrift.data.artifacts import Artifact, ArtifactKind, Receipt
from ringrift.data.config import AutoSyncConfig, DataNodes
from ringrift.data.plane import DataPlane
from ringrift.data.protection.records import set_damaged_aside
from ringrift.data.sync.cluster_view import NodeReportCollector
from ringrift.data.transfer.contract import Moved, TransferFailed
from ringrift.data.transfer.service import TransferService
from ringrift.engine.memory import MemoryStore, memory_engine
from ringrift.engine.ports import Engine
from ringrift.errors import Corrupt
from ringrift.events.unified_router import Surroundings, UnifiedEventRouter
from ringrift.settings import load_settings
from ringrift.testing.simulation import SimulatedRuntime


class FaultyLine:
    """Copies between stores as a receiver would take it in, and breaks at random."""

    name = "line"

    def __init__(self, world, here):
        self._world, self._here = world, here

    def reaches(self, node):
        return True

    async def send(self, node, artifacts, terms):
        return await self._carry(self._here, node.name, artifacts)

    async def fetch(self, node, artifacts, terms):
        return await self._carry(node.name, self._here, artifacts)

    async def _carry(self, source, target, artifacts):
        world = self._world
        await world.runtime.sleep(world.rng.uniform(0.01, 2.0))
        if {source, target} & world.gone:
            raise TransferFailed("nobody answers")
        receipts, failed = [], []
        for card in artifacts:
            fault = world.next_fault()
            if fault == "reset":
                break
            if fault == "hang":
                await asyncio.Event().wait()
            why = await self._copy(card, source, target, flip=fault == "flip")
            if why:
                failed.append((card.digest, why))
            else:
                receipts.append(world.receipt(card, target))
        return Moved(
            receipts=tuple(receipts),
            failed=tuple(failed),
            corrupted=frozenset(d for d, why in failed if "differ" in why),
        )

    async def _copy(self, card, source, target, *, flip):
        stores = self._world.stores
        try:
            with await stores[source].open(card.digest) as file:
                content = file.read()
        except KeyError:
            return "it is not there"
        upload = await stores[target].upload(card.digest)
        await upload.abort()
        upload = await stores[target].upload(card.digest)
        await upload.write(bytes(len(content)) if flip else content)
        try:
            await upload.commit()
        except Corrupt:
            return "the bytes differ"
        return ""


class SyncWorld:
    """Nodes that share one key-value store; each has files and a daemon of its own."""

    def __init__(self, nodes, *, seed, faults=0.2, **config):
        self.runtime = SimulatedRuntime(seed=seed)
        self.rng, self.faults = self.runtime.rng, faults
        # How full the disk of the machine under the test is must not matter.
        self.config = AutoSyncConfig(games_min=1, disk_percent_max=100.0, **config)
        self.nodes, self.gone, self.met = nodes, set(), set()
        self.store = MemoryStore()
        self.folder = mkdtemp()  # for what a node keeps on its disk beside files
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self.stores = {node.name: memory_engine(self.runtime).blobs for node in nodes}
        self.daemons, self.heard = {}, []
        self.router = UnifiedEventRouter(
            enable_cross_process_polling=False, surroundings=Surroundings(runtime=self.runtime)
        )
        self.router.subscribe(None, lambda event: self.heard.append((event.event_type, dict(event.payload))))

    def next_fault(self):
        if self.rng.random() >= self.faults:
            return ""
        fault = self.rng.choice(["reset", "flip", "hang"])
        self.met.add(fault)
        return fault

    def plane(self, name):
        shared = memory_engine(self.runtime, self.store)
        engine = Engine(
            events=shared.events,
            queue=shared.queue,
            kv=shared.kv,
            blobs=self.stores[name],
            lifecycle=shared.lifecycle,
        )

        def transfers(plane):
            return TransferService(
                [FaultyLine(self, name)],
                plane.nodes,
                plane.blobs,
                plane.kv,
                self.runtime,
                set_aside=partial(set_damaged_aside, plane),
                router=self.router,
            )

        settings = load_settings({"RINGRIFT_DATA_DIR": f"{self.folder}/{name}"}).settings
        return DataPlane(
            engine, settings, self.runtime, nodes=DataNodes(name, self.nodes), make_transfers=transfers
        )

    async def start(self, name, strategy=None):
        """Start the daemon of a node, as after a boot."""
        self.gone.discard(name)
        plane = self.plane(name)
        daemon = AutoSyncDaemon(
            strategy,
            config=self.config,
            plane=plane,
            router=self.router,
            runtime=self.runtime,
            reports=NodeReportCollector(),
        )
        self.daemons[name] = daemon
        await daemon.start()
        return plane

    async def kill(self, name):
        """The process is gone in the middle of whatever it did; the node's disk stays."""
        self.gone.add(name)
        await self.daemons.pop(name).stop()

    def receipt(self, card, node):
        return Receipt(
            digest=card.digest, node=node, size=card.size, verified_s=self.runtime.now_s(), verifier="line"
        )

    async def make(self, name, content, **card):
        digest = await self.stores[name].put_bytes(content)
        fields = {
            "kind": ArtifactKind.GAMES,
            "node": name,
            "created_s": self.runtime.now_s(),
            "games": 1,
            **card,
        }
        made = Artifact(digest=digest, size=len(content), **fields)
        manifest = self.plane(name).manifest
        await manifest.register([made])
        await manifest.add_receipts([self.receipt(made, name)])
        return made

    async def holders(self, card):
        return {name for name, store in self.stores.items() if await store.has(card.digest)}

    async def check(self):
        """What is visible anywhere is whole, and nobody claims what he has not."""
        for store in self.stores.values():
            for digest in await store.digests():
                with await store.open(digest) as file:
                    assert hashlib.sha256(file.read()).hexdigest() == digest
        for receipt in await self.plane(self.nodes[0].name).manifest.receipts():
            assert await self.stores[receipt.node].has(receipt.digest), receipt
