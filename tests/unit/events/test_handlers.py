"""HandlerBase: its life, what it counts, and that it really lets go."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

import pytest
from app.coordination.base_daemon import BaseDaemon

from ringrift.coordination import handler_base
from ringrift.coordination.event_router import get_router
from ringrift.coordination.handler_base import HandlerBase
from ringrift.errors import ConfigError
from ringrift.events import handlers
from ringrift.events.handlers import HandlerStats
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.status import CoordinatorStatus


class Worker(HandlerBase):
    capability = "event_handlers"
    emits = ("TASK_COMPLETED",)

    def __init__(self, router=None, **options):
        super().__init__("worker", router=router, **{"cycle_interval": 0.001, **options})
        self.seen, self.story = [], []
        self.cycle_error = self.start_error = self.event_error = None

    async def _run_cycle(self):
        if self.cycle_error:
            raise self.cycle_error

    async def _on_start(self):
        self.story.append("start")
        if self.start_error:
            raise self.start_error

    async def _on_stop(self):
        self.story.append("stop")

    def _get_event_subscriptions(self):
        return {"MY_EVENT": self._on_mine, "task_failed": self._on_failed}

    async def _on_mine(self, event):
        if self.event_error:
            raise self.event_error
        if self._is_duplicate_event(event):
            return
        self.seen.append(event["n"])

    def _on_failed(self, event):
        self.seen.append("failed")


@pytest.fixture
def router():
    return UnifiedEventRouter()


@pytest.fixture
async def worker(router):
    worker = Worker(router)
    yield worker
    await worker.stop()


async def test_a_handler_that_cannot_subscribe_to_everything_is_subscribed_to_nothing(router, worker):
    worker._get_event_subscriptions = lambda: {"MY_EVENT": worker._on_mine, "": worker._on_failed}
    with pytest.raises(ConfigError):
        await worker.start()
    assert router.get_stats()["subscriber_count"] == 0
    assert not worker.is_subscribed


async def test_a_stopped_handler_hears_nothing_more_however_often_it_was_started(router, worker):
    for n in range(3):
        await worker.start()
        assert worker.is_subscribed
        await router.publish("MY_EVENT", {"n": n})
        await worker.stop()
    await router.publish("MY_EVENT", {"n": 9})
    assert worker.seen == [0, 1, 2]
    assert router.get_stats()["subscriber_count"] == 0
    assert worker.story == ["start", "stop"] * 3


async def test_a_handler_may_stop_itself(worker):
    async def stop_then_wait():
        await worker.stop()
        await asyncio.sleep(3600)

    worker._run_cycle = stop_then_wait
    await worker.start()
    async with asyncio.timeout(30):
        while worker.story != ["start", "stop"]:
            await asyncio.sleep(0.001)
    assert not worker.is_running


async def test_start_and_stop_are_idempotent(worker):
    await worker.start()
    await worker.start()
    assert worker.is_running
    assert worker.uptime_seconds >= 0
    await worker.shutdown()
    await worker.shutdown()
    await worker.wait_until_stopped()
    assert worker.story == ["start", "stop"]
    assert not worker.is_running


async def test_a_cycle_that_ignores_its_end_hears_no_more_events(router, worker, monkeypatch):
    monkeypatch.setattr(handlers, "_STOP_S", 0.01)

    async def stubborn():
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        await asyncio.sleep(60)  # only the second request ends it

    worker._run_cycle = stubborn
    await worker.start()
    await asyncio.sleep(0)
    task = worker._task
    await worker.stop()
    running, subscribed = worker.is_running, worker.is_subscribed
    await router.publish("MY_EVENT", {"n": 1})
    task.cancel()
    await asyncio.wait({task}, timeout=5)
    assert (running, subscribed, worker.seen) == (False, False, [])


async def test_a_failing_start_hook_keeps_it_from_starting(router, worker):
    worker.start_error = OSError("no disk")
    with pytest.raises(OSError, match="no disk"):
        await worker.start()
    assert not worker.is_running
    assert router.get_stats()["subscriber_count"] == 0
    assert worker.story == ["start"]


async def test_run_is_the_whole_life_for_a_supervisor(worker):
    ready = asyncio.Event()
    task = asyncio.create_task(worker.run(on_ready=ready.set))
    async with asyncio.timeout(30):
        await ready.wait()
    assert worker.is_running
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (worker.is_running, worker.is_subscribed) == (False, False)


async def test_a_failing_cycle_is_recorded_and_the_next_one_runs(worker):
    worker.cycle_error = ValueError("bad")
    await worker.start()
    async with asyncio.timeout(30):
        while worker.stats.errors_count < 3:
            await asyncio.sleep(0.001)
        worker.cycle_error = None
        while worker.stats.cycles_completed < 1:
            await asyncio.sleep(0.001)
    assert worker.get_recent_errors(2)[-1].message == "ValueError: bad"
    assert worker.get_recent_errors(0) == []


async def test_the_error_of_an_event_goes_on_to_the_router(router, worker):
    await worker.start()
    worker.event_error = ValueError("no")
    await router.publish("MY_EVENT", {"n": 1})
    assert worker.stats.errors_count == 1
    assert worker.stats.success_rate == 0.0
    assert router.get_stats()["handler_failures"] == 1
    await router.publish("TASK_FAILED", {"task_id": "t", "error": "x"})
    assert worker.seen == ["failed"]
    assert worker.stats.success_rate == 0.5


async def test_duplicates_are_skipped_when_the_handler_asks(router, worker):
    await worker.start()
    for n in (1, 1, 2, 1):
        await router.publish("MY_EVENT", {"n": n})
    assert worker.seen == [1, 2]
    assert worker.stats.events_deduplicated == 2
    other = Worker(router, dedup_enabled=False)
    assert not other._is_duplicate_event({"n": 1})
    assert not other._is_duplicate_event({"n": 1})
    assert not worker._is_duplicate_event({"a": 1, "b": 1}, key_fields=["a"])
    assert worker._is_duplicate_event({"a": 1, "b": 2}, key_fields=["a"])


@pytest.mark.parametrize(
    ("errors", "status", "healthy"),
    [
        (0, CoordinatorStatus.RUNNING, True),
        (2, CoordinatorStatus.RUNNING, True),
        (3, CoordinatorStatus.DEGRADED, True),
        (5, CoordinatorStatus.DEGRADED, True),
        (6, CoordinatorStatus.ERROR, False),
    ],
)
def test_health_follows_the_share_of_errors(router, errors, status, healthy):
    worker = Worker(router)
    worker._running = True
    worker.stats.cycles_completed, worker.stats.errors_count = 10, errors
    found = worker.health_check()
    assert (found.status, found.healthy) == (status, healthy)


def test_a_handler_that_does_not_run_is_not_healthy(router):
    found = Worker(router).health_check()
    assert (found.status, found.healthy) == (CoordinatorStatus.STOPPED, False)
    assert found.details["subscription_count"] == 0
    assert Worker(router).get_status()["status"] == "stopped"


def test_one_instance_per_class_and_process():
    assert not Worker.has_instance()
    assert Worker.get_instance() is Worker.get_instance()
    Worker.reset_singleton()
    assert not Worker.has_instance()


async def test_a_daemon_names_the_type_of_its_configuration(router):
    @dataclass
    class Pace:
        interval_s: float

    class Mine(BaseDaemon[Pace]):
        def __init__(self, config):
            super().__init__("mine", config, cycle_interval=config.interval_s, router=router)
            self.cycles = 0

        async def _run_cycle(self):
            self.cycles += 1

    mine = Mine(Pace(0.01))
    await mine.start()
    async with asyncio.timeout(10):
        while mine.cycles < 2:
            await asyncio.sleep(0.01)
    await mine.stop()
    assert mine.config.interval_s == 0.01


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"name": ""}, "name"),
        ({"name": None}, "name"),
        ({"cycle_interval": "often"}, "cycle_interval"),
        ({"cycle_interval": -1}, "cycle_interval"),
        ({"router": "events"}, "router"),
    ],
)
def test_a_handler_with_a_wrong_argument_is_refused_when_it_is_made(wrong, text):
    class Mine(HandlerBase):
        async def _run_cycle(self):
            pass

    with pytest.raises(ConfigError, match=text):
        Mine(**{"name": "mine", **wrong})


def test_what_it_sends_and_hears_is_declared(router):
    wiring = Worker(router).wiring()
    assert wiring.emits == ("TASK_COMPLETED",)
    assert wiring.subscribes == ("MY_EVENT", "TASK_FAILED")


def test_statistics_are_plain_values():
    stats = HandlerStats(events_processed=4, success_count=3, errors_count=1)
    assert stats.to_dict()["success_rate"] == 0.75
    assert stats.error_count == 1
    assert HandlerStats().success_rate == 1.0
    assert len(handler_base.__all__) == 12


async def test_without_a_router_of_its_own_it_uses_that_of_the_process():
    worker = Worker()
    await worker.start()
    assert get_router().has_subscribers("MY_EVENT")
    await worker.stop()
    await get_router().stop()
