"""Waiting costs the same after an hour of other changes as at the start, and little while they happen."""

import asyncio
from contextlib import aclosing

import pytest

from ringrift.engine.ports import LogEvent
from ringrift.engine.sqlite.store import Store

OTHERS = 2_000
STEPS_MAX = 2_000  # of SQLite's machine for one look; walking the other keys takes ten times as many


async def test_a_watch_passes_over_what_other_keys_changed_only_once(config, opened):
    steps = []
    engine = await opened(config)
    for number in range(OTHERS):
        await engine.kv.put(f"other/{number}", b"")
    async with aclosing(engine.kv.watch("mine/", after=0)) as changes:
        waiting = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0.2)  # the first look walks them all
        for db in engine.kv._store._connections:
            db.set_progress_handler(lambda: steps.append(1), 10)
        await engine.kv.put("other/again", b"")
        await engine.kv.put("mine/one", b"1")
        async with asyncio.timeout(30):
            assert (await waiting).key == "mine/one"
    assert 10 * len(steps) < STEPS_MAX


@pytest.fixture
def reads(monkeypatch):
    """Every read of a store from here on."""
    counted = []
    begin_read = Store.begin_read

    def counting(self, query):
        counted.append(query)
        return begin_read(self, query)

    monkeypatch.setattr(Store, "begin_read", counting)
    return counted


async def test_a_watch_is_not_woken_by_keys_of_other_folders(config, opened, reads):
    here, elsewhere = await opened(config), await opened(config)
    async with aclosing(here.kv.watch("mine/", after=0)) as changes:
        waiting = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0.2)  # its first look
        reads.clear()
        for number in range(50):
            await here.kv.put(f"other/{number}", b"")
            await elsewhere.kv.put(f"another/{number}", b"")
        assert len(reads) <= 2, "those of the upkeep, if any"
        await elsewhere.kv.put("mine/one", b"1")
        async with asyncio.timeout(30):
            assert (await waiting).key == "mine/one"


@pytest.mark.parametrize("prefix", ["", "mi", "mine/a", "Mine and more/"])
async def test_a_watch_of_any_prefix_hears_of_changes_elsewhere(config, opened, prefix):
    here, elsewhere = await opened(config), await opened(config)
    async with aclosing(here.kv.watch(prefix, after=0)) as changes:
        waiting = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0.2)
        key = prefix if "and" in prefix else "mine/a"
        await elsewhere.kv.put(key + "b", b"1")
        async with asyncio.timeout(2):  # and not at its next poll
            assert (await waiting).key == key + "b"


async def test_waiting_for_events_reads_only_what_may_have_changed(config, opened, reads):
    here, elsewhere = await opened(config), await opened(config)
    assert await here.events.wait(after=0, timeout_s=0.1) == 0
    reads.clear()
    for number in range(20):
        assert await here.events.append([LogEvent(id=f"own-{number}", type="x", body=b"{}")])
        assert await here.events.wait(after=number, timeout_s=30) == number + 1
    assert not reads, "it knows what it appended itself"
    assert await here.events.wait(after=20, timeout_s=0.1) == 20
    reads.clear()
    waiting = asyncio.ensure_future(here.events.wait(after=20, timeout_s=30))
    await asyncio.sleep(0.1)
    assert not reads, "nobody has changed anything since the last look"
    await elsewhere.events.append([LogEvent(id="other", type="x", body=b"{}")])
    async with asyncio.timeout(2):
        assert await waiting == 21
