"""What a worker costs: the same self-play jobs bare and under a worker, one after the other, by turns.

Bare is `python -m ringrift.jobs selfplay` by hand. Under the worker the job is an item of the queue, with
lease, progress records, events, limits, and its shards put into the blobs; counted from the moment the item
is added until it is done. The share of games per second that is left should be 97 % or more.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from benchmark import command
from ringrift.engine.opening import open_engine
from ringrift.engine.ports import Engine, NewWork, WorkState
from ringrift.runtime import SystemRuntime
from ringrift.settings import load_settings
from ringrift.work.job.protocol import JobOrder
from ringrift.work.worker.records import live_workers

SHARE_MIN = 0.97
CONFIG = "connect_four_2p"
GAMES, GAMES_QUICK = 3000, 300
ROUNDS, ROUNDS_QUICK = 5, 1
SIMULATIONS = 50


def params(games: int, seed: int, out: str) -> dict[str, Any]:
    return {
        "config": CONFIG,
        "games": games,
        "simulations": SIMULATIONS,
        "slots": 64,
        "seed": seed,
        "out": out,
        "games_per_shard": games,
    }


def bare(folder: Path, games: int, seed: int) -> float:
    """Seconds of one job by hand."""
    options = params(games, seed, str(folder / f"bare-{seed}"))
    words = [word for key, value in options.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "ringrift.jobs", "selfplay", *words],
        check=True,
        capture_output=True,
        timeout=3600,
    )
    assert b'"status":"done"' in done.stdout
    return time.monotonic() - begun


async def under_worker(engine: Engine, games: int, seed: int) -> float:
    """Seconds from adding the item until it is done."""
    order = JobOrder(config=CONFIG, params=params(games, seed, "{out}"))
    begun = time.monotonic()
    (item_id,) = await engine.queue.add([NewWork(kind="selfplay", payload=order.as_payload())])
    while True:
        item = await engine.queue.get(item_id)
        assert item is not None
        if item.state is WorkState.DONE:
            return time.monotonic() - begun
        assert item.state in (WorkState.READY, WorkState.CLAIMED), item.error
        await asyncio.sleep(0.02)


async def measure(folder: Path, games: int, rounds: int) -> dict[str, Any]:
    environ = {"RINGRIFT_DATA_DIR": str(folder / "data")}
    engine = await open_engine(load_settings(environ).settings, SystemRuntime())
    worker = subprocess.Popen(
        [sys.executable, "-m", "ringrift.work.worker.main", "--name", "bench"],
        env={**os.environ, **environ, "RINGRIFT_JOBS": '{"selfplay": {"nice": 0}}'},
        cwd=folder,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not await live_workers(engine.kv):
            await asyncio.sleep(0.05)
        bare(folder, 10, 10_000)  # compiles the rules if nobody has yet
        alone_s, worked_s, own_cpu_s = [], [], 0.0
        for seed in range(rounds):
            alone_s.append(await asyncio.to_thread(bare, folder, games, seed))
            before_s = cpu_s(worker.pid)
            worked_s.append(await under_worker(engine, games, 1000 + seed))
            own_cpu_s += cpu_s(worker.pid) - before_s
        memory_mb = psutil.Process(worker.pid).memory_info().rss / 2**20
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(60)
        await engine.close()
    return {
        "bare_s": alone_s,
        "worker_s": worked_s,
        "worker_cpu_share": own_cpu_s / sum(worked_s),
        "worker_memory_mb": memory_mb,
    }


def cpu_s(pid: int) -> float:
    """Processor time of the worker itself, without its jobs."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def run(quick: bool) -> dict[str, Any]:
    games, rounds = (GAMES_QUICK, ROUNDS_QUICK) if quick else (GAMES, ROUNDS)
    with tempfile.TemporaryDirectory(prefix="worker-overhead-") as folder:
        found = asyncio.run(measure(Path(folder), games, rounds))
    bare_rate = games / statistics.median(found["bare_s"])
    rate = games / statistics.median(found["worker_s"])
    share = rate / bare_rate
    return {
        **found,
        "games": games,
        "games_per_s": {"bare": bare_rate, "worker": rate},
        "share": share,
        "met": share >= SHARE_MIN,
    }


def table(result: dict[str, Any]) -> str:
    rates, of = result["games_per_s"], f"{result['share']:.1%} (target {SHARE_MIN:.0%})"
    return "\n".join(
        [
            f"{result['games']} games of {CONFIG} a job, {SIMULATIONS} simulations a move",
            f"  bare          {rates['bare']:8.1f} games/s",
            f"  under worker  {rates['worker']:8.1f} games/s   {of}",
            f"  the worker itself: {result['worker_cpu_share']:.2%} of a core,"
            f" {result['worker_memory_mb']:.0f} MB",
        ]
    )


if __name__ == "__main__":
    sys.exit(command(run, table, __doc__))
