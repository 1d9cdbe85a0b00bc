"""Many calls share a commit; none harms another; every wait ends."""

import asyncio
import fcntl
import os
import sqlite3
import threading
from dataclasses import replace

import pytest

from ringrift.engine.blocking import BackgroundLoop
from ringrift.engine.ports import Claimant, LogEvent, NewWork
from ringrift.errors import AlreadyExists, ConfigError, RevisionMismatch, StorageFull, Unavailable


def event(number):
    return LogEvent(id=str(number), type="T", body=b"")


def committed_transactions(database):
    """How many commits are in the write-ahead log: frames that carry a database size end one."""
    wal = database.with_name(database.name + "-wal").read_bytes()[32:]
    frame = 24 + 4096
    sizes = [int.from_bytes(wal[at + 4 : at + 8], "big") for at in range(0, len(wal), frame)]
    return sum(size > 0 for size in sizes)


async def test_concurrent_calls_share_commits(config, opened):
    engine = await opened(config)
    await engine.events.append([event("first")])
    before = committed_transactions(config.database)
    with held_pen(config):  # all of them wait, however quick the disk is
        calls = [asyncio.create_task(engine.events.append([event(n)])) for n in range(500)]
        await asyncio.sleep(0.05)
    await asyncio.gather(*calls)
    assert committed_transactions(config.database) - before < 50
    assert (await engine.events.bounds()).last == 501


async def test_a_refused_call_harms_no_other_in_its_commit(config, opened):
    engine = await opened(config)
    await engine.kv.put("a", b"1")
    calls = []
    for number in range(50):
        calls.append(engine.kv.update("a", b"x", revision=999))
        calls.append(engine.queue.add([NewWork(kind="a", id=f"{number}"), NewWork(kind="b", id=f"{number}")]))
        calls.append(engine.events.append([event(number)]))
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(outcome, RevisionMismatch) for outcome in outcomes[0::3])
    assert all(isinstance(outcome, AlreadyExists) for outcome in outcomes[1::3])
    assert (await engine.events.bounds()).last == 50
    assert await engine.queue.counts() == {}


@pytest.mark.parametrize("in_its_place", [False, True])
async def test_a_database_that_was_exchanged_takes_no_more_writes_and_is_left_alone(
    config, opened, in_its_place
):
    engine = await opened(config)
    await engine.kv.put("a", b"1")
    config.database.parent.rename(config.database.parent.with_name("moved"))
    if in_its_place:
        newer = await opened(config)
        await newer.kv.put("a", b"2")
    was = "was exchanged" if in_its_place else "was moved or removed"
    assert was in engine.failure
    assert was in engine.exchanged
    with pytest.raises(Unavailable, match=was):
        await engine.kv.put("a", b"3")
    with pytest.raises(Unavailable, match=was):
        await engine.blobs.put_bytes(b"x")
    await engine.close()
    if in_its_place:
        assert (newer.failure, newer.exchanged) == ("", "")
        assert (await newer.kv.get("a")).value == b"2"
        assert await newer.blobs.digests() == []
        await newer.close()
        again = await opened(config)
        assert (await again.kv.get("a")).value == b"2"


async def test_a_commit_that_cannot_be_made_fails_all_its_calls_and_no_later_one(config, opened):
    engine = await opened(replace(config, database_bytes_max=2**20))
    any_one = Claimant(worker="w")
    with held_pen(config):
        together = [
            asyncio.create_task(call)
            for call in (
                engine.queue.add([NewWork(kind="undone", id="x")]),
                engine.queue.claim(any_one, lease_s=30),
                *(engine.kv.put(str(n), bytes(400_000)) for n in range(4)),
            )
        ]
        await asyncio.sleep(0.05)
    outcomes = await asyncio.gather(*together, return_exceptions=True)
    assert all(isinstance(outcome, StorageFull) for outcome in outcomes)
    assert await engine.queue.counts() == {}
    # The number of the lane that was undone is given again, to another kind.
    await engine.queue.add([NewWork(kind="kept", id="y")])
    (claim,) = await engine.queue.claim(any_one, lease_s=30)
    assert claim.kind == "kept"


async def test_events_that_do_not_fit_fail_alone(config, opened):
    engine = await opened(replace(config, database_bytes_max=2**20))
    with held_pen(config):
        added = asyncio.create_task(engine.queue.add([NewWork(kind="kept", id="x")]))
        large = [LogEvent(id=str(n), type="T", body=bytes(400_000)) for n in range(4)]
        appended = asyncio.create_task(engine.events.append(large))
        await asyncio.sleep(0.05)
    assert await added == ["x"]
    with pytest.raises(StorageFull):
        await appended
    assert (await engine.queue.get("x")).kind == "kept"
    assert await engine.events.read(after=0, limit=10) == []


async def test_a_cancelled_call_that_has_not_begun_never_happens(config, opened):
    engine = await opened(config)
    with held_pen(config):
        call = asyncio.create_task(engine.kv.put("a", b"1"))
        await asyncio.sleep(0.05)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    await engine.kv.put("b", b"1")
    assert [entry.key for entry in await engine.kv.entries()] == ["b"]


class held_pen:  # noqa: N801 - reads as a phrase
    """Another process that writes and does not end."""

    def __init__(self, config):
        self._descriptor = os.open(config.database.with_name(config.database.name + ".pen"), os.O_RDWR)

    def __enter__(self):
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def __exit__(self, *_):
        os.close(self._descriptor)


async def test_a_stuck_process_makes_others_unavailable_in_time(config, opened):
    engine = await opened(replace(config, call_wait_s=2.0))
    await engine.kv.put("a", b"0")
    with held_pen(config):
        with pytest.raises(Unavailable, match="nothing was written"):
            await engine.kv.put("a", b"1")
        entry = await engine.kv.get("a")
        assert entry.value == b"0"  # reading goes on
    await engine.kv.put("b", b"2")
    assert {entry.key: entry.value for entry in await engine.kv.entries()} == {"a": b"0", "b": b"2"}


async def test_a_foreign_lock_on_the_database_makes_unavailable_in_time(config, opened):
    engine = await opened(replace(config, call_wait_s=2.0))
    other = sqlite3.connect(config.database, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable):
        await engine.kv.put("a", b"1")
    other.execute("ROLLBACK")
    other.close()
    await engine.kv.put("b", b"1")


async def test_too_many_waiting_calls_are_refused(config, opened):
    engine = await opened(replace(config, pending_max=10, call_wait_s=30))
    with held_pen(config):
        calls = [asyncio.create_task(engine.kv.put(str(n), b"")) for n in range(30)]
        await asyncio.sleep(0.05)
        refused = [call for call in calls if call.done()]
        assert len(refused) >= 19
        assert all(isinstance(call.exception(), Unavailable) for call in refused)
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert len(await engine.kv.entries()) == sum(isinstance(outcome, int) for outcome in outcomes) >= 10


async def test_closing_finishes_what_was_accepted(config, opened):
    engine = await opened(config)
    calls = [asyncio.create_task(engine.events.append([event(n)])) for n in range(50)]
    await asyncio.sleep(0)
    await engine.close()
    await engine.close()
    assert len(await asyncio.gather(*calls)) == 50
    with pytest.raises(Unavailable):
        await engine.kv.put("a", b"1")
    with pytest.raises(Unavailable):
        await engine.kv.get("a")
    with pytest.raises(Unavailable):
        await engine.blobs.put_bytes(b"x")
    again = await opened(config)
    assert (await again.events.bounds()).last == 50


async def test_closing_while_another_process_hangs_ends_in_time(config, opened):
    engine = await opened(replace(config, call_wait_s=2.0))
    with held_pen(config):
        with pytest.raises(Unavailable):
            await engine.kv.put("a", b"1")
        await asyncio.wait_for(engine.close(), 60)


async def test_one_engine_serves_several_loops_and_threads(config, opened):
    engine = await opened(config)
    other = BackgroundLoop()
    try:
        found = []

        def in_a_thread():
            found.append(
                other.run(engine.queue.claim(Claimant(worker="t"), lease_s=90, wait_s=60), timeout_s=90)
            )

        thread = threading.Thread(target=in_a_thread)
        thread.start()
        await asyncio.sleep(0.05)
        (item_id,) = await engine.queue.add([NewWork(kind="k")])
        await asyncio.to_thread(thread.join)
        assert [claim.id for claims in found for claim in claims] == [item_id]
    finally:
        other.close()


async def test_the_loop_is_never_blocked(config, opened):
    engine = await opened(config)
    loop, longest_s = asyncio.get_running_loop(), []
    for _ in range(5):  # a busy machine may hold up any one round; what blocks the loop is in all of them
        longest_s.append(0.0)
        with held_pen(config):
            calls = [asyncio.create_task(engine.kv.put(str(n), b"")) for n in range(5)]
            for _ in range(20):
                before_s = loop.time()
                await asyncio.sleep(0.005)
                longest_s[-1] = max(longest_s[-1], loop.time() - before_s)
        await asyncio.gather(*calls)
        if longest_s[-1] < 0.5:
            break
    assert min(longest_s) < 0.5  # a call that blocks would do so until it gives up, after some seconds


def broken(error):
    def operation(tx):
        tx.db.execute("INSERT INTO event(id, type, appended_s, body) VALUES ('half', 'T', 0, x'')")
        raise error

    return operation


BROKEN = [
    broken(ZeroDivisionError("x")),
    broken(RecursionError()),
    broken(MemoryError()),
    broken(SystemExit(3)),
    broken(KeyboardInterrupt()),
    broken(ValueError("name \udcff")),
    lambda tx: tx.db.execute(
        "INSERT INTO event(id, type, appended_s, body) VALUES (?, 'T', 0, x'')", (2**70,)
    ),
    lambda tx: tx.db.execute(
        "INSERT INTO event(id, type, appended_s, body) VALUES (?, 'T', 0, x'')", ("\udcff",)
    ),
    lambda tx: tx.db.execute("INSERT INTO event(id, type, appended_s, body) VALUES ('x', 'T', 0, 'text')"),
    lambda tx: tx.db.execute("no sql"),
    lambda tx: tx.db.execute("SELECT ?"),
]


async def test_an_operation_that_raises_anything_harms_nobody(config, opened):
    engine, other = await opened(config), await opened(config)
    writer = engine.kv._store.writer
    with held_pen(config):  # all of them in one commit
        bad = [asyncio.create_task(writer.call(operation)) for operation in BROKEN]
        good = [asyncio.create_task(engine.kv.put(str(n), b"1")) for n in range(5)]
        await asyncio.sleep(0.05)
    outcomes = await asyncio.gather(*bad, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ConfigError] * len(BROKEN)
    await asyncio.gather(*good)
    assert (await engine.events.bounds()).last == 0  # nothing of them is left
    await asyncio.gather(engine.kv.put("a", b"1"), other.kv.put("b", b"1"))
    assert engine.failure == ""


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
async def test_an_operation_that_ends_the_transaction_of_all_leaves_the_writer_whole(config, opened, end):
    engine, other = await opened(config), await opened(config)
    with pytest.raises(Unavailable):
        await engine.kv._store.writer.call(lambda tx: tx.db.execute(end))
    await engine.kv.put("a", b"1")
    await other.kv.put("b", b"1")


async def test_a_reading_that_raises_anything_harms_no_other(config, opened):
    engine = await opened(config)
    store = engine.kv._store

    def broken_reading(db):
        db.execute("SELECT 1")
        raise SystemExit(3)

    for _ in range(5):
        for query in (broken_reading, lambda db: db.execute("no sql"), lambda db: 1 / 0):
            with pytest.raises(ConfigError):
                await store.read(query)
    assert await engine.kv.get("a") is None


async def test_upkeep_that_fails_does_not_end_the_writer(config, opened):
    engine = await opened(replace(config, upkeep_s=0.01))
    rounds = []

    def broken_sweep():
        rounds.append(1)
        raise OSError("no folder")

    upkeep = engine.lifecycle._upkeep
    upkeep._sweep_blobs, upkeep._rounds = broken_sweep, 0
    for _ in range(3000):
        if rounds:
            break
        await asyncio.sleep(0.01)
    assert rounds
    await engine.kv.put("a", b"1")


ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT max(x) FROM c"


async def test_closing_ends_though_a_reader_and_a_blob_thread_do_not(config, opened):
    engine, let_go = await opened(replace(config, call_wait_s=0.5)), threading.Event()
    reading = asyncio.create_task(engine.kv._store.read(lambda db: db.execute(ENDLESS).fetchone()))
    storing = asyncio.create_task(engine.blobs.run(lambda: let_go.wait(200)))
    await asyncio.sleep(0.1)
    try:
        await asyncio.wait_for(engine.close(), 60)
        with pytest.raises(Unavailable):
            await reading
        assert not storing.done()
    finally:
        let_go.set()
    assert await storing


async def test_wake_ups_that_fail_do_not_end_the_writer(config, opened):
    engine = await opened(config)

    def broken_announcement(changed):
        raise OSError("no socket")

    engine.kv._store.writer._announce = broken_announcement
    await engine.kv.put("a", b"1")
    await engine.kv.put("a", b"2")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_writer_that_is_gone_says_so_at_once_and_holds_nobody_up(config, opened):
    engine, other = await opened(replace(config, call_wait_s=300.0)), await opened(config)
    waiting = asyncio.create_task(engine.queue.claim(Claimant(worker="w"), lease_s=60, wait_s=300))
    watching = asyncio.create_task(anext(engine.kv.watch("a")))
    await asyncio.sleep(0.1)
    assert engine.failure == ""
    writer = engine.kv._store.writer
    writer._upkeep._lock.try_lock()

    def broken_transaction(batch):
        writer._db.execute("BEGIN IMMEDIATE")
        raise RuntimeError("a defect")

    writer._transact = broken_transaction
    calls = [asyncio.create_task(engine.kv.put(str(n), b"")) for n in range(3)]
    outcomes = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)
    assert all(isinstance(outcome, Unavailable) and "a defect" in str(outcome) for outcome in outcomes)
    with pytest.raises(Unavailable, match="a defect"):
        await engine.kv.put("later", b"")
    with pytest.raises(Unavailable, match="a defect"):
        await asyncio.wait_for(waiting, 60)
    assert "a defect" in engine.failure
    await other.kv.put("a", b"1")
    assert other.failure == ""
    assert (await asyncio.wait_for(watching, 60)).value == b"1"  # reading goes on
    assert other.lifecycle._upkeep._lock.try_lock()
