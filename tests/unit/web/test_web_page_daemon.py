"""From the key-value port to the page: the daemon that takes the pictures."""

import asyncio
import json

import httpx
import msgspec
import pytest

from ringrift.daemons.manager import get_daemon_manager
from ringrift.engine.opening import close_engine, get_engine
from ringrift.errors import Unavailable
from ringrift.events.router import get_router
from ringrift.learning.run_status import STATUS_KEY
from ringrift.testing.sample_run import SampleRun
from ringrift.web.probes import HealthServerDaemon


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
                while "a defect" not in (answer := await asked(f"{daemon.url}{path}")).json()["reason"]:
                    await asyncio.sleep(0.05)
                assert answer.status_code == 503
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await close_engine()


async def asked(url):
    return await asyncio.to_thread(httpx.get, url, timeout=60)
