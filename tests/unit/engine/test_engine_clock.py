"""A wall clock that jumps must not unsort the log, lose work or bring back what ran out."""

import pytest

from ringrift.engine.memory import memory_engine
from ringrift.engine.ports import Claimant, LogEvent, NewWork


@pytest.fixture(params=["memory", "sqlite"])
async def engine(request, runtime, config, opened):
    return memory_engine(runtime) if request.param == "memory" else await opened(config)


async def test_the_log_stays_sorted_when_the_clock_goes_back(engine, runtime):
    first = await engine.events.append([LogEvent(id="a", type="T", body=b"")])
    runtime.jump_wall_clock(-3600)
    second = await engine.events.append([LogEvent(id="b", type="T", body=b"")])
    runtime.jump_wall_clock(7200)
    border_s = runtime.now_s() - 1
    await engine.events.append([LogEvent(id="c", type="T", body=b"")])
    records = await engine.events.read(after=0, limit=10)
    stamps = [record.appended_s for record in records]
    assert stamps == sorted(stamps)
    assert await engine.events.seq_at(since_s=border_s) == second[0].seq == first[0].seq + 1


async def test_work_is_neither_lost_nor_held_twice_when_the_clock_jumps(engine, runtime):
    await engine.queue.add([NewWork(kind="k", id="a")])
    (claim,) = await engine.queue.claim(Claimant(worker="w"), lease_s=30)
    runtime.jump_wall_clock(-3600)
    assert await engine.queue.claim(Claimant(worker="x"), lease_s=30) == []
    runtime.jump_wall_clock(7200)
    (again,) = await engine.queue.claim(Claimant(worker="x"), lease_s=30)
    assert again.token > claim.token
    assert await engine.queue.complete_many([]) == []
    await engine.queue.complete("a", token=again.token)


async def test_what_ran_out_stays_gone_when_the_clock_goes_back(engine, runtime):
    await engine.queue.add([NewWork(kind="k", id="a", attempts_max=1)])
    await engine.queue.claim(Claimant(worker="w"), lease_s=30)
    runtime.advance(31)
    assert (await engine.queue.get("a")).state == "dead"
    runtime.jump_wall_clock(-3600)
    assert (await engine.queue.get("a")).state == "dead"
