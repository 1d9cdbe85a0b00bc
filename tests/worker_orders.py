"""Workers as real processes on one data folder, and orders for them."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
from contextlib import asynccontextmanager

import psutil

from ringrift.engine.opening import open_engine
from ringrift.engine.ports import NewWork
from ringrift.runtime import SystemRuntime
from ringrift.settings import load_settings
from ringrift.work.job.folder import JobFolders
from ringrift.work.job.protocol import JobOrder

WAIT_S = 200  # a busy machine plays slowly


class Bench:
    """An engine on a data folder, and the workers started on it."""

    def __init__(self, folder, engine):
        self.folder, self.engine = folder, engine
        self.folders = JobFolders(folder / "data" / "jobs")
        self.workers = []

    def start_worker(self, name="w1", *, slots=1, lease_s=30, **environ):
        log = (self.folder / f"{name}.log").open("ab")
        with log:
            worker = subprocess.Popen(
                [
                    *(sys.executable, "-m", "ringrift.work.worker.main", "--name", name),
                    *("--slots", str(slots), "--lease-s", str(lease_s)),
                ],
                env={**os.environ, **settings_variables(self.folder), **environ},
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.workers.append(worker)
        return worker

    async def stop_worker(self, worker):
        worker.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(worker.wait, WAIT_S)

    async def order(self, kind, params, *, inputs=None, attempts_max=3, **fields):
        order = JobOrder(config="connect_four_2p", params=params, inputs=inputs or {}, **fields)
        payload = order.as_payload()
        (item_id,) = await self.engine.queue.add(
            [NewWork(kind=kind, payload=payload, attempts_max=attempts_max, group=order.config)]
        )
        return item_id

    async def until(self, true, what="it"):
        for _ in range(WAIT_S * 20):
            found = true()
            found = await found if asyncio.iscoroutine(found) else found
            if found:
                return found
            await asyncio.sleep(0.05)
        raise AssertionError(f"{what} did not come about; the workers said:\n{self.logs()}")

    async def until_state(self, item_id, *states):
        async def reached():
            item = await self.engine.queue.get(item_id)
            return item if item.state in states else None

        return await self.until(reached, f"{item_id} {states}")

    def logs(self):
        return "\n".join(path.read_text()[-3000:] for path in self.folder.glob("*.log"))


@asynccontextmanager
async def worker_bench(folder):
    settings = load_settings(settings_variables(folder)).settings
    bench = Bench(folder, await open_engine(settings, SystemRuntime()))
    try:
        yield bench
    finally:
        for worker in bench.workers:
            if worker.poll() is None:
                worker.kill()
            worker.wait(WAIT_S)
        await bench.engine.close()


def settings_variables(folder):
    return {
        "RINGRIFT_DATA_DIR": str(folder / "data"),
        "RINGRIFT_CONFIG": str(config_file(folder)),
        "RINGRIFT_JOB_GRACE_PERIOD": "20",
    }


def config_file(folder):
    path = folder / "ringrift.toml"
    if not path.exists():
        path.write_text("")
    return path


def use_command(folder, kind, program, **limits):
    """Put a Python program in the place of a kind of job."""
    script = folder / f"my_{kind}.py"
    script.write_text(textwrap.dedent(program))
    lines = [f"[jobs.{kind}]", f"command = {json.dumps(['{python}', str(script)])}"]
    lines += [f"{name} = {value}" for name, value in limits.items()]
    path = config_file(folder)
    path.write_text(path.read_text() + "\n".join(lines) + "\n")


def is_alive(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
