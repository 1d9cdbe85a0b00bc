"""Getters that answer for a run of another process: its word while it counts, else unknown."""

import asyncio

import msgspec
import pytest

from ringrift.engine.blocking import run_blocking
from ringrift.engine.opening import close_engine, get_engine
from ringrift.engine.run_reports import (
    REPORT_KEY,
    SILENT_S,
    ControlHere,
    RunReport,
    reported,
    reported_getters,
    reported_health,
)
from ringrift.process import SingletonMixin, process_scope
from ringrift.runtime import system_runtime
from ringrift.settings import Settings, load_settings
from ringrift.status import CoordinatorStatus, HealthCheckResult


class Counter(SingletonMixin):
    """Counts what it does where it works."""

    def __init__(self):
        self.done = 0

    @property
    def works_here(self):
        return self.done > 0

    @reported
    def get_stats(self):
        return {"name": "counter", "status": "stopped", "done": self.done, "by_kind": {"a": self.done}}

    @reported_health
    def health_check(self):
        return HealthCheckResult.ok("", done=self.done)


Counter.__module__ = "ringrift.work.counter"  # unknown is for classes of the product
UNKNOWN = {"name": "counter", "status": "unknown", "done": None, "by_kind": {"a": None}}


@pytest.fixture(autouse=True)
def folder(tmp_path):
    process_scope().put(Settings, load_settings({"RINGRIFT_DATA_DIR": str(tmp_path / "data")}).settings)
    yield tmp_path / "data"
    run_blocking(close_engine())
    process_scope().clear()


def write(*, ago_s=0.0, ended=False, answers=None):
    """As a control process whose counter has done 7 things."""
    if answers is None:
        process_scope().put(ControlHere, ControlHere())
        counter = Counter()
        counter.done = 7
        found = {getter.name: getter.ask() for getter in reported_getters(counter)}
        answers = {name: getattr(each, "to_dict", lambda each=each: each)() for name, each in found.items()}
        process_scope().drop(ControlHere)
    report = RunReport(at_s=system_runtime().now_s() - ago_s, ended=ended, answers=answers)

    async def put():
        await (await get_engine()).kv.put(REPORT_KEY, msgspec.json.encode(report))

    run_blocking(put())


def test_another_process_is_told_what_the_run_said():
    write()
    assert Counter.get_instance().get_stats()["done"] == 7
    assert Counter.get_instance().get_stats()["by_kind"] == {"a": 7}
    health = Counter.get_instance().health_check()
    assert (health.healthy, health.status, health.details) == (True, CoordinatorStatus.RUNNING, {"done": 7})


def test_a_run_that_fell_silent_leaves_it_unknown():
    write(ago_s=SILENT_S + 1)
    assert Counter.get_instance().get_stats() == UNKNOWN
    assert Counter.get_instance().health_check().status is CoordinatorStatus.UNKNOWN
    assert not Counter.get_instance().health_check().healthy


def test_last_words_hold_for_ever():
    write(ago_s=30 * 86400.0, ended=True)
    assert Counter.get_instance().get_stats()["done"] == 7


def test_where_no_run_was_it_is_unknown_and_no_store_is_made(folder):
    assert Counter.get_instance().get_stats() == UNKNOWN
    assert not folder.exists()


def test_what_the_run_never_had_is_as_fresh_here():
    write(answers={})
    assert Counter.get_instance().get_stats()["done"] == 0


def test_one_that_works_here_and_one_of_ones_own_answer_for_themselves():
    write()
    assert Counter().get_stats()["done"] == 0
    Counter.get_instance().done = 3
    assert Counter.get_instance().get_stats()["done"] == 3


def test_a_damaged_report_is_unknown():
    async def put():
        await (await get_engine()).kv.put(REPORT_KEY, b"[")

    run_blocking(put())
    assert Counter.get_instance().get_stats() == UNKNOWN


async def test_asking_on_a_loop_works():
    await asyncio.to_thread(write)
    assert Counter.get_instance().get_stats()["done"] == 7
