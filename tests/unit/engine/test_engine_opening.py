"""The engine that a process shares, from every loop, thread and plain function."""

import asyncio
import threading
from contextlib import aclosing

import pytest

from ringrift.coordination.coordinator_config import get_settings
from ringrift.engine.blocking import BackgroundLoop, blocking, run_blocking
from ringrift.engine.leases import NamedLease
from ringrift.engine.limits import WAIT_S_MAX
from ringrift.engine.opening import (
    close_engine,
    get_engine,
    get_engine_blocking,
    has_store,
    open_engine,
    shared_kv,
)
from ringrift.engine.sqlite.engine import open_sqlite
from ringrift.engine.sqlite.files import SqliteConfig
from ringrift.errors import ConfigError, Conflict, Unavailable
from ringrift.process import process_scope
from ringrift.runtime import SystemRuntime, system_runtime
from ringrift.settings import Settings, load_settings


@pytest.fixture
def shared(tmp_path):
    """This process's settings point at a fresh folder."""
    scope = process_scope()
    before = scope.drop(Settings)
    scope.put(Settings, load_settings({"RINGRIFT_DATA_DIR": str(tmp_path)}).settings)
    yield tmp_path
    asyncio.run(close_engine())
    loop = scope.drop(BackgroundLoop)
    if loop is not None:
        loop.close()
    scope.drop(Settings)
    if before is not None:
        scope.put(Settings, before)


def test_every_caller_gets_the_same_engine(shared):
    async def from_a_loop():
        return await get_engine()

    found = [asyncio.run(from_a_loop()), get_engine_blocking(), run_blocking(from_a_loop())]
    threads = [threading.Thread(target=lambda: found.append(get_engine_blocking())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 7
    assert len(set(map(id, found))) == 1


def test_plain_code_uses_the_engine(shared):
    engine = get_engine_blocking()
    revision = run_blocking(engine.kv.put("a", b"1"))
    assert run_blocking(engine.kv.get("a")).revision == revision


def test_a_closed_shared_engine_is_opened_anew(shared):
    run_blocking(get_engine_blocking().kv.put("a", b"1"))
    asyncio.run(close_engine())
    asyncio.run(close_engine())
    assert run_blocking(get_engine_blocking().kv.get("a")).value == b"1"


async def test_a_handle_from_before_the_store_reads_what_was_written_since(shared):
    kv = await shared_kv()
    assert await kv.entries() == []
    assert not has_store()
    await kv.put("a", b"1")
    assert (await kv.get("a")).value == b"1"
    async with aclosing(kv.watch(after=0)) as changes:
        assert (await anext(changes)).key == "a"


class WrongClock(SystemRuntime):
    """Of a process that made the store before the wall clock was set right."""

    def wall_s(self):
        return super().wall_s() + 5000


async def test_to_ask_before_there_is_a_store_does_not_settle_the_time_of_the_process(shared):
    process_scope().drop(SystemRuntime)
    assert await (await shared_kv()).get("a") is None
    made = await asyncio.to_thread(open_sqlite, SqliteConfig.from_settings(get_settings()), WrongClock())
    await made.close()
    await (await get_engine()).kv.put("a", b"1", ttl_s=10)
    (entry,) = await (await get_engine()).kv.entries("a")
    assert abs(entry.expires_s - 10 - system_runtime().now_s()) < 5


class CountedLease(NamedLease):
    tries = 0

    async def try_acquire(self):
        self.tries += 1
        return await super().try_acquire()


async def test_whoever_waits_for_a_lease_from_before_the_store_waits_for_its_holder(shared):
    mine = CountedLease(await shared_kv(), system_runtime(), "role", holder="me")
    other = NamedLease((await get_engine()).kv, system_runtime(), "role", holder="other")
    assert await other.try_acquire()
    with pytest.raises(Conflict, match="held by other"):
        await mine.acquire(wait_s=0.2)
    assert mine.tries <= 3


def test_a_blocking_call_ends_in_time(shared):
    with pytest.raises(Unavailable):
        run_blocking(asyncio.Event().wait(), timeout_s=0.05)


class Shelf:
    def __init__(self, *sizes):
        self._sizes = sizes

    async def count_async(self, *, above=0):
        return sum(size > above for size in self._sizes)

    count = blocking(count_async, timeout_s=5.0)

    @blocking(timeout_s=0.05)
    async def wait(self):
        await asyncio.Event().wait()


def test_a_method_has_a_blocking_twin_that_takes_the_same_and_ends_in_time(shared):
    assert Shelf(1, 2, 3).count(above=1) == 2
    with pytest.raises(TypeError):
        Shelf().count(below=1)
    with pytest.raises(Unavailable):
        Shelf().wait()
    assert Shelf.wait.__name__ == "wait"


def test_a_blocking_call_that_would_wait_for_itself_is_refused(shared):
    async def inner():
        return 1

    async def outer():
        run_blocking(inner())

    with pytest.raises(ConfigError, match="itself"):
        run_blocking(outer())


async def test_settings_decide_where_and_how_much(tmp_path):
    settings = load_settings(
        {
            "RINGRIFT_DATA_DIR": str(tmp_path / "d"),
            "RINGRIFT_COORDINATOR_DB": str(tmp_path / "elsewhere" / "x.db"),
            "RINGRIFT_EVENT_RETENTION_ROWS": "5",
        }
    ).settings
    engine = await open_engine(settings, SystemRuntime())
    await engine.blobs.put_bytes(b"x")
    await engine.close()
    assert (tmp_path / "elsewhere" / "x.db").exists()
    assert len(list((tmp_path / "d" / "blobs").glob("??/*"))) == 1


async def wait_for_paper(*, wait_seconds: float = 0.0) -> float:
    """Waits as long as it may, and a little for its own answer."""
    await asyncio.sleep(wait_seconds)
    return wait_seconds


def test_what_a_call_may_wait_itself_comes_on_top_of_the_time_out():
    patient = blocking(wait_for_paper, timeout_s=0.2, plus="wait_seconds")
    assert patient(wait_seconds=0.3) == 0.3
    assert patient() == 0.0
    hasty = blocking(wait_for_paper, timeout_s=0.01)
    with pytest.raises(Unavailable, match=r"no answer in 0\.01 s"):
        hasty(wait_seconds=5.0)


def test_a_wait_as_long_as_is_allowed_is_accepted_and_a_wrong_call_is_told_by_its_name():
    patient = blocking(no_paper, timeout_s=10.0, plus="wait_seconds")
    assert patient(wait_seconds=WAIT_S_MAX) == WAIT_S_MAX
    with pytest.raises(TypeError, match=r"no_paper\(\) got an unexpected keyword argument 'wait'"):
        patient(wait=1)


async def no_paper(*, wait_seconds: float = 0.0) -> float:
    return wait_seconds


@pytest.mark.parametrize("wait", [-1.0, float("nan"), "5", None])
def test_a_wait_that_is_none_is_refused_before_anything_is_asked(wait):
    patient = blocking(wait_for_paper, timeout_s=0.2, plus="wait_seconds")
    with pytest.raises(ConfigError, match="wait_seconds"):
        patient(wait_seconds=wait)
