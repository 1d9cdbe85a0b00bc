"""A file to a verified copy: what a job sealed on one node is cataloged, sent, and verified on another.

Both nodes are real: each has a data folder and a store of its own. The other one is a process of its own with
its data server, which traces itself; this one runs the sync daemon. It ends with the receipt of the other
node in the manifest of this one.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from trace_journeys import Trace

from ringrift.coordination.event_router import get_router
from ringrift.coordination.sync_base import close_data_plane, open_data_plane
from ringrift.coordination.sync_coordinator import AutoSyncDaemon
from ringrift.data.plane import DataPlane
from ringrift.data.transfer.http.server import ADDRESS_FILE, create_data_server
from ringrift.engine.opening import close_engine
from ringrift.engine.ports import Claimant, NewWork
from ringrift.process import process_scope
from ringrift.settings import Settings, load_settings
from ringrift.work.job.protocol import JobArtifact, JobOrder, JobReport

HERE, THERE = "one", "two"
GAMES = bytes(range(256)) * 40_000  # several chunks
COPIED_S_MAX = 120.0
SECRET = "nodes of this journey know it"


def journey(folder: Path, trace: Trace) -> None:
    with _other_node(folder / THERE, folder / "there.json") as port:
        nodes = {HERE: {"role": "training"}, THERE: {"overlay_ip": "127.0.0.1", "data_port": port}}
        environment = _environment(folder / HERE, HERE) | {"RINGRIFT_NODES": json.dumps(nodes)}
        process_scope().put(Settings, load_settings(environment).settings)
        asyncio.run(_copy(trace))
    trace.add_file(folder / "there.json")


def _environment(folder: Path, node: str) -> dict[str, str]:
    return {"RINGRIFT_DATA_DIR": str(folder), "RINGRIFT_NODE_ID": node, "RINGRIFT_DATA_SECRET": SECRET}


async def _copy(trace: Trace) -> None:
    plane = await open_data_plane()
    digest = await _sealed_by_a_job(plane)
    daemon = AutoSyncDaemon("hybrid", plane=plane, router=get_router(), runtime=plane.runtime)
    synced = asyncio.Event()
    get_router().subscribe("DATA_SYNC_COMPLETED", lambda _: synced.set())
    assert plane.transfers  # all ways between nodes are there; the file takes one of them
    # Threads of the executor are seen only if they start within the trace.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())
    try:
        with trace:
            async with asyncio.timeout(COPIED_S_MAX), asyncio.TaskGroup() as group:
                syncing = group.create_task(daemon.run())
                await synced.wait()
                syncing.cancel()
        assert THERE in {receipt.node for receipt in await plane.manifest.copies(digest)}
    finally:
        await get_router().stop()
        await close_data_plane()
        await close_engine()


async def _sealed_by_a_job(plane: DataPlane) -> str:
    """Put a file of games into the store of this node, as the report of a done job names it."""
    digest = await plane.blobs.put_bytes(GAMES)
    made = JobArtifact(
        name="games", kind="shard", digest=digest, size_bytes=len(GAMES), counts={"games": 500}
    )
    now_s = plane.runtime.now_s()
    report = JobReport(
        status="done", worker=HERE, node=HERE, started_s=now_s, wall_s=1.0, cpu_s=1.0, artifacts=(made,)
    )
    await plane.queue.add(
        [NewWork(kind="selfplay", payload=JobOrder(config="hex8_2p", params={}).as_payload())]
    )
    (claim,) = await plane.queue.claim(Claimant(worker=HERE), lease_s=60.0)
    await plane.queue.complete(claim.id, token=claim.token, result=report.as_result())
    return digest


# --- the other node -------------------------------------------------------------------------------------


@contextmanager
def _other_node(folder: Path, traced: Path) -> Iterator[int]:
    """The data server of another node, in a process that ends when its input does; gives its port."""
    command = [sys.executable, __file__, str(traced)]
    environment = os.environ | _environment(folder, THERE) | {"RINGRIFT_DATA_PORT": "0"}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()  # it listens
        yield json.loads((folder / ADDRESS_FILE).read_bytes())["port"]
        process.stdin.close()
        assert process.wait() == 0


async def _serve(written: Path) -> None:
    trace, ready = Trace(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(create_data_server().run(on_ready=ready.set))
        await ready.wait()
        with trace:
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            await asyncio.to_thread(sys.stdin.read)
        trace.write(written)  # how it ends is no part of the journey
        serving.cancel()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
