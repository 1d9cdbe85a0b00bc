"""Expiry, retention and vacuum run by themselves."""

import asyncio
import os
import sqlite3
import time
from dataclasses import replace

import pytest

from ringrift.engine.limits import EngineLimits
from ringrift.engine.ports import Claimant, Completion, CursorKey, LogEvent, NewWork, Position
from ringrift.errors import Unavailable

DAY_S = 86_400.0


@pytest.fixture
def busy(config):
    """Upkeep many times a second, and no waiting for those who come back."""
    return replace(config, upkeep_s=0.02, limits=EngineLimits(age_grace_s=1e-3))


async def until(condition, *, within_s=60.0):
    deadline_s = time.monotonic() + within_s
    while not await condition():
        assert time.monotonic() < deadline_s, "it did not happen by itself"
        await asyncio.sleep(0.01)


def rows(config, query):
    db = sqlite3.connect(f"file:{config.database}?mode=ro", uri=True)
    try:
        return db.execute(query).fetchone()[0]
    finally:
        db.close()


async def test_old_events_leave_and_the_file_shrinks(busy, opened, runtime):
    engine = await opened(busy)
    for start in range(0, 3000, 500):
        await engine.events.append(
            [LogEvent(id=str(start + n), type="T", body=bytes(1000)) for n in range(500)]
        )
    pages = rows(busy, "PRAGMA page_count")
    runtime.advance(2 * DAY_S)

    async def gone():
        first, last = await engine.events.bounds()
        return first > last and rows(busy, "PRAGMA page_count") < pages / 2

    await until(gone)


async def test_whoever_comes_back_after_a_long_sleep_finds_what_it_has_not_seen(config, opened, runtime):
    engine = await opened(replace(config, upkeep_s=0.02, limits=EngineLimits(age_grace_s=20.0)))
    runtime.advance(DAY_S)  # it has been up for long
    await engine.events.append([LogEvent(id="a", type="T", body=b"")])
    await engine.events.commit({CursorKey("c", "p:1"): Position(0)})
    runtime.advance(3 * DAY_S)  # nobody was there to say that the subscription lives
    await engine.queue.add([NewWork(kind="k", id="a"), NewWork(kind="k", id="b", delay_s=1.0)])
    runtime.advance(2.0)

    async def upkeep_was_there():
        return rows(config, "SELECT count(*) FROM work WHERE state = 3") == 0

    await until(upkeep_was_there)
    assert len(await engine.events.read(after=0, limit=9)) == 1

    async def gone():
        runtime.advance(0.5)
        return not await engine.events.read(after=0, limit=9)

    await until(gone)


async def test_too_many_events_leave(busy, opened):
    engine = await opened(replace(busy, limits=EngineLimits(event_retention_rows=100)))
    await engine.events.append([LogEvent(id=str(n), type="T", body=b"") for n in range(500)])

    async def trimmed():
        return (await engine.events.bounds()).first == 401

    await until(trimmed)


async def test_a_full_log_drops_nothing_of_those_who_may_come_back_after_a_long_sleep(
    config, opened, runtime
):
    limits = EngineLimits(age_grace_s=20.0, event_retention_rows=100)
    engine = await opened(replace(config, upkeep_s=0.02, limits=limits))
    runtime.advance(DAY_S)
    # The cursor comes first: a log without readers is trimmed by the next upkeep.
    await engine.events.commit({CursorKey("c", "p:1"): Position(0)})
    await engine.events.append(
        [LogEvent(id=str(n), type="T", body=b"") for n in range(limits.event_rows_max)]
    )
    runtime.advance(3 * DAY_S)  # nobody was there to say that the subscription lives
    with pytest.raises(Unavailable, match="'c' of 'p:1'"):
        await engine.events.append([LogEvent(id="refused", type="T", body=b"")])
    assert (await engine.events.bounds()).first == 1

    async def taken_again():
        runtime.advance(0.5)
        try:
            await engine.events.append([LogEvent(id="taken", type="T", body=b"")])
        except Unavailable:
            return False
        return True

    await until(taken_again)  # it did not come back


async def test_leases_and_entries_end(busy, opened, runtime):
    engine = await opened(busy)
    await engine.queue.add([NewWork(kind="k", attempts_max=1)])
    await engine.queue.claim(Claimant(worker="w"), lease_s=30)
    await engine.kv.put("a", b"1", ttl_s=30)
    runtime.advance(31)

    async def ended():
        dead = rows(busy, "SELECT count(*) FROM work WHERE state = 5")
        return dead == 1 and rows(busy, "SELECT count(*) FROM kv WHERE value IS NOT NULL") == 0

    await until(ended)


async def test_ended_work_leaves_by_age_and_the_dead_stay_longer(busy, opened, runtime):
    engine = await opened(busy)
    await engine.queue.add([NewWork(kind="k", id=name, attempts_max=1) for name in ("done", "dead", "held")])
    claims = await engine.queue.claim(Claimant(worker="w"), lease_s=30 * DAY_S, limit=3)
    await engine.queue.complete("done", token=claims[0].token)
    await engine.queue.fail("dead", token=claims[1].token, error="x")
    await engine.queue.add([NewWork(kind="k", id="waits", after=("held",))])
    runtime.advance(8 * DAY_S)

    async def done_left():
        return rows(busy, "SELECT count(*) FROM work") == 3

    await until(done_left)
    assert await engine.queue.get("done") is None
    assert await engine.queue.get("dead") is not None
    await engine.queue.renew("held", token=claims[2].token, lease_s=30 * DAY_S)
    runtime.advance(29.9 * DAY_S)

    async def dead_left():
        return rows(busy, "SELECT count(*) FROM work") == 2

    await until(dead_left)
    assert (await engine.queue.get("waits")).state == "blocked"


async def test_too_much_ended_work_leaves_early(busy, opened):
    engine = await opened(replace(busy, limits=EngineLimits(work_rows_max=50)))
    await engine.queue.add([NewWork(kind="k") for _ in range(200)])
    claims = await engine.queue.claim(Claimant(worker="w"), lease_s=30, limit=180)
    await engine.queue.complete_many([Completion(id=c.id, token=c.token) for c in claims])

    async def dropped():
        return rows(busy, "SELECT count(*) FROM work") == 50

    await until(dropped)
    assert await engine.queue.counts() == {"k": {"ready": 20, "done": 30}}
    ends = await engine.queue.ended(after=0, limit=1000)
    assert (len(ends), rows(busy, "SELECT count(*) FROM work_end")) == (30, 30)
    assert ends[-1].number == 180  # numbers stay as they were given


async def test_deletions_and_idle_positions_are_forgotten_in_time(busy, opened, runtime):
    engine = await opened(busy)
    await engine.kv.put("a", b"1")
    await engine.kv.delete("a")
    await engine.events.commit({CursorKey("c", "i"): Position(1)})
    runtime.advance(31 * DAY_S)
    await engine.close()
    await opened(busy)

    async def forgotten():
        return rows(busy, "SELECT (SELECT count(*) FROM kv) + (SELECT count(*) FROM cursor)") == 0

    await until(forgotten)


async def test_unfinished_blobs_of_dead_processes_are_removed(busy, opened):
    incoming = busy.blob_dir / ".incoming"
    incoming.mkdir(parents=True)
    (incoming / "left").write_bytes(b"half")
    (incoming / "fresh").write_bytes(b"half")
    (incoming / ("a" * 64)).write_bytes(b"may be continued")
    two_hours_ago = time.time() - 7200
    for name in ("left", "a" * 64):
        os.utime(incoming / name, (two_hours_ago, two_hours_ago))
    await opened(busy)

    async def swept():
        return sorted(path.name for path in incoming.iterdir()) == ["a" * 64, "fresh"]

    await until(swept)


async def test_one_process_at_a_time_does_upkeep(busy, opened, runtime):
    first, second = await opened(busy), await opened(busy)
    await asyncio.sleep(0.1)
    await first.close()
    await second.events.append([LogEvent(id="a", type="T", body=b"")])
    runtime.advance(2 * DAY_S)

    async def taken_over():
        first_seq, last_seq = await second.events.bounds()
        return first_seq > last_seq

    await until(taken_over)
