"""Real data planes: an embedded engine, a blob folder and all transports for each node."""

from contextlib import asynccontextmanager
from functools import partial

from ringrift.coordination.event_router import get_router
from ringrift.data.artifacts import Artifact, ArtifactKind, Receipt
from ringrift.data.config import DataNode, DataNodes
from ringrift.data.plane import DataPlane, assemble_holders, assemble_transfers
from ringrift.data.protection.records import set_damaged_aside
from ringrift.engine.opening import open_engine
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.runtime import SystemRuntime
from ringrift.settings import load_settings


class NodeUnderTest:
    """One node with what a test asks of it."""

    def __init__(self, plane):
        self.plane = plane
        self.router = UnifiedEventRouter(enable_cross_process_polling=False)
        self.events = []
        self.router.subscribe(
            None, lambda event: self.events.append((event.event_type, dict(event.payload))), "ear"
        )

    @property
    def name(self):
        return self.plane.this.name

    def heard(self, event):
        return [payload for name, payload in self.events if name == event]

    async def make(self, content, *, kind=ArtifactKind.GAMES, config="hex8_2p", games=0, created_s=0.0):
        """Seal a file here and register it, as a job does."""
        digest = await self.plane.blobs.put_bytes(content)
        card = Artifact(
            digest=digest,
            size=len(content),
            kind=kind,
            config=config,
            node=self.name,
            games=games,
            created_s=created_s,
        )
        await self.plane.manifest.register([card])
        receipt = Receipt(
            digest=digest, node=self.name, size=len(content), verified_s=self.plane.runtime.now_s()
        )
        await self.plane.manifest.add_receipts([receipt])
        return card

    async def read(self, card):
        with await self.plane.blobs.open(card.digest) as file:
            return file.read()

    async def holders(self, card):
        return sorted(receipt.node for receipt in await self.plane.manifest.copies(card.digest))


@asynccontextmanager
async def running_node(name, root, *others, **fields):
    """Open the node *name* with its data in *root*; *others* are the nodes of its config file."""
    runtime = SystemRuntime()
    settings = load_settings({"RINGRIFT_DATA_DIR": str(root)}).settings
    engine = await open_engine(settings, runtime)
    nodes = DataNodes(name, [DataNode(name=name, **fields), *others])
    plane = DataPlane(
        engine,
        settings,
        runtime,
        nodes=nodes,
        make_transfers=lambda plane: assemble_transfers(
            engine,
            settings,
            runtime,
            nodes=nodes,
            set_aside=partial(set_damaged_aside, plane),
            router=get_router(),
        ),
        make_holders=lambda plane: assemble_holders(settings, runtime, nodes=nodes, promises=plane.promises),
    )
    node = NodeUnderTest(plane)
    try:
        yield node
    finally:
        await node.router.stop()
        await plane.close()
        await engine.close()
