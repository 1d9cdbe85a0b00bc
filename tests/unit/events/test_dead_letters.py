"""Dead letters: kept per event and subscription, retried alone, given up at the limit."""

import asyncio
import shutil
import sqlite3
import threading
from contextlib import closing
from datetime import datetime, timedelta

import pytest
from structlog.testing import capture_logs

from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.dead_letter_queue import (
    DeadLetterQueue,
    DLQRetryDaemon,
    FailedEvent,
    create_dlq_retry_daemon,
    enable_dead_letter_queue,
    get_dead_letter_queue,
    run_retry_daemon,
)
from ringrift.coordination.event_router import get_router
from ringrift.errors import ConfigError, Corrupt, ForeignFile, SchemaTooNew
from ringrift.events.dead_letter_store import STORED
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.runtime import SystemRuntime


class SetClock(SystemRuntime):
    """Wall-clock time stands still until told."""

    def __init__(self):
        super().__init__()
        self.now = 1_800_000_000.0

    def now_s(self):
        return self.now


@pytest.fixture
def clock():
    return SetClock()


@pytest.fixture
def dlq(tmp_path, clock):
    queue = DeadLetterQueue(tmp_path / "deep" / "down" / "letters.db", runtime=clock)
    yield queue
    queue.close()


@pytest.fixture
def router(dlq):
    router = UnifiedEventRouter()
    enable_dead_letter_queue(dlq, router)
    return router


class Flaky:
    """Fails until it is mended."""

    def __init__(self):
        self.broken, self.calls = True, []

    async def __call__(self, event):
        await asyncio.sleep(0)
        self.calls.append(event.event_id)
        if self.broken:
            raise ValueError("not now")


async def test_only_the_subscription_that_failed_is_retried(router, dlq):
    flaky, good = Flaky(), []
    router.subscribe("MY_EVENT", flaky, "flaky")
    router.subscribe("MY_EVENT", lambda e: good.append(e.event_id), "good")
    event = await router.publish("MY_EVENT", {"n": 1}, "tester")
    [letter] = dlq.get_pending_events()
    assert (letter.subscription, letter.event_type, letter.payload) == ("flaky", "MY_EVENT", {"n": 1})
    flaky.broken = False
    assert await dlq.retry_event(letter.event_id) is True
    assert flaky.calls == [event.event_id] * 2
    assert good == [event.event_id]
    stats = dlq.get_stats()
    assert (stats["pending"], stats["recovered"], stats["session_recovered"]) == (0, 1, 1)


async def test_a_retry_that_fails_again_is_counted_and_not_called_recovered(router, dlq):
    router.subscribe("MY_EVENT", Flaky(), "flaky")
    await router.publish("MY_EVENT", {})
    [letter] = dlq.get_pending_events()
    assert await dlq.retry_event(letter.event_id) is False
    [again] = dlq.get_pending_events()
    assert (again.event_id, again.retry_count) == (letter.event_id, 1)
    assert dlq.get_stats()["total"] == 1


async def test_it_is_given_up_at_the_limit(router, dlq):
    router.subscribe("MY_EVENT", Flaky(), "flaky")
    await router.publish("MY_EVENT", {})
    [letter] = dlq.get_pending_events()
    for _ in range(dlq.max_retries):
        await dlq.retry_event(letter.event_id)
    stats = dlq.get_stats()
    assert (stats["pending"], stats["abandoned"], stats["session_abandoned"]) == (0, 1, 1)
    assert not await dlq.retry_event(letter.event_id)
    assert dlq.get_failed_events() == []
    assert [row["status"] for row in dlq.get_failed_events(include_abandoned=True)] == ["abandoned"]
    assert dlq.make_due(letter.event_id)  # a person may try it again
    assert dlq.get_pending_events()[0].retry_count == 0


async def test_backoff_doubles_up_to_its_limit_and_the_first_retry_is_immediate(router, dlq, clock):
    flaky = Flaky()
    dlq.max_retries = 20
    router.subscribe("MY_EVENT", flaky, "flaky")
    await router.publish("MY_EVENT", {})
    waits = []
    for _ in range(9):
        waited = 0
        while (await dlq.retry_failed_events())["failed"] == 0:
            clock.now += 60
            waited += 60
        waits.append(waited)
    assert waits == [0, 120, 240, 480, 960, 1920, 3600, 3600, 3600]


async def test_letters_in_backoff_do_not_block_newer_ones(router, dlq, clock):
    flaky = Flaky()
    router.subscribe("MY_EVENT", flaky, "flaky")
    for _ in range(10):
        await router.publish("MY_EVENT", {})
    assert await dlq.retry_failed_events(10) == {"recovered": 0, "failed": 10, "skipped": 0}
    await router.publish("MY_EVENT", {"newer": True})
    flaky.broken = False
    assert await dlq.retry_failed_events(10) == {"recovered": 1, "failed": 0, "skipped": 10}
    assert await dlq.retry_all() == {"recovered": 10, "failed": 0, "skipped": 0}


async def test_a_letter_of_an_absent_subscription_stays_pending(router, dlq):
    flaky = Flaky()
    handle = router.subscribe("MY_EVENT", flaky, "flaky")
    await router.publish("MY_EVENT", {})
    handle()
    for _ in range(10):
        assert await dlq.retry_all() == {"recovered": 0, "failed": 0, "skipped": 1}
    assert dlq.get_pending_events()[0].retry_count == 0
    flaky.broken = False
    router.subscribe("MY_EVENT", flaky, "flaky")
    assert (await dlq.retry_all())["recovered"] == 1


async def test_letters_survive_a_restart_with_the_whole_event(tmp_path, dlq, router):
    router.subscribe("MY_EVENT", Flaky(), "flaky")
    event = await router.publish("MY_EVENT", {"n": 1}, "tester")
    reopened, other, seen = DeadLetterQueue(dlq.db_path), UnifiedEventRouter(), []
    enable_dead_letter_queue(reopened, other)
    other.subscribe("MY_EVENT", seen.append, "flaky")
    assert (await reopened.retry_failed_events())["recovered"] == 1
    [again] = seen
    for name in ("event_id", "source", "trace_id", "timestamp", "payload"):
        assert getattr(again, name) == getattr(event, name)
    assert again.redelivered
    reopened.close()


async def test_the_payload_may_be_anything(router, dlq):
    flaky, model = Flaky(), object()
    router.subscribe("CHECKPOINT_SAVED", flaky, "flaky")
    await router.publish("CHECKPOINT_SAVED", {"metrics": {"model": model}})
    assert "object" in dlq.get_pending_events()[0].payload["metrics"]["model"]
    flaky.broken = False
    assert (await dlq.retry_all())["recovered"] == 1


async def test_a_letter_is_kept_however_odd_its_payload_and_error_are(router, dlq):
    circular = {"n": 1}
    circular["self"] = circular

    def broken(event):
        raise ValueError("half a pair: \ud800")

    router.subscribe("CHECKPOINT_SAVED", broken, "broken")
    for payload in ({("a", 1): 2}, circular, {"text": "\ud800"}, {"bytes": b"\xff"}):
        await router.publish("CHECKPOINT_SAVED", payload)
    kept = [letter.payload for letter in dlq.get_pending_events()]
    assert kept[0] == {"('a', 1)": 2}
    assert "..." in kept[1]["unreadable_payload"]
    assert len(kept) == 4
    assert router.get_stats()["dead_letters_lost"] == 0


async def test_registered_handlers_get_the_payload_and_the_first_success_wins(dlq):
    given = []

    async def first(payload):
        raise OSError("no")

    async def second(payload):
        given.append(payload)

    dlq.register_handler("LOST", first)
    dlq.register_handler("LOST", second)
    letter = dlq.capture("LOST", {"n": 1}, "somewhere", ValueError("x"), source="by hand")
    assert await dlq.retry_event(letter)
    assert given == [{"n": 1}]


async def test_a_letter_captured_by_hand_goes_to_the_subscribers_of_its_type(router, dlq):
    seen = []
    letter = dlq.capture("MY_EVENT", {"n": 1}, "some code", "failed")
    assert not await dlq.retry_event(letter)
    router.subscribe("MY_EVENT", seen.append)
    assert await dlq.retry_event(letter)
    assert seen[0].payload == {"n": 1}


async def test_a_letter_captured_by_hand_goes_again_only_to_the_subscribers_that_failed(router, dlq):
    flaky, good = Flaky(), []
    router.subscribe("MY_EVENT", lambda e: good.append(e["n"]), "good")
    router.subscribe("MY_EVENT", flaky, "flaky")
    letter = dlq.capture("MY_EVENT", {"n": 1}, "some code", "failed")
    assert not await dlq.retry_event(letter)
    assert not await dlq.retry_event(letter)
    with closing(DeadLetterQueue(dlq.db_path)) as reopened:
        reopened.serve(router)
        flaky.broken = False
        assert await reopened.retry_event(letter)
    assert (good, len(flaky.calls)) == ([1], 3)
    dlq.drop(letter)
    assert dlq._store.handled_by(letter) == frozenset()


async def test_a_letter_is_claimed_for_as_long_as_a_handler_works_on_it(router, dlq, clock, monkeypatch):
    monkeypatch.setenv("RINGRIFT_EVENT_HANDLER_TIMEOUT", "0.05")
    began, go_on, calls = asyncio.Event(), asyncio.Event(), []

    async def slow(event):
        calls.append(event["n"])
        began.set()
        await go_on.wait()

    router.subscribe("MY_EVENT", slow, "slow", timeout=3600)
    letter = dlq.capture("MY_EVENT", {"n": 1}, "some code", "failed")
    with closing(DeadLetterQueue(dlq.db_path, runtime=clock)) as other:
        other.serve(router)
        first = asyncio.create_task(dlq.retry_event(letter))
        await began.wait()
        clock.now += 10
        async with asyncio.timeout(60):
            while claimed_until_s(dlq) < clock.now:
                await asyncio.sleep(0.005)
        second = asyncio.create_task(other.retry_event(letter))
        async with asyncio.timeout(60):
            while not second.done() and not router.find_subscription("slow").mailbox:
                await asyncio.sleep(0.005)
        go_on.set()
        assert (await first, await second, calls) == (True, False, [1])


def claimed_until_s(dlq):
    with closing(sqlite3.connect(dlq.db_path)) as db:
        return db.execute("SELECT claimed_until_s FROM dead_letter").fetchone()[0]


async def test_a_letter_captured_by_hand_that_nobody_handles_is_given_up_at_the_limit(router, dlq):
    dlq.max_retries = 2
    letter = dlq.capture("MY_EVENT", {"n": 1}, "some code", "failed")
    assert await dlq.retry_failed_events() == {"recovered": 0, "failed": 1, "skipped": 0}
    assert dlq.get_event(letter).retry_count == 1
    assert not await dlq.retry_event(letter)
    assert (dlq.get_event(letter).status, dlq.get_stats()["session_abandoned"]) == ("abandoned", 1)
    assert "nobody" in dlq.get_event(letter).error


async def test_a_registered_handler_that_hangs_is_a_failed_attempt(dlq, monkeypatch):
    monkeypatch.setenv("RINGRIFT_EVENT_HANDLER_TIMEOUT", "0.01")
    letter = dlq.capture("MY_EVENT", {"n": 1}, "some code", "failed")
    dlq.register_handler("MY_EVENT", lambda payload: asyncio.Event().wait())
    assert not await asyncio.wait_for(dlq.retry_event(letter), 60)
    assert "timed out after 0.01 s" in dlq.get_event(letter).error


async def test_a_clock_that_was_set_back_keeps_no_letter_waiting(router, dlq, clock):
    flaky = Flaky()
    router.subscribe("MY_EVENT", flaky, "flaky")
    await router.publish("MY_EVENT", {})
    assert (await dlq.retry_failed_events())["failed"] == 1
    [letter] = dlq.get_pending_events()
    assert dlq._store.claim(letter.event_id, now_s=clock.now, until_s=clock.now + 1200)  # its process dies
    clock.now -= 30 * 86_400
    flaky.broken = False
    assert (await dlq.retry_failed_events())["recovered"] == 1


def test_rows_written_and_edited_by_other_programs_are_taken_as_they_are(dlq):
    """Times without an offset are local, and the oldest is the one with the oldest time."""
    recent = dlq.capture("MY_EVENT", {}, "h", "e")
    old = (datetime.now() - timedelta(days=3)).isoformat()  # noqa: DTZ005 - as other programs write it
    with sqlite3.connect(dlq.db_path) as db:
        db.execute(
            "INSERT INTO dead_letter(event_id, event_type, payload, handler_name, error, created_at)"
            " VALUES ('old', 'MY_EVENT', '{\"n\": 1}', 'h', 'e', ?)",
            (old,),
        )
    db.close()
    assert [letter.event_id for letter in dlq.get_pending_events()] == ["old", recent]
    assert [row["event_id"] for row in dlq.get_failed_events()] == [recent, "old"]
    assert dlq.get_pending_events(limit=1)[0].payload == {"n": 1}


def test_a_letter_that_is_not_what_was_stored_is_said_and_one_that_cannot_be_read_left_out(dlq):
    changed, broken, sound = [dlq.capture("MY_EVENT", {"n": n}, "h", "e") for n in range(3)]
    with sqlite3.connect(dlq.db_path) as db:
        db.execute("UPDATE dead_letter SET payload = '{\"n\": 4}' WHERE event_id = ?", (changed,))
        db.execute("UPDATE dead_letter SET payload = '{\"n\": ' WHERE event_id = ?", (broken,))
    db.close()
    with capture_logs() as said:
        assert [letter.event_id for letter in dlq.get_pending_events()] == [changed, sound]
    told = [(line["event"], line["letter"]) for line in said]
    assert told == [
        ("dead_letters.changed", changed),
        ("dead_letters.changed", broken),
        ("dead_letters.damaged", broken),
    ]
    dlq._store.record_attempt(sound, status="pending", error="again", retries=1, at="2020-01-01T00:00:00")
    with capture_logs() as said:
        assert dlq._store.get(sound).error == "again"
    assert said == []


@pytest.mark.parametrize("count", ["1" + "0" * 18 + "1", "9" * 20])
def test_a_damaged_count_of_letters_keeps_no_letter_out(tmp_path, count):
    path = tmp_path / "letters.db"
    with closing(DeadLetterQueue(path)) as dlq:
        dlq.capture("MY_EVENT", {}, "h", "e")
    path.with_name(path.name + STORED).write_text(f"{count}\n")
    for letters in (2, 3):
        with closing(DeadLetterQueue(path)) as dlq:
            dlq.capture("MY_EVENT", {}, "h", "e")
            assert dlq.get_pending_count() == letters
    assert int(path.with_name(path.name + STORED).read_text()) == 3


def test_an_empty_file_becomes_a_store_of_letters(tmp_path):
    path = tmp_path / "letters.db"
    path.touch()
    with closing(DeadLetterQueue(path)) as dlq:
        letter = dlq.capture("MY_EVENT", {}, "h", "e")
    with closing(DeadLetterQueue(path)) as dlq:
        assert [found.event_id for found in dlq.get_pending_events()] == [letter]
    assert path.stat().st_mode & 0o077 == 0


def test_a_store_that_was_cut_to_nothing_says_what_is_lost(tmp_path):
    path = tmp_path / "letters.db"
    with closing(DeadLetterQueue(path)) as dlq:
        dlq.capture("MY_EVENT", {}, "h", "e")
    path.write_bytes(b"")
    with capture_logs() as said, closing(DeadLetterQueue(path)) as dlq:
        assert dlq.get_pending_count() == 0
    assert [(line["event"], line["letters"]) for line in said] == [("dead_letters.lost", 1)]
    path.write_bytes(b"")
    path.with_name("letters.db-wal").write_bytes(b"what SQLite had not yet moved into the database")
    with pytest.raises(Corrupt, match="the file is empty"):
        DeadLetterQueue(path)


def test_letters_that_are_lost_with_a_file_are_said(tmp_path):
    path, old = tmp_path / "letters.db", tmp_path / "old.db"
    with closing(DeadLetterQueue(path)) as dlq:
        dlq.capture("MY_EVENT", {}, "h", "e")
    shutil.copyfile(path, old)
    with closing(DeadLetterQueue(path)) as dlq:
        dlq.capture("MY_EVENT", {}, "h", "e")
    shutil.copyfile(old, path)
    for _ in range(2):
        with capture_logs() as said, closing(DeadLetterQueue(path)) as dlq:
            assert dlq.get_pending_count() == 1
        assert [(line["event"], line["letters"]) for line in said] == [("dead_letters.lost", 1)]
    with closing(DeadLetterQueue(path)) as dlq:
        dlq.capture("MY_EVENT", {}, "h", "e")
    with capture_logs() as said, closing(DeadLetterQueue(path)) as dlq:
        assert dlq.get_pending_count() == 2
    assert said == []


def test_upkeep_removes_only_what_is_settled_and_old(dlq, clock):
    letters = [dlq.capture("MY_EVENT", {}, "h", "e") for _ in range(3)]
    dlq._store.abandon(letters[0])
    assert dlq.purge_old_events(7) == 0
    clock.now += 8 * 86_400
    assert dlq.cleanup(7) == 1
    assert dlq.abandon_stale(168) == 2
    assert dlq.get_pending_count() == 0
    assert dlq.drop(letters[1])
    assert not dlq.drop(letters[1])


def test_summaries(dlq):
    for n in range(3):
        dlq.capture("A" if n else "B", {}, "handler", "boom")
    assert dlq.get_pending_count() == 3
    assert dlq.get_pending_count("A") == 2
    assert dlq.get_error_summary()["by_error"] == {"boom": 3}
    assert dlq.get_stats()["by_event_type"] == {"A": 2, "B": 1}
    assert [letter.event_type for letter in dlq.get_pending_events(limit=2)] == ["B", "A"]
    assert [row["event_type"] for row in dlq.get_failed_events(limit=1)] == ["A"]
    assert dlq.health_check().healthy


def test_the_table_is_as_documented(dlq):
    dlq.capture("A", {"n": 1}, "handler", "boom")
    with sqlite3.connect(dlq.db_path) as db:
        columns = [row[1] for row in db.execute("PRAGMA table_info(dead_letter)")]
        indexes = {row[1] for row in db.execute("PRAGMA index_list(dead_letter)")}
        db.execute("UPDATE dead_letter SET last_retry_at = '2020-01-01T00:00:00', retry_count = 2")
    db.close()
    assert columns[:10] == [
        "event_id",
        "event_type",
        "payload",
        "handler_name",
        "error",
        "retry_count",
        "created_at",
        "last_retry_at",
        "source",
        "status",
    ]
    assert {"idx_dead_letter_status", "idx_dead_letter_event_type"} <= indexes
    letter = dlq.get_pending_events()[0]
    assert FailedEvent.from_dict(letter.to_dict()) == letter
    assert FailedEvent.from_dict({**letter.to_dict(), "payload": '{"n": 1}'}) == letter
    assert dlq._is_due(letter.retry_count, letter.last_retry_at)


def test_a_file_that_is_not_ours_is_left_alone(tmp_path):
    path, content = tmp_path / "letters.db", b"hello world" * 500
    path.write_bytes(content)
    with pytest.raises(ForeignFile):
        DeadLetterQueue(path)
    assert path.read_bytes() == content


def test_a_queue_that_is_only_asked_makes_no_file(tmp_path):
    queue = DeadLetterQueue(tmp_path / "letters" / "dlq.db")
    other = DeadLetterQueue(tmp_path / "letters" / "dlq.db")
    assert queue.get_pending_events() == queue.get_failed_events() == []
    assert (queue.get_pending_count(), queue.get_stats()["total"], queue.get_event("x")) == (0, 0, None)
    assert queue.purge_old_events() == queue.abandon_stale(hours=0) == 0
    assert not queue.make_due("x")
    assert not queue.drop("x")
    assert list(tmp_path.iterdir()) == []
    queue.capture("MY_EVENT", {}, "handler", "broken")
    assert other.get_pending_count() == queue.get_pending_count() == 1, "from then on it is in the file"
    queue.close()
    other.close()


def test_a_file_of_a_newer_version_is_left_alone(dlq):
    dlq.capture("MY_EVENT", {}, "handler", "broken")
    dlq.close()
    db = sqlite3.connect(dlq.db_path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(SchemaTooNew):
        DeadLetterQueue(dlq.db_path)


async def test_a_letter_that_another_process_retries_is_left_to_it(router, dlq, clock):
    flaky = Flaky()
    router.subscribe("MY_EVENT", flaky, "flaky")
    await router.publish("MY_EVENT", {})
    [letter] = dlq.get_pending_events()
    assert dlq._store.claim(letter.event_id, now_s=clock.now, until_s=clock.now + 100)
    assert (await dlq.retry_failed_events())["skipped"] == 1
    clock.now += 101  # that process is gone
    flaky.broken = False
    assert (await dlq.retry_failed_events())["recovered"] == 1


# --- the process's own queue and the daemon ---------------------------------------------------------------


async def test_failures_at_the_router_of_the_process_reach_its_queue():
    flaky = Flaky()
    get_router().subscribe("CHECKPOINT_SAVED", flaky, "flaky")
    assert not get_settings().dlq_path.exists()
    await get_router().publish("CHECKPOINT_SAVED", {})
    dlq = get_dead_letter_queue()
    assert dlq.db_path == get_settings().dlq_path
    stats = dlq.get_stats()
    assert (stats["pending"], stats["recovered"]) == (1, 0)
    flaky.broken = False
    assert (await dlq.retry_failed_events())["recovered"] == 1
    await get_router().stop()
    dlq.close()


async def test_the_daemon_retries_and_says_so(router, dlq):
    flaky, said = Flaky(), []
    router.subscribe("MY_EVENT", flaky, "flaky")
    router.subscribe("DLQ_EVENTS_REPLAYED", said.append)
    router.subscribe("DLQ_STALE_EVENTS", said.append)
    await router.publish("MY_EVENT", {})
    flaky.broken = False
    daemon = DLQRetryDaemon(dlq, interval_seconds=0.005, router=router)
    assert "not running" in daemon.health_check().message
    await daemon.start()
    await daemon.start()
    async with asyncio.timeout(30):
        while not said:
            await asyncio.sleep(0.005)
    assert daemon.health_check().healthy
    assert "running" in daemon.health_check().message
    await daemon.stop()
    await daemon.stop()
    assert said[0].event_type == "DLQ_EVENTS_REPLAYED"
    assert said[0].payload == {"recovered_count": 1, "event_types": ["MY_EVENT"]}
    metrics = daemon.get_metrics()
    assert (metrics["total_recovered"], metrics["running"]) == (1, False)
    assert metrics["dlq"]["recovered"] == 1


async def test_asking_how_the_daemon_is_reads_no_store_on_the_loop(router, dlq, monkeypatch):
    readers, count = [], dlq._store.count_by

    def noted(*args, **kwargs):
        readers.append(threading.current_thread())
        return count(*args, **kwargs)

    monkeypatch.setattr(dlq._store, "count_by", noted)
    dlq.capture("TRAINING_COMPLETED", {}, "h", "e")
    daemon = DLQRetryDaemon(dlq, router=router)
    assert daemon.health_check().details["dlq"] is None  # nobody has looked yet
    assert readers == []
    await daemon._run_cycle()
    assert daemon.health_check().details["dlq"]["details"]["pending"] == 1
    assert readers
    assert threading.current_thread() not in readers


async def test_the_daemon_gives_up_letters_of_another_week(router, dlq, clock):
    said = []
    router.subscribe("DLQ_STALE_EVENTS", said.append)
    dlq.capture("TRAINING_COMPLETED", {}, "h", "e")
    clock.now += 169 * 3600
    daemon = DLQRetryDaemon(dlq, interval_seconds=60, router=router)
    await daemon.start()
    async with asyncio.timeout(30):
        while not said:
            await asyncio.sleep(0.005)
    await daemon.stop()
    assert daemon.get_metrics()["total_stale_abandoned"] == 1
    assert said[0]["stale_count"] == 1


async def test_the_retry_daemon_runs_until_cancelled(dlq):
    task = asyncio.create_task(run_retry_daemon(dlq, interval_seconds=0.01))
    await asyncio.sleep(0.03)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert create_dlq_retry_daemon(dlq, max_attempts=3)._dlq.max_retries == 3


def test_a_folder_is_refused_when_the_queue_is_made_whoever_named_it(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="is a folder; name the database file in it"):
        DeadLetterQueue(tmp_path)
    monkeypatch.setenv("RINGRIFT_DLQ_PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="is a folder; name the database file in it"):
        DeadLetterQueue()
