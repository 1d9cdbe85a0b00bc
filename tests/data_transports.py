"""Each transport with a real other end, under one face for the contract tests."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ringrift.data.artifacts import Artifact
from ringrift.data.backup.archive import MARKER, ArchivedFile, ArchiveMarker, ArchivePart
from ringrift.data.config import DataNode
from ringrift.data.transfer.archive import archive_transports
from ringrift.data.transfer.chunks import ChunkIndex
from ringrift.data.transfer.receiving import Intake, Landing
from ringrift.data.transfer.ssh import Programs, Scratch, Ssh, SshStores
from ringrift.data.transfer.ssh_transports import Base64Transport, RsyncTransport
from ringrift.engine.sqlite.blobs import BlobFolder
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
    """A transport from *here* to a node, and what the node has, looked at from outside."""

    transport: object
    node: DataNode
    here: Store
    there: object
    unreachable: DataNode
    closers: list = field(default_factory=list)

    async def close(self):
        for close in reversed(self.closers):
            await close()


def ssh_bench(name, server, tmp_path, control_dir, alive_s=12, connect_s=60.0, **fields):
    runtime = SystemRuntime()
    here, there = Store(tmp_path / HERE, runtime), Store(tmp_path / THERE, runtime)
    programs = Programs(Scratch(here.root / "transfer", runtime), runtime)
    ssh = Ssh(programs, runtime, control_dir=control_dir, connect_s=connect_s, alive_s=alive_s)
    landing = Landing(here.intake(HERE), verifier=name, now_s=runtime.now_s)
    stores = SshStores(ssh, programs.scratch, this=HERE)
    if name == "rsync":
        transport = RsyncTransport(stores, programs, landing)
    else:
        transport = Base64Transport(stores, landing)
    node = server.node(THERE, there.root, **fields)
    gone = server.node(THERE, there.root, ssh_port=1)
    return TransportBench(transport, node, here, there, gone, [ssh.close])


class ArchiveThere:
    """An archive looked at from outside; *objects* reads, writes and lists raw content by key."""

    def __init__(self, objects):
        self.objects = objects

    def put(self, content):
        """Archive a file by hand, as one part."""
        card = artifact(content)
        part = ArchivePart(sha256=card.digest, size=card.size)
        archived = ArchivedFile(artifact=card, parts=(part,), verified_s=1.0, verified_by="a hand")
        self.objects.write(MARKER, msgspec.json.encode(ArchiveMarker()))
        self.objects.write(part.key, content)
        self.objects.write(archived.key, msgspec.json.encode(archived))
        return card

    def card(self, card):
        key = f"cards/{card.digest}.json"
        if key not in self.objects.names():
            return None
        return msgspec.json.decode(self.objects.read(key), type=ArchivedFile)

    def read(self, card):
        known = self.card(card)
        return None if known is None else b"".join(self.objects.read(part.key) for part in known.parts)

    def damage(self, card):
        part = self.card(card).parts[-1]
        content = bytearray(self.objects.read(part.key))
        content[len(content) // 2] ^= 1
        self.objects.write(part.key, bytes(content))


class Prefixed:
    """The objects of a bucket below a prefix."""

    def __init__(self, bucket, prefix):
        self._bucket, self._prefix = bucket, prefix

    def names(self):
        return [key.removeprefix(self._prefix) for key in self._bucket.names()]

    def read(self, key):
        return self._bucket.read(self._prefix + key)

    def write(self, key, content):
        self._bucket.write(self._prefix + key, content)


class Files:
    """The files of a drive."""

    def __init__(self, folder):
        self.folder = folder

    def names(self):
        return sorted(p.relative_to(self.folder).as_posix() for p in self.folder.rglob("*") if p.is_file())

    def read(self, key):
        return (self.folder / key).read_bytes()

    def write(self, key, content):
        (self.folder / key).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / key).write_bytes(content)


def local_landing(root, runtime, verifier):
    here = Store(root, runtime)
    return here, Landing(here.intake(HERE), verifier=verifier, now_s=runtime.now_s)


def s3_bench(bucket, tmp_path, endpoint=None):
    runtime = SystemRuntime()
    here, landing = local_landing(tmp_path / HERE, runtime, "s3")
    transport, _ = archive_transports(landing, runtime)
    gone = DataNode(name=THERE, s3_url=f"s3://{bucket.name}/x", s3_endpoint="http://127.0.0.1:1")
    node = bucket.node(THERE, endpoint=endpoint)
    return TransportBench(transport, node, here, ArchiveThere(Prefixed(bucket, "ringrift/")), gone)


def drive_bench(tmp_path):
    runtime = SystemRuntime()
    here, landing = local_landing(tmp_path / HERE, runtime, "drive")
    _, transport = archive_transports(landing, runtime)
    drive = tmp_path / "drive"
    drive.mkdir()
    there = ArchiveThere(Files(drive))
    there.objects.write(MARKER, msgspec.json.encode(ArchiveMarker()))
    gone = DataNode(name=THERE, drive_path=str(tmp_path / "unplugged"))
    return TransportBench(transport, DataNode(name=THERE, drive_path=str(drive)), here, there, gone)
