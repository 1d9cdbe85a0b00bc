"""Several slots of one worker that meet over the same item."""

import asyncio
from dataclasses import replace

import msgspec
import pytest
from structlog.testing import capture_logs
from worker_world import WorkerWorld, end_well

from ringrift.engine.memory import MemoryStore, memory_engine
from ringrift.engine.ports import Claimant, NewWork, WorkState
from ringrift.engine.sqlite.engine import open_sqlite
from ringrift.engine.sqlite.files import SqliteConfig
from ringrift.engine.work_rules import hold_key
from ringrift.errors import Unavailable
from ringrift.runtime import system_runtime
from ringrift.testing.simulation import SimulatedRuntime, simulate
from ringrift.work.job.folder import JobFolders, JobRecord
from ringrift.work.limits import FILE_NAME
from ringrift.work.worker import main as worker_main
from ringrift.work.worker.claim import WorkerEvents
from ringrift.work.worker.main import Recovery, WorkerNames
from ringrift.work.worker.records import SetAsideRecord, live_workers, own_capability, set_aside_key


def simulated(scenario, folder, *, world=WorkerWorld, **config):
    async def main():
        async with world(folder, **config) as here:
            await scenario(here)

    simulate(main(), limit_s=20_000)


def test_an_item_that_comes_back_to_another_slot_of_the_same_worker_is_done_there(tmp_path):
    """As when a worker was held up for longer than its lease, and both slots wake at once."""

    async def scenario(here):
        item_id = await here.add()
        first = await here.child()
        item = await here.item(item_id)
        await here.engine.queue.release(item_id, token=item.token)
        second = await here.child(1)
        assert await first.wait() != 0  # its claim is over as soon as it asks for more time
        await here.runtime.sleep(12)
        (record,) = await live_workers(here.engine.kv)
        assert record.jobs == (item_id,)
        end_well(second)
        assert (await here.until(item_id, WorkState.DONE)).holder is None
        await here.runtime.sleep(12)
        end_well_later = await here.add()
        end_well(await here.child(2))
        await here.until(end_well_later, WorkState.DONE)

    simulated(scenario, tmp_path, slots=2)


def test_an_item_that_came_back_to_another_slot_is_given_back_when_the_worker_stops(tmp_path):
    async def scenario(here):
        item_id = await here.add()
        first = await here.child()
        item = await here.item(item_id)
        await here.engine.queue.release(item_id, token=item.token)
        second = await here.child(1)
        assert await first.wait() != 0
        await here.runtime.sleep(12)
        here.stop.set()
        async with asyncio.timeout(60):
            await second.wait()

    simulated(scenario, tmp_path, slots=2)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_worker_whose_engine_is_gone_ends_with_the_reason(tmp_path):
    config = SqliteConfig(database=tmp_path / "engine" / "c.db", blob_dir=tmp_path / "blobs")
    runtime = system_runtime()
    here = WorkerWorld(tmp_path)
    here.runtime, here.engine = runtime, await asyncio.to_thread(open_sqlite, config, runtime)
    writer = here.engine.kv._store.writer

    def broken_transaction(batch):
        raise RuntimeError("a defect")

    async def work():
        async with here, asyncio.timeout(120):
            while not await live_workers(here.engine.kv):
                await asyncio.sleep(0.05)
            writer._transact = broken_transaction
            while True:
                await here.wait_a_little()

    with pytest.raises(Unavailable, match="a defect"):
        await work()


class SlowEars(WorkerWorld):
    """Nobody is quick to hear that work was completed."""

    async def publish(self, event, payload, source):
        if event == "WORK_COMPLETED":
            await self.runtime.sleep(40)
        await super().publish(event, payload, source)


def test_a_finished_job_is_not_said_to_have_lost_its_lease(tmp_path):
    async def scenario(here):
        item_id = await here.add()
        end_well(await here.child())
        await here.until(item_id, WorkState.DONE)
        await here.runtime.sleep(100)

    with capture_logs() as logs:
        simulated(scenario, tmp_path, world=SlowEars)
    assert "worker.completed" in [line["event"] for line in logs]
    assert "worker.lease_lost" not in [line["event"] for line in logs]


def test_what_a_killed_worker_had_claimed_and_not_begun_is_done_at_once_by_its_successor(tmp_path):
    """Between the claim and the folder there is no record that could tell of it but the claim itself."""

    async def main():
        world = WorkerWorld(tmp_path)
        item_id = await world.add()
        others = await world.add()
        queue = world.engine.queue
        await queue.claim(Claimant(worker="w1"), lease_s=1000)
        await queue.claim(Claimant(worker="w2"), lease_s=1000)
        async with world as here:
            async with asyncio.timeout(10):
                end_well(await here.child())
                assert (await here.until(item_id, WorkState.DONE)).attempts == 1
            assert (await here.item(others)).holder == "w2"

    simulate(main(), limit_s=500)


async def test_a_sweep_with_an_old_record_leaves_a_fresh_attempt_alone(tmp_path, monkeypatch):
    """Between reading the record and ending processes, another worker began the item again."""
    engine, folders = memory_engine(SimulatedRuntime(), MemoryStore()), JobFolders(tmp_path)
    folder, ended = folders.of("i"), []
    folder.prepare()
    folder.write_record(JobRecord(item_id="i", kind="selfplay", config="c", worker="dead", token=1))
    fresh = JobRecord(item_id="i", kind="selfplay", config="c", worker="alive", token=2)

    class Names(WorkerNames):
        def is_free(self, name):
            folder.write_record(fresh)
            return name == "dead"

    monkeypatch.setattr(worker_main, "end_processes_in", ended.append)
    await engine.queue.add([NewWork(kind="selfplay", id="i")])
    events = WorkerEvents(lambda *_: None, node="node")
    await Recovery(engine, folders, Names(tmp_path), events).now_and_then()
    assert ended == []
    assert folder.read_record() == fresh
    await engine.close()


def test_a_worker_claims_nothing_while_a_person_has_put_the_emergency_file_into_the_folder(tmp_path):
    async def scenario(here):
        (tmp_path / FILE_NAME).write_text("smoke in the rack", encoding="utf8")
        await here.runtime.sleep(100)  # a claim that was waited for when the file came is given back
        item_id = await here.add()
        await here.runtime.sleep(100)
        assert (await here.item(item_id)).state is WorkState.READY
        (record,) = await live_workers(here.engine.kv)
        assert record.set_aside == "emergency stop: smoke in the rack"
        (tmp_path / FILE_NAME).unlink()
        end_well(await here.child())
        await here.until(item_id, WorkState.DONE)

    simulated(scenario, tmp_path)


def test_a_worker_that_is_set_aside_claims_nothing_until_it_may_again(tmp_path):
    async def scenario(here):
        kv = here.engine.kv
        why = SetAsideRecord(worker="w1", reason="its games differ", since_s=0.0, until_s=1e12)
        await kv.put(set_aside_key("w1"), msgspec.json.encode(why))
        item_id = await here.add()
        await here.runtime.sleep(200)
        assert (await here.item(item_id)).state is WorkState.READY
        (record,) = await live_workers(kv)
        assert (record.set_aside, record.free) == ("its games differ", 0)
        await kv.delete(set_aside_key("w1"))
        end_well(await here.child())
        await here.until(item_id, WorkState.DONE)

    simulated(scenario, tmp_path)


def test_work_for_one_worker_is_left_alone_by_the_others(tmp_path):
    async def scenario(here):
        other = await here.add(requires=frozenset({own_capability("w2")}))
        mine = await here.add(requires=frozenset({own_capability("w1")}))
        end_well(await here.child())
        await here.until(mine, WorkState.DONE)
        assert (await here.item(other)).state is WorkState.READY

    simulated(scenario, tmp_path)


class CountedClaims(WorkerWorld):
    """Counts how often work is asked for."""

    asked = 0

    async def __aenter__(self):
        self.engine = replace(self.engine, queue=CountingQueue(self, self.engine.queue))
        return await super().__aenter__()


class CountingQueue:
    def __init__(self, world, queue):
        self._world, self._queue = world, queue

    def __getattr__(self, name):
        return getattr(self._queue, name)

    async def claim(self, *given, **named):
        self._world.asked += 1
        return await self._queue.claim(*given, **named)


def test_a_worker_starts_nothing_that_is_paused_and_waits_for_it_quietly(tmp_path):
    async def scenario(here):
        await here.engine.kv.put(hold_key("c"), b"{}")
        paused, free = await here.add("train"), await here.add("export", group="d")
        end_well(await here.child())
        await here.until(free, WorkState.DONE)
        before, hour_s = here.asked, 3600.0
        await here.runtime.sleep(hour_s)
        assert (await here.item(paused)).state is WorkState.READY
        assert (await here.item(paused)).attempts == 0
        assert here.asked - before <= 2 * (hour_s / here.config.claim_wait_s + 1), "for two slots"
        await here.engine.kv.delete(hold_key("c"))
        end_well(await here.child(1))
        await here.until(paused, WorkState.DONE)

    simulated(scenario, tmp_path, world=CountedClaims, slots=2)
