"""From the key-value port to the page: the daemon that takes the pictures."""

import asyncio
import json

import httpx
import msgspec
import pytest

from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.daemon_manager import get_daemon_manager
from ringrift.coordination.event_router import get_router
from ringrift.daemons.types import DaemonType
from ringrift.engine.opening import close_engine, get_engine
from ringrift.engine.ports import Claimant, NewWork
from ringrift.errors import Unavailable
from ringrift.health.run_status import STATUS_KEY
from ringrift.learning.requests import Pauses
from ringrift.runtime import SystemRuntime
from ringrift.testing.sample_run import SampleRun
from ringrift.web.server import HealthServerDaemon, http_token
from ringrift.web.snapshot import FRESH_S, UNASKED_S, take_snapshot


def first_message(url):
    with httpx.stream("GET", f"{url}/events/stream", timeout=60) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                return json.loads(line.removeprefix("data: "))
    raise AssertionError("the stream ended without a word")


async def test_what_the_loop_tells_and_what_was_routed_is_in_the_picture():
    engine, router = await get_engine(), get_router()
    await router.start()
    await engine.kv.put(STATUS_KEY, msgspec.json.encode(SampleRun().status()))
    for name in ("rented-1", "rented-2"):
        await router.publish("HOST_ONLINE", {"node_id": name, "host_type": "gpu"}, "test")
    daemon, ready = HealthServerDaemon(manager=get_daemon_manager()), asyncio.Event()
    serving = asyncio.create_task(daemon.run(on_ready=ready.set))
    try:
        async with asyncio.timeout(120):
            await ready.wait()
            while not (parts := (await asyncio.to_thread(first_message, daemon.url))["parts"]):
                await asyncio.sleep(0.05)
        assert parts["config/square8_2p"]["games"] == 43_100
        assert parts["run"]["workers"] == 2
        event = next(event for event in parts["events"] if event["type"] == "HOST_ONLINE")
        assert (event["about"], event["times"]) == ("node_id rented-2, host_type gpu", 2), (
            "said twice, told once"
        )
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await router.stop()
        await close_engine()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_process_without_its_writer_is_neither_ready_nor_alive():
    engine = await get_engine()
    daemon, ready = HealthServerDaemon(manager=get_daemon_manager()), asyncio.Event()
    serving = asyncio.create_task(daemon.run(on_ready=ready.set))

    def broken_round(batch):
        raise RuntimeError("a defect")

    engine.kv._store.writer._transact = broken_round
    try:
        async with asyncio.timeout(120):
            await ready.wait()
            with pytest.raises(Unavailable):
                await engine.kv.put("a", b"1")
            for path in ("/readyz", "/livez"):
                while "a defect" not in (
                    (answer := await asked(f"{daemon.url}{path}")).json()["reason"] or ""
                ):
                    await asyncio.sleep(0.05)
                assert answer.status_code == 503
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await close_engine()


class Hurrying(SystemRuntime):
    """Every sleep is over at once, and counts."""

    slept_s = 0.0

    async def sleep(self, seconds):
        self.slept_s += seconds
        await asyncio.sleep(0)


@pytest.mark.parametrize(("watched", "between_s"), [(False, UNASKED_S), (True, FRESH_S)])
async def test_pictures_are_rare_while_nobody_looks(watched, between_s):
    runtime, shown_s = Hurrying(), []
    daemon = HealthServerDaemon(manager=get_daemon_manager(), runtime=runtime)
    board = daemon._board
    if watched:
        board.listen(lambda: None)
    show = board.show

    def noted(snapshot):
        shown_s.append(runtime.slept_s)
        show(snapshot)
        if len(shown_s) == 10:
            serving.cancel()

    board.show = noted
    serving = asyncio.create_task(daemon.run(on_ready=lambda: None))
    try:
        async with asyncio.timeout(120):
            await asyncio.gather(serving, return_exceptions=True)
        assert shown_s == pytest.approx([number * between_s for number in range(10)])
    finally:
        await close_engine()


async def asked(url):
    return await asyncio.to_thread(httpx.get, url, timeout=60)


async def test_a_pause_from_the_page_holds_what_waits_until_it_is_resumed():
    engine = await get_engine()
    await engine.kv.put(STATUS_KEY, msgspec.json.encode(SampleRun().status()))
    await engine.queue.add([NewWork(kind="train", id="waits", group="square8_2p")])
    daemon, ready = HealthServerDaemon(manager=get_daemon_manager()), asyncio.Event()
    serving = asyncio.create_task(daemon.run(on_ready=ready.set))
    worker = Claimant(worker="w")
    try:
        async with asyncio.timeout(120):
            await ready.wait()
            keys = {"authorization": f"Bearer {http_token(get_settings())}"}
            async with httpx.AsyncClient(base_url=daemon.url, headers=keys, timeout=60) as page:
                body = {"config": "square8_2p", "reason": "a look"}
                while (await page.post("/pause", json=body)).status_code != 204:
                    await asyncio.sleep(0.05)  # no picture was taken yet, so that it knows no config
                assert await engine.queue.claim(worker, lease_s=30) == []
                assert (await Pauses(engine.kv).get("square8_2p")).by == "the live page"
                assert (await page.post("/resume", json={})).status_code == 204
        assert [claim.id for claim in await engine.queue.claim(worker, lease_s=30)] == ["waits"]
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await close_engine()


async def test_a_deliberate_stop_of_a_critical_daemon_is_no_reason_to_restart_the_process():
    manager, critical = get_daemon_manager(), DaemonType.EVENT_ROUTER
    try:
        assert await manager.start(critical)
        assert manager.liveness_probe()
        assert await manager.stop(critical)
        assert not manager.liveness_probe()
        assert take_snapshot(manager, get_router(), SystemRuntime()).alive
    finally:
        await manager.shutdown()
