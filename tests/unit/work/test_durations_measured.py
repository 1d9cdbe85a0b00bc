"""Estimates and timeouts from what was measured; the scheduler's face."""

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tasks_world import in_tasks_world

from ringrift.coordination.duration_scheduler import (
    DEFAULT_DURATIONS_S,
    BusyHours,
    DurationScheduler,
    DurationStore,
    TaskOutcome,
    can_schedule_task,
    estimate_task_duration,
    estimate_timeout_s,
    record_duration,
    record_task_completion,
)
from ringrift.engine.opening import memory_engine
from ringrift.engine.ports import Claimant, NewWork
from ringrift.errors import ConfigError, Corrupt
from ringrift.learning.plan.plan import Capacity
from ringrift.testing.simulation import EPOCH_S, SimulatedRuntime, simulate
from ringrift.work import tasks
from ringrift.work.tasks import (
    TIMEOUT_CEILING_S,
    TIMEOUT_FLOOR_S,
    Measured,
    MeasuredSeries,
    TaskRegistry,
    estimate,
    percentile_95,
    timeout_s,
)
from ringrift.work.worker.records import WORKERS, WorkerRecord

DAY_S = 86_400.0
NOW_S = 100 * DAY_S


def series(seconds, *, config="hex8_2p", node="n", age_s=0.0, outcome=TaskOutcome.OK):
    return MeasuredSeries("train", config, node, [Measured(NOW_S - age_s, each, outcome) for each in seconds])


def guess(*known, config="hex8_2p", node="n"):
    found = estimate(known, kind="train", config=config, node=node, now_s=NOW_S)
    return found.source, round(found.seconds, 6)


def test_an_estimate_prefers_what_is_most_like_the_task():
    here, there = series([100] * 3), series([200] * 3, node="other")
    elsewhere = series([300] * 3, config="square8_2p", node="other")
    assert guess(here, there, elsewhere) == ("exact", 120)
    assert guess(there, elsewhere) == ("config", 240)
    assert guess(elsewhere) == ("kind", 360)
    assert guess(series([100] * 2)) == ("default", DEFAULT_DURATIONS_S["training"])


def test_old_and_failed_tasks_do_not_count():
    assert guess(series([100] * 3, age_s=8 * DAY_S)) == ("kind", 120)
    assert guess(series([100] * 3, age_s=31 * DAY_S))[0] == "default"
    assert guess(series([100] * 9, outcome=TaskOutcome.FAILED))[0] == "default"


def timeout(*known):
    return timeout_s(known, kind="train", config="hex8_2p", now_s=NOW_S)


def test_a_timeout_is_three_times_the_slow_end_within_its_bounds():
    assert timeout(series([1000] * 18 + [2000] * 2)) == 6000
    assert timeout(series([1] * 5)) == TIMEOUT_FLOOR_S
    assert timeout(series([10**6] * 5)) == TIMEOUT_CEILING_S
    assert timeout() == 2 * DEFAULT_DURATIONS_S["training"]


def test_work_that_grew_is_not_killed_forever():
    """Each timeout doubles the next, until one ends well."""
    tasks = [Measured(NOW_S - 100, 200.0)] * 5
    limits = []
    for number in range(12):
        limit_s = timeout_s([MeasuredSeries("train", "c", "n", tasks)], kind="train", config="c", now_s=NOW_S)
        limits.append(limit_s)
        tasks = [*tasks, Measured(NOW_S + number, limit_s, TaskOutcome.TIMED_OUT)]
    assert limits[:3] == [600, 1200, 2400]
    assert limits[-1] == TIMEOUT_CEILING_S
    tasks = [*tasks, Measured(NOW_S + 99, 900.0)]
    after = timeout_s([MeasuredSeries("train", "c", "n", tasks)], kind="train", config="c", now_s=NOW_S)
    assert after == 2700


@given(st.lists(st.floats(0, 1e5), min_size=3, max_size=60))
def test_a_task_as_slow_as_nearly_all_is_never_cut_off(seconds):
    assert timeout(series(seconds)) >= min(percentile_95(seconds), TIMEOUT_CEILING_S)
    assert min(seconds) <= percentile_95(seconds) <= max(seconds)


class Bench:
    def __init__(self, runtime=None, engine=None, gate=None):
        self.runtime = runtime or SimulatedRuntime()
        self.engine = engine or memory_engine(self.runtime)
        self.book = self.new_book()
        registry = TaskRegistry(self.get_engine, runtime=self.runtime)
        self.scheduler = DurationScheduler(self.book, registry, gate=gate, runtime=self.runtime)

    def new_book(self):
        async def kv():
            return self.engine.kv

        return DurationStore(kv, runtime=self.runtime)

    async def get_engine(self):
        return self.engine


def on_bench(scenario):
    async def run():
        await scenario(Bench())

    simulate(run())


def test_measurements_are_shared_between_processes_and_bounded(monkeypatch):
    monkeypatch.setattr(tasks, "SERIES_MAX", 5)

    async def scenario(bench):
        others = [bench.new_book() for _ in range(4)]
        await asyncio.gather(*(book.record("train", "c", "n", 50.0) for book in others for _ in range(2)))
        assert (await bench.book.estimate("train", "c", "n")).samples == 8
        for _ in range(100):
            await bench.book.record("train", "c", "n", 70.0)
        assert (await bench.book.estimate("training", "c", "n")).samples == 50
        assert (await bench.book.estimate("train", "c", "n")).seconds == pytest.approx(84.0)
        for number in range(20):
            await bench.book.record("train", f"open_spiel:hex(board_size={number})/2p", "n/1", 1.0)
        assert len(await bench.engine.kv.entries("durations/")) == 5
        await bench.runtime.sleep(31 * DAY_S)
        assert await bench.engine.kv.entries("durations/") == []
        assert (await bench.book.estimate("train", "c", "n")).source == "default"

    on_bench(scenario)


def test_a_wrong_duration_is_refused_and_a_damaged_record_named():
    async def scenario(bench):
        for wrong in (-1.0, float("nan")):
            with pytest.raises(ConfigError):
                await bench.book.record("train", "c", "n", wrong)
        await bench.engine.kv.put("durations/training/c/n", b"[[1")
        with pytest.raises(Corrupt, match="durations/training/c/n"):
            await bench.book.timeout_s("train", "c")

    on_bench(scenario)


def at_hour(bench, hour):
    midnight = EPOCH_S - EPOCH_S % DAY_S
    bench.runtime.wall_offset_s = midnight + hour * 3600.0


def test_intensive_tasks_exclude_each_other_on_a_host_and_avoid_busy_hours():
    async def scenario(bench):
        at_hour(bench, 3)
        assert (await bench.scheduler.room_for("training", "sim")).ok
        await bench.engine.queue.add([NewWork(kind="train", payload={"config": "c"})])
        await bench.engine.queue.claim(Claimant(worker="sim"), lease_s=1e6)
        refused = await bench.scheduler.room_for("cmaes", "sim")
        assert not refused.ok
        assert refused.reason.startswith("training runs on sim")
        assert 0 < refused.retry_after_s <= DEFAULT_DURATIONS_S["training"]
        assert (await bench.scheduler.room_for("selfplay", "sim")).ok
        assert (await bench.scheduler.room_for("cmaes", "elsewhere")).ok
        (running,) = await bench.scheduler.running("sim")
        assert running["task_type"] == "training"
        at_hour(bench, 15)
        refused = await bench.scheduler.room_for("cmaes", "elsewhere")
        assert refused.reason == "intensive tasks wait until 22:00 UTC"
        assert refused.retry_after_s == pytest.approx(7 * 3600)
        assert (await bench.scheduler.room_for("export", "elsewhere")).ok

    on_bench(scenario)


def worker_record(bench, **fields):
    given = {"pid": 1, "busy": 0, "kinds": None, "capabilities": (), "cpus": 2, "gpus": 0, "memory_mb": 1}
    now_s = bench.runtime.now_s()
    told = {"memory_free_mb": 1, "load": 0.0, "started_s": now_s, "at_s": now_s, **given, **fields}
    return WorkerRecord(name="w1", node="sim", **told)


def test_where_workers_live_there_is_room_as_the_loop_sees_it_until_jobs_end_as_measured(tmp_path):
    async def scenario(world):
        bench = Bench(world.runtime, world.engine, gate=world.safeguards)
        at_hour(bench, 15)

        async def room(task_type):
            world.admission.forget_view()
            found = await bench.scheduler.room_for(task_type, "sim")
            return found.ok, found.reason

        assert await room("cmaes") == (False, "intensive tasks wait until 22:00 UTC"), "nobody works here yet"
        await bench.engine.kv.put(WORKERS + "w1", msgspec.json.encode(worker_record(bench, slots=2)))
        assert await room("training") == (True, "ok"), "the hours of people hold no worker"
        for _ in range(3):
            await bench.book.record("train", "c", "sim", 250.0)
        claim = Claimant(worker="w1")
        for kind, slots_left in (("train", 1), ("selfplay", 0)):
            await bench.engine.queue.add([NewWork(kind=kind, payload={"config": "c"})])
            await bench.engine.queue.claim(claim, lease_s=1e6)
            assert await room("training") == (True, "ok"), f"{slots_left} slots, and games give way"
        await bench.engine.queue.add([NewWork(kind="evaluate", payload={"config": "c"})])
        await bench.engine.queue.claim(claim, lease_s=1e6)
        told = "2 jobs have the 2 slots of sim; one is expected to end in about 5 min"
        assert await room("training") == (False, told), "1.2 times the mean of the measured trainings"
        assert await room("export") == (True, "ok"), "seconds of work are never held up"
        await bench.runtime.sleep(120.0)
        assert "about 3 min" in (await room("training"))[1]
        await world.emergency.turn_on("fire", by="a person")
        assert await room("export") == (False, "emergency stop until it is cleared: fire")
        capacity = Capacity(2, 1, 2)
        assert not capacity.has_room_for("train"), "the loop orders none either"
        assert not (await world.safeguards.may_order("export", "sim")).ok

    in_tasks_world(scenario, tmp_path)


def test_a_worker_that_takes_other_work_makes_no_room(tmp_path):
    async def scenario(world):
        bench = Bench(world.runtime, world.engine, gate=world.safeguards)
        record = worker_record(bench, slots=2, kinds=("selfplay",))
        await bench.engine.kv.put(WORKERS + "w1", msgspec.json.encode(record))
        assert (await bench.scheduler.room_for("selfplay", "sim")).ok
        refused = await bench.scheduler.room_for("training", "sim")
        assert (refused.ok, refused.reason) == (False, "no worker of sim takes such work")

    in_tasks_world(scenario, tmp_path)


@given(st.floats(0, 10 * DAY_S))
def test_busy_hours_end_when_they_say(now_s):
    busy = BusyHours()
    assert busy.left_s(now_s + busy.left_s(now_s)) == 0
    assert 0 <= busy.left_s(now_s) <= 8 * 3600


def test_the_documents_calls_work_without_a_loop():
    assert estimate_task_duration("selfplay") == 3600
    for _ in range(3):
        record_task_completion("selfplay", "hex8_2p", "box", seconds=10.0)
    assert estimate_task_duration("selfplay", "hex8_2p", "box") == pytest.approx(12.0)
    assert can_schedule_task("selfplay") == (True, "ok")


async def test_the_job_runner_asks_and_reports_on_the_real_engine():
    assert await estimate_timeout_s("export", "hex8_2p") == 600
    for _ in range(3):
        await record_duration("export", "hex8_2p", "box", 400.0)
    assert await estimate_timeout_s("export", "hex8_2p") == 1200
    await record_duration("export", "hex8_2p", "box", 1200.0, outcome=TaskOutcome.TIMED_OUT)
    assert await estimate_timeout_s("export", "hex8_2p") == 2400
