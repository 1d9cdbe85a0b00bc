"""Estimates and timeouts from what was measured; the scheduler's face."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    def __init__(self):
        self.runtime = SimulatedRuntime()
        self.engine = memory_engine(self.runtime)
        self.book = self.new_book()
        self.scheduler = DurationScheduler(
            self.book, TaskRegistry(self.get_engine, runtime=self.runtime), runtime=self.runtime
        )

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
