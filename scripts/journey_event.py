"""An event to another process: published here, durable in the log, read and handled there.

Each process has its own router on the real engine of one folder. What is set up before (the routers, the
subscription, the open log) is not part of the way; the record of how far the reader has come is.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from trace_journeys import Trace

from ringrift.coordination.event_router import get_router
from ringrift.engine.opening import close_engine
from ringrift.events.event import RouterEvent
from ringrift.runtime import system_runtime

EVENT = "MODEL_PROMOTED"  # crosses processes
PAYLOAD = {"model_id": "m1", "config_key": "hex8_2p", "model_path": "models/m1.pth", "elo": 1600.0}
LIMIT_S = 60.0
RECORDED_S = 1.0  # positions are recorded half a second after they moved


def journey(folder: Path, trace: Trace) -> None:
    os.environ["RINGRIFT_COORDINATOR_DB"] = str(folder / "coordinator.db")
    modules = folder / "modules.json"
    command = [sys.executable, __file__, str(modules)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "listening\n"
        asyncio.run(_publish(trace))
        assert reader.stdout.readline() == f"handled {PAYLOAD['model_id']}\n"
    assert reader.returncode == 0
    trace.add_file(modules)


async def _publish(trace: Trace) -> None:
    router = get_router()
    await router.publish("CHECKPOINT_SAVED", {"config_key": "hex8_2p", "checkpoint_path": "a", "epoch": 1})
    await router.start()
    with trace:
        await router.publish(EVENT, PAYLOAD, "journey")
    await router.stop()
    await close_engine()


async def _read(modules: Path) -> None:
    """The other process."""
    router, trace, handled = get_router(), Trace(), asyncio.Event()

    async def handle(event: RouterEvent) -> None:
        sys.stdout.write(f"handled {event['model_id']}\n")
        handled.set()

    router.subscribe(EVENT, handle, "journey")
    await router.start()
    sys.stdout.write("listening\n")
    sys.stdout.flush()
    with trace:
        async with asyncio.timeout(LIMIT_S):
            await handled.wait()
        await system_runtime().sleep(RECORDED_S)
    trace.write(modules)
    await router.stop()
    await close_engine()


if __name__ == "__main__":
    asyncio.run(_read(Path(sys.argv[1])))
