"""A process that publishes and subscribes until it is told to stop: `events_process.py FOLDER [LABEL]`.

It writes what it published (once acknowledged) and what it handled, each under its own identity. A file
`stop` in the folder makes it stop publishing, which it tells by a file of its own; a file `end` makes it end.
"""

import asyncio
import os
import sys
from pathlib import Path

from ringrift.coordination.event_router import get_router

EVENT = "TRAINING_PROGRESS"


def line(path, text):
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, f"{text}\n".encode())
    os.close(descriptor)


async def main(folder):
    router = get_router()

    async def handle(event):
        if event["n"] % 3 == 0:
            await asyncio.sleep(0.001)
        instance = await router.identify()
        line(folder / f"handled.{instance}", f"{event.event_id} {int(event.redelivered)}")

    router.subscribe(EVENT, handle, "handler")
    await router.start()
    instance = await router.identify()
    line(folder / f"ready.{os.getpid()}", instance)
    n = 0
    while not (folder / "end").exists():
        if (folder / "stop").exists():
            (folder / f"stopped.{os.getpid()}").touch()
        else:
            event = await router.publish(EVENT, {"n": n, "config_key": "hex8_2p", "epoch": n})
            line(folder / "published", event.event_id)
            n += 1
        await asyncio.sleep(0.002)
    await router.stop()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
