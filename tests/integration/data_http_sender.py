"""A sender in a process of its own: `ROOT PORT`, then the secret and the files on its input.

It sends its first piece, says "under way", and stands still until it is killed.
"""

import asyncio
import json
import sys
from pathlib import Path

from ringrift.data.artifacts import Artifact
from ringrift.data.config import DataNode
from ringrift.data.transfer.chunks import ChunkIndex
from ringrift.data.transfer.contract import Terms
from ringrift.data.transfer.http.client import HttpTransport
from ringrift.data.transfer.receiving import Intake
from ringrift.engine.sqlite.blobs import BlobFolder
from ringrift.runtime import SystemRuntime


class FirstPieceOnly:
    bytes_per_s = None

    def __init__(self):
        self._begun = False

    async def spend(self, count):
        if self._begun:
            await asyncio.Event().wait()
        self._begun = True


async def watch(progress):
    if progress.bytes_done:
        print("under way", flush=True)


async def main(root, port):
    runtime = SystemRuntime()
    folder = BlobFolder(Path(root) / "blobs", runtime.new_id)
    index = ChunkIndex(folder.folder / "chunks.db")
    intake = Intake(folder, index, node="here", now_s=runtime.now_s)
    secret, files = sys.stdin.readline().strip(), json.loads(sys.stdin.readline())
    transport = HttpTransport(intake, secret=secret.encode(), runtime=runtime)
    node = DataNode(name="there", ssh_host="127.0.0.1", data_port=int(port))
    terms = Terms(pace=FirstPieceOnly(), on_progress=watch)
    await transport.send(node, [Artifact(digest=digest, size=size) for digest, size in files], terms)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
