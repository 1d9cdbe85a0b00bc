"""A node that may vanish, as a process: it has games that nobody else has, and is told to end."""

import asyncio
import json
import signal
import sys

from ringrift.coordination.ephemeral_data_guard import wire_ephemeral_events
from ringrift.coordination.event_router import get_router
from ringrift.coordination.sync_base import open_data_plane
from ringrift.data.artifacts import Artifact, ArtifactKind, Receipt
from ringrift.engine.opening import close_engine


async def main(files: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    plane, router = await open_data_plane(), get_router()
    await router.start()
    guard = wire_ephemeral_events(router)
    digests = []
    for number in range(files):
        content = number.to_bytes(4, "big") * 1000
        digest = await plane.blobs.put_bytes(content)
        card = Artifact(digest=digest, size=len(content), kind=ArtifactKind.GAMES, games=10, config="hex8_2p")
        await plane.manifest.register([card])
        receipt = Receipt(
            digest=digest, node=plane.this.name, size=len(content), verified_s=plane.runtime.now_s()
        )
        await plane.manifest.add_receipts([receipt])
        digests.append(digest)
    sys.stdout.write(json.dumps(digests) + "\n")
    sys.stdout.flush()
    await stop.wait()
    await guard.shutdown()
    copies = {digest: [each.node for each in await plane.manifest.copies(digest)] for digest in digests}
    sys.stdout.write(json.dumps(copies) + "\n")
    await router.stop()
    await close_engine()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
