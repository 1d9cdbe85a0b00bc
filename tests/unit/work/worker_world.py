"""A worker in simulated time: the real worker, the memory engine, and programs that are only told about."""

import asyncio
import json
from dataclasses import replace

from ringrift.engine.memory import MemoryStore, memory_engine
from ringrift.engine.ports import NewWork
from ringrift.events.catalog.table import CATALOG
from ringrift.settings import load_settings
from ringrift.testing.simulation import SimulatedRuntime
from ringrift.work.job.folder import JobFolders
from ringrift.work.job.protocol import JobOrder
from ringrift.work.tasks import DurationStore
from ringrift.work.worker.claim import WorkerContext, WorkerEvents
from ringrift.work.worker.main import Worker
from ringrift.work.worker.records import WorkerConfig


class WorkerWorld:
    """One worker, its engine, and the programs it started."""

    def __init__(self, folder, *, grace_s=10.0, **config):
        self.runtime = SimulatedRuntime(hostname="node")
        self.store = MemoryStore()
        self.engine = memory_engine(self.runtime, self.store)
        self.settings = replace(load_settings({}).settings, data_dir=folder, job_grace_period=grace_s)
        self.config = WorkerConfig(**{"name": "w1", "node": "node", **config})
        self.folders = JobFolders(folder / "jobs")
        self.published = []
        self.stop = asyncio.Event()
        self._running = None

    async def publish(self, event, payload, source):
        spec = CATALOG[event]
        demanded = [field.name for field in spec.fields if field.required]
        assert not (*spec.missing(payload, demanded), *spec.wrong_types(payload)), (event, payload)
        assert set(payload) <= {field.name for field in spec.fields}, (event, payload)
        self.published.append((event, dict(payload)))

    async def __aenter__(self):
        async def kv():
            return self.engine.kv

        context = WorkerContext(
            config=self.config,
            engine=self.engine,
            runtime=self.runtime,
            settings=self.settings,
            folders=self.folders,
            events=WorkerEvents(self.publish, node="node"),
            durations=DurationStore(kv, runtime=self.runtime),
        )
        self._running = asyncio.create_task(Worker(context).run(self.stop))
        return self

    async def __aexit__(self, *_):
        self.stop.set()
        await asyncio.wait({self._running}, timeout=100)
        self._running.result()
        await self.engine.close()

    async def add(self, kind="selfplay", *, inputs=None, limits=None, **fields):
        order = JobOrder(config="c", params={"out": "{out}"}, inputs=inputs or {}, **(limits or {}))
        item = NewWork(kind=kind, payload=order.as_payload(), **{"group": order.config, **fields})
        (item_id,) = await self.engine.queue.add([item])
        return item_id

    async def child(self, number=0):
        """The program that was started as the *number*th."""
        while len(self.runtime.children) <= number:
            await self.wait_a_little()
        return self.runtime.children[number][1]

    async def item(self, item_id):
        return await self.engine.queue.get(item_id)

    async def until(self, item_id, *states):
        while (found := await self.item(item_id)).state not in states:
            await self.wait_a_little()
        return found

    async def wait_a_little(self):
        await self.runtime.sleep(0.1)
        if self._running.done():
            self._running.result()

    def events(self):
        return [event for event, _ in self.published]


def say(child, **fields):
    child.say(json.dumps(fields).encode() + b"\n")


def end_well(child, **fields):
    say(child, event="result", status="done", exit_code=0, **fields)
    child.exit(0)
