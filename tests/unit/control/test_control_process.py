"""The control process where something on its way up does not come."""

import asyncio

import pytest

from ringrift.control.process import run_control_process
from ringrift.coordination.daemon_manager import get_daemon_manager
from ringrift.coordination.event_router import get_router
from ringrift.coordination.master_loop_guard import is_master_loop_running
from ringrift.daemons.requests import DaemonRequest, DaemonRequests, DaemonVerb
from ringrift.daemons.types import DaemonType
from ringrift.engine.opening import close_engine, get_engine
from ringrift.work.worker.local import LocalWorker


class NeverReady:
    async def run(self, *, on_ready):
        await asyncio.Event().wait()


async def test_a_stop_while_a_daemon_hangs_in_its_start_does_not_wait_for_it():
    get_daemon_manager().register_factory(DaemonType.HEALTH_SERVER, NeverReady)
    stop, started = asyncio.Event(), []
    running = asyncio.create_task(
        run_control_process(profile="standard", stop=stop, on_started=started.append)
    )
    async with asyncio.timeout(60):
        while not get_daemon_manager().is_running(DaemonType.EVENT_ROUTER):
            await asyncio.sleep(0.01)
        stop.set()
        await running
    assert started == []
    assert not any(get_daemon_manager().is_running(daemon) for daemon in DaemonType)
    assert not is_master_loop_running()


async def test_a_run_whose_workers_cannot_be_kept_alive_ends_with_the_reason(monkeypatch):
    async def broken(_worker):
        raise RuntimeError("no worker can be kept")

    monkeypatch.setattr(LocalWorker, "run", broken)
    started = []
    async with asyncio.timeout(60):
        with pytest.raises(RuntimeError, match="no worker can be kept"):
            await run_control_process(profile="minimal", stop=asyncio.Event(), on_started=started.append)
    assert started
    assert not is_master_loop_running()


async def test_a_run_whose_event_router_was_stopped_before_does_not_read_the_events_of_others():
    asked = DaemonRequest(daemon="event_router", want=DaemonVerb.STOP, by="anna", at_s=1.0)
    await DaemonRequests((await get_engine()).kv).ask(asked)
    await close_engine()
    stop, reading = asyncio.Event(), []

    def look(_started):
        reading.append(get_router().get_stats()["cross_process_polling"])
        stop.set()

    async with asyncio.timeout(60):
        await run_control_process(profile="minimal", stop=stop, on_started=look)
    assert reading == [False]
