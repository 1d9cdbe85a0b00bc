"""How long a job takes to start: forked from the worker's host, and started as a program, by turns.

Beside a machine that is full: one busy process for each core, at the priority of the jobs. Counted is from
the worker's claim until the job says that it plays or trains, as `ringrift status` shows it, and the whole of
a job of four short games, or of three steps. Compiled code is in the cache. The median of the starts from a
host is to be below 1.5 s; the ratio to a started program is of the same run.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmark import command
from ringrift.engine.opening import open_engine
from ringrift.engine.ports import Engine, NewWork, WorkState
from ringrift.runtime import SystemRuntime
from ringrift.settings import load_settings
from ringrift.work.job.protocol import JobOrder, JobReport, read_report
from ringrift.work.worker.records import live_workers

START_S_MAX = 1.5
CONFIGS = ("connect_four_2p", "square8_2p")
ROUNDS, ROUNDS_QUICK = 5, 1
WAYS = {"host": "200", "program": "0"}  # what `job_host_jobs` is
NICE = 5  # as jobs have it
SMALL = {"simulations": 4, "slots": 4, "batch": 16}


@contextmanager
def full_machine() -> Iterator[None]:
    """Every core busy with something else."""
    spin = [sys.executable, "-c", f"import os; os.nice({NICE})\nwhile True: pass"]
    busy = [subprocess.Popen(spin) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for each in busy:
            each.kill()
            each.wait()


@contextmanager
def worker(folder: Path, environ: dict[str, str], way: str) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "ringrift.work.worker.main", "--name", way, "--capabilities", way],
        env={**os.environ, **environ, "RINGRIFT_JOB_HOST_JOBS": WAYS[way]},
        cwd=folder,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


class Orders:
    """Jobs for the one worker or the other."""

    def __init__(self, engine: Engine, config: str) -> None:
        self._engine, self._config = engine, config
        self._count = 0

    async def run(self, way: str, kind: str, inputs: dict[str, str], **params: Any) -> JobReport:
        self._count += 1
        given = {"out": "{out}", **params}
        given |= {} if kind == "export" else {"config": self._config}
        given |= {"seed": self._count} if kind in ("selfplay", "train") else {}
        order = JobOrder(config=self._config, params=given, inputs=inputs)
        work = NewWork(kind=kind, payload=order.as_payload(), requires=frozenset({way}), attempts_max=1)
        (item_id,) = await self._engine.queue.add([work])
        while True:
            item = await self._engine.queue.get(item_id)
            assert item is not None
            if item.state is WorkState.DONE:
                assert item.result is not None
                return read_report(item.result)
            assert item.state in (WorkState.READY, WorkState.CLAIMED), item.error
            await asyncio.sleep(0.02)

    async def prepare(self, way: str) -> dict[str, str]:
        """A model and what it learned from; compiles what is not in the cache."""
        played = await self.run(way, "selfplay", {}, games=10, **SMALL)
        shard = _made(played, "shard")
        exported = await self.run(
            way, "export", {"a.shard.db": shard}, shards=["{inputs}/a.shard.db"], out="{out}/s.npz"
        )
        samples = _made(exported, "samples")
        trained = await self.train(way, samples)
        return {"samples": samples, "model": _made(trained, "model"), "card": _made(trained, "card")}

    async def train(self, way: str, samples: str) -> JobReport:
        files = {"samples": ["{inputs}/s.npz"], "out": "{out}/m.safetensors"}
        return await self.run(way, "train", {"s.npz": samples}, steps=3, batch=16, **files)

    async def play(self, way: str, made: dict[str, str]) -> JobReport:
        files = {"m.safetensors": made["model"], "m.json": made["card"]}
        return await self.run(way, "selfplay", files, model="{inputs}/m.safetensors", games=4, **SMALL)


def _made(report: JobReport, kind: str) -> str:
    return next(each.digest for each in report.artifacts if each.kind == kind)


async def measure(folder: Path, rounds: int) -> dict[str, Any]:
    environ = {"RINGRIFT_DATA_DIR": str(folder / "data")}
    engine = await open_engine(load_settings(environ).settings, SystemRuntime())
    found: dict[str, dict[str, list[JobReport]]] = {}
    try:
        with worker(folder, environ, "host"), worker(folder, environ, "program"):
            while len(await live_workers(engine.kv)) < len(WAYS):
                await asyncio.sleep(0.05)
            for config in CONFIGS:
                orders = Orders(engine, config)
                made = await orders.prepare("host")
                await orders.play("host", made)
                with full_machine():
                    for _ in range(rounds):
                        for way in WAYS:
                            for kind, report in (
                                ("selfplay", await orders.play(way, made)),
                                ("train", await orders.train(way, made["samples"])),
                            ):
                                found.setdefault(f"{config} {kind}", {}).setdefault(way, []).append(report)
    finally:
        await engine.close()
    return {
        what: {
            way: {"start_s": [r.start_s for r in reports], "job_s": [r.wall_s for r in reports]}
            for way, reports in ways.items()
        }
        for what, ways in found.items()
    }


def run(quick: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="job-start-") as folder:
        found = asyncio.run(measure(Path(folder), ROUNDS_QUICK if quick else ROUNDS))
    starts = [value for ways in found.values() for value in ways["host"]["start_s"]]
    median_s = statistics.median(starts)
    return {"jobs": found, "median_s": median_s, "met": median_s < START_S_MAX}


def table(result: dict[str, Any]) -> str:
    lines = [f"beside {os.cpu_count()} busy processes; medians, in seconds  (host / program)"]
    for what, ways in result["jobs"].items():
        cells = []
        for name in ("start_s", "job_s"):
            host, program = (statistics.median(ways[way][name]) for way in ("host", "program"))
            cells.append(f"{name} {host:5.2f} / {program:5.2f} = {host / program:.2f}")
        lines.append(f"  {what:26} {'   '.join(cells)}")
    lines.append(f"  all starts from a host: {result['median_s']:.2f} s (target below {START_S_MAX} s)")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(command(run, table, __doc__))
