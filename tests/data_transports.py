"""Each transport with a real other end, under one face for the contract tests."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from ringrift.data.artifacts import Artifact
from ringrift.data.nodes import DataNode
from ringrift.data.transfer.base64 import Base64Transport
from ringrift.data.transfer.chunks import ChunkIndex
from ringrift.data.transfer.landing import Landing
from ringrift.data.transfer.programs import Programs, Scratch
from ringrift.data.transfer.receiving import Intake
from ringrift.data.transfer.rsync import RsyncTransport
from ringrift.data.transfer.ssh import Ssh
from ringrift.data.transfer.ssh_store import SshStores
from ringrift.engine.sqlite.blob_folder import BlobFolder
from ringrift.runtime import SystemRuntime

HERE, THERE = "here", "there"


def artifact(content):
    return Artifact(digest=hashlib.sha256(content).hexdigest(), size=len(content))


class Store:
    """A node's data folder, looked at from outside."""

    def __init__(self, root, runtime):
        self.root = Path(root)
        self.folder = BlobFolder(self.root / "blobs", runtime.new_id)

    def put(self, content, *, digest=None):
        """Lay a blob down; under another digest it is a damaged one."""
        card = artifact(content)
        place = self.folder.place(digest or card.digest)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        return card

    def read(self, card):
        place = self.folder.place(card.digest)
        return place.read_bytes() if place.exists() else None

    def damage(self, card):
        """Flip a bit of a blob at rest."""
        place = self.folder.place(card.digest)
        content = bytearray(place.read_bytes())
        content[len(content) // 2] ^= 1
        place.write_bytes(content)

    def intake(self, node, **limits):
        index = ChunkIndex(self.folder.folder / "chunks.db")
        return Intake(self.folder, index, node=node, now_s=SystemRuntime().now_s, **limits)


@dataclass
class TransportBench:
    """A transport from *here* to a node; *there* is that node's data folder, or None for a store without one."""

    transport: object
    node: DataNode
    here: Store
    there: object
    unreachable: DataNode
    closers: list = field(default_factory=list)

    async def close(self):
        for close in reversed(self.closers):
            await close()


def ssh_bench(name, server, tmp_path, control_dir, **fields):
    runtime = SystemRuntime()
    here, there = Store(tmp_path / HERE, runtime), Store(tmp_path / THERE, runtime)
    programs = Programs(Scratch(here.root / "transfer", runtime), runtime)
    ssh = Ssh(programs, runtime, control_dir=control_dir, connect_s=5.0)
    landing = Landing(here.intake(HERE), verifier=name, now_s=runtime.now_s)
    stores = SshStores(ssh, programs.scratch, this=HERE)
    if name == "rsync":
        transport = RsyncTransport(stores, programs, landing)
    else:
        transport = Base64Transport(stores, landing)
    node = server.node(THERE, there.root, **fields)
    gone = server.node(THERE, there.root, ssh_port=1)
    return TransportBench(transport, node, here, there, gone, [ssh.close])
