"""The supply of work follows what can be taken, whatever the queue already holds."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringrift.coordination.run_coordinator import get_loop_waker
from ringrift.coordination.unified_queue_populator import (
    QueuePopulatorDaemon,
    SupplyLimits,
    UnifiedQueuePopulator,
    wanted_items,
)
from ringrift.engine.memory import memory_engine
from ringrift.engine.ports import NewWork
from ringrift.errors import ConfigError
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.health.run_status import STATUS_KEY, Curve
from ringrift.learning.plan.stages import LOOP_SOURCE
from ringrift.testing.sample_run import idle_config, idle_run
from ringrift.testing.simulation import ManualRuntime
from ringrift.work.worker.records import WorkerRecord, worker_key

COUNTS = st.integers(0, 3000)


@given(slots=COUNTS, ready=COUNTS, claimed=COUNTS, throttle=st.floats(0, 1))
def test_the_queue_never_grows_beyond_what_can_be_taken(slots, ready, claimed, throttle):
    limits = SupplyLimits()
    found = wanted_items(slots, ready=ready, claimed=claimed, throttle=throttle, limits=limits)
    assert found.items >= 0
    assert found.reason
    if found.items:
        assert ready + found.items <= limits.hard
        assert ready + claimed + found.items <= slots + limits.ahead


@given(slots=st.integers(1, 100))
def test_a_free_slot_always_finds_work(slots):
    assert wanted_items(slots, ready=0, claimed=slots - 1).items >= 1
    assert wanted_items(slots, ready=0, claimed=slots).items == 1  # the one ahead


@given(slots=st.integers(1, 100))
def test_a_stop_leaves_a_trickle(slots):
    assert wanted_items(slots, ready=0, claimed=0, throttle=0.0).items == 1
    assert wanted_items(slots, ready=0, claimed=1, throttle=0.0).items == 0


def test_limits():
    assert wanted_items(5000, ready=1000, claimed=0).items == 0
    assert wanted_items(600, ready=500, claimed=100).items == 0
    assert wanted_items(0, ready=0, claimed=0).items == 0
    with pytest.raises(ConfigError):
        SupplyLimits(soft=10, hard=5)
    with pytest.raises(ConfigError):
        wanted_items(1, ready=-1, claimed=0)


def worker(name: str, **fields) -> WorkerRecord:
    plain = {
        "node": "n",
        "pid": 1,
        "slots": 2,
        "busy": 0,
        "kinds": None,
        "capabilities": (),
        "cpus": 2,
        "gpus": 0,
        "memory_mb": 1,
        "memory_free_mb": 1,
        "load": 0.0,
        "started_s": 0.0,
        "at_s": 0.0,
    }
    return WorkerRecord(name=name, **{**plain, **fields})


async def test_the_populator_counts_workers_and_the_one_queue():
    engine = memory_engine(ManualRuntime())
    records = (worker("w1"), worker("w2", kinds=("train",)), worker("w3", stopping=True))
    for record in records:
        await engine.kv.put(worker_key(record.name), msgspec.json.encode(record))
    await engine.queue.add([NewWork(kind="selfplay")])

    async def shared():
        return engine

    router = UnifiedEventRouter(enable_cross_process_polling=False)
    populator = UnifiedQueuePopulator(shared, router=router)
    daemon = QueuePopulatorDaemon(populator, router=router)
    await daemon._run_cycle()
    assert (populator.supply.slots, populator.supply.ready, populator.supply.items) == (2, 1, 2)
    assert get_loop_waker().reasons["there is room for work"] == 1
    await engine.queue.add([NewWork(kind="selfplay")] * 2)
    await daemon._run_cycle()
    assert populator.supply.items == 0
    assert get_loop_waker().reasons["there is room for work"] == 1
    await engine.close()


async def test_an_end_rings_the_bell():
    router = UnifiedEventRouter(enable_cross_process_polling=False)
    populator = UnifiedQueuePopulator(router=router)
    populator.wire()
    rings = []
    end = get_loop_waker().listen(lambda: rings.append(1))
    await router.publish("WORK_COMPLETED", {"work_id": "w", "work_type": "selfplay", "node_id": "n"})
    end()
    await router.publish("WORK_COMPLETED", {"work_id": "x", "work_type": "selfplay", "node_id": "n"})
    assert rings == [1]
    assert populator.get_metrics()["events_heard"] == 2


async def test_what_the_loop_told_itself_does_not_wake_it():
    router = UnifiedEventRouter(enable_cross_process_polling=False)
    UnifiedQueuePopulator(router=router).wire()
    ended = {"work_id": "w", "work_type": "selfplay", "node_id": "n"}
    await router.publish("WORK_COMPLETED", ended, LOOP_SOURCE)
    assert not get_loop_waker().reasons
    await router.publish("WORK_COMPLETED", {**ended, "work_id": "x"}, "a worker")
    assert get_loop_waker().reasons["WORK_COMPLETED"] == 1


async def test_velocities_and_targets_are_those_of_the_run():
    engine = memory_engine(ManualRuntime())

    async def shared():
        return engine

    populator = UnifiedQueuePopulator(shared, router=UnifiedEventRouter(enable_cross_process_polling=False))
    curve = tuple(
        Curve(model="m", at_s=at_s, rows=0, rating=rating, low=rating, high=rating)
        for at_s, rating in ((0.0, 1000.0), (3600.0, 1100.0))
    )
    seen = idle_run(at_s=0.0, configs={"a_2p": idle_config(curve=curve, rating=2100.0)})
    await engine.kv.put(STATUS_KEY, msgspec.json.encode(seen))
    await populator.look()
    assert populator.velocities() == {"a_2p": pytest.approx(100.0)}
    assert populator.all_targets_met()
    await engine.close()
