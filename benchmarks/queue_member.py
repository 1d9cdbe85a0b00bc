"""One process of the work-queue benchmarks on this package's engine: `producer JOBS` or `worker`."""

import asyncio
import os
import sys
import time
from pathlib import Path

from ringrift.engine.ports import Claimant, Completion, NewWork
from ringrift.engine.sqlite.engine import open_sqlite
from ringrift.engine.sqlite.files import SqliteConfig
from ringrift.runtime import SystemRuntime

BATCH = 100
LEASE_S = 30.0
SLOTS = 4  # calls in flight per process; those that wait together share a commit


async def open_engine():
    folder = Path(os.environ["BENCH_ENGINE_DIR"])
    config = SqliteConfig(database=folder / "coordinator.db", blob_dir=folder / "blobs")
    return await asyncio.to_thread(open_sqlite, config, SystemRuntime())


async def produce(jobs):
    engine = await open_engine()
    print(time.time(), flush=True)
    batches = iter([range(start, min(start + BATCH, jobs)) for start in range(0, jobs, BATCH)])
    async with asyncio.TaskGroup() as group:
        for _ in range(SLOTS):
            group.create_task(add_batches(engine, batches))
    await engine.close()


async def add_batches(engine, batches):
    for numbers in batches:
        await engine.queue.add([NewWork(kind="small", payload={"number": n}) for n in numbers])


async def work():
    engine = await open_engine()
    done = os.open(os.environ["BENCH_DONE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    async with asyncio.TaskGroup() as group:
        for slot in range(SLOTS):
            group.create_task(work_in_slot(engine, Claimant(worker=f"worker-{os.getpid()}-{slot}"), done))


async def work_in_slot(engine, me, done):
    while True:
        claims = await engine.queue.claim(me, lease_s=LEASE_S, limit=BATCH, wait_s=10.0)
        finished = [Completion(id=claim.id, token=claim.token) for claim in claims]
        refused = await engine.queue.complete_many(finished)
        os.write(done, b"x" * (len(finished) - len(refused)))


if __name__ == "__main__":
    asyncio.run(produce(int(sys.argv[2])) if sys.argv[1] == "producer" else work())
