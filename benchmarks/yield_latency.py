"""How long other work waits beside full self-play: from adding it to the start of its job, and to its end.

One worker with two slots, both with a self-play order of minutes that hands its games over. Again and again a
small check of games (`validate`) is added; the job that yields is ordered anew, with the games that it left.
It should begin within a second: a self-play job ends within a second, and the worker need not look for it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmark import command
from ringrift.engine.opening import open_engine
from ringrift.engine.ports import Engine, NewWork, WorkItem, WorkState
from ringrift.runtime import SystemRuntime
from ringrift.settings import load_settings
from ringrift.work.job.protocol import JobOrder, read_report
from ringrift.work.worker.records import running_jobs

START_S_MAX = 1.0
CONFIG = "connect_four_2p"
ROUNDS, ROUNDS_QUICK = 20, 2
SLOTS = 2
SMALL_GAMES = 8


def order(seed: int, games: int, **more: Any) -> dict[str, Any]:
    given = {"config": CONFIG, "out": "{out}", "simulations": 32, "slots": 64, "seed": seed}
    return {**given, "games": games, "games_per_shard": 100_000, **more}


class Bench:
    """An engine with a worker on it."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._seed = engine, 0

    async def add(self, kind: str, params: dict[str, Any], inputs: dict[str, str], priority: int) -> str:
        payload = JobOrder(config=CONFIG, params=params, inputs=inputs).as_payload()
        work = NewWork(kind=kind, payload=payload, priority=priority)
        (item_id,) = await self._engine.queue.add([work])
        return item_id

    async def play(
        self, games: int = 10_000_000, *, resume: str | None = None, hand_over: bool = True
    ) -> str:
        self._seed += 1
        names = [] if resume is None else ["unfinished-0.json"]
        params = order(
            self._seed, games, hand_over=hand_over, resume=[f"{{inputs}}/{name}" for name in names]
        )
        return await self.add("selfplay", params, dict.fromkeys(names, resume or ""), 0)

    async def done(self, item_id: str) -> WorkItem:
        while True:
            item = await self._engine.queue.get(item_id)
            assert item is not None
            if item.state is WorkState.DONE:
                return item
            assert item.state in (WorkState.READY, WorkState.CLAIMED), item.error
            await asyncio.sleep(0.01)

    async def full(self) -> None:
        """Wait until games are played in all slots."""
        while sum(job.done > 0 for job in await running_jobs(self._engine.kv)) < SLOTS:
            await asyncio.sleep(0.05)

    async def round(self, games: list[str], shard: str) -> tuple[float, float]:
        """Add a check while all slots play; how long until it began and ended. Then fill the slot again."""
        await self.full()
        await asyncio.sleep(1.0)
        inputs = {"games.shard.db": shard}
        params = {"shards": ["{inputs}/games.shard.db"], "out": "{out}"}
        checked = await self.done(await self.add("validate", params, inputs, 10))
        assert checked.result is not None
        began_s = read_report(checked.result).started_s - checked.added_s
        ended_s = checked.changed_s - checked.added_s
        for item_id in tuple(games):
            item = await self._engine.queue.get(item_id)
            if item is not None and item.state is WorkState.DONE:
                games.remove(item_id)
                games.append(await self.play(resume=made_by(item, "unfinished")))
        return began_s, ended_s


def made_by(item: WorkItem, kind: str) -> str:
    assert item.result is not None
    return next(each.digest for each in read_report(item.result).artifacts if each.kind == kind)


async def measure(folder: Path, rounds: int) -> list[tuple[float, float]]:
    environ = {"RINGRIFT_DATA_DIR": str(folder / "data")}
    engine = await open_engine(load_settings(environ).settings, SystemRuntime())
    worker = subprocess.Popen(
        [sys.executable, "-m", "ringrift.work.worker.main", "--name", "bench", "--slots", str(SLOTS)],
        env={**os.environ, **environ},
        cwd=folder,
        stderr=subprocess.DEVNULL,
    )
    try:
        bench = Bench(engine)
        few = await bench.done(await bench.play(SMALL_GAMES, hand_over=False))
        games = [await bench.play() for _ in range(SLOTS)]
        return [await bench.round(games, made_by(few, "shard")) for _ in range(rounds)]
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(120)
        await engine.close()


def run(quick: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="yield-latency-") as folder:
        found = asyncio.run(measure(Path(folder), ROUNDS_QUICK if quick else ROUNDS))
    began_s, ended_s = ([each[at] for each in found] for at in (0, 1))
    return {
        "began_s": began_s,
        "ended_s": ended_s,
        "began_median_s": statistics.median(began_s),
        "began_max_s": max(began_s),
        "ended_median_s": statistics.median(ended_s),
        "met": statistics.median(began_s) <= START_S_MAX,
    }


def table(result: dict[str, Any]) -> str:
    median_s, most_s = result["began_median_s"], result["began_max_s"]
    began = f"{median_s:.2f} s (median; most {most_s:.2f} s; wanted {START_S_MAX:g})"
    return f"other work began after {began} and had ended after {result['ended_median_s']:.2f} s"


if __name__ == "__main__":
    raise SystemExit(command(run, table, __doc__))
