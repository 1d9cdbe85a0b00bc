"""A wall clock that is set, by a day and back, in one process or in all, changes nothing for anybody."""

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from ringrift.engine.limits import EngineLimits
from ringrift.engine.memory import MemoryStore, memory_engine
from ringrift.engine.ports import Claimant, CursorKey, LogEvent, NewWork, Position
from ringrift.engine.sqlite.engine import open_sqlite
from ringrift.engine.sqlite.schema import TIME_KEPT
from ringrift.errors import Unavailable
from ringrift.testing.engine_contract import ShiftedRuntime

DAY_S = 86_400.0
LEASE_S = 30.0
LIMITS = EngineLimits(event_retention_s=3600.0, event_retention_rows=100, subscription_life_s=600.0)


class Processes:
    """Several processes of one machine, each with a wall clock of its own."""

    def __init__(self, kind, config):
        self.kind, self.config, self.store = kind, replace(config, limits=LIMITS), MemoryStore(limits=LIMITS)
        self.all, self.passed_s = [], 0.0

    async def start(self, wall_s=0.0, boot="first"):
        runtime = ShiftedRuntime()
        runtime.boot_id = boot
        runtime.jump_wall_clock(wall_s)
        runtime.advance(self.passed_s)
        if self.kind == "memory":
            engine = memory_engine(runtime, self.store)
        else:
            engine = await asyncio.to_thread(open_sqlite, self.config, runtime)
        self.all.append((engine, runtime))
        return engine, runtime

    def pass_time(self, seconds):
        self.passed_s += seconds
        for _, runtime in self.all:
            runtime.advance(seconds)

    async def end_all(self):
        for engine, _ in self.all:
            await engine.close()
        self.all.clear()


@pytest.fixture(params=["memory", "sqlite"])
async def processes(request, config):
    processes = Processes(request.param, config)
    yield processes
    await processes.end_all()


def events(*ids):
    return [LogEvent(id=each, type="T", body=b"") for each in ids]


@pytest.mark.parametrize("ahead_s", [DAY_S, -DAY_S])
async def test_a_lease_lasts_as_long_as_it_was_given_for_everybody(processes, ahead_s):
    engine, runtime = await processes.start(ahead_s)
    other, other_runtime = await processes.start()
    await engine.queue.add([NewWork(kind="k", id="a")])
    (claim,) = await engine.queue.claim(Claimant(worker="w"), lease_s=LEASE_S)
    runtime.jump_wall_clock(-ahead_s)  # set right again
    other_runtime.jump_wall_clock(ahead_s)
    assert await other.queue.claim(Claimant(worker="x"), lease_s=LEASE_S) == []
    await engine.queue.renew("a", token=claim.token, lease_s=LEASE_S)
    processes.pass_time(LEASE_S + 1)
    (again,) = await other.queue.claim(Claimant(worker="x"), lease_s=LEASE_S)
    assert again.token > claim.token
    await other.queue.complete("a", token=again.token)


@pytest.mark.parametrize("step_s", [DAY_S, -DAY_S])
async def test_delays_and_entries_end_when_they_should(processes, step_s):
    engine, runtime = await processes.start()
    other, _ = await processes.start(step_s)
    await engine.queue.add([NewWork(kind="k", id="a", delay_s=LEASE_S)])
    await engine.kv.put("key", b"1", ttl_s=LEASE_S)
    runtime.jump_wall_clock(step_s)
    for each in (engine, other):
        assert await each.queue.claim(Claimant(worker="w"), lease_s=LEASE_S) == []
        assert await each.kv.get("key") is not None
    processes.pass_time(LEASE_S + 1)
    assert await engine.kv.get("key") is None
    assert await other.kv.get("key") is None
    assert [claim.id for claim in await other.queue.claim(Claimant(worker="w"), lease_s=LEASE_S)] == ["a"]


async def test_every_process_reads_the_same_time_and_it_never_goes_back(processes):
    seen = []
    for wall_s in (0.0, -DAY_S, DAY_S, 3 * DAY_S, -3 * DAY_S):
        engine, runtime = await processes.start(wall_s)
        await engine.kv.put("key", b"1")
        runtime.jump_wall_clock(-wall_s / 2)
        seen.append(runtime.now_s())
        processes.pass_time(1.0)
    assert seen == sorted(seen)
    assert seen[-1] - seen[0] == pytest.approx(4.0, abs=3.0)


async def test_the_log_stays_sorted_and_is_searched_by_the_common_time(processes):
    engine, runtime = await processes.start()
    await engine.events.append(events("a"))
    runtime.jump_wall_clock(-3600)
    (second,) = await engine.events.append(events("b"))
    processes.pass_time(2.0)
    border_s = runtime.now_s() - 1
    runtime.jump_wall_clock(7200)
    await engine.events.append(events("c"))
    stamps = [record.appended_s for record in await engine.events.read(after=0, limit=10)]
    assert stamps == sorted(stamps)
    assert await engine.events.seq_at(since_s=border_s) == second.seq


async def test_what_ran_out_stays_gone_when_the_clock_goes_back(processes):
    engine, runtime = await processes.start()
    await engine.queue.add([NewWork(kind="k", id="a", attempts_max=1)])
    await engine.queue.claim(Claimant(worker="w"), lease_s=LEASE_S)
    processes.pass_time(LEASE_S + 1)
    assert (await engine.queue.get("a")).state == "dead"
    runtime.jump_wall_clock(-DAY_S)
    assert (await engine.queue.get("a")).state == "dead"


# --- retention ------------------------------------------------------------------------------------------


async def test_a_clock_that_is_ahead_removes_no_event(processes):
    engine, _ = await processes.start()
    await engine.events.append(events("a", "b"))
    ahead, _ = await processes.start(DAY_S)
    assert await ahead.events.trim() == 0
    assert (await engine.events.bounds()).first == 1


async def test_age_takes_nothing_that_a_live_subscription_has_not_seen(processes):
    engine, _ = await processes.start()
    slow, gone = CursorKey("slow", "p:1"), CursorKey("gone", "p:2")
    await engine.events.append(events("a", "b", "c"))
    await engine.events.commit({slow: Position(1), gone: Position(0)})
    for _ in range(4):  # it is there, and stores its position now and then though it does not move
        processes.pass_time(LIMITS.event_retention_s / 2)
        await engine.events.commit({slow: Position(1)})
    assert await engine.events.trim() == 1
    assert [record.id for record in await engine.events.read(after=0, limit=9)] == ["b", "c"]
    await engine.events.commit({slow: Position(3)})
    assert await engine.events.trim() == 2


async def test_a_subscription_that_is_gone_keeps_nothing_for_ever(processes):
    engine, _ = await processes.start()
    await engine.events.append(events("a"))
    await engine.events.commit({CursorKey("gone", "p:1"): Position(0)})
    processes.pass_time(LIMITS.event_retention_s + 1)
    assert await engine.events.trim() == 1


async def test_a_wall_clock_does_not_end_the_life_of_a_subscription(processes):
    engine, _ = await processes.start()
    await engine.events.commit({CursorKey("slow", "p:1"): Position(0)})
    await engine.events.append(events(*(str(number) for number in range(LIMITS.event_rows_max))))
    ahead, _ = await processes.start(DAY_S)
    assert await ahead.events.trim() == 0
    with pytest.raises(Unavailable):
        await ahead.events.append(events("refused"))


async def test_the_number_of_events_stays_bounded_all_the_same(processes):
    engine, _ = await processes.start()
    await engine.events.append(events("first"))
    await engine.events.commit({CursorKey("stuck", "p:1"): Position(0)})
    await engine.events.append(events(*(str(number) for number in range(LIMITS.event_retention_rows + 5))))
    await engine.events.trim()
    assert (await engine.events.bounds()).first == 1  # it is there, and may yet see them
    processes.pass_time(LIMITS.subscription_life_s + 1)
    await engine.events.trim()
    first, last = await engine.events.bounds()
    assert last - first + 1 == LIMITS.event_retention_rows


# --- another start of the machine -------------------------------------------------------------------------


@pytest.mark.parametrize("wall_s", [-DAY_S, 0.0, DAY_S])
async def test_time_goes_on_after_a_start_of_the_machine_whatever_the_wall_clock_says(config, wall_s):
    processes = Processes("sqlite", config)
    engine, runtime = await processes.start()
    await engine.queue.add([NewWork(kind="k", id="a")])
    await engine.queue.claim(Claimant(worker="w"), lease_s=LEASE_S)
    before_s = runtime.now_s()
    await processes.end_all()
    engine, runtime = await processes.start(wall_s, boot="second")
    assert runtime.now_s() > before_s
    processes.pass_time(LEASE_S + 1)
    assert len(await engine.queue.claim(Claimant(worker="x"), lease_s=LEASE_S)) == 1
    await processes.end_all()


async def test_leases_of_a_folder_that_counted_by_a_wall_clock_a_day_ahead_end_soon(config):
    runtime = ShiftedRuntime()
    engine = await asyncio.to_thread(open_sqlite, config, runtime)
    await engine.queue.add([NewWork(kind="k", id="a"), NewWork(kind="k", id="later", delay_s=60.0)])
    await engine.queue.claim(Claimant(worker="w"), lease_s=LEASE_S)
    await engine.kv.create("lease/role", b"{}", ttl_s=LEASE_S)
    await engine.close()
    with closing(sqlite3.connect(config.database)) as db:  # as a version before this one left it
        db.execute("DROP TABLE clock")
        db.execute("UPDATE work SET due_s = due_s + 86400")
        db.execute("UPDATE kv SET expires_s = expires_s + 86400")
        db.execute(f"PRAGMA user_version = {TIME_KEPT.version - 1}")
        db.commit()
    processes = Processes("sqlite", config)
    engine, _ = await processes.start()
    processes.pass_time(61.0)
    assert await engine.kv.get("lease/role") is None
    assert [claim.id for claim in await engine.queue.claim(Claimant(worker="x"), lease_s=LEASE_S)] == ["a"]
    processes.pass_time(3600.0)
    claims = await engine.queue.claim(Claimant(worker="x"), lease_s=LEASE_S, limit=2)
    assert {claim.id for claim in claims} == {"a", "later"}
    await processes.end_all()
