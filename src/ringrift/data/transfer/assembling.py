"""The transfers of a node that runs: every transport there is, on the node's own blob folder."""

from __future__ import annotations

from ringrift.data.nodes import DataNodes
from ringrift.data.promise_store import PromiseStore
from ringrift.data.secret import data_secret
from ringrift.data.transfer.archives import archive_transports
from ringrift.data.transfer.base64 import Base64Transport
from ringrift.data.transfer.holders import ArchiveHolders, HttpHolders, NodeHolders, SshHolders
from ringrift.data.transfer.http import HttpTransport
from ringrift.data.transfer.landing import Landing
from ringrift.data.transfer.programs import Programs, Scratch
from ringrift.data.transfer.receiving import open_intake
from ringrift.data.transfer.rsync import RsyncTransport
from ringrift.data.transfer.service import SetAside, TransferService
from ringrift.data.transfer.ssh import Ssh
from ringrift.data.transfer.ssh_store import SshStores
from ringrift.engine.ports import Engine
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.runtime import Runtime
from ringrift.settings import Settings


def assemble_holders(
    settings: Settings, runtime: Runtime, *, nodes: DataNodes, promises: PromiseStore
) -> NodeHolders:
    """Put together what asks other nodes about their files."""
    this = nodes.this.name
    programs = Programs(Scratch(settings.data_dir / "transfer", runtime), runtime)
    ssh = Ssh(programs, runtime, control_dir=programs.scratch.folder / "ssh")
    stores = SshStores(ssh, programs.scratch, this=this)
    http = HttpTransport(
        open_intake(settings, runtime, node=this), secret=data_secret(settings), runtime=runtime
    )
    ways = (HttpHolders(http), SshHolders(stores), ArchiveHolders(promises, runtime))
    return NodeHolders(ways, ssh_stores=stores)


def assemble_transfers(
    engine: Engine,
    settings: Settings,
    runtime: Runtime,
    *,
    nodes: DataNodes,
    set_aside: SetAside,
    router: UnifiedEventRouter | None = None,
) -> TransferService:
    """Put the transports together. Nothing is connected before the first file goes."""
    this = nodes.this.name
    intake = open_intake(settings, runtime, node=this)

    def landing(verifier: str) -> Landing:
        return Landing(intake, verifier=verifier, now_s=runtime.now_s)

    programs = Programs(Scratch(settings.data_dir / "transfer", runtime), runtime)
    ssh = Ssh(programs, runtime, control_dir=programs.scratch.folder / "ssh")
    stores = SshStores(ssh, programs.scratch, this=this)
    transports = (
        HttpTransport(intake, secret=data_secret(settings), runtime=runtime),
        RsyncTransport(stores, programs, landing("rsync")),
        Base64Transport(stores, landing("base64")),
        *archive_transports(landing("archive"), runtime),
    )
    service = TransferService(
        transports, nodes, engine.blobs, engine.kv, runtime, set_aside=set_aside, router=router
    )
    service.closes(ssh.close)
    return service
