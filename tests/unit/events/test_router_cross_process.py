"""Events between routers on one log: once per subscription, in order, also over restarts."""

import asyncio
import errno
import os
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from ringrift.coordination.event_router import get_router, reset_router
from ringrift.engine.blocking import run_blocking
from ringrift.engine.limits import EngineLimits
from ringrift.engine.memory import MemoryStore, memory_engine
from ringrift.engine.opening import close_engine, get_engine
from ringrift.engine.ports import CursorKey, Position
from ringrift.errors import PayloadError, StorageFull, Unavailable
from ringrift.events import cross_process, positions
from ringrift.events.catalog.audit import LastSeen, read_last_seen
from ringrift.events.event import Delivery, EventSource, RouterEvent
from ringrift.events.positions import Cursor, CursorStore, DeliveryNotes, Identity, LogConnection, Note
from ringrift.events.unified_router import Surroundings, UnifiedEventRouter
from ringrift.runtime import system_runtime
from ringrift.settings import load_settings

CROSSING, LOCAL = "TRAINING_COMPLETED", "CHECKPOINT_SAVED"


class Machine:
    """One log and the processes that use it."""

    def __init__(self, tmp_path, limits=None):
        self.store = MemoryStore(limits=limits or EngineLimits())
        self.tmp_path = tmp_path
        self.routers = []

    @property
    def records(self):
        return self.store.events.records

    def process(self, instance, *, notes=False, log=None, backlog=60, **env):
        engine = memory_engine(system_runtime(), self.store)

        async def open_log():
            return log or engine.events

        async def open_kv():
            return engine.kv

        async def claim():
            return Identity(
                instance=instance, notes=DeliveryNotes(self.tmp_path, instance) if notes else None
            )

        around = Surroundings(
            settings=load_settings({"RINGRIFT_EVENT_BACKLOG": str(backlog), **env}).settings,
            log_connection=LogConnection(open_log=open_log, claim=claim, open_kv=open_kv),
        )
        router = UnifiedEventRouter(surroundings=around)
        self.routers.append(router)
        return router

    async def kill(self, router):
        """End a router as `kill -9` would: its tasks stop, nothing is recorded."""
        crossing = router._crossing
        for subscription in router._table:
            subscription.active = False
        tasks = [
            crossing._reader,
            crossing._cursor_store and crossing._cursor_store.recorder,
            *router._dispatcher._tasks,
        ]
        for task in filter(None, tasks):
            task.cancel()
        await asyncio.gather(*filter(None, tasks), return_exceptions=True)
        self.routers.remove(router)


@pytest.fixture
async def machine(tmp_path):
    machine = Machine(tmp_path)
    yield machine
    for router in machine.routers:
        await router.stop()


async def until(condition, timeout_s=60):
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.001)


async def quiet(seconds=0.03):
    await asyncio.sleep(seconds)


def collector(seen):
    async def collect(event):
        seen.append(event["n"])

    return collect


class CountedLog:
    """A log that counts what it is asked."""

    def __init__(self, log):
        self._log, self.asked = log, Counter()

    def __getattr__(self, name):
        def ask(*args, **kwargs):
            self.asked[name] += 1
            return getattr(self._log, name)(*args, **kwargs)

        return ask


async def test_a_process_does_not_read_what_it_published_itself(machine):
    log = CountedLog(memory_engine(system_runtime(), machine.store).events)
    a, seen = machine.process("a", log=log), []
    a.subscribe(CROSSING, collector(seen))
    await a.start()
    await quiet()
    log.asked.clear()
    for n in range(20):
        await a.publish(CROSSING, {"n": n})
        await quiet(0.001)
    await until(lambda: len(seen) == 20)
    b = machine.process("b")
    await b.publish(CROSSING, {"n": 20})
    await until(lambda: len(seen) == 21)
    assert seen == list(range(21))
    assert log.asked["read"] <= 2, "only what another process published"


async def test_a_process_without_subscriptions_does_not_follow_the_log(machine):
    log = CountedLog(memory_engine(system_runtime(), machine.store).events)
    a, b, seen = machine.process("a", log=log), machine.process("b"), []
    await a.start()
    for n in range(20):
        await b.publish(CROSSING, {"n": n})
    await quiet()
    assert log.asked["wait"] == log.asked["read"] == 0
    a.subscribe(CROSSING, collector(seen))
    await until(lambda: log.asked["wait"])
    await b.publish(CROSSING, {"n": 20})
    await until(lambda: 20 in seen)


async def test_a_crossing_event_is_seen_once_by_each_process(machine):
    here, there, also_there = [], [], []
    a, b = machine.process("a"), machine.process("b")
    a.subscribe(CROSSING, collector(here))
    b.subscribe(CROSSING, collector(there), "one")
    b.subscribe(None, collector(also_there), "all")
    await b.start()
    await a.start()
    for n in range(20):
        await a.publish(CROSSING, {"n": n})
    await until(lambda: len(there) >= 20 and len(also_there) >= 20)
    await quiet()
    assert here == there == also_there == list(range(20))
    stats = b.get_stats()
    assert stats["events_by_source"] == {"cross_process": 20}
    assert stats["cross_process_polling"]


async def test_the_event_arrives_with_all_its_fields(machine):
    found = []
    a, b = machine.process("a"), machine.process("b")
    b.subscribe(CROSSING, found.append)
    await b.start()
    sent = await a.publish(CROSSING, {"n": 1, "success": False, "loss": float("nan")}, "trainer")
    await until(lambda: found)
    got = found[0]
    for name in ("event_id", "event_type", "timestamp", "source", "trace_id", "success"):
        assert getattr(got, name) == getattr(sent, name)
    assert got.origin is EventSource.CROSS_PROCESS
    assert got.payload["loss"] != got.payload["loss"]
    assert not got.redelivered


async def test_local_events_and_the_flag_keep_events_in_their_process(machine):
    a = machine.process("a")
    await a.publish(LOCAL, {"n": 1})
    await a.publish(CROSSING, {"n": 1}, route_to_cross_process=False)
    assert machine.records == []
    await a.publish("CUSTOM_EVENT", {"data": "value"}, route_to_cross_process=True)
    assert [record.type for record in machine.records] == ["CUSTOM_EVENT"]


async def test_a_payload_that_cannot_be_written_is_refused_before_anything_happens(machine):
    seen, circular = [], {}
    circular["n"] = circular
    a = machine.process("a")
    a.subscribe(CROSSING, collector(seen))
    with pytest.raises(PayloadError, match="must be JSON"):
        await a.publish(CROSSING, {"n": circular})
    assert (seen, machine.records) == ([], [])
    assert a.get_stats()["total_events_routed"] == 0


@pytest.mark.parametrize(
    "value",
    [{"hex8"}, frozenset({1}), b"x", bytearray(b"x"), memoryview(b"x")],
    ids=lambda value: type(value).__name__,
)
async def test_a_set_or_bytes_are_refused_since_they_would_arrive_as_something_else(machine, value):
    seen = []
    a = machine.process("a")
    a.subscribe(CROSSING, collector(seen))
    named = f"value of type {type(value).__name__}, which would come back as another; send a list or text"
    for payload in ({"n": value}, {"n": [{"deep": value}]}):
        with pytest.raises(PayloadError, match=named):
            await a.publish(CROSSING, payload)
    assert (seen, machine.records) == ([], [])


async def test_a_strict_router_refuses_objects_that_json_has_no_form_for(machine):
    seen = []
    strict = machine.process("a", RINGRIFT_EVENT_VALIDATION_STRICT="true")
    strict.subscribe(CROSSING, collector(seen))
    with pytest.raises(PayloadError, match=r"JSON, which has no object"):
        await strict.publish(CROSSING, {"extra": object()})
    assert (seen, machine.records) == ([], [])


async def test_common_python_values_cross_in_their_plain_form_and_others_as_words(machine):
    here, there = [], []
    a, b = machine.process("a"), machine.process("b")
    b.subscribe(CROSSING, lambda event: there.append(event.payload))
    await b.start()
    a.subscribe(CROSSING, lambda event: here.append(event.payload))
    given_payload = {
        "model_path": Path("models/m.pth"),
        "origin": EventSource.ROUTER,
        "at": datetime(2030, 1, 2, tzinfo=UTC),
        "where": Position(7),
        "half a pair": "\ud800",
        "endless": [float("inf"), float("-inf")],
        "odd": object(),
    }
    await a.publish(CROSSING, given_payload)
    await until(lambda: there)
    [local], [remote] = here, there
    assert local["odd"] is given_payload["odd"]
    assert local["model_path"] == Path("models/m.pth")
    assert remote.pop("odd").startswith("<object object")
    assert remote == {
        "model_path": "models/m.pth",
        "origin": "router",
        "at": "2030-01-02T00:00:00+00:00",
        "where": {"floor": 7, "done_above": []},
        "half a pair": "\\ud800",
        "endless": [float("inf"), float("-inf")],
    }


async def test_an_event_that_cannot_be_stored_is_not_delivered(machine):
    class FullLog:
        def __init__(self, log):
            self._log = log

        def __getattr__(self, name):
            return getattr(self._log, name)

        async def append(self, events):
            raise StorageFull("disk full")

    seen = []
    full = FullLog(memory_engine(system_runtime(), machine.store).events)
    a = machine.process("a", log=full)
    a.subscribe(CROSSING, collector(seen))
    with pytest.raises(StorageFull):
        await a.publish(CROSSING, {"n": 1})
    assert seen == []
    event = RouterEvent(CROSSING, {"n": 2})
    for _ in range(2):  # an event that was refused may be published again
        with pytest.raises(StorageFull):
            await a.publish(event)


async def test_the_same_id_is_stored_and_handled_once(machine):
    seen = []
    a, b = machine.process("a"), machine.process("b")
    b.subscribe(CROSSING, collector(seen))
    await b.start()
    event = await a.publish(CROSSING, {"n": 1})
    other = machine.process("c")
    await other.publish(RouterEvent(CROSSING, {"n": 1}, event_id=event.event_id))
    await until(lambda: seen)
    await quiet()
    assert seen == [1]
    assert len(machine.records) == 1
    assert other.get_stats()["duplicates_prevented"] == 1


async def test_a_subscriber_that_starts_late_sees_the_recent_past_but_not_more(machine):
    seen, nothing = [], []
    a = machine.process("a")
    await a.publish(CROSSING, {"n": 1})
    late = machine.process("late")
    late.subscribe(CROSSING, collector(seen))
    await late.start()
    forgetful = machine.process("forgetful", backlog=0)
    forgetful.subscribe(CROSSING, collector(nothing))
    await forgetful.start()
    await until(lambda: seen == [1])
    await a.publish(CROSSING, {"n": 2})
    await until(lambda: nothing)
    assert nothing == [2]


async def test_a_subscription_added_while_reading_joins(machine):
    first, second = [], []
    a, b = machine.process("a"), machine.process("b")
    b.subscribe(CROSSING, collector(first), "first")
    await b.start()
    await a.publish(CROSSING, {"n": 1})
    await until(lambda: first == [1])
    b.subscribe(CROSSING, collector(second), "second")
    await until(lambda: second == [1])
    await a.publish(CROSSING, {"n": 2})
    await until(lambda: second == [1, 2])
    assert first == [1, 2]


async def test_a_slow_subscription_does_not_hold_up_the_others(machine):
    gate, slow_seen, quick_seen = asyncio.Event(), [], []
    a, b = machine.process("a"), machine.process("b")

    async def slow(event):
        await gate.wait()
        slow_seen.append(event["n"])

    b.subscribe(CROSSING, slow, "slow")
    b.subscribe(CROSSING, collector(quick_seen), "quick")
    await b.start()
    count = 700  # more than one mailbox holds and several batches
    for n in range(count):
        await a.publish(CROSSING, {"n": n})
    await until(lambda: len(quick_seen) == count)
    assert slow_seen == []
    gate.set()
    await until(lambda: len(slow_seen) == count)
    assert slow_seen == quick_seen == list(range(count))


async def test_a_restarted_process_continues_where_it_was(machine):
    seen = []
    a, b = machine.process("a"), machine.process("b")
    b.subscribe(CROSSING, collector(seen), "s")
    await b.start()
    await a.publish(CROSSING, {"n": 1})
    await until(lambda: seen == [1])
    await b.stop()
    await a.publish(CROSSING, {"n": 2})
    again = machine.process("b")
    again.subscribe(CROSSING, collector(seen), "s")
    await again.start()
    await a.publish(CROSSING, {"n": 3})
    await until(lambda: len(seen) >= 3)
    await quiet()
    assert seen == [1, 2, 3]


async def test_what_was_handled_right_before_a_kill_is_not_handled_again(machine):
    seen = []
    a, b = machine.process("a"), machine.process("b", notes=True)

    async def handle(event):
        seen.append(event["n"])
        if event["n"] == 5:
            await asyncio.Event().wait()  # killed in the middle of this one

    b.subscribe(CROSSING, handle, "s")
    await b.start()
    for n in range(8):
        await a.publish(CROSSING, {"n": n})
    await until(lambda: 5 in seen)
    await machine.kill(b)
    again, redelivered = machine.process("b", notes=True), []

    def note(event):
        seen.append(event["n"])
        redelivered.append(event.redelivered)

    again.subscribe(CROSSING, note, "s")
    await again.start()
    await until(lambda: 7 in seen)
    await quiet()
    assert Counter(seen) == {**dict.fromkeys(range(8), 1), 5: 2}
    assert redelivered == [True, True, True]


async def test_own_events_that_were_not_handled_before_a_kill_are_handled_after_it(machine):
    seen = []
    a = machine.process("a", notes=True)

    async def stuck(event):
        await asyncio.Event().wait()

    a.subscribe(CROSSING, stuck, "s")
    publishing = [asyncio.create_task(a.publish(CROSSING, {"n": n})) for n in range(3)]
    await until(lambda: len(machine.records) == 3)
    await machine.kill(a)
    again = machine.process("a", notes=True)
    again.subscribe(CROSSING, collector(seen), "s")
    await again.start()
    await until(lambda: len(seen) == 3)
    assert seen == [0, 1, 2]
    for task in publishing:
        task.cancel()
    await asyncio.gather(*publishing, return_exceptions=True)


async def test_own_events_are_not_handled_again_after_a_restart(machine):
    seen = []
    a = machine.process("a")
    a.subscribe(CROSSING, collector(seen), "s")
    for n in range(5):
        await a.publish(CROSSING, {"n": n})
    await a.stop()
    again = machine.process("a")
    again.subscribe(CROSSING, collector(seen), "s")
    await again.start()
    await again.publish(CROSSING, {"n": 5})
    await quiet()
    assert seen == [0, 1, 2, 3, 4, 5]


async def test_a_handler_that_is_stopped_and_started_again_misses_nothing_and_repeats_nothing(machine):
    seen = []
    a, b = machine.process("a"), machine.process("b")
    collect = collector(seen)
    await b.start()
    for n in range(6):
        handle = b.subscribe(CROSSING, collect, "daemon")
        await until(lambda n=n: len(seen) >= 2 * n)
        await a.publish(CROSSING, {"n": 2 * n})
        await until(lambda n=n: len(seen) == 2 * n + 1)
        handle()
        await a.publish(CROSSING, {"n": 2 * n + 1})
    await quiet()
    assert seen == list(range(11))


async def test_a_handler_that_is_restarted_while_busy_gets_what_was_queued_and_not_what_still_runs(machine):
    seen, gate = [], asyncio.Event()
    a, b = machine.process("a"), machine.process("b")

    async def slow(event):
        if event["n"] == 0:
            await gate.wait()
        seen.append(event["n"])

    await b.start()
    handle = b.subscribe(CROSSING, slow, "daemon")
    for n in range(3):
        await a.publish(CROSSING, {"n": n})
    await until(lambda: handle.subscription.mailbox)
    handle()
    b.subscribe(CROSSING, slow, "daemon")
    await until(lambda: seen == [1, 2])
    gate.set()
    await until(lambda: 0 in seen)
    await quiet()
    assert seen == [1, 2, 0]
    await b.stop()
    assert machine.store.events.positions[CursorKey("daemon", "b")] == Position(3)


async def test_an_own_event_that_the_reader_meets_before_its_publisher_returns_is_not_passed_over(machine):
    class SlowToReturn:
        def __init__(self, log):
            self._log = log

        def __getattr__(self, name):
            return getattr(self._log, name)

        async def append(self, events):
            stored = await self._log.append(events)
            await asyncio.sleep(60)
            return stored

    seen = []
    log = SlowToReturn(memory_engine(system_runtime(), machine.store).events)
    a = machine.process("a", log=log)
    a.subscribe(CROSSING, collector(seen), "s")
    await a.start()
    publishing = asyncio.create_task(a.publish(CROSSING, {"n": 1}))
    await until(lambda: machine.records)
    await quiet()
    await a._crossing._cursor_store.record(everything=True)
    await machine.kill(a)
    again = machine.process("a")
    again.subscribe(CROSSING, collector(seen), "s")
    await again.start()
    await until(lambda: seen == [1])
    publishing.cancel()
    await asyncio.gather(publishing, *a._crossing._adopting, return_exceptions=True)


async def test_events_lost_to_retention_are_reported(tmp_path):
    machine = Machine(tmp_path, EngineLimits(event_retention_rows=5, subscription_life_s=1e-6))
    seen = []
    a, b = machine.process("a"), machine.process("b")
    b.subscribe(CROSSING, collector(seen), "s")
    await b.start()
    await a.publish(CROSSING, {"n": 0})
    await until(lambda: seen == [0])
    await b.stop()
    for n in range(1, 21):
        await a.publish(CROSSING, {"n": n})
    again = machine.process("b")
    again.subscribe(CROSSING, collector(seen), "s")
    await again.start()
    await until(lambda: 20 in seen)
    assert seen == [0, 16, 17, 18, 19, 20]
    stats = again.get_stats()
    assert (stats["retention_gaps"], stats["events_missed"]) == (1, 15)
    for router in machine.routers:
        await router.stop()


async def test_a_subscription_that_ended_for_good_does_not_hold_the_log(tmp_path):
    machine = Machine(tmp_path, EngineLimits(event_retention_rows=5, subscription_life_s=0.05))
    seen = []
    a, b = machine.process("a"), machine.process("b")
    ended = b.subscribe(CROSSING, collector(seen), "ended")
    await b.start()
    await a.publish(CROSSING, {"n": 0})
    await until(lambda: seen == [0])
    ended()
    for n in range(1, 31):
        await quiet(0.02)
        await b._crossing._cursor_store.record(everything=True)  # as it does by itself every half minute
        await a.publish(CROSSING, {"n": n})
    assert len(machine.records) <= 10
    for router in machine.routers:
        await router.stop()


async def test_a_cancelled_publisher_does_not_lose_its_event(machine):
    seen, started = [], asyncio.Event()
    a = machine.process("a")

    async def slow(event):
        started.set()
        await asyncio.sleep(30)

    a.subscribe(CROSSING, slow, "slow")
    a.subscribe(CROSSING, collector(seen), "rest")
    task = asyncio.create_task(a.publish(CROSSING, {"n": 1}))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: seen == [1])


class HeldLog:
    """A log that stores nothing until it is let go."""

    def __init__(self, log):
        self._log, self.asked, self.free = log, asyncio.Event(), asyncio.Event()

    def __getattr__(self, name):
        return getattr(self._log, name)

    async def append(self, events):
        self.asked.set()
        await self.free.wait()
        return await self._log.append(events)


async def test_a_router_that_stops_waits_for_events_on_their_way_to_the_log(machine):
    log = HeldLog(memory_engine(system_runtime(), machine.store).events)
    a = machine.process("a", log=log)
    await a.start()
    publishing = asyncio.create_task(a.publish(CROSSING, {"n": 1}))
    await log.asked.wait()
    stopping = asyncio.create_task(a.stop())
    await quiet()
    log.free.set()
    await stopping
    assert (await publishing)["n"] == 1
    assert len(machine.records) == 1


async def test_whoever_publishes_while_the_router_gives_up_on_the_log_is_told_and_not_cancelled(
    machine, monkeypatch
):
    monkeypatch.setattr(cross_process, "_STOP_S", 0.01)
    log = HeldLog(memory_engine(system_runtime(), machine.store).events)
    a = machine.process("a", log=log)
    await a.start()
    publishing = asyncio.create_task(a.publish(CROSSING, {"n": 1}))
    await log.asked.wait()
    await a.stop()
    with pytest.raises(Unavailable, match="the router stopped while it stored TRAINING_COMPLETED"):
        await publishing


async def test_the_log_coming_back_ends_the_degraded_state(machine):
    class FlakyLog:
        broken = True

        def __init__(self, log):
            self._log = log

        def __getattr__(self, name):
            return getattr(self._log, name)

        async def bounds(self):
            if self.broken:
                raise StorageFull("no")
            return await self._log.bounds()

    seen = []
    log = FlakyLog(memory_engine(system_runtime(), machine.store).events)
    b = machine.process("b", log=log)
    b._crossing._retry_s = 0.005
    b.subscribe(CROSSING, collector(seen))
    await until(lambda: b.get_stats()["cross_process_degraded"])
    assert not b.health_check().healthy
    log.broken = False
    await machine.process("a").publish(CROSSING, {"n": 1})
    await until(lambda: seen == [1])
    await until(lambda: not b.get_stats()["cross_process_degraded"])
    assert b.get_stats()["cross_process_failures"] >= 1


async def test_dropping_the_router_frees_its_identity_and_repeats_nothing():
    seen = []
    get_router().subscribe(CROSSING, collector(seen), "s")
    for n in range(3):
        await get_router().publish(CROSSING, {"n": n})
    name = await get_router().identify()
    reset_router()
    get_router().subscribe(CROSSING, collector(seen), "s")
    await get_router().publish(CROSSING, {"n": 3})
    assert await get_router().identify() == name
    await quiet()
    assert seen == [0, 1, 2, 3]
    await get_router().stop()
    await close_engine()


# --- bookkeeping ------------------------------------------------------------------------------------------


@given(st.permutations(list(range(1, 9))), st.integers(0, 8), st.integers(0, 8))
@settings(max_examples=200, deadline=None)
def test_a_position_never_covers_what_is_not_handled(order, fed, finished):
    cursor = Cursor(Position(0), restored=False)
    for seq in order[:finished]:
        cursor.expect(seq)
    for seq in range(1, fed + 1):
        cursor.expect(seq)
    cursor.feed(fed)
    for seq in order[:finished]:
        cursor.finish(seq)
    position = cursor.position()
    covered = {seq for seq in range(1, 9) if seq <= position.floor or seq in position.done_above}
    assert covered == set(order[:finished])


def test_a_note_cut_off_by_a_crash_is_ignored(tmp_path):
    notes = DeliveryNotes(tmp_path, "me")
    notes.write(Note(3, "id-3", "some handler"))
    notes.close()
    with (tmp_path / "me.notes.a").open("ab") as file:
        file.write(b"4 id-4 some")
    again = DeliveryNotes(tmp_path, "me")
    assert list(again.read()) == [Note(3, "id-3", "some handler")]
    again.close()


def test_notes_that_were_closed_meanwhile_are_neither_written_nor_emptied(tmp_path):
    """The engine ends while positions are on their way into the log: what stands in the notes stays."""
    notes = DeliveryNotes(tmp_path, "me")
    notes.write(Note(3, "id-3", "some handler"))
    covered = notes.turn()
    notes.close()
    notes.write(Note(4, "id-4", "some handler"))
    notes.empty(covered)
    again = DeliveryNotes(tmp_path, "me")
    assert list(again.read()) == [Note(3, "id-3", "some handler")]
    again.close()


class HeldPositions:
    """A log that takes positions once it is let."""

    def __init__(self):
        self.commits, self.may_go = [], asyncio.Event()

    async def commit(self, positions):
        self.commits.append(positions)
        await self.may_go.wait()


async def test_two_recordings_at_once_lose_no_note(tmp_path):
    log, notes = HeldPositions(), DeliveryNotes(tmp_path, "me")
    book = CursorStore(
        log,
        Identity(instance="me", notes=notes),
        runtime=system_runtime(),
        backlog_s=60.0,
        last_at_start=0,
        is_ending=lambda: True,
    )
    cursor = book._cursors["s"] = Cursor(Position(0), restored=False)
    cursor.feed(9)
    first = asyncio.create_task(book.record())
    await asyncio.sleep(0)
    cursor.finish(3)
    second = asyncio.create_task(book.record())
    await asyncio.sleep(0)
    # Handled while positions are written: no position says so yet, and a crash may come now.
    notes.write(Note(12, "id-12", "s"))
    cursor.finish(12)
    log.may_go.set()
    await asyncio.gather(first, second)
    noted = {note.seq for note in notes.read()}
    recorded = {seq for commit in log.commits for item in commit.values() for seq in item.done_above}
    assert 12 in noted | recorded
    notes.close()


def test_an_instance_whose_notes_cannot_be_opened_is_free_for_the_next_attempt(tmp_path, monkeypatch):
    settings = load_settings({"RINGRIFT_DATA_DIR": str(tmp_path), "RINGRIFT_PROCESS_NAME": "me"}).settings

    def full(path, flags, mode):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(positions, "open_file", full)
        with pytest.raises(Unavailable, match="No space left"):
            asyncio.run(positions.process_log_connection(settings).claim())
    identity = asyncio.run(positions.process_log_connection(settings).claim())
    assert identity.instance == "me:1"
    identity.notes.close()
    identity.release()


async def test_notes_of_a_deleted_log_do_not_hide_events_of_the_new_one(machine):
    seen = []
    notes = DeliveryNotes(machine.tmp_path, "b")
    notes.write(Note(1, "an event of another log", "s"))
    notes.close()
    log = memory_engine(system_runtime(), machine.store).events
    await log.commit({CursorKey("s", "b"): Position(0)})
    await machine.process("a").publish(CROSSING, {"n": 1})
    b = machine.process("b", notes=True)
    b.subscribe(CROSSING, collector(seen), "s")
    await b.start()
    await until(lambda: seen == [1])


async def test_a_full_disk_under_the_notes_does_not_stop_deliveries(machine):
    """A note only saves repeating an event after a crash; without room for one the event is still handled."""
    seen = []
    a = machine.process("a", notes=True)
    a.subscribe(CROSSING, collector(seen))
    await a.publish(CROSSING, {"n": 0})
    notes = a._crossing._identity.notes
    notes._files = [os.open("/dev/full", os.O_WRONLY), os.open("/dev/full", os.O_WRONLY)]
    for n in (1, 2):
        await asyncio.wait_for(a.publish(CROSSING, {"n": n}), 60)
    assert seen == [0, 1, 2]
    await a.stop()
    again = machine.process("a", notes=True)
    again.subscribe(CROSSING, collector(seen))
    await again.start()
    await quiet()
    assert seen == [0, 1, 2]


async def test_a_handler_that_publishes_while_the_router_stops_does_not_start_it_again(machine):
    seen, a = [], machine.process("a")

    async def slow(event):
        await quiet()
        await a.publish("MODEL_PROMOTED", {"n": event["n"]})
        seen.append(event["n"])

    a.subscribe(CROSSING, slow)
    await a.start()
    b = machine.process("b")
    await b.publish(CROSSING, {"n": 1})
    await until(lambda: any(item.running for item in a._table))
    await a.stop()
    assert seen == [1]
    assert not a._crossing.is_reading
    await b.publish(CROSSING, {"n": 2})
    await quiet()
    assert seen == [1]


async def test_a_note_outlives_a_second_crash_in_which_its_subscription_did_not_move(machine):
    class Uncommitted:
        def __init__(self, log):
            self._log = log

        def __getattr__(self, name):
            return getattr(self._log, name)

        async def commit(self, positions):
            if machine.records:
                raise StorageFull("disk full")
            await self._log.commit(positions)

    first, second = [], []
    full = Uncommitted(memory_engine(system_runtime(), machine.store).events)
    a = machine.process("a", notes=True, log=full)
    a.subscribe(CROSSING, collector(first), "first")
    await a.start()
    await a.publish(CROSSING, {"n": 1})
    await machine.kill(a)  # handled and noted, but no position was recorded
    again = machine.process("a", notes=True)
    again.subscribe("MODEL_PROMOTED", collector(second), "second")
    await again.start()
    await again.publish("MODEL_PROMOTED", {"n": 2})
    await quiet(0.1)
    await machine.kill(again)
    last = machine.process("a", notes=True)
    last.subscribe(CROSSING, collector(first), "first")
    await last.start()
    await quiet()
    assert (first, second) == ([1], [2])


# --- when events were last seen ---------------------------------------------------------------------------


async def last_seen(machine):
    return await read_last_seen(memory_engine(system_runtime(), machine.store).kv)


async def test_when_an_event_was_last_sent_and_received_is_kept_for_all_processes(machine):
    sender, hearer = machine.process("one"), machine.process("two")
    heard = asyncio.Event()
    hearer.subscribe("TRAINING_STARTED", lambda _event: heard.set(), "hearer")
    hearer.subscribe(None, lambda _event: None, "hears everything")
    await hearer.start()
    started = {"config_key": "hex8_2p", "job_id": "j", "node_id": "n"}
    sent = await sender.publish("TRAINING_STARTED", started)
    unheard = await sender.publish("MODEL_UPDATED", {"model_id": "m", "changes": {}})
    await sender.publish("MY_OWN_EVENT", {})
    async with asyncio.timeout(60):
        await heard.wait()
    assert await last_seen(machine) == {}, "not with every event"
    await sender.stop()
    await hearer.stop()
    assert await last_seen(machine) == {
        "TRAINING_STARTED": LastSeen(sent.timestamp, sent.timestamp),
        "MODEL_UPDATED": LastSeen(unheard.timestamp, None),
    }


async def test_an_older_time_replaces_no_newer_one(machine):
    first, second = machine.process("one"), machine.process("two")
    await first.publish("NODE_RECOVERED", {"node_id": "n"})
    later = await second.publish("NODE_RECOVERED", {"node_id": "n"})
    await second.stop()
    await first.stop()
    assert (await last_seen(machine))["NODE_RECOVERED"] == LastSeen(later.timestamp, None)


# --- what it leaves behind --------------------------------------------------------------------------------


async def test_the_engine_closes_after_the_last_position_was_recorded():
    router, seen = get_router(), []
    router.subscribe(CROSSING, collector(seen), "reader")
    await router.start()
    await router.publish(CROSSING, {"n": 1})
    instance = await router.identify()
    with capture_logs() as said:
        await close_engine()
        await router.stop()
    assert [line for line in said if line["log_level"] in ("warning", "error")] == []
    stored = (await (await get_engine()).events.positions(instance))["reader"]
    assert max((stored.floor, *stored.done_above)) == 1
    # It goes on with the engine that is opened next.
    await router.publish(CROSSING, {"n": 2})
    assert seen == [1, 2]
    await router.stop()
    await close_engine()


def test_a_recorder_that_was_left_on_the_background_loop_ends_with_the_engine():
    """A failure that is reported after the loop was given back is handled and recorded there."""
    router = get_router()
    router.subscribe(CROSSING, lambda event: None, "reader")
    run_blocking(router.occupy())
    run_blocking(router.publish(CROSSING, {"n": 1}))
    run_blocking(router.vacate())

    async def handle_late():
        [subscription] = router.subscriptions_to(CROSSING)
        router._crossing.handled(Delivery(RouterEvent(CROSSING), 1), subscription)
        return router._crossing._cursor_store.recorder

    recorder = run_blocking(handle_late())
    asyncio.run(close_engine())
    run_blocking(asyncio.wait_for(asyncio.wait({recorder}), 20))
    assert recorder.cancelled()
    reset_router()


async def test_an_event_has_a_number_of_its_own_in_the_log_of_each_router(machine, tmp_path):
    """A handler hands it on: its number there is not the one that is finished here."""
    other_machine = Machine(tmp_path / "other")
    here, there, seen = machine.process("here"), other_machine.process("there"), []

    async def hand_on(event):
        await there.publish_event(event)

    here.subscribe(CROSSING, hand_on, "hand_on")
    there.subscribe(CROSSING, collector(seen), "reader")
    for n in range(3):
        await there.publish(CROSSING, {"n": n})
    await here.publish(CROSSING, {"n": 3})
    await here.stop()
    await there.stop()
    assert seen == [0, 1, 2, 3]
    for of, instance, subscription, newest in (
        (machine, "here", "hand_on", 1),
        (other_machine, "there", "reader", 4),
    ):
        stored = await memory_engine(system_runtime(), of.store).events.positions(instance)
        assert max((stored[subscription].floor, *stored[subscription].done_above)) == newest


async def test_what_was_handled_while_nobody_read_the_log_is_not_handled_again(machine):
    """Neither after a kill and a restart, nor when it reads again; what others said waits, and comes once."""

    def heard(router):
        seen = []
        router.subscribe(CROSSING, collector(seen), "s")
        return seen

    b, a = machine.process("b"), machine.process("a", notes=True)
    seen = heard(a)
    await a.start()
    await a.publish(CROSSING, {"n": 1})
    await a.rest()
    for n in range(2, 6):
        await a.publish(CROSSING, {"n": n})
        await b.publish(CROSSING, {"n": 10 + n})
    before = machine.store.events.positions[CursorKey("s", "a")]
    assert seen == [1, 2, 3, 4, 5]
    await machine.kill(a)
    again = machine.process("a", notes=True)
    seen = heard(again)
    await again.rest()  # the stop lasts over the restart
    await again.publish(CROSSING, {"n": 6})
    await machine.kill(again)
    third = machine.process("a", notes=True)
    seen = heard(third)
    await third.rest()
    await third.publish(CROSSING, {"n": 7})
    assert seen == [7]
    assert before.floor == machine.store.events.positions[CursorKey("s", "a")].floor
    await third.start()
    await until(lambda: len(seen) >= 5)
    await third.publish(CROSSING, {"n": 8})
    await quiet()
    assert seen == [7, 12, 13, 14, 15, 8]
    await third.stop()
    last = machine.process("a", notes=True)
    seen = heard(last)
    await last.start()
    await quiet()
    assert seen == []


async def test_a_long_rest_keeps_notes_of_the_newest_events_and_no_file_that_only_grows(machine, monkeypatch):
    monkeypatch.setattr(positions, "_RESTING_NOTES", 10)
    a = machine.process("a", notes=True)
    a.subscribe(CROSSING, collector([]), "s")
    await a.start()
    await a.rest()
    for n in range(95):
        await a.publish(CROSSING, {"n": n})
    await machine.kill(a)
    kept = [note.seq for note in DeliveryNotes(machine.tmp_path, "a").read()]
    assert len(kept) < 20
    assert set(range(86, 96)) <= set(kept)
