"""The bus names are views of one router: each subscriber gets each event once, whichever name it used."""

import asyncio
import os
import sqlite3
from collections import Counter
from contextlib import closing

import pytest
from structlog.testing import capture_logs

from ringrift.coordination.dead_letter_queue import get_dead_letter_queue
from ringrift.coordination.event_buses import (
    CrossProcessEventPoller,
    CrossProcessEventQueue,
    DataEvent,
    DataEventBus,
    StageEventBus,
    ack_event,
    get_data_event_bus,
    get_event_bus,
    get_event_queue,
    poll_events,
    publish_event,
    register_standard_callbacks,
    reset_event_queue,
    subscribe_process,
)
from ringrift.coordination.event_mappings import StageCompletionResult, StageEvent
from ringrift.coordination.event_router import get_router
from ringrift.engine.blocking import run_blocking
from ringrift.engine.ports import LogEvent
from ringrift.errors import ConfigError, Unavailable
from ringrift.events.catalog.event_types import DataEventType
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.runtime import system_runtime


@pytest.fixture
def router():
    return UnifiedEventRouter()


@pytest.fixture
def data(router):
    return DataEventBus(router=router)


@pytest.fixture
def stages(router):
    return StageEventBus(router=router)


def result_of(stage, **fields):
    return StageCompletionResult(
        **{"event": stage, "success": True, "iteration": 3, "timestamp": "now", **fields}
    )


@pytest.mark.parametrize("publish_at", ["router enum", "router name", "data bus", "stage bus"])
async def test_every_bus_delivers_each_event_once(router, data, stages, publish_at):
    seen = Counter()
    router.subscribe("TRAINING_COMPLETED", lambda e: seen.update(["router by name"]))
    router.subscribe(DataEventType.TRAINING_COMPLETED, lambda e: seen.update(["router by enum"]))
    router.subscribe(StageEvent.TRAINING_COMPLETE, lambda e: seen.update(["router by stage"]))
    router.subscribe(None, lambda e: seen.update(["router all"]))
    data.subscribe(DataEventType.TRAINING_COMPLETED, lambda e: seen.update(["data"]))
    data.subscribe(None, lambda e: seen.update(["data all"]))
    stages.subscribe(StageEvent.TRAINING_COMPLETE, lambda r: seen.update(["stage"]))
    match publish_at:
        case "router enum":
            await router.publish(DataEventType.TRAINING_COMPLETED, {"config_key": "hex8_2p"})
        case "router name":
            await router.publish("TRAINING_COMPLETED", {"config_key": "hex8_2p"})
        case "data bus":
            await data.publish(DataEvent(DataEventType.TRAINING_COMPLETED, {"config_key": "hex8_2p"}))
        case "stage bus":
            await stages.emit(result_of(StageEvent.TRAINING_COMPLETE))
    assert len(seen) == 7
    assert set(seen.values()) == {1}


async def test_flags_skip_the_subscribers_of_a_bus(router, data, stages):
    seen = []
    router.subscribe("TRAINING_COMPLETED", lambda e: seen.append("router"))
    data.subscribe("TRAINING_COMPLETED", lambda e: seen.append("data"))
    stages.subscribe(StageEvent.TRAINING_COMPLETE, lambda e: seen.append("stage"))
    await router.publish("TRAINING_COMPLETED", {}, route_to_stage_bus=False)
    assert seen == ["router", "data"]
    await router.publish("TRAINING_COMPLETED", {}, route_to_data_bus=False)
    assert seen[2:] == ["router", "stage"]


async def test_the_data_bus_shows_enum_members(data):
    seen = []
    data.subscribe("new_games", seen.append)
    await data.emit_async(DataEventType.NEW_GAMES_AVAILABLE, {"host": "node-1"}, "sync")
    assert seen[0].event_type is DataEventType.NEW_GAMES_AVAILABLE
    assert seen[0].payload["host"] == "node-1"
    assert data.get_history()[0].source == "sync"
    assert len(data.list_subscribers("NEW_GAMES_AVAILABLE")) == 1
    assert data.unsubscribe(DataEventType.NEW_GAMES_AVAILABLE, seen.append) is True
    assert data.unsubscribe(DataEventType.NEW_GAMES_AVAILABLE, seen.append) is False


async def test_equal_heartbeats_through_the_data_bus_are_all_delivered(data):
    seen = []
    data.subscribe("COORDINATOR_HEARTBEAT", seen.append)
    for _ in range(5):
        await data.publish(DataEvent(DataEventType.COORDINATOR_HEARTBEAT, {"coordinator_name": "x"}))
    assert len(seen) == 5


async def test_data_bus_metrics_and_health(data):
    def broken(event):
        raise ValueError

    data.subscribe("MY_EVENT", broken)
    await data.emit_async("MY_EVENT")
    metrics = data.get_metrics()
    assert (metrics["callbacks_run"], metrics["callback_errors"]) == (1, 1)
    assert "10 %" in data.health_check().message


async def test_subscriptions_that_were_ended_by_their_handles_are_not_counted(data, stages):
    ended, stays = data.subscribe("MY_EVENT", print), data.subscribe("MY_EVENT", print)
    ended()
    assert data.get_metrics()["subscriptions"] == 1
    assert data.unsubscribe("MY_EVENT", print) is True  # the one that is left
    assert not stays.active
    assert data.get_metrics()["subscriptions"] == 0

    stages.subscribe(StageEvent.SYNC_COMPLETE, print).cancel()
    stages.subscribe(StageEvent.TRAINING_COMPLETE, print)
    assert (stages.subscriber_count(), stages.subscriber_count(StageEvent.SYNC_COMPLETE)) == (1, 0)
    stats = stages.get_stats()
    assert stats["total_subscribers"] == 1
    assert stats["subscribers_by_event"] == {StageEvent.TRAINING_COMPLETE.value: 1}
    assert stages.clear_subscribers() == 1


async def test_stage_results_come_back_as_they_were_sent(stages, router):
    results, lines = [], []

    async def callback(result):
        await asyncio.sleep(0)
        results.append(result)
        return "done"

    stages.subscribe(StageEvent.SELFPLAY_COMPLETE, callback)
    stages.subscribe(StageEvent.SELFPLAY_COMPLETE, callback)  # the same one counts once
    stages.set_logger(lines.append)
    sent = result_of(StageEvent.SELFPLAY_COMPLETE, games_generated=7)
    assert await stages.emit(sent) == 1
    assert results == [sent]
    assert await stages.emit_and_wait(sent, timeout=60) == ["done"]
    assert stages.get_history()[0] is sent
    assert len(lines) == 2
    assert router.get_history()[-1].origin == "stage_bus"
    assert router.get_history()[-1].iteration == 3
    assert stages.subscriber_count(StageEvent.SELFPLAY_COMPLETE) == 1
    assert stages.unsubscribe(StageEvent.SELFPLAY_COMPLETE, callback)
    assert stages.get_stats()["total_subscribers"] == 0


async def test_a_variant_of_a_stage_reaches_only_its_own_subscribers(stages, router):
    seen = []
    stages.subscribe(StageEvent.GPU_SELFPLAY_COMPLETE, lambda r: seen.append("gpu"))
    stages.subscribe(StageEvent.SELFPLAY_COMPLETE, lambda r: seen.append("any"))
    await stages.emit(result_of(StageEvent.GPU_SELFPLAY_COMPLETE))
    assert seen == ["gpu"]
    await router.publish("SELFPLAY_COMPLETE", {"config_key": "hex8_2p", "games_generated": 5})
    assert seen == ["gpu", "any"]


async def test_failing_and_slow_stage_callbacks(stages):
    def broken(result):
        raise ValueError("no")

    async def slow(result):
        await asyncio.sleep(60)

    stages.subscribe(StageEvent.SYNC_COMPLETE, broken)
    assert await stages.emit(result_of(StageEvent.SYNC_COMPLETE)) == 0
    assert stages.get_callback_errors()[0].error == "ValueError: no"
    stages.subscribe(StageEvent.NAS_COMPLETE, slow)
    assert await stages.emit_and_wait(result_of(StageEvent.NAS_COMPLETE), timeout=0.01) == []
    assert stages.clear_subscribers() == 2
    assert register_standard_callbacks(stages) == 4


def test_the_old_stage_bus_getter_warns():
    with pytest.warns(DeprecationWarning, match="get_router"):
        first = get_event_bus()
    with pytest.warns(DeprecationWarning, match="get_router"):
        assert get_event_bus() is first
    assert isinstance(get_data_event_bus(), DataEventBus)


# --- the queue between processes --------------------------------------------------------------------------


@pytest.fixture
def queue(tmp_path):
    queue = CrossProcessEventQueue(tmp_path / "events.db")
    yield queue
    queue.close()


def test_a_queue_in_a_shared_folder_touches_nothing_there_but_its_own_files(tmp_path):
    shared = tmp_path / "shared"
    theirs = [shared, shared / "logs", shared / "logs" / "app.log", shared / "events.txt", shared / "a_token"]
    for path in theirs:
        path.write_text("theirs") if path.suffix or path.name == "a_token" else path.mkdir()
        path.chmod(0o775)
    queue = CrossProcessEventQueue(shared / "events.db")
    queue.publish("MY_EVENT", {})
    poller = CrossProcessEventPoller("worker", ["CUSTOM"], db_path=shared / "events.db")
    poller.register_handler("CUSTOM", lambda event: None)
    poller.start()
    poller.stop()
    queue.close()
    assert (shared / "events.db.readers" / "instances").is_dir()  # two readers of one log must meet there
    assert [path.stat().st_mode & 0o777 for path in theirs] == [0o775] * len(theirs)
    ours = set(shared.iterdir()) - set(theirs)
    assert all(path.name.startswith("events.db") for path in ours), ours
    assert [path.stat().st_mode & 0o077 for path in ours] == [0] * len(ours)


def test_a_queue_takes_an_empty_file_and_refuses_what_can_be_no_database(tmp_path):
    (tmp_path / "empty.db").touch()
    queue = CrossProcessEventQueue(tmp_path / "empty.db")
    assert queue.publish("MY_EVENT", {}) == 1
    queue.close()
    with pytest.raises(ConfigError, match="is a folder; name the database file in it"):
        CrossProcessEventQueue(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="is no plain file; name a database file"):
        CrossProcessEventQueue(tmp_path / "pipe")


def test_poll_and_acknowledge(queue):
    subscriber = queue.subscribe("evaluator", stable=True)
    assert ":stable:evaluator" in subscriber
    numbers = [queue.publish("my_event", {"n": n}, "tester") for n in range(5)]
    polled = queue.poll(subscriber)
    assert [event.event_id for event in polled] == numbers
    assert [event.payload["n"] for event in polled] == list(range(5))
    assert queue.ack(subscriber, numbers[3])
    assert queue.get_pending_count(subscriber) == 4  # an unacknowledged one before it is not skipped
    assert queue.ack_batch(subscriber, numbers[:3]) == 3
    assert [event.event_id for event in queue.poll(subscriber)] == [numbers[4]]
    assert queue.get_last_acked_event_id(subscriber) == numbers[3]
    again = CrossProcessEventQueue(queue._path)
    assert [event.event_id for event in again.poll(subscriber)] == [numbers[4]]
    again.close()


def test_a_polled_event_says_on_which_host_it_was_published(queue, monkeypatch):
    subscriber, here = queue.subscribe("evaluator", stable=True), system_runtime().hostname
    queue.publish("MY_EVENT", {"n": 1})
    monkeypatch.setattr(system_runtime(), "hostname", "elsewhere")
    queue.publish("MY_EVENT", {"n": 2})
    monkeypatch.undo()
    assert [event.hostname for event in queue.poll(subscriber)] == [here, "elsewhere"]
    old = LogEvent(id="1", type="MY_EVENT", body=b'{"payload":{}}')  # as versions before wrote them
    run_blocking(queue._append(old))
    assert queue.poll(subscriber)[-1].hostname == ""


def test_a_poller_that_acknowledges_keeps_what_it_has_yet_to_see_and_one_that_only_looks_does_not(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("RINGRIFT_EVENT_RETENTION_ROWS", "10")
    queue = CrossProcessEventQueue(tmp_path / "events.db")
    reader, onlooker = queue.subscribe("reader", stable=True), queue.subscribe("onlooker")
    numbers = [queue.publish("my_event", {"n": n}) for n in range(15)]
    assert len(queue.poll(onlooker)) == 15
    assert queue.cleanup()[0] == 5
    queue.ack_batch(reader, numbers[:6])
    numbers += [queue.publish("my_event", {"n": n}) for n in range(15, 19)]
    queue.cleanup()
    assert [event.event_id for event in queue.poll(reader)] == numbers[6:]
    queue.close()


@pytest.fixture
def small_queue(tmp_path, monkeypatch):
    """One that keeps 10 events, and at most 20."""
    monkeypatch.setenv("RINGRIFT_EVENT_RETENTION_ROWS", "10")
    queue = CrossProcessEventQueue(tmp_path / "small.db")
    yield queue
    queue.close()


def publish_among_polls(queue, poll, count=60):
    """Publish events, none of which the poller acknowledges; return what it polled."""
    polled = []
    for n in range(count):
        polled += poll() if n % 4 == 0 else []
        queue.publish("OTHER", {"n": n}, max_retries=0)
    return polled


def test_a_poller_for_whom_there_is_nothing_holds_nobody_up(small_queue):
    reader = small_queue.subscribe("reader", ["MODEL_PROMOTED"])
    small_queue.ack(reader, small_queue.publish("MODEL_PROMOTED"))
    assert publish_among_polls(small_queue, lambda: small_queue.poll(reader)) == []
    wanted = small_queue.publish("MODEL_PROMOTED")
    assert [event.event_id for event in small_queue.poll(reader)] == [wanted]


def test_a_poller_that_has_yet_to_see_events_holds_them_whatever_it_asks_for_meanwhile(small_queue):
    reader = small_queue.subscribe("reader")
    small_queue.ack(reader, small_queue.publish("MODEL_PROMOTED"))
    unseen = small_queue.publish("MODEL_PROMOTED")
    with pytest.raises(Unavailable, match="the event log is full"):
        publish_among_polls(small_queue, lambda: small_queue.poll(reader, ["TRAINING_COMPLETED"]))
    small_queue.get_pending_count(reader)
    small_queue.get_pending_count(reader)
    assert small_queue.poll(reader)[0].event_id == unseen


def test_an_event_that_is_polled_and_never_acknowledged_is_given_up_with_a_word(small_queue):
    reader = small_queue.subscribe("reader", ["MODEL_PROMOTED"])
    small_queue.ack(reader, small_queue.publish("MODEL_PROMOTED"))
    never = small_queue.publish("MODEL_PROMOTED", {"model": "m"})
    with capture_logs() as lines:
        polled = publish_among_polls(small_queue, lambda: small_queue.poll(reader))
    assert {event.event_id for event in polled} == {never}
    assert len(polled) == 3  # and again for as long as the log keeps so many events
    (said,) = [line for line in lines if line["event"] == "events.given_up"]
    assert (said["subscription"], said["seq"]) == (reader, never)
    (letter,) = get_dead_letter_queue().get_pending_events()
    assert (letter.payload, letter.subscription) == ({"model": "m"}, reader)


def test_a_poller_that_acknowledges_nothing_any_more_holds_nobody_up_for_ever(small_queue):
    reader = small_queue.subscribe("reader")
    small_queue.ack(reader, small_queue.publish("OTHER"))
    publish_among_polls(small_queue, lambda: small_queue.poll(reader))
    assert get_dead_letter_queue().get_pending_count() > 40


def test_what_was_polled_together_is_not_given_up_while_it_is_acknowledged_one_by_one(small_queue):
    reader = small_queue.subscribe("reader")
    small_queue.ack(reader, small_queue.publish("OTHER"))
    for n in range(19):
        small_queue.publish("OTHER", {"n": n}, max_retries=0)
    for event in small_queue.poll(reader):
        small_queue.ack(reader, event.event_id)
        small_queue.publish("OTHER", max_retries=0)
    assert len(small_queue.poll(reader)) == 19
    assert get_dead_letter_queue().get_pending_count() == 0


def append_many(queue, count):
    async def append():
        events = [LogEvent(id=str(n), type="MY_EVENT", body=b"{}") for n in range(count)]
        return [each.seq for each in await (await queue._open()).events.append(events)]

    return run_blocking(append(), timeout_s=60)


def test_a_damaged_event_hides_none_of_many_others(queue):
    reader = queue.subscribe("reader")
    numbers = append_many(queue, 1_200)
    with closing(sqlite3.connect(queue._path)) as db, db:
        db.execute("UPDATE event SET body = x'00' WHERE seq = ?", (numbers.pop(7),))
    assert [event.event_id for event in queue.poll(reader, limit=5_000)] == numbers
    queue.ack_batch(reader, numbers[:999])
    assert [event.event_id for event in queue.poll(reader, limit=5_000)] == numbers[999:]


def test_an_event_behind_which_very_many_were_acknowledged_is_given_up(queue):
    reader = queue.subscribe("reader")
    never, *numbers = append_many(queue, 10_010)
    queue.ack_batch(reader, numbers[:10_000])
    assert queue.poll(reader)[0].event_id == never
    queue.ack(reader, numbers[10_000])
    assert [event.event_id for event in queue.poll(reader)] == numbers[10_001:]
    (letter,) = get_dead_letter_queue().get_pending_events()
    assert letter.subscription == reader


def test_pollers_do_not_take_events_from_each_other(queue):
    one, two = queue.subscribe("one"), queue.subscribe("two")
    number = queue.publish("my_event")
    queue.ack(one, number)
    assert queue.poll(one) == []
    assert [event.event_id for event in queue.poll(two)] == [number]


def test_poll_by_type(queue):
    subscriber = queue.subscribe("trainer", ["TRAINING_COMPLETED"])
    queue.publish("MODEL_PROMOTED")
    wanted = queue.publish("training_complete")
    assert [event.event_id for event in queue.poll(subscriber)] == [wanted]
    queue.ack(subscriber, wanted)
    assert queue.get_pending_count(subscriber) == 0
    stats = queue.get_stats()
    assert stats["events_by_type"] == {"MODEL_PROMOTED": 1, "TRAINING_COMPLETED": 1}
    assert stats["active_subscribers"][0]["process_name"] == "trainer"
    assert queue.cleanup() == (0, 0, 0)


def test_module_functions_use_the_log_of_the_router():
    subscriber = subscribe_process("me")
    get_router().publish_sync("TRAINING_PROGRESS", {"config_key": "hex8_2p", "epoch": 1})
    [event] = poll_events(subscriber)
    assert event.event_type == "TRAINING_PROGRESS"
    assert ack_event(subscriber, event.event_id)
    assert poll_events(subscriber) == []
    assert publish_event("CUSTOM", {"n": 1}) > event.event_id
    queue = get_event_queue()
    reset_event_queue()
    assert get_event_queue() is not queue


def test_a_poller_delivers_in_a_program_without_a_loop():
    seen, failing = [], []

    async def handle(event):
        await asyncio.sleep(0)
        seen.append((event.event_type, event.payload["n"]))

    def broken(event):
        failing.append(event.payload["n"])
        raise ValueError("always")

    poller = CrossProcessEventPoller("worker", ["CUSTOM"])
    poller.register_handler(None, handle)
    poller.register_handler("CUSTOM", broken)
    poller.start()
    poller.start()
    for n in range(3):
        publish_event("CUSTOM", {"n": n})
    deadline = 1500
    while len(failing) < 3 and deadline:
        deadline -= 1
        asyncio.run(asyncio.sleep(0.02))
    poller.stop()
    assert seen == [("CUSTOM", n) for n in range(3)]
    assert failing == [0, 1, 2]  # a failed event does not hold up, and is not forgotten for, a later one
    assert not poller.is_running


def test_a_handler_that_is_registered_after_the_start_is_called():
    seen, poller = [], CrossProcessEventPoller("worker", ["CUSTOM"])
    poller.start()
    assert poller.is_running
    poller.register_handler("CUSTOM", lambda event: seen.append(event.payload["n"]))
    publish_event("CUSTOM", {"n": 1})
    deadline = 1500
    while not seen and deadline:
        deadline -= 1
        asyncio.run(asyncio.sleep(0.02))
    poller.stop()
    assert seen == [1]
    assert not poller.is_running


def test_a_poller_on_a_database_of_its_own_goes_on_after_it_was_stopped(tmp_path):
    seen, path = [], tmp_path / "events.db"
    queue = CrossProcessEventQueue(path)
    poller = CrossProcessEventPoller("worker", ["CUSTOM"], 0.1, path, True)
    poller.register_handler("CUSTOM", lambda event: seen.append(event.payload["n"]))
    for n in range(3):
        poller.start()
        assert queue.publish("CUSTOM", {"n": n}, "test", max_retries=2) > 0
        deadline = 1500
        while len(seen) <= n and deadline:
            deadline -= 1
            asyncio.run(asyncio.sleep(0.02))
        poller.stop()
    queue.close()
    assert seen == [0, 1, 2]


async def test_an_event_given_to_a_handler_of_a_poller_says_on_which_host_it_was_published(
    tmp_path, monkeypatch
):
    seen, path, here = asyncio.Queue(), tmp_path / "events.db", system_runtime().hostname
    poller = CrossProcessEventPoller("worker", ["CUSTOM"], 0.1, path, True)
    poller.register_handler("CUSTOM", seen.put_nowait)
    poller.start()
    queue = CrossProcessEventQueue(path)
    with monkeypatch.context() as patch:
        patch.setattr(system_runtime(), "hostname", "elsewhere")
        await asyncio.to_thread(queue.publish, "CUSTOM", {"n": 1})
    found = await asyncio.wait_for(seen.get(), 60)
    assert (found.hostname, found.event_id) == ("elsewhere", 1)
    await poller.router.publish("CUSTOM", {"n": 2})
    found = await asyncio.wait_for(seen.get(), 60)
    assert (found.hostname, found.event_id) == (here, 2)
    poller.stop()
    queue.close()


async def test_a_poller_on_a_database_of_its_own_runs_on_the_loop_that_is_there(tmp_path):
    seen, path = asyncio.Queue(), tmp_path / "events.db"
    poller = CrossProcessEventPoller("worker", ["CUSTOM"], 0.1, path, True)
    poller.register_handler("CUSTOM", lambda event: seen.put_nowait(event.payload["n"]))
    poller.start()
    queue = CrossProcessEventQueue(path)
    assert await asyncio.to_thread(queue.publish, "CUSTOM", {"n": 1}) > 0
    assert await asyncio.wait_for(seen.get(), 60) == 1
    poller.stop()
    queue.close()
