"""A sender in a process of its own: `ROOT PORT BYTES_PER_S`, then the secret and the files on its input.

It says "under way" when the first bytes have gone.
"""

import asyncio
import json
import sys
from pathlib import Path

from ringrift.data.artifacts import Artifact
from ringrift.data.nodes import DataNode
from ringrift.data.transfer.chunks import ChunkIndex
from ringrift.data.transfer.contract import Terms
from ringrift.data.transfer.http import HttpTransport
from ringrift.data.transfer.receiving import Intake
from ringrift.engine.sqlite.blob_folder import BlobFolder
from ringrift.runtime import SystemRuntime


class Slow:
    def __init__(self, bytes_per_s):
        self.bytes_per_s = bytes_per_s

    async def spend(self, count):
        await asyncio.sleep(count / self.bytes_per_s)


async def watch(progress):
    if progress.bytes_done:
        print("under way", flush=True)


async def main(root, port, bytes_per_s):
    runtime = SystemRuntime()
    folder = BlobFolder(Path(root) / "blobs", runtime.new_id)
    index = ChunkIndex(folder.folder / "chunks.db")
    intake = Intake(folder, index, node="here", now_s=runtime.now_s)
    secret, files = sys.stdin.readline().strip(), json.loads(sys.stdin.readline())
    transport = HttpTransport(intake, secret=secret.encode(), runtime=runtime)
    node = DataNode(name="there", ssh_host="127.0.0.1", data_port=int(port))
    terms = Terms(pace=Slow(float(bytes_per_s)), on_progress=watch)
    await transport.send(node, [Artifact(digest=digest, size=size) for digest, size in files], terms)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
