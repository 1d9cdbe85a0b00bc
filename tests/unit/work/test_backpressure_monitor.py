"""Depths from the real queue and the real status; levels, callbacks, daemons and their events."""

import dataclasses
import queue
import threading

import msgspec
import psutil
import pytest

from ringrift import machine
from ringrift.coordination.backpressure import (
    BackpressureLevel,
    QueueMonitor,
    QueueMonitorDaemon,
    QueueType,
    WorkQueueMonitorDaemon,
    check_backpressure,
    check_backpressure_async,
    get_throttle_factor,
    should_stop_production,
    should_throttle_production,
)
from ringrift.data.transfer.deliveries import DeliveryLedger
from ringrift.engine.opening import memory_engine
from ringrift.engine.ports import Claimant, NewWork
from ringrift.errors import Corrupt
from ringrift.events.unified_router import Surroundings, UnifiedEventRouter
from ringrift.health.run_status import STATUS_KEY
from ringrift.machine import NodeResources, ProcessorMeter, look_at_this_machine
from ringrift.testing.sample_run import idle_config, idle_run
from ringrift.testing.simulation import SimulatedRuntime, simulate
from ringrift.work.backpressure import depths_of, read_depths
from ringrift.work.tasks import DurationStore

IDLE = NodeResources(cpu_percent=5, memory_percent=20, disk_percent=30, disk_free_gb=100, load=0.1, cores=4)


class World:
    """An engine in memory, a router that keeps what is said, and a machine that is as it is told."""

    def __init__(self):
        self.runtime = SimulatedRuntime()
        self.engine = memory_engine(self.runtime)
        self.router = UnifiedEventRouter(
            enable_cross_process_polling=False, surroundings=Surroundings(runtime=self.runtime)
        )
        self.machine = IDLE
        self.said = []
        self.monitor = QueueMonitor(self.get_engine, runtime=self.runtime, resources=self.resources)

    async def get_engine(self):
        return self.engine

    async def resources(self):
        return self.machine

    def listen(self, *events):
        for event in events:
            self.router.subscribe(event, lambda event: self.said.append((event.event_type, event.payload)))

    async def rows(self, untrained, unchecked=0):
        config = idle_config(rows=untrained + 7, trained_rows=7, games_unchecked=unchecked)
        run = idle_run(configs={"hex8_2p": config})
        await self.engine.kv.put(STATUS_KEY, msgspec.json.encode(run))


def test_what_the_plan_gathers_on_purpose_is_no_backlog():
    backlog = {"rows": 90_000, "trained_rows": 10_000, "games_unchecked": 900}
    gathered = {**backlog, "rows_collected": 79_000, "games_collected": 890}

    def depths(config):
        found = depths_of({}, idle_run(configs={"hex8_2p": idle_config(**config)}), deliveries=0)
        return found[QueueType.TRAINING_DATA], found[QueueType.PENDING_GAMES]

    assert depths(backlog) == (80_000, 900)
    assert depths(gathered) == (1_000, 10)


def in_world(scenario):
    async def run():
        await scenario(World())

    simulate(run())


def test_depths_are_what_the_queue_and_the_run_hold():
    async def scenario(world):
        queue = world.engine.queue
        assert set((await read_depths(world.engine)).values()) == {0}
        await queue.add([NewWork(kind="evaluate") for _ in range(3)] + [NewWork(kind="export")])
        await queue.add([NewWork(kind="tournament", after=((await queue.add([NewWork(kind="x")]))[0],))])
        await queue.claim(Claimant(worker="w", kinds=frozenset({"evaluate"})), lease_s=30)
        await world.rows(1234, unchecked=56)
        depths = await read_depths(world.engine)
        assert depths[QueueType.EVALUATION] == 3  # two that wait and one that is blocked, none in hand
        assert (depths[QueueType.EXPORT], depths[QueueType.SYNC]) == (1, 0)
        assert (depths[QueueType.TRAINING_DATA], depths[QueueType.PENDING_GAMES]) == (1234, 56)

    in_world(scenario)


def test_models_that_wait_for_a_verdict_and_files_on_their_way_are_counted():
    async def scenario(world):
        ledger = DeliveryLedger(kv=world.engine.kv, runtime=world.runtime)
        arrived, lost, waits = [
            await ledger.record_delivery_started("models", f"m{number}", "two") for number in range(3)
        ]
        status = idle_run(configs={"a": idle_config(candidates=2), "b": idle_config(candidates=1)})
        await world.engine.kv.put(STATUS_KEY, msgspec.json.encode(status))
        found = await world.monitor.refresh()
        assert (found[QueueType.SYNC].depth, found[QueueType.PROMOTION].depth) == (3, 3)
        await ledger.record_verified(arrived, "x")
        await ledger.record_failed(lost, "gone", final=True)
        await ledger.record_failed(waits, "busy")  # is due again later
        assert (await world.monitor.refresh())[QueueType.SYNC].depth == 1
        await ledger.forget(waits)
        assert (await world.monitor.refresh())[QueueType.SYNC].depth == 0

    in_world(scenario)


def test_a_status_that_cannot_be_read_is_told_and_not_taken_for_empty():
    async def scenario(world):
        await world.engine.kv.put(STATUS_KEY, b"{not json")
        with pytest.raises(Corrupt, match="learning/status"):
            await world.monitor.refresh()

    in_world(scenario)


def test_a_level_change_is_told_once_and_a_failing_listener_stops_nobody():
    async def scenario(world):
        heard = []

        def broken(*_):
            raise RuntimeError("listener")

        world.monitor.on_change(broken)
        stop_hearing = world.monitor.on_change(lambda *change: heard.append(change))
        for rows in (10, 120_000, 120_000, 95_000):  # the last is inside the band
            await world.rows(rows)
            await world.monitor.refresh()
        none, medium = BackpressureLevel.NONE, BackpressureLevel.MEDIUM
        assert heard == [(QueueType.TRAINING_DATA, none, medium)]
        assert world.monitor.callback_errors == 1
        stop_hearing()
        await world.rows(0)
        await world.monitor.refresh()
        assert len(heard) == 1
        assert world.monitor.overall() is none

    in_world(scenario)


def test_trend_and_history_follow_the_depth_and_are_bounded():
    async def scenario(world):
        for minute in range(60):
            world.monitor.note(QueueType.EXPORT, minute)
            await world.runtime.sleep(60)
        status = world.monitor.status(QueueType.EXPORT)
        assert status.trend == "rising"
        assert status.to_dict()["backpressure"] == "hard"
        assert status.drain_s == pytest.approx((59 - 10) / 10 * 3600)
        buckets = world.monitor.history(QueueType.EXPORT)
        assert 12 <= len(buckets) <= 13
        assert buckets[0].mean < buckets[-1].mean <= buckets[-1].highest == 59
        for _ in range(9 * 288):
            world.monitor.note(QueueType.EXPORT, 1)
            await world.runtime.sleep(300)
        assert len(world.monitor.history(QueueType.EXPORT, 10**6)) == 7 * 288
        assert world.monitor.status(QueueType.EXPORT).trend == "stable"

    in_world(scenario)


def test_the_daemon_announces_pressure_once_and_its_release_after_the_cooldown():
    async def scenario(world):
        world.listen("BACKPRESSURE_ACTIVATED", "BACKPRESSURE_RELEASED")
        daemon = QueueMonitorDaemon(monitor=world.monitor, router=world.router, runtime=world.runtime)
        await world.rows(460_000)
        await daemon.start()
        await world.runtime.sleep(25)
        await world.rows(0)
        await world.runtime.sleep(20)
        assert [event for event, _ in world.said] == ["BACKPRESSURE_ACTIVATED"]
        payload = world.said[0][1]
        assert (payload["level"], payload["resource_type"]) == ("critical", "training_data")
        assert payload["queue_depth"] == 460_000
        await world.runtime.sleep(60)
        assert [event for event, _ in world.said][1:] == ["BACKPRESSURE_RELEASED"]
        assert world.said[1][1]["previous_level"] == "critical"
        assert daemon.health_check().healthy
        await daemon.stop()

    in_world(scenario)


def test_what_a_dead_monitor_announced_is_said_again_while_it_holds_and_taken_back_when_it_does_not():
    async def scenario(world):
        world.listen("BACKPRESSURE_ACTIVATED", "BACKPRESSURE_RELEASED")

        async def live(seconds):
            daemon = QueueMonitorDaemon(monitor=world.monitor, router=world.router, runtime=world.runtime)
            await daemon.start()
            await world.runtime.sleep(seconds)
            await daemon.stop()

        await world.rows(460_000)
        await live(25)
        await live(25)
        assert [event for event, _ in world.said] == ["BACKPRESSURE_ACTIVATED"], "the next goes on with it"
        await world.runtime.sleep(3600)
        assert (await world.monitor.announced()).why_held(world.runtime.now_s()) == ""
        await live(25)
        assert [event for event, _ in world.said] == ["BACKPRESSURE_ACTIVATED"] * 2
        await world.rows(0)
        await world.runtime.sleep(3600)
        await live(25)
        assert [event for event, _ in world.said][2:] == ["BACKPRESSURE_RELEASED"]
        assert world.said[2][1]["previous_level"] == "critical"
        await live(25)
        assert len(world.said) == 3

    in_world(scenario)


def test_a_machine_without_memory_is_pressure_too_but_a_busy_one_is_not():
    async def scenario(world):
        world.listen("BACKPRESSURE_ACTIVATED")
        daemon = QueueMonitorDaemon(monitor=world.monitor, router=world.router, runtime=world.runtime)
        await daemon.start()
        world.machine = NodeResources(
            cpu_percent=100, memory_percent=60, disk_percent=50, disk_free_gb=9, load=9, cores=4
        )
        await world.runtime.sleep(60)
        assert world.said == []
        world.machine = NodeResources(
            cpu_percent=100, memory_percent=99, disk_percent=99, disk_free_gb=1, load=9, cores=4
        )
        await world.engine.queue.add([NewWork(kind="train") for _ in range(60)])
        await world.runtime.sleep(60)
        assert world.said[0][1]["resource_type"] in {"queue", "memory"}
        assert world.said[0][1]["spawn_rate_multiplier"] == 0
        await daemon.stop()

    in_world(scenario)


class NoTasks:
    """Tasks are tested elsewhere; here nobody fell silent."""

    async def check_orphans(self):
        return []


def test_the_work_queue_monitor_knows_waits_runs_failures_and_who_works():
    async def scenario(world):
        async def kv():
            return world.engine.kv

        world.listen("NODE_OVERLOADED")
        daemon = WorkQueueMonitorDaemon(
            engine=world.get_engine,
            lifecycle=NoTasks(),
            book=DurationStore(kv, runtime=world.runtime),
            resources=world.resources,
            router=world.router,
            runtime=world.runtime,
        )
        await daemon.start()
        work = {"work_id": "a", "work_type": "train"}
        await world.router.publish("WORK_QUEUED", work, "t")
        await world.runtime.sleep(5)
        await world.router.publish("WORK_CLAIMED", {**work, "node_id": "n"}, "t")
        await world.router.publish("WORK_STARTED", {**work, "node_id": "n"}, "t")
        await world.router.publish("WORK_COMPLETED", {**work, "node_id": "n", "duration_seconds": 9.0}, "t")
        failed = {"work_id": "b", "work_type": "train", "error": "no data"}
        await world.router.publish("WORK_RETRY", {**failed, "attempt": 1}, "t")
        await world.router.publish("WORK_FAILED", {**failed, "attempts": 3}, "t")
        await world.router.publish("WORK_CANCELLED", {**work, "reason": "asked"}, "t")
        await world.engine.queue.add([NewWork(kind="train")])
        await world.engine.queue.claim(Claimant(worker="sim"), lease_s=90_000)
        world.machine = NodeResources(
            cpu_percent=99, memory_percent=97, disk_percent=5, disk_free_gb=9, load=1, cores=4
        )
        await world.runtime.sleep(31)
        metrics = daemon.get_metrics()
        assert metrics["mean_wait_seconds"] == pytest.approx(5)
        assert metrics["mean_run_seconds"] == 9.0
        assert metrics["events"]["WORK_FAILED"] == metrics["events"]["WORK_CANCELLED"] == 1
        assert metrics["last_failures"][-1] == "train b: no data"
        assert metrics["by_node"] == {"sim": 1}
        assert [payload["resource_type"] for _, payload in world.said] == ["memory"]
        assert daemon.health_check().status.value == "running"
        await world.runtime.sleep(60_000)
        assert daemon.health_check().status.value == "degraded"
        assert "far too long" in daemon.health_check().message
        await daemon.stop()

    in_world(scenario)


def test_a_busy_machine_is_never_measured_as_idle(tmp_path):
    """The first look of a process has nothing to compare with, and the next may come at once."""
    over = threading.Event()

    def work():
        while not over.is_set():
            sum(range(1000))

    busy = threading.Thread(target=work)
    busy.start()
    try:
        assert all(look_at_this_machine(tmp_path).cpu_percent > 0.0 for _ in range(3))
    finally:
        over.set()
        busy.join()


def test_how_busy_the_machine_is_does_not_hang_on_the_thread_that_looks(monkeypatch):
    """Each look off the loop comes from whatever thread of the pool is free."""
    monkeypatch.setattr(machine, "CPU_SPAN_S", 0.0)
    meter, over, seen = ProcessorMeter(), threading.Event(), queue.Queue()

    def work():
        while not over.is_set():
            sum(range(1000))

    def look():
        seen.put(meter.percent())
        over.wait(60.0)  # the id of a thread that has ended is given again

    threads = [threading.Thread(target=work)]
    threads[0].start()
    try:
        for _ in range(3):
            threads.append(threading.Thread(target=look))
            threads[-1].start()
            percent = seen.get(timeout=60.0)
            assert percent is not None
            assert percent > 0.0
            over.wait(0.1)
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_a_load_that_is_not_known_is_not_told_as_idle(monkeypatch):
    still = psutil.cpu_times()
    monkeypatch.setattr(psutil, "cpu_times", lambda: still)
    unknown = ProcessorMeter().percent()
    assert unknown is None, "no time was counted in which it could have been busy"

    async def scenario(world):
        async def kv():
            return world.engine.kv

        world.listen("NODE_OVERLOADED")
        world.machine = dataclasses.replace(IDLE, cpu_percent=unknown, memory_percent=97)
        daemon = WorkQueueMonitorDaemon(
            engine=world.get_engine,
            lifecycle=NoTasks(),
            book=DurationStore(kv, runtime=world.runtime),
            resources=world.resources,
            router=world.router,
            runtime=world.runtime,
        )
        await daemon.start()
        await world.runtime.sleep(31)
        await daemon.stop()
        ((_, told),) = world.said
        assert (told["resource_type"], "cpu_percent" in told) == ("memory", False)

    in_world(scenario)


# --- the calls of the documents, on the real engine ---------------------------------------------------


def test_the_printed_calls_work_without_a_loop():
    assert check_backpressure(QueueType.TRAINING_DATA) is BackpressureLevel.NONE
    assert check_backpressure(QueueType.TRAINING_DATA, 460_000) >= BackpressureLevel.HIGH
    assert should_throttle_production(QueueType.TRAINING_DATA, 80_000)
    assert not should_throttle_production(QueueType.SYNC)
    assert should_throttle_production()  # of any queue
    assert get_throttle_factor(QueueType.EXPORT, 1000) == 0.0
    assert should_stop_production(QueueType.EXPORT)
    assert QueueType("evaluation") is QueueType.EVALUATION


async def test_the_async_twin_reads_the_same_engine():
    assert await check_backpressure_async(QueueType.EXPORT) is BackpressureLevel.NONE
    assert await check_backpressure_async(QueueType.EXPORT, 99) is BackpressureLevel.CRITICAL
