"""The engine on JetStream while servers are killed, paused and cut off."""

import asyncio
import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import nats
import pytest

from nats_server import NatsServer, start_cluster
from ringrift.engine.nats.engine import open_nats
from ringrift.engine.nats.link import NatsConfig
from ringrift.engine.nats.stream import ConditionFailed, _page_of
from ringrift.engine.ports import (
    Claimant,
    Completion,
    CursorKey,
    LogEvent,
    NewWork,
    Position,
    WorkState,
    WriteGuard,
)
from ringrift.errors import AlreadyExists, ConfigError, LeaseLost, RevisionMismatch, Unavailable
from ringrift.runtime import SystemRuntime
from ringrift.testing.engine_contract import ShiftedRuntime

WORKER = Claimant(worker="w")
WHOLE_S = 30.0


def config_of(servers, folder, **options):
    urls = tuple(server.url for server in servers)
    return NatsConfig(servers=urls, blob_dir=folder / "blobs", poll_s=0.5, **options)


async def opened(config):
    return await asyncio.to_thread(open_nats, config, SystemRuntime())


async def until_answered(call, *, within_s=WHOLE_S):
    """What *call* returns once the servers take it again."""
    end_s = time.monotonic() + within_s
    while True:
        try:
            return await call()
        except Unavailable:
            assert time.monotonic() < end_s, "the servers are not whole again"
            await asyncio.sleep(0.2)


@pytest.fixture
def server():
    server = NatsServer.start()
    yield server
    server.stop()


@pytest.fixture
def servers():
    servers = start_cluster()
    yield servers
    for server in servers:
        server.stop()


async def test_what_a_killed_server_had_acknowledged_is_there_when_it_is_back(server, tmp_path):
    engine = await opened(config_of([server], tmp_path, call_wait_s=2.0))
    revision = await engine.kv.put("champion", b"net-1")
    await engine.queue.add([NewWork(kind="selfplay", id="a"), NewWork(kind="selfplay", id="b")])
    (claim,) = await engine.queue.claim(WORKER, lease_s=60)
    await engine.events.append([LogEvent(id="e", type="T", body=b"1")])
    await asyncio.to_thread(server.kill)
    with pytest.raises(Unavailable):
        await engine.kv.put("champion", b"net-2")
    server.run()
    entry = await until_answered(lambda: engine.kv.get("champion"))
    assert entry.revision >= revision  # the put that was not acknowledged may have taken effect
    await engine.queue.complete("a", token=claim.token, result={"games": 3})
    assert [(end.item.id, end.item.result) for end in await engine.queue.ended(after=0, limit=9)] == [
        ("a", {"games": 3})
    ]
    assert [each.id for each in await engine.queue.ready()] == ["b"]
    assert [each.id for each in await engine.events.read(after=0, limit=9)] == ["e"]
    await engine.close()


async def test_who_waits_goes_on_waiting_while_the_server_is_away(server, tmp_path):
    worker, producer = [await opened(config_of([server], tmp_path, call_wait_s=2.0)) for _ in range(2)]

    async def claims():
        # As a worker does: what cannot be answered is asked again.
        while True:
            with suppress(Unavailable):
                if found := await worker.queue.claim(WORKER, lease_s=60, wait_s=30):
                    return found
            await asyncio.sleep(0.1)

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        waiting = group.create_task(claims())
        await asyncio.sleep(0.3)
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(0.5)
        server.run()
        await until_answered(lambda: producer.queue.add([NewWork(kind="k", id="late")]))
    assert [claim.id for claim in waiting.result()] == ["late"]
    await worker.close()
    await producer.close()


async def test_three_servers_lose_one_and_nothing_that_was_acknowledged(servers, tmp_path):
    config = config_of(servers, tmp_path, replicas=3, call_wait_s=3.0)
    first, second = await until_answered(lambda: opened(config)), await until_answered(lambda: opened(config))
    acknowledged = {}

    async def write(name, engine, stop):
        number = 0
        while not stop.is_set():
            number += 1
            key = f"{name}/{number}"
            with suppress(Unavailable):
                await engine.kv.create(key, b"%d" % number)
                acknowledged[key] = b"%d" % number
            with suppress(Unavailable):
                await engine.queue.add([NewWork(kind="k", id=key)])
                acknowledged[f"work {key}"] = None

    stop = asyncio.Event()
    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        for name, engine in (("a", first), ("b", second)):
            group.create_task(write(name, engine, stop))
        for server in servers[:2]:
            await asyncio.sleep(1.5)
            await asyncio.to_thread(server.kill)
            before = len(acknowledged)
            while len(acknowledged) < before + 5:  # two of three are enough
                await asyncio.sleep(0.1)
            server.run()
            await asyncio.sleep(2)
        stop.set()
    for engine in (first, second):
        found = {entry.key: entry.value for entry in await until_answered(lambda e=engine: e.kv.entries())}
        items = {
            each.id
            for _, each in await until_answered(lambda e=engine: e.queue.unended(after=0, limit=10_000))
        }
        for what, value in acknowledged.items():
            if what.startswith("work "):
                assert what.removeprefix("work ") in items
            else:
                assert found[what] == value
    await first.close()
    await second.close()


# Whoever is first must be so for all, whichever server they ask and whoever leads.
async def test_one_of_many_wins_while_the_leader_of_the_stream_is_paused(servers, tmp_path):
    engines = [
        await until_answered(
            lambda server=server: opened(config_of([server], tmp_path, replicas=3, call_wait_s=3.0))
        )
        for server in servers
    ]
    winners = []

    async def acquire(name, engine, term):
        end_s = time.monotonic() + WHOLE_S
        while time.monotonic() < end_s:
            try:
                await engine.kv.create(f"leader/{term}", name.encode())
            except AlreadyExists:
                return
            except Unavailable:
                await asyncio.sleep(0.1)
                continue
            winners.append((term, name))
            return

    for term in range(4):
        paused = servers[term % 3] if term % 2 else None
        if paused is not None:
            paused.pause()
        resume = asyncio.get_running_loop().call_later(4.0, paused.go_on) if paused is not None else None
        await asyncio.gather(*(acquire(f"n{n}", engine, term) for n, engine in enumerate(engines)))
        if resume is not None:
            resume.cancel()
            paused.go_on()
    for term in range(4):
        entry = await until_answered(lambda t=term: engines[0].kv.get(f"leader/{t}"))
        told = [name for each, name in winners if each == term]
        # An answer that got lost leaves a winner who does not know it; two who know are never there.
        assert len(told) <= 1
        assert entry is not None
        assert not told or entry.value == told[0].encode()
    for engine in engines:
        await engine.close()


async def test_claims_of_two_processes_end_once_each(server, tmp_path):
    engines = [await opened(config_of([server], tmp_path)) for _ in range(3)]
    ids = await engines[0].queue.add([NewWork(kind="k") for _ in range(60)])
    done = []

    async def work(engine):
        while claims := await engine.queue.claim(WORKER, lease_s=60, limit=2):
            for claim in claims:
                await engine.queue.complete(claim.id, token=claim.token)
                done.append(claim.id)

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for engine in engines:
            group.create_task(work(engine))
    assert sorted(done) == sorted(ids)
    assert await engines[1].queue.counts() == {"k": {WorkState.DONE: 60}}
    for engine in engines:
        await engine.close()


async def test_no_server_and_a_wrong_one_are_told_apart(tmp_path):
    gone = NatsConfig(servers=("nats://127.0.0.1:9",), blob_dir=tmp_path)
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:9"):
        await opened(gone)
    with pytest.raises(ConfigError, match="replicas"):
        NatsConfig(servers=("nats://127.0.0.1:9",), blob_dir=tmp_path, replicas=2)
    with pytest.raises(ConfigError, match="server"):
        NatsConfig(servers=(), blob_dir=tmp_path)


async def test_an_update_by_an_old_revision_is_refused_over_a_restart(server, tmp_path):
    engine = await opened(config_of([server], tmp_path, call_wait_s=2.0))
    old = await engine.kv.put("a", b"1")
    new = await engine.kv.update("a", b"2", revision=old)
    await asyncio.to_thread(server.kill)
    server.run()
    with pytest.raises(RevisionMismatch):
        await until_answered(lambda: engine.kv.update("a", b"3", revision=old))
    assert await engine.kv.update("a", b"3", revision=new) > new
    await engine.close()


# A reader brings the copy of the queue up to date while a change is being decided by what it was before.
async def test_a_change_is_stored_only_on_what_it_was_decided_by(server, tmp_path, monkeypatch):
    one, other = [await opened(config_of([server], tmp_path)) for _ in range(2)]
    looks, go_on = asyncio.Event(), threading.Event()
    look = one.queue._copy.item_of_key

    async def slow_look(key):
        found = await look(key)
        loop.call_soon_threadsafe(looks.set)
        await asyncio.to_thread(go_on.wait, 20)
        return found

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(one.queue._copy, "item_of_key", slow_look)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        adding = group.create_task(one.queue.add([NewWork(kind="k", id="a", idempotency_key="x")]))
        await looks.wait()
        await other.queue.add([NewWork(kind="k", id="b")])
        reading = group.create_task(one.queue.ready())
        await asyncio.sleep(0.3)
        go_on.set()
    assert adding.result() == ["a"]
    assert {item.id for item in reading.result()} >= {"b"}
    for engine in (one, other):
        numbers = [number for number, _ in await engine.queue.unended(after=0, limit=9)]
        assert len(numbers) == len(set(numbers)) == 2
        await engine.close()


async def test_more_than_one_batch_holds_is_whole_when_nothing_fails(server, tmp_path):
    one, other = [await opened(config_of([server], tmp_path)) for _ in range(2)]
    await one.queue.add([NewWork(kind="k", id=f"{n:04d}", idempotency_key=f"k{n}") for n in range(2_500)])
    claims = []
    while len(claims) < 1_500:
        claims += await other.queue.claim(WORKER, lease_s=600, limit=1_500 - len(claims))
    done = [Completion(id=claim.id, token=claim.token) for claim in claims]
    assert await other.queue.complete_many(done) == []
    for engine in (one, other):
        assert await engine.queue.counts() == {"k": {WorkState.DONE: 1_500, WorkState.READY: 1_000}}
    ended = await one.queue.ended(after=0, limit=10_000)
    assert [each.item.id for each in ended] == [claim.id for claim in claims]
    for engine in (one, other):
        await engine.close()


async def test_one_damaged_item_does_not_stop_the_others(server, tmp_path):
    engine = await opened(config_of([server], tmp_path))
    await engine.queue.add([NewWork(kind="k", id="good"), NewWork(kind="k", id="bad", priority=9)])
    client = await nats.connect(server.url)
    await client.request("ringrift.w.i.bad", b"{ no json", timeout=5)
    await client.close()
    await engine.close()
    engine = await opened(config_of([server], tmp_path))
    (claim,) = await engine.queue.claim(WORKER, lease_s=60)
    assert claim.id == "good"
    await engine.queue.complete("good", token=claim.token)
    await engine.close()


async def test_keys_that_are_too_long_for_a_subject_are_kept_and_found(server, tmp_path):
    engine = await opened(config_of([server], tmp_path))
    key = "/".join(["\U0001f642" * 7] * 63)
    await engine.kv.put(key, b"1")
    await engine.kv.put(f"{key}x", b"2")
    for prefix in ("", key[:8], key[:200], key):
        assert [entry.key for entry in await engine.kv.entries(prefix)] == [key, f"{key}x"]
    assert (await engine.kv.get(key)).value == b"1"
    assert await engine.kv.delete(key)
    assert [entry.key for entry in await engine.kv.entries()] == [f"{key}x"]
    await engine.close()


# The servers refuse a condition while another message under it is on its way, also if it would hold.
async def test_calls_that_meet_in_a_cluster_are_tried_again_and_not_refused(servers, tmp_path):
    config = config_of(servers, tmp_path, replicas=3)
    engines = [await until_answered(lambda: opened(config)) for _ in range(3)]
    await until_answered(lambda: engines[0].kv.put("ready", b""))

    async def add(engine, name):
        for n in range(10):
            await engine.queue.add([NewWork(kind="k", id=f"{name}-{n}")])

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for name, engine in enumerate(engines):
            group.create_task(add(engine, name))
    numbers = [number for number, _ in await engines[0].queue.unended(after=0, limit=99)]
    assert len(numbers) == len(set(numbers)) == 30
    for engine in engines:
        await engine.close()


def test_a_page_with_a_hole_is_no_page():
    def message(seq, before):
        headers = {"Nats-Subject": "a", "Nats-Sequence": str(seq), "Nats-Last-Sequence": str(before)}
        return SimpleNamespace(data=b"", headers=headers)

    def end(last):
        return SimpleNamespace(
            headers={"Status": "204", "Nats-Num-Pending": "0", "Nats-Last-Sequence": str(last)}
        )

    assert _page_of([message(3, 0), message(5, 3), end(5)], after=0).seq == 5
    assert _page_of([message(3, 0), message(7, 5), end(7)], after=0) is None
    assert _page_of([message(3, 0), end(5)], after=0) is None


async def test_a_client_that_the_server_sends_away_for_good_says_so(server, tmp_path):
    engine = await opened(config_of([server], tmp_path))
    link = engine.kv._stream.link
    link.begin(link.client._process_err("'authorization violation'")).result(5)
    await asyncio.sleep(0.1)
    assert "authorization" in engine.failure
    with pytest.raises(Unavailable, match="authorization"):
        await engine.kv.get("a")
    await engine.close()


async def test_positions_that_nobody_moves_leave_with_time(server, tmp_path):
    runtime = ShiftedRuntime()
    engine = await asyncio.to_thread(open_nats, config_of([server], tmp_path), runtime)
    await engine.events.commit({CursorKey("c", "gone"): Position(0)})
    runtime.advance(31 * 86_400)
    await engine.events.commit({CursorKey("c", "there"): Position(0)})
    await engine.events.trim()
    assert await engine.events.positions("gone") == {}
    assert await engine.events.positions("there") == {"c": Position(0)}
    await engine.close()


# Its dependents are more than one batch holds, and another process changes the queue in between.
async def test_what_a_cut_change_left_waiting_is_freed_by_the_next(server, tmp_path, monkeypatch):
    engine = await opened(config_of([server], tmp_path))
    await engine.queue.add([NewWork(kind="k", id="x")])
    await engine.queue.add([NewWork(kind="k", after=("x",)) for _ in range(1_500)])
    (claim,) = await engine.queue.claim(WORKER, lease_s=600)
    write, batches = engine.queue._stream.write, []

    async def cut(*writes):
        batches.append(len(writes))
        if len(batches) == 2:
            raise ConditionFailed
        return await write(*writes)

    with monkeypatch.context() as patched:
        patched.setattr(engine.queue._stream, "write", cut)
        with pytest.raises(Unavailable, match="a part of the change is stored"):
            await engine.queue.complete("x", token=claim.token)
    await engine.queue.expire()
    assert await engine.queue.counts() == {"k": {WorkState.DONE: 1, WorkState.READY: 1_500}}
    await engine.close()


async def test_callers_that_leave_take_nobody_with_them(server, tmp_path):
    engine = await opened(config_of([server], tmp_path))

    async def leave():
        with suppress(TimeoutError):
            await asyncio.wait_for(engine.kv.put("a", b"1"), 0)

    def leave_often():
        for _ in range(20):
            asyncio.run(leave())  # its loop is gone when the answer comes

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        leaving = group.create_task(asyncio.to_thread(leave_often))
        while not leaving.done():
            await engine.kv.put("b", b"1")
    assert (await engine.kv.get("b")).value == b"1"
    await engine.close()


async def test_what_was_accepted_is_finished_when_the_engine_is_closed(server, tmp_path):
    engine = await opened(config_of([server], tmp_path))
    puts = [asyncio.ensure_future(engine.kv.put(f"k{n}", b"1")) for n in range(50)]
    await asyncio.sleep(0)
    await engine.close()
    acknowledged = {
        f"k{n}"
        for n, put in enumerate(await asyncio.gather(*puts, return_exceptions=True))
        if isinstance(put, int)
    }
    with pytest.raises(Unavailable, match="closed"):
        await engine.kv.get("k0")
    engine = await opened(config_of([server], tmp_path))
    assert (
        {entry.key for entry in await engine.kv.entries("k")} >= acknowledged == {f"k{n}" for n in range(50)}
    )
    await engine.close()


async def test_an_engine_of_the_parent_is_refused_in_a_forked_child(server, tmp_path, monkeypatch):
    engine = await opened(config_of([server], tmp_path))
    link = engine.kv._stream.link
    with monkeypatch.context() as patched:
        patched.setattr(link, "_pid", link._pid + 1)
        with pytest.raises(ConfigError, match="fork"):
            await engine.kv.get("a")
        await engine.close()  # the parent's stays as it is
    assert await engine.kv.get("a") is None
    await engine.close()


async def test_certificates_that_are_not_there_are_named(server, tmp_path):
    with pytest.raises(ConfigError, match=r"none\.pem"):
        await opened(config_of([server], tmp_path, tls_ca=tmp_path / "none.pem"))


async def test_who_lost_a_role_hears_that_before_anything_else(server, tmp_path):
    leader, other = [await opened(config_of([server], tmp_path)) for _ in range(2)]
    guard = WriteGuard("role", await leader.kv.create("role", b"me"))
    revision = await leader.kv.create("a", b"1", guard=guard)
    await leader.queue.add([NewWork(kind="k", id="x")], guard=guard)
    await other.kv.put("role", b"another")
    await other.kv.put("a", b"2")
    for refused in (
        leader.kv.update("a", b"3", revision=revision, guard=guard),
        leader.kv.create("a", b"3", guard=guard),
        leader.kv.delete("absent", guard=guard),
        leader.queue.add([NewWork(kind="k", id="x")], guard=guard),
        leader.queue.cancel("absent", reason="late", guard=guard),
    ):
        with pytest.raises(LeaseLost):
            await refused
    for engine in (leader, other):
        await engine.close()
