"""Every adapter keeps every promise. A further adapter is one more entry in BENCHES."""

import asyncio
from pathlib import Path

import pytest

from nats_server import NatsServer
from ringrift.engine.limits import EngineLimits
from ringrift.engine.memory import MemoryStore, memory_engine
from ringrift.engine.nats.engine import open_nats
from ringrift.engine.nats.link import NatsConfig
from ringrift.engine.sqlite.engine import open_sqlite
from ringrift.engine.sqlite.files import SqliteConfig
from ringrift.testing.engine_contract import (
    BlobsContract,
    EventLogContract,
    KeyValueContract,
    PortValuesContract,
    ShiftedRuntime,
    WorkQueueContract,
)

LIMITS = EngineLimits(event_retention_rows=1_000)


class MemoryBench:
    def __init__(self, folder: Path) -> None:
        self.runtime, self.store, self.opened = ShiftedRuntime(), MemoryStore(limits=LIMITS), []

    async def open(self):
        self.opened.append(memory_engine(self.runtime, self.store))
        return self.opened[-1]

    async def pass_time(self, seconds):
        self.runtime.advance(seconds)

    async def settle(self):
        await asyncio.sleep(0.02)

    def now_s(self):
        return self.runtime.now_s()

    async def close(self):
        for engine in self.opened:
            await engine.close()


class SqliteBench(MemoryBench):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.config = SqliteConfig(
            database=folder / "engine" / "c.db",
            blob_dir=folder / "blobs",
            limits=LIMITS,
            poll_s=0.5,
            lost_wakeup_s=0.5,
            upkeep_s=1e9,
        )

    async def open(self):
        self.opened.append(await asyncio.to_thread(open_sqlite, self.config, self.runtime))
        return self.opened[-1]


class NatsBench(MemoryBench):
    """Each test has streams of its own on one server."""

    server = None
    count = 0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        NatsBench.server = NatsBench.server or NatsServer.start()
        NatsBench.count += 1
        self.config = NatsConfig(
            servers=(NatsBench.server.url,),
            blob_dir=folder / "blobs",
            name=f"T{NatsBench.count}",
            limits=LIMITS,
            poll_s=0.5,
        )

    async def open(self):
        self.opened.append(await asyncio.to_thread(open_nats, self.config, self.runtime))
        return self.opened[-1]

    async def settle(self):
        await asyncio.sleep(0.1)

    async def close(self):
        await super().close()
        await NatsBench.server.drop(self.config.name)


BENCHES = {"memory": MemoryBench, "sqlite": SqliteBench, "nats": NatsBench}


@pytest.fixture(params=BENCHES)
async def bench(request, tmp_path):
    bench = BENCHES[request.param](tmp_path)
    yield bench
    await bench.close()


class TestEvents(EventLogContract):
    pass


class TestQueue(WorkQueueContract):
    pass


class TestKeyValue(KeyValueContract):
    pass


class TestBlobs(BlobsContract):
    pass


class TestValues(PortValuesContract):
    pass
