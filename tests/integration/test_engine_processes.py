"""Several real processes on one database: waking each other, waiting for each other, taking turns."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from contextlib import contextmanager
from itertools import pairwise

import pytest

from ringrift.engine.ports import Claimant, NewWork
from ringrift.engine.sqlite.engine import open_sqlite
from ringrift.engine.sqlite.files import SqliteConfig
from ringrift.errors import Unavailable
from ringrift.runtime import SystemRuntime

PREAMBLE = """
import asyncio, os, sys, time
from pathlib import Path
from ringrift.engine.ports import Claimant, LogEvent, NewWork
from ringrift.engine.sqlite.files import SqliteConfig
from ringrift.engine.sqlite.engine import open_sqlite
from ringrift.engine.sqlite.writer import Turnstile
from ringrift.runtime import SystemRuntime
folder = Path(sys.argv[1])
config = SqliteConfig(database=folder / "engine" / "c.db", blob_dir=folder / "blobs", poll_s=30.0)
def opened():
    return open_sqlite(config, SystemRuntime())
def say(*words):
    print(*words, flush=True)
def tell(*words):
    say("told", *words)
"""


@contextmanager
def child(folder, program):
    """A process that says what it does and may be told to go on."""
    started = subprocess.Popen(
        [sys.executable, "-c", PREAMBLE + textwrap.dedent(program), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield started
    finally:
        started.kill()
        started.wait()
        started.stdin.close()
        started.stdout.close()


@pytest.fixture
async def engine(tmp_path):
    engine = await opened(tmp_path, call_wait_s=60.0)
    yield engine
    await engine.close()


@pytest.fixture
async def impatient(tmp_path):
    """An engine whose callers get `Unavailable` soon."""
    engine = await opened(tmp_path, call_wait_s=2.0)
    yield engine
    await engine.close()


async def opened(folder, *, call_wait_s):
    config = SqliteConfig(
        database=folder / "engine" / "c.db", blob_dir=folder / "blobs", call_wait_s=call_wait_s, poll_s=30.0
    )
    return await asyncio.to_thread(open_sqlite, config, SystemRuntime())


async def heard(process):
    return (await asyncio.to_thread(process.stdout.readline)).split()


CLAIMING = """
async def main():
    engine = opened()
    say("ready")
    while True:
        for claim in await engine.queue.claim(Claimant(worker="c"), lease_s=60, wait_s=60):
            say(claim.id, time.time() - claim.payload["sent_s"])
asyncio.run(main())
"""


async def test_an_item_wakes_a_waiting_process_at_once(tmp_path, engine):
    with child(tmp_path, CLAIMING) as waiting:
        assert await heard(waiting) == ["ready"]
        delays_s = []
        for number in range(10):
            await asyncio.sleep(0.03)
            await engine.queue.add([NewWork(kind="k", id=str(number), payload={"sent_s": time.time()})])
            item_id, delay_s = await heard(waiting)
            assert item_id == str(number)
            delays_s.append(float(delay_s))
    assert sorted(delays_s)[5] < 10.0  # far below any poll; the benchmark says how far


async def test_a_long_path_wakes_as_well(tmp_path):
    folder = tmp_path / ("deep" * 20) / ("er" * 30)
    folder.mkdir(parents=True)
    config = SqliteConfig(database=folder / "engine" / "c.db", blob_dir=folder / "b", poll_s=30.0)
    engine = await asyncio.to_thread(open_sqlite, config, SystemRuntime())
    with child(folder, CLAIMING) as waiting:
        assert await heard(waiting) == ["ready"]
        await asyncio.sleep(0.1)
        await engine.queue.add([NewWork(kind="k", id="x", payload={"sent_s": time.time()})])
        assert float((await heard(waiting))[1]) < 20
    await engine.close()


async def test_the_socket_of_a_dead_process_is_removed(tmp_path, engine):
    wake = tmp_path / "engine" / "c.db.wake"
    with child(tmp_path, CLAIMING) as waiting:
        await heard(waiting)
        for _ in range(3000):
            if list(wake.iterdir()):
                break
            await asyncio.sleep(0.01)
        assert len(list(wake.iterdir())) == 1
    await engine.queue.add([NewWork(kind="k")])
    for _ in range(3000):
        if not list(wake.iterdir()):
            break
        await asyncio.sleep(0.01)
    assert list(wake.iterdir()) == []


async def test_a_stopped_process_makes_others_unavailable_and_then_they_go_on(tmp_path, impatient):
    holding = """
    opened()
    with Turnstile(config.database).passed():
        say("holding")
        sys.stdin.readline()
    say("gone on")
    sys.stdin.readline()
    """
    with child(tmp_path, holding) as stopped:
        assert await heard(stopped) == ["holding"]
        os.kill(stopped.pid, signal.SIGSTOP)
        began_s = time.monotonic()
        helps = (
            rf"process {stopped.pid}, which is stopped \(`kill -CONT {stopped.pid}` lets it go on\), has held"
        )
        with pytest.raises(Unavailable, match=helps):
            await impatient.kv.put("a", b"1")
        assert 1.9 < time.monotonic() - began_s < 60
        assert await impatient.kv.get("a") is None
        os.kill(stopped.pid, signal.SIGCONT)
        stopped.stdin.write("\n")
        stopped.stdin.flush()
        assert await heard(stopped) == ["gone", "on"]
        await impatient.kv.put("b", b"1")
        assert [entry.key for entry in await impatient.kv.entries()] == ["b"]


async def test_a_killed_process_frees_its_turn_at_once(tmp_path):
    config = SqliteConfig(
        database=tmp_path / "engine" / "c.db", blob_dir=tmp_path / "blobs", call_wait_s=90.0
    )
    engine = await asyncio.to_thread(open_sqlite, config, SystemRuntime())
    holding = """
    with Turnstile(config.database).passed():
        say("holding")
        sys.stdin.readline()
    """
    with child(tmp_path, holding) as killed:
        assert await heard(killed) == ["holding"]
        writing = asyncio.create_task(engine.kv.put("a", b"1"))
        await asyncio.sleep(0.05)
        os.kill(killed.pid, signal.SIGKILL)
        await asyncio.wait_for(writing, 45)  # long before the call would give up
    await engine.close()


async def test_no_process_starves_another(tmp_path, engine):
    """Of processes that write as fast as they can, hardly one writes twice while the others wait."""
    hurry = """
    async def main():
        engine, name, number = opened(), os.getpid(), 0
        while True:
            number += 1
            await engine.events.append([LogEvent(id=f"{name}-{number}", type="T", body=b"")])
            if number == 1:
                say("ready")
    asyncio.run(main())
    """
    with child(tmp_path, hurry) as a, child(tmp_path, hurry) as b, child(tmp_path, hurry) as c:
        for process in (a, b, c):
            assert await heard(process) == ["ready"]
        begun = (await engine.events.bounds()).last
        async with asyncio.timeout(120):
            while await engine.events.wait(after=begun, timeout_s=60) < begun + 300:
                await asyncio.sleep(0.05)
    records = await engine.events.read(after=begun, limit=300)
    writers = [record.id.partition("-")[0] for record in records]
    assert set(writers) == {str(process.pid) for process in (a, b, c)}
    twice = sum(one == next_one for one, next_one in pairwise(writers))
    assert twice < len(writers) / 2, Counter(writers)


async def test_processes_that_open_a_new_folder_together_agree(tmp_path):
    program = """
    sys.stdin.readline()
    engine = opened()
    say(asyncio.run(engine.kv.put(str(os.getpid()), b"")))
    sys.stdin.readline()
    """
    folder = tmp_path / "fresh"
    folder.mkdir()
    with child(folder, program) as a, child(folder, program) as b, child(folder, program) as c:
        for process in (a, b, c):
            process.stdin.write("\n")
            process.stdin.flush()
        revisions = [int((await heard(process))[0]) for process in (a, b, c)]
        assert sorted(revisions) == [1, 2, 3]
    assert not list((folder / "engine").glob("*making*"))


async def test_putting_the_same_blob_from_two_processes_is_fine(tmp_path, engine):
    program = """
    engine = opened()
    sys.stdin.readline()
    say(asyncio.run(engine.blobs.put_bytes(bytes(3_000_000))))
    """
    with child(tmp_path, program) as a, child(tmp_path, program) as b:
        for process in (a, b):
            process.stdin.write("\n")
            process.stdin.flush()
        digests = {(await heard(process))[0] for process in (a, b)}
    assert len(digests) == 1
    await engine.blobs.verify(digests.pop())


async def test_waiting_costs_next_to_nothing(tmp_path, engine):
    idle = """
    async def main():
        engine = opened()
        waits = [
            asyncio.create_task(engine.queue.claim(Claimant(worker="c"), lease_s=60, wait_s=60)),
            asyncio.create_task(engine.events.wait(after=0, timeout_s=60)),
        ]
        begun_s = time.process_time()
        for _ in range(2_000):
            await asyncio.sleep(0)
        bare_s = time.process_time() - begun_s
        for _ in range(4):  # the first may still see the beginning of the waits
            used_s, woken = time.process_time(), switches()
            await asyncio.sleep(1.0)
            say((time.process_time() - used_s) / bare_s, switches() - woken)
    def switches():
        return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    asyncio.run(main())
    """
    with child(tmp_path, "import resource\n" + textwrap.dedent(idle)) as process:
        told = [[float(word) for word in await heard(process)] for _ in range(4)]
    assert min(ratio for ratio, _ in told) < 1, "a second of waiting costs as much as 2000 turns of a loop"
    assert min(woken for _, woken in told) < 20, "it looks again and again"


async def test_a_claimant_here_is_not_woken_by_other_topics(tmp_path, engine):
    waiting = asyncio.create_task(engine.queue.claim(Claimant(worker="c"), lease_s=60, wait_s=0.3))
    await asyncio.sleep(0.05)
    await asyncio.gather(*(engine.kv.put(str(n), b"") for n in range(50)))
    assert await waiting == []


async def test_a_forked_child_opens_its_own_and_keeps_no_lock(tmp_path, impatient):
    forking = """
    engine = opened()
    asyncio.run(engine.kv.put("parent", b""))
    turnstile = Turnstile(config.database)
    turnstile._pen.lock()
    if os.fork() == 0:
        try:
            asyncio.run(engine.kv.get("parent"))
        except Exception as error:
            say(type(error).__name__)
        sys.stdin.read()
        os._exit(0)
    sys.stdin.readline()
    """
    with child(tmp_path, forking) as parent:
        assert await heard(parent) == ["ConfigError"]
        with pytest.raises(Unavailable):
            await impatient.kv.put("a", b"1")
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        # The child lives on, and the lock of its parent is free all the same.
        await impatient.kv.put("b", b"1")


BAD_CALLS = """
async def main():
    engine = opened()
    queue, nan, inf, half = engine.queue, float("nan"), float("inf"), "x-" + chr(0xDCFF)
    await queue.add([NewWork(kind="mine", id="item")])
    (claim,) = await queue.claim(Claimant(worker="a", kinds=frozenset({"mine"})), lease_s=60)
    store = engine.kv._store  # past the checks of the ports: what a defect of ours would do
    bad = [
        queue.complete("item", token=2**70),
        queue.claim(Claimant(worker="a"), lease_s=60, limit=2**70),
        queue.fail("item", token=claim.token, error="x", retry_after_s=nan),
        queue.fail("item", token=claim.token, error=half),
        queue.add([NewWork(kind="mine", delay_s=inf)]),
        engine.kv.put("key", "text"),
        engine.kv.put(half, b""),
        engine.events.append([LogEvent(id="1", type=half, body=b"")]),
        store.write(lambda tx: tx.db.execute("SELECT ?", (2**70,))),
        store.write(lambda tx: tx.db.execute("SELECT ?", (half,))),
        store.write(lambda tx: 1 / 0),
    ]
    for call in bad:
        try:
            await call
        except Exception as error:
            tell(type(error).__name__)
        else:
            tell("accepted")
    tell("alive", engine.failure or "well")
    sys.stdin.readline()
    await queue.complete("item", token=claim.token)
    tell("done")
asyncio.run(main())
"""


async def said(process):
    """The next line that the program tells; its log stands between them."""
    while words := await heard(process):
        if words[0] == "told":
            return words[1:]
    raise AssertionError("the process has ended")


async def test_bad_calls_of_one_process_do_not_hold_up_another(tmp_path, impatient):
    with child(tmp_path, BAD_CALLS) as careless:
        for _ in range(11):
            assert await said(careless) == ["ConfigError"]
            await impatient.kv.put("b", b"1")  # within its own short time
        assert await said(careless) == ["alive", "well"]
        careless.stdin.write("\n")
        careless.stdin.flush()
        assert await said(careless) == ["done"]
    assert (await impatient.queue.get("item")).state == "done"


async def test_a_process_whose_writer_is_gone_does_not_hold_up_another(tmp_path, impatient):
    broken = """
    async def main():
        engine = opened()
        writer = engine.kv._store.writer
        def broken_round(batch):
            writer._db.execute("BEGIN IMMEDIATE")
            raise RuntimeError("a defect")
        writer._transact = broken_round
        for key in ("first", "later"):
            try:
                await engine.kv.put(key, b"")
            except Exception as error:
                tell(type(error).__name__, "a defect" in str(error), "a defect" in engine.failure)
        sys.stdin.readline()
    asyncio.run(main())
    """
    with child(tmp_path, broken) as without_writer:
        assert await said(without_writer) == ["Unavailable", "True", "True"]
        assert await said(without_writer) == ["Unavailable", "True", "True"]
        await impatient.kv.put("b", b"1")
        await impatient.queue.add([NewWork(kind="k")])
