"""Time from add to claim between two processes at low load, and what waiting processes cost.

The producer adds one job about every 30 ms; the worker waits for it in `claim`. Then nothing happens for a
while, and the processor time of a process that waits for work and for events is measured.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmark import command
from ringrift.engine.ports import Claimant, NewWork
from ringrift.engine.sqlite.engine import open_sqlite
from ringrift.engine.sqlite.files import SqliteConfig
from ringrift.runtime import SystemRuntime

JOBS = 500
QUICK_JOBS = 60
PAUSE_S = 0.03
IDLE_S = 10.0
QUICK_IDLE_S = 3.0
TARGET_P50_MS = 10.0
TARGET_IDLE_CPU = 0.01


def open_engine():
    folder = Path(os.environ["BENCH_ENGINE_DIR"])
    config = SqliteConfig(database=folder / "coordinator.db", blob_dir=folder / "blobs")
    return open_sqlite(config, SystemRuntime())


async def work(jobs):
    """Claim *jobs* items and print how long each one took to get here, in milliseconds."""
    engine, me, delays = open_engine(), Claimant(worker="w"), []
    print("ready", flush=True)
    while len(delays) < jobs:
        for claim in await engine.queue.claim(me, lease_s=30, wait_s=10):
            delays.append((time.time() - claim.payload["sent_s"]) * 1000)
            await engine.queue.complete(claim.id, token=claim.token)
    print(json.dumps(delays), flush=True)
    await engine.close()


async def idle(seconds):
    """Wait for work and events that never come; print the share of a core that this takes."""
    engine = open_engine()
    last = (await engine.events.bounds()).last
    waits = [
        asyncio.create_task(engine.queue.claim(Claimant(worker="w"), lease_s=30, wait_s=seconds + 5)),
        asyncio.create_task(engine.events.wait(after=last, timeout_s=seconds + 5)),
    ]
    await asyncio.sleep(0.5)
    before_s, began_s = time.process_time(), time.monotonic()
    await asyncio.sleep(seconds)
    print((time.process_time() - before_s) / (time.monotonic() - began_s), flush=True)
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    await engine.close()


async def produce(jobs):
    engine = open_engine()
    for _ in range(jobs):
        await asyncio.sleep(PAUSE_S)
        await engine.queue.add([NewWork(kind="small", payload={"sent_s": time.time()})])
    await engine.close()


def member(role, amount):
    return subprocess.Popen(
        [sys.executable, str(Path(__file__)), role, str(amount)], stdout=subprocess.PIPE, text=True
    )


def run(quick: bool) -> dict:
    jobs, idle_s = (QUICK_JOBS, QUICK_IDLE_S) if quick else (JOBS, IDLE_S)
    with tempfile.TemporaryDirectory(prefix="ringrift-bench-") as folder:
        os.environ["BENCH_ENGINE_DIR"] = folder
        with member("work", jobs) as worker:
            assert worker.stdout.readline().strip() == "ready"
            with member("produce", jobs) as producer:
                delays = sorted(json.loads(worker.stdout.readline()))
                producer.wait()
        with member("idle", idle_s) as waiting:
            idle_cpu = float(waiting.stdout.readline())
    return {
        "jobs": jobs,
        "p50_ms": statistics.median(delays),
        "p99_ms": delays[int(len(delays) * 0.99)],
        "max_ms": delays[-1],
        "idle_cpu": idle_cpu,
        "met": statistics.median(delays) < TARGET_P50_MS and idle_cpu < TARGET_IDLE_CPU,
    }


def table(result: dict) -> str:
    return "\n".join(
        [
            f"add to claim between two processes, {result['jobs']} jobs at low load",
            f"  p50 {result['p50_ms']:.2f} ms (target {TARGET_P50_MS:g}), p99 {result['p99_ms']:.2f} ms",
            f"  a waiting process uses {result['idle_cpu']:.2%} of a core (target {TARGET_IDLE_CPU:.0%})",
        ]
    )


ROLES = {"work": work, "produce": produce, "idle": idle}

if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in ROLES:
        role, amount = sys.argv[1:]
        asyncio.run(ROLES[role](float(amount) if role == "idle" else int(float(amount))))
    else:
        sys.exit(command(run, table, __doc__))
